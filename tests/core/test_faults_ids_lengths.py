"""Ids, lengths and the tokens that stop a request."""

from __future__ import annotations

from typing import Any

import pytest
from scenario import R, alone, engine_of, play

from interlock.core import Engine, Handle, Request, SamplingParams


def request(name: str, prompt: Any = 4, tokens: int | None = 3, **sampling: Any) -> Request:
    return Request(name, prompt, SamplingParams(max_tokens=tokens, ignore_eos=True, **sampling))


def drive(engine: Engine) -> None:
    while engine.step() is not None:
        pass
    engine.audit.drained()  # type: ignore[attr-defined]


def told(handle: Handle) -> tuple[str, str | None, int]:
    assert handle.outcome is not None
    return str(handle.finish_reason), handle.outcome.reject_reason, len(handle.outcome.output_ids)


# -- duplicate ids (B73). The second is rejected on its own handle, at the next boundary.


def test_a_second_live_request_of_one_id_is_rejected_and_the_first_unharmed() -> None:
    engine = engine_of()
    first, second = engine.submit(request("x")), engine.submit(request("x", tokens=9))
    drive(engine)
    assert told(first) == ("length", None, 3) and told(second) == ("rejected", "duplicate_id", 0)
    assert first.token_ids == alone("x", R(0, 4, 3)) and second.token_ids == []


@pytest.mark.parametrize("after", [1, 2])
def test_a_duplicate_of_a_running_request_is_rejected(after: int) -> None:
    engine = engine_of()
    first = engine.submit(request("x"))
    for _ in range(after):
        engine.step()
    second = engine.submit(request("x"))
    drive(engine)
    assert told(first) == ("length", None, 3) and told(second) == ("rejected", "duplicate_id", 0)


def test_an_id_may_be_used_again_after_its_end() -> None:
    engine = engine_of()
    first = engine.submit(request("x"))
    drive(engine)
    second = engine.submit(request("x", tokens=5))
    drive(engine)
    assert told(first) == ("length", None, 3) and told(second) == ("length", None, 5)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_id_may_be_used_again_after_its_cancellation_also_at_the_same_boundary(steps: int) -> None:
    engine = engine_of()
    first = engine.submit(request("x", tokens=9))
    engine.step()
    for _ in range(steps):
        engine.step()
    answer = engine.cancel("x")
    second = engine.submit(request("x"))
    drive(engine)
    assert answer.result() is True
    assert told(first) == ("cancelled", None, steps + 1) and told(second) == ("length", None, 3)
    assert second.token_ids == alone("x", R(0, 4, 3))


def test_an_id_may_be_used_again_at_the_boundary_at_which_it_ends() -> None:
    engine = engine_of(S=1)
    first = engine.submit(request("x", tokens=1))
    engine.step()
    second = engine.submit(request("x", tokens=2))
    drive(engine)
    assert told(first) == ("length", None, 1) and told(second) == ("length", None, 2)


def test_duplicates_in_a_workload_are_rejected_one_by_one() -> None:
    engine = engine_of(R(0, 4, 3, id="x"), R(0, 4, 3, id="x"), R(1, 4, 3, id="x"), R(9, 4, 3, id="x"))
    drive(engine)
    reasons = [str(o.finish_reason) for _, o in sorted(engine.audit.outcomes.items())]  # type: ignore[attr-defined]
    assert reasons == ["length", "rejected", "rejected", "length"]


# -- empty prompts, no output, minimum outputs (B74, B75, B76)


@pytest.mark.parametrize("prompts", [(0,), (0, 0), (0, 4), (4, 0), (4, 0, 4)])
def test_an_empty_prompt_is_rejected_and_others_are_served(prompts: tuple[int, ...]) -> None:
    run = play(*[R(0, p, 4) for p in prompts])
    for i, p in enumerate(prompts):
        assert run.why(f"R{i}") == ("length" if p else "rejected: empty_prompt")


@pytest.mark.parametrize("empty", [0, []])
def test_an_empty_prompt_by_hand_is_rejected(empty: Any) -> None:
    engine = engine_of()
    handle = engine.submit(request("x", empty))
    drive(engine)
    assert told(handle) == ("rejected", "empty_prompt", 0)


@pytest.mark.parametrize("others", [0, 2])
def test_no_output_asked_is_an_end_without_tokens(others: int) -> None:
    engine = engine_of(*[R(0, 4, 2) for _ in range(others)])
    handle = engine.submit(request("x", 8, 0))
    assert list(handle) == []
    drive(engine)
    assert told(handle) == ("length", None, 0)


@pytest.mark.parametrize(("L", "p"), [(16, 8), (16, 15), (32, 1), (9, 8)])
@pytest.mark.parametrize("asked", [20, None])
def test_a_minimum_beyond_the_context_ends_by_length(L: int, p: int, asked: int | None) -> None:  # B76
    request = R(0, p, 40, min_tokens=40) if asked else {**R(0, p, 1, min_tokens=40), "max_tokens": None}
    run = play(request, L=L)
    assert run.ends == {"R0": "length"} and len(run.output("R0")) == L - p
    assert run.finished("R0") == L - p - 1


@pytest.mark.parametrize(("says", "least", "out"), [(3, 0, 3), (3, 5, 5), (3, 3, 3), (1, 4, 4), (7, 2, 7)])
def test_an_end_before_the_minimum_does_not_count(says: int, least: int, out: int) -> None:
    run = play(R(0, 4, 20, says=says, min_tokens=least))
    assert run.ends == {"R0": "stop"} and len(run.output("R0")) == out


@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_stop_token_ends_a_request_where_it_first_falls(at: int) -> None:
    whole = alone("R0", R(0, 4, 9))
    run = play(R(0, 4, 9, stop_token_ids=[whole[at]]))
    assert run.ends == {"R0": "stop"} and run.output("R0") == whole[: at + 1]


def test_a_stop_token_before_the_minimum_is_passed_over() -> None:
    whole = alone("R0", R(0, 4, 9))
    run = play(R(0, 4, 9, stop_token_ids=[whole[1], whole[5]], min_tokens=3))
    assert run.ends == {"R0": "stop"} and len(run.output("R0")) == 6


@pytest.mark.parametrize("o", [1, 2, 5])
def test_length_counts_the_tokens_that_were_delivered(o: int) -> None:
    run = play(R(0, 4, o), R(0, 4, 9, says=o))
    assert run.ends == {"R0": "length", "R1": "stop"}
    assert len(run.output("R0")) == len(run.output("R1")) == o and run.finished("R0") == o - 1
