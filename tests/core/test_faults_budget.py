"""The token budget and chunks of prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scenario import MIXED, R, play

from interlock.core import Policy

DECODE_FIRST = ("fcfs", {"mixed": {"order": "decode_first"}})


@pytest.mark.parametrize(
    ("cap", "B", "chunks"),
    [
        (16, 8, [8, 8, 4]),
        (8, 16, [8, 8, 4]),
        (0, 8, [8, 8, 4]),
        (0, 64, [20]),
        (7, 64, [7, 7, 6]),
        (20, 20, [20]),
        (1, 9, [1] * 20),
    ],
)
def test_the_smaller_of_two_caps_counts(cap: int, B: int, chunks: list[int]) -> None:  # B41; 0 is no limit, as in vLLM
    run = play(R(0, 20, 1), B=B, long_prefill_token_threshold=cap)
    assert list(run.ran("R0").values()) == chunks


def test_what_a_cap_leaves_of_the_budget_goes_to_others() -> None:  # B41
    run = play(R(0, 20, 1), R(0, 20, 1), B=16, long_prefill_token_threshold=8)
    assert run.steps[0] == {"R0": 8, "R1": 8}


def test_a_long_prompt_does_not_keep_the_next_from_the_rest_of_the_budget() -> None:  # B49: 64 + 64 tokens, chunks of 8
    run = play(R(0, 64, 1), R(0, 64, 1), B=16, L=128, long_prefill_token_threshold=8)
    assert run.steps[0] == {"R0": 8, "R1": 8}
    assert run.finished("R0") == run.finished("R1") == 7


@pytest.mark.parametrize("B", [1, 2, 4, 5])
def test_decodes_stay_within_the_budget(B: int) -> None:
    # B43: rows are served in the order of their admission, so that the first B run in steps 0 to 5, the next B after
    # them.
    run = play(*[R(0, 1, 6) for _ in range(6)], B=B)
    for i in range(6):
        assert list(run.ran(f"R{i}")) == list(range(6 * (i // B), 6 * (i // B) + 6))


class RoundRobin(Policy):
    """Who had a token longest ago is served first."""

    def select(self, plan: Any, view: Any) -> None:
        plan.sort_by(np.nan_to_num(view.last_token_s, nan=-1.0))


@pytest.mark.parametrize(("rows", "B", "gap"), [(6, 4, 2), (8, 4, 2), (7, 2, 4), (5, 5, 1)])
def test_a_round_robin_serves_everybody_in_turn(rows: int, B: int, gap: int) -> None:  # B43
    run = play(*[R(0, 1, 6) for _ in range(rows)], B=B, stack=(*MIXED, RoundRobin()))
    for i in range(rows):
        assert max(np.diff(list(run.ran(f"R{i}")))) <= gap


class Shrink(Policy):
    """From step 1 on, so many tokens for the batch."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens

    def select(self, plan: Any, view: Any) -> None:
        if view.step:
            plan.budget(self.tokens)


@pytest.mark.parametrize("tokens", [3, 6, 7, 9])
def test_a_prompt_behind_more_decodes_than_the_budget_gets_nothing_and_goes_on_later(tokens: int) -> None:
    # B46. Step 0: half of the prompt of 8 and six prompts of 1 fill the budget of 10. Then decodes go first.
    run = play(
        R(0, 8, 1, id="P"), *[R(0, 1, 8, id=f"D{i}") for i in range(6)],
        B=10, long_prefill_token_threshold=4, stack=(*DECODE_FIRST, Shrink(tokens)),
    )  # fmt: skip
    assert run.steps[0] == {"P": 4, **{f"D{i}": 1 for i in range(6)}}
    assert all(sum(run.steps[step].values()) <= tokens for step in run.steps if step)
    # With 3 tokens the six decodes take two steps for a token each, until step 14, the seventh pair; with 6, until
    # step 7; with 7 and 9 there are 1 and 3 a step for P. In step 15 there are 3 tokens for P, and 1 in step 16.
    expected = {3: {0: 4, 15: 3, 16: 1}, 6: {0: 4, 8: 4}, 7: {0: 4, 1: 1, 2: 1, 3: 1, 4: 1}, 9: {0: 4, 1: 3, 2: 1}}
    assert run.ran("P") == expected[tokens]


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 16])
def test_chunks_advance_where_nothing_is_cached(chunk: int) -> None:
    # B48: `computed` goes up by the chunk, blocks follow, nothing is put into the index.
    stands: list[tuple[int, int]] = []

    def note(engine: Any, record: Any) -> None:
        row = engine.state.rows.get("R0")
        if row is not None:
            stands.append((int(engine.state.table.computed[row]), engine.state.pool.cached))

    run = play(R(0, 16, 2), N=6, long_prefill_token_threshold=chunk, at=note)
    starts = list(range(0, 16, chunk))
    assert stands == [(start, 0) for start in [*starts, 16]]
    assert list(run.used.values()) == [-(-min(start + chunk, 16) // 4) for start in starts] + [5]


class Forget(Policy):
    """Nothing is kept for reuse."""

    def release(self, retention: Any, view: Any) -> None:
        retention.drop(np.ones(view.capacity, bool))


def test_what_a_policy_drops_is_not_cached() -> None:  # B48: the nearest there is to a request's own "do not insert"
    prompt = list(range(1, 17))
    run = play(R(0, prompt, 2), R(5, prompt, 2), N=6, caching=True, stack=(*MIXED, Forget()))
    idle = next(r.counts for r in run.records if round(r.time_s) == 2)
    assert (idle.cached_blocks, idle.used_blocks) == (0, 0)
    assert run.outcomes["R1"].cached_tokens == 0
