"""The simulated model's tokens: a fixed function of prompt and position, and ends where they are expected."""

from __future__ import annotations

import numpy as np
import pytest

from interlock.core.request import VOCABULARY, Request, SamplingParams, SyntheticPrompt
from interlock.executors.simulated.rows import EOS, NEVER, Rows, digest_of, end_of

MASK = 2**64 - 1


def splitmix(x: int) -> int:
    """SplitMix64 (Steele, Lea and Flood 2014) over Python integers."""
    z = (x + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def said(request: Request, positions: list[int], output: int | None = None) -> list[int]:
    """Tokens of this request at output positions, asked for one by one."""
    rows = Rows()
    rows.add(0, 0, request, output)
    at = [np.array([request.prompt_tokens + i]) for i in positions]
    return [int(rows.tokens(np.array([0]), position, 1)[0, 0]) for position in at]


def test_splitmix_golden_value() -> None:
    # First output of the reference implementation seeded with 0.
    assert splitmix(0) == 0xE220A8397B1DCDAF


def test_digest_and_tokens_by_hand() -> None:
    digest = splitmix((splitmix(0) * 5 + splitmix(1) * 7 & MASK) ^ 2)
    assert digest_of(np.array([5, 7], np.int32)) == digest
    by_hand = [1 + ((splitmix(digest + i & MASK) >> 32) * (VOCABULARY - 1) >> 32) for i in range(4)]
    assert said(Request("a", [5, 7]), [0, 1, 2, 3]) == by_hand


def test_equal_prompts_give_equal_tokens_however_they_are_written() -> None:
    ids = SyntheticPrompt.of("a", 33).token_ids()
    forms = [Request("a", 33), Request("b", ids), Request("c", ids.tolist()), Request("d", SyntheticPrompt.of("a", 33))]
    assert len({tuple(said(request, list(range(20)))) for request in forms}) == 1


def test_other_prompts_give_other_tokens() -> None:
    prompts = [[1, 2, 3], [3, 2, 1], [1, 2], [1, 2, 3, 0]]
    assert len({tuple(said(Request("a", prompt), list(range(4)))) for prompt in prompts}) == 4


def test_tokens_are_spread_over_the_vocabulary_without_eos() -> None:
    tokens = np.array(said(Request("a", 8), list(range(4000))))
    assert tokens.min() >= 1 and tokens.max() < VOCABULARY
    assert len(np.unique(tokens)) > 3700  # 4000 draws of 31,999: 3,758 expected
    assert tokens.mean() == pytest.approx(VOCABULARY / 2, rel=0.03)


@pytest.mark.parametrize(
    ("output", "sampling", "end"),
    [
        (5, SamplingParams(), 4),
        (1, SamplingParams(), 0),
        (0, SamplingParams(), 0),
        (5, SamplingParams(min_tokens=5), 4),
        (5, SamplingParams(min_tokens=9), 8),
        (5, SamplingParams(ignore_eos=True), NEVER),
        (5, SamplingParams(ignore_eos=True, min_tokens=9), NEVER),
        (None, SamplingParams(min_tokens=9), NEVER),
    ],
)
def test_where_an_answer_ends(output: int | None, sampling: SamplingParams, end: int) -> None:
    assert end_of(Request("a", 4, sampling), output) == end
    tokens = said(Request("a", 4, sampling), list(range(12)), output)
    assert (tokens.index(EOS) if EOS in tokens else NEVER) == end


def test_a_row_may_change_its_owner() -> None:
    rows = Rows()
    rows.add(3, 7, Request("a", 4, SamplingParams(stop_token_ids=(1, 2, 3))), 1)
    assert rows.forget(3) == 7
    assert rows.forget(3) is None
    rows.add(3, 8, Request("b", 6), None)
    assert rows.tokens(np.array([3]), np.array([6]), 1).tolist() == [said(Request("b", 6), [0])]
    assert rows.stopped(np.array([3]), np.array([[1], [2]])) == 2
