"""A cancellation in every state, from every side, at every point of a boundary: one end, and nothing left behind.

The audit of `pressure` sees a second end, a token after it, or a block, slot, host block or row that stays.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import lru_cache
from typing import Any

import pytest
from pressure import MODES, by_priority, engine_of, run
from scenario import R, alone

from interlock.core import Engine, Policy, Request, RequestStatus, SamplingParams, WorkKey

# Two slots are fought for by four priorities, blocks are short, and H2 finds yielded blocks in its way. A looped model
# takes about three times as many batches.
JOBS = [
    (0, 9, 4, 9, "L1"),
    (0, 6, 3, 8, "L2"),
    (1, 8, 3, 5, "M"),
    (2, 10, 2, 0, "H1"),
    (4, 12, 2, 1, "H2"),
    (5, 9, 2, 9, "W"),
]
SHAPES: dict[str, dict[str, Any]] = {
    "dense": {"loops": 1, "N": 8, "S": 2, "stack": ("mixed",), "B": 7},
    "looped, split": {"loops": 3, "exits": [3, 1, 2], "split": True, "N": 5, "S": 2, "stack": ("mixed",), "B": 7},
    "looped, atomic": {"loops": 3, "exits": [3, 1, 2], "N": 6, "S": 2, "stack": ("refill",), "B": 7},
}
REQUESTS = {
    shape: [R(at * (1 if shape == "dense" else 3), *size, priority, id=name) for at, *size, priority, name in JOBS]
    for shape in SHAPES
}
NAMES = [name for *_, name in JOBS]
PHASES = ("planned", "submitted", "running", "applied", "admitted", "preempted", "observed")


class Trigger(Policy):
    """Cancels a request at a phase of a step, from inside the boundary; is an observer, too."""

    def __init__(self, phase: str, step: int, name: str) -> None:
        super().__init__()
        self.phase, self.step, self.victim = phase, step, name
        self.engine: Engine | None = None
        self.answer: Future[bool] | None = None

    def now(self, phase: str, step: int) -> None:
        """If this is the moment, cancel."""
        if (phase, self.answer) == (self.phase, None) and step >= self.step and self.engine is not None:
            self.answer = self.engine.cancel(self.victim)

    def select(self, plan: Any, view: Any) -> None:
        self.now("planned", view.step)

    def on_batch(self, batch: Any, view: Any) -> None:
        self.now("submitted", batch.step)

    def on_result(self, rows: Any, computed: Any, emitted: Any, view: Any) -> None:
        self.now("applied", view.step - 1)

    def on_admitted(self, rows: Any, view: Any) -> None:
        self.now("admitted", view.step)

    def on_preempted(self, rows: Any, modes: Any, view: Any) -> None:
        self.now("preempted", view.step)


class Watcher:
    """The observer's side of a trigger."""

    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger

    def on_boundary(self, record: Any) -> None:
        self.trigger.now("observed", record.step)


def state_of(engine: Engine, name: str) -> tuple[str, str, bool] | None:
    """(status, or what a preempted one keeps; work; whether it was ever admitted). None for who is not there."""
    row = engine.state.rows.get(name)
    if row is None:
        return None
    table = engine.state.table
    status = RequestStatus(int(table.status[row])).name
    if status == "WAITING" and table.admitted_ns[row] >= 0:
        status = "HOST" if table.host[row] else "RESIDENT" if table.blocks[row] else "DROPPED"
    return status, WorkKey(int(table.work[row])).name, bool(table.admitted_ns[row] >= 0)


def shaped(shape: str, mode: str, *more: Policy, **config: Any) -> dict[str, Any]:
    """The settings of a shape."""
    settings = {**SHAPES[shape], **config}
    return {**settings, "stack": (*by_priority(mode, *settings["stack"]), *more)}


@lru_cache
def steps_of(shape: str, mode: str) -> int:
    """How many batches the load takes when nobody cancels."""
    return len(run(engine_of(*REQUESTS[shape], **shaped(shape, mode))).steps)


# -- from inside: hooks, events, the executor, observers


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_cancellation_at_every_phase(shape: str, mode: str, phase: str) -> None:
    """From some steps on (all of them in the next test), of each request in turn."""
    steps, first = steps_of(shape, mode), 2 * PHASES.index(phase) + MODES.index(mode)
    for at, step in enumerate(range(first % 5, steps, max(steps // 5, 1))):
        cancel_at(shape, mode, phase, step, NAMES[(at + first) % len(NAMES)])


@pytest.mark.soak
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_cancellation_of_everybody_at_every_phase_of_every_step(shape: str, mode: str, phase: str) -> None:
    for step in range(steps_of(shape, mode) + 1):
        for name in NAMES:
            cancel_at(shape, mode, phase, step, name)


def cancel_at(shape: str, mode: str, phase: str, step: int, name: str) -> None:
    """One run with one cancellation, answered truly: True when it ended the request, False when that had ended."""
    trigger = Trigger(phase, step, name)
    engine = engine_of(*REQUESTS[shape], **shaped(shape, mode, trigger, observers=[Watcher(trigger)]))
    trigger.engine = engine
    engine.executor.on_collect = lambda: trigger.now("running", engine.state.step - 1)  # type: ignore[attr-defined]
    done = run(engine)
    cancelled = done.ends[name] == "cancelled"
    assert cancelled == (trigger.answer is not None and trigger.answer.done() and trigger.answer.result())
    for request in REQUESTS[shape]:
        said, own, other = done.output(request["id"]), alone(request["id"], request), request["id"] != name
        assert done.ends[request["id"]] == "length" or not other
        assert said == (own if other or not cancelled else own[: len(said)])


# -- from outside, in every state: between two boundaries, from the feed, by a timer


@lru_cache
def states(shape: str, mode: str) -> dict[tuple[str, str, bool], tuple[int, str]]:
    """Each state that occurs between two boundaries, with the first (boundary, request) at which it does."""
    engine, found, at = engine_of(*REQUESTS[shape], **shaped(shape, mode)), {}, 0
    while engine.step() is not None:
        at += 1
        for name in NAMES:
            state = state_of(engine, name)
            if state is not None:
                found.setdefault(state, (at, name))
    return found


DENSE_WORK = {"PROMPT_ATOMIC", "DECODE_ATOMIC"}
SPLIT_WORK = {"PROMPT_PRELUDE", "PROMPT_RECURRENT", "DECODE_PRELUDE", "DECODE_RECURRENT", "DECODE_CODA"}
ATOMIC_WORK = {"PROMPT_ATOMIC", "DECODE_PRELUDE", "DECODE_RECURRENT", "DECODE_CODA"}
WORK = {"dense": DENSE_WORK, "looped, split": SPLIT_WORK, "looped, atomic": ATOMIC_WORK}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_load_reaches_every_state(shape: str) -> None:
    found = [state for mode in MODES for state in states(shape, mode)]
    assert {work for status, work, _ in found if status == "ACTIVE"} == WORK[shape]
    assert {status for status, _, _ in found} >= {"WAITING", "ACTIVE", "RESIDENT", "HOST", "DROPPED"}
    kept = {work for status, work, _ in found if status in ("RESIDENT", "HOST")}
    assert len(kept) >= 2, "work of several kinds is interrupted"


@pytest.mark.parametrize("host", [100, 0])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_cancellation_between_boundaries_in_every_state(shape: str, mode: str, host: int) -> None:
    for at, name in states(shape, mode).values():
        engine = engine_of(*REQUESTS[shape], **shaped(shape, mode, host=host))
        for _ in range(at):
            engine.step()
        answer = engine.cancel(name)
        row = engine.state.rows.get(name)
        done = run(engine)
        assert row is None or answer.result() == (done.ends[name] == "cancelled")
        assert all(done.ends[other] == "length" for other in NAMES if other != name)


@pytest.mark.parametrize("key", ["cancel_at", "timeout_s", "cancel_at_step"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_cancellation_by_the_feed_or_a_timer_in_every_state(shape: str, mode: str, key: str) -> None:
    said = "timeout" if key == "timeout_s" else "cancelled"
    third = ("cancel_at", "timeout_s", "cancel_at_step").index(key)
    for at, name in list(states(shape, mode).values())[third::3]:
        # A time-out counts from the arrival.
        value: Any = at if key == "cancel_at_step" else float(at)
        requests = [
            {**r, key: max(value - (r["arrival"] if key == "timeout_s" else 0), 1)} if r["id"] == name else r
            for r in REQUESTS[shape]
        ]
        done = run(engine_of(*requests, **shaped(shape, mode)))
        assert done.ends[name] in (said, "length")
        assert {end for other, end in done.ends.items() if other != name} == {"length"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_cancelling_everybody_at_once_leaves_nothing_at_any_boundary(shape: str, mode: str) -> None:
    for at in range(0, steps_of(shape, mode), 1 if shape == "dense" else 7):
        engine = engine_of(*REQUESTS[shape], **shaped(shape, mode))
        for _ in range(at):
            engine.step()
        live = list(engine.state.rows)
        answers = {name: engine.cancel(name) for name in live}
        twice = {name: engine.cancel(name) for name in live}
        engine.step()
        assert all(answers[name].result() != twice[name].result() or not answers[name].result() for name in live)
        assert not any(second.result() for second in twice.values()), "what is gone cannot be cancelled again"
        run(engine)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_id_of_a_cancelled_request_may_be_used_again_at_once(shape: str, mode: str) -> None:
    for at, name in list(states(shape, mode).values())[:6]:
        engine = engine_of(*REQUESTS[shape], **shaped(shape, mode))
        for _ in range(at):
            engine.step()
        engine.cancel(name)
        handle = engine.submit(Request(name, 7, SamplingParams(max_tokens=3, ignore_eos=True)))
        audit = engine.audit  # type: ignore[attr-defined]
        while engine.step() is not None:
            pass
        audit.drained()
        assert handle.token_ids == alone(name, R(0, 7, 3)), "nothing late of the old one reaches the new one"
