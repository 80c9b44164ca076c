"""Cancellations and time-outs: in every state, at every moment, exactly one end, nothing left behind."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from scenario import MIXED, URGENT, R, engine_of, play

from interlock.core import Policy, Request, SamplingParams


def ends(engine: Any) -> dict[str, str]:
    """Run to the end: how everybody ended."""
    while engine.step() is not None:
        pass
    engine.audit.drained()
    return {outcome.request_id: str(outcome.finish_reason) for outcome in engine.audit.outcomes.values()}


def request(name: str, prompt: int = 4, tokens: int = 5, **more: Any) -> Request:
    return Request(name, prompt, SamplingParams(max_tokens=tokens, ignore_eos=True), **more)


class At(Policy):
    """Calls a function at a phase of a step."""

    def __init__(self, phase: str, step: int, call: Any) -> None:
        super().__init__()
        self.phase, self.step, self.call = phase, step, call

    def select(self, plan: Any, view: Any) -> None:
        if (self.phase, self.step) == ("planned", view.step):
            self.call()

    def on_batch(self, batch: Any, view: Any) -> None:
        if (self.phase, self.step) == ("submitted", batch.step):
            self.call()

    def on_result(self, rows: Any, computed: Any, emitted: Any, view: Any) -> None:
        if (self.phase, self.step) == ("applied", view.step - 1):
            self.call()


@pytest.mark.parametrize(
    ("phase", "mode"), list(itertools.product(["planned", "submitted", "running", "applied"], ["fcfs", "mixed"]))
)
def test_a_cancellation_at_any_phase_of_a_step_ends_it_once_and_the_step_goes_on(phase: str, mode: str) -> None:  # B66
    answers: list[Any] = []
    policy = At(phase, 3, lambda: answers.append(engine.cancel("R0")))
    engine = engine_of(R(0, 4, 9), R(0, 4, 9), stack=(*MIXED[: 1 + (mode == "mixed")], policy))
    if phase == "running":
        engine.executor.on_collect = lambda: answers or engine.state.step != 4 or answers.append(engine.cancel("R0"))  # type: ignore[attr-defined]
    assert ends(engine) == {"R0": "cancelled", "R1": "length"}
    assert [answer.result() for answer in answers] == [True]
    outcome = next(o for o in engine.audit.outcomes.values() if o.request_id == "R0")  # type: ignore[attr-defined]
    # Steps 0 to 3 each gave a token, the last of them before the cancellation was read, at the boundary that follows.
    assert len(outcome.output_ids) == 4 and outcome.finished_ns == 4 * 10**9


def test_cancel_all_reaches_running_waiting_and_preempted_requests() -> None:
    # B68: one slot. R2 runs from 0, gives way to R0 at 2; R1 has never run.
    requests = [R(2, 4, 20, 0, cancel_at=5.0), R(0, 4, 20, 9, cancel_at=5.0), R(0, 4, 20, 8, cancel_at=5.0)]
    run = play(*requests, S=1, stack=URGENT)
    assert run.preempted == {2: ["R2"]}
    assert run.ends == dict.fromkeys(("R0", "R1", "R2"), "cancelled")
    assert {outcome.finished_ns for outcome in run.outcomes.values()} == {5 * 10**9}
    assert run.reasons("R2") == ["arrived", "admitted", "recompute", "cancelled"], "nobody is resumed to be dropped"
    assert max(run.steps) == 4


@pytest.mark.parametrize("at", range(1, 7))
def test_a_cancelled_request_says_no_more_than_what_was_collected(at: int) -> None:  # B70
    run = play(R(0, 4, 50, cancel_at=float(at)), R(0, 4, 8))
    assert len(run.output("R0")) == at and run.outcomes["R0"].finished_ns == at * 10**9
    assert run.ends["R1"] == "length"


def test_nothing_to_cancel_is_said_so() -> None:  # B70
    engine = engine_of(R(0, 4, 50), R(0, 4, 8))
    for _ in range(4):
        engine.step()
    first = engine.cancel("R0")
    engine.step()
    again, unknown = engine.cancel("R0"), engine.cancel("nobody")
    engine.step()
    assert (first.result(), again.result(), unknown.result()) == (True, False, False)
    assert ends(engine) == {"R0": "cancelled", "R1": "length"}


def test_two_cancellations_at_one_boundary_end_it_once() -> None:
    engine = engine_of(R(0, 4, 50), R(0, 4, 3))
    engine.step()
    answers = [engine.cancel("R0") for _ in range(2)]
    assert ends(engine) == {"R0": "cancelled", "R1": "length"}
    assert [answer.result() for answer in answers] == [True, False]


def test_a_request_may_be_cancelled_right_after_it_was_submitted() -> None:
    engine = engine_of(R(0, 4, 2))
    handle = engine.submit(request("x"))
    answer = engine.cancel("x")
    assert ends(engine) == {"R0": "length", "x": "cancelled"}
    assert answer.result() is True and handle.token_ids == []


def test_a_request_that_is_still_to_arrive_may_be_cancelled() -> None:
    engine = engine_of(R(0, 4, 3))
    handle = engine.submit(request("x", arrival=2.0))
    engine.step()
    answer = engine.cancel("x")
    assert ends(engine)["x"] == "cancelled"
    assert answer.result() is True and handle.token_ids == []


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("at", range(12))
def test_cancelling_under_pressure_frees_what_was_held(at: int, caching: bool) -> None:
    requests = [R(0, 8, 6), R(0, 7, 6, cancel_at=float(at)), R(1, 9, 3)]
    run = play(*requests, N=5, S=3, caching=caching)
    assert run.ends["R0"] == run.ends["R2"] == "length"


@pytest.mark.parametrize("timeout", [1.0, 2.5, 6.0])
def test_a_time_out_ends_a_request_in_every_state(timeout: float) -> None:
    # One runs and one waits. The end is told at the first boundary at or after the time: timers tick with the batches.
    run = play(R(0, 4, 30, timeout_s=timeout), R(0, 4, 30, timeout_s=timeout), S=1)
    assert run.ends == {"R0": "timeout", "R1": "timeout"}
    assert {o.finished_ns for o in run.outcomes.values()} == {-(-timeout // 1) * 10**9}


def test_who_ends_in_time_is_not_timed_out() -> None:
    run = play(R(0, 4, 3, timeout_s=3.0), R(0, 4, 3, timeout_s=9.0))
    assert run.ends == {"R0": "length", "R1": "length"}


def test_a_boundary_number_may_name_the_cancellation() -> None:
    run = play(R(0, 4, 30, cancel_at_step=4), R(0, 4, 6))
    assert run.ends == {"R0": "cancelled", "R1": "length"} and max(run.ran("R0")) == 3


def test_a_cancelled_row_passes_to_another_and_nothing_late_reaches_it() -> None:
    # The slot, the row and the blocks of the cancelled request are the next one's at the same boundary.
    run = play(R(0, 16, 5, cancel_at=2.0), R(0, 16, 3), N=5, S=1)
    assert run.started("R1") == 2 and run.ends == {"R0": "cancelled", "R1": "length"}
    assert run.outcomes["R1"].admitted_ns == 2 * 10**9
