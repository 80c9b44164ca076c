"""Requests that can never fit, and the arithmetic of what they need: prompt + output - 1 tokens of KV."""

from __future__ import annotations

import pytest
from scenario import MIXED, R, play

POOLS = [(4, 8), (1, 5), (16, 3), (8, 2)]


@pytest.mark.parametrize("stack", [("fcfs",), MIXED, ({"priority": {}}, "mixed")])
@pytest.mark.parametrize(("bs", "N"), POOLS)
def test_what_can_never_fit_is_rejected_at_the_door_and_blocks_nobody(bs: int, N: int, stack: tuple) -> None:  # B01
    tokens = bs * N
    run = play(R(0, tokens + 1, 1), R(0, 4, 2), bs=bs, N=N, S=4, stack=stack)
    assert run.why("R0") == f"rejected: never_fits: needs {N + 1} blocks, the pool has {N}"
    assert run.reasons("R0") == ["rejected"], "it never waits"
    assert run.finished("R1") == 1


@pytest.mark.parametrize(("bs", "N"), POOLS)
def test_what_fits_exactly_runs(bs: int, N: int) -> None:  # B01
    run = play(R(0, bs * N, 1), bs=bs, N=N)
    assert run.first_token("R0") == 0 and run.ends == {"R0": "length"}


def test_a_rejection_takes_no_place_in_the_queue() -> None:  # B01
    run = play(R(0, 4, 9), R(1, 33, 1), R(1, 4, 1), N=8, S=1, max_waiting=1)
    assert run.ends == {"R0": "length", "R1": "rejected", "R2": "length"}


@pytest.mark.parametrize("reserve", ["none", "prompt", "full"])
@pytest.mark.parametrize("p", range(29, 38))
def test_every_configured_block_is_usable(
    p: int, reserve: str
) -> None:  # B02: nothing is set aside, 8 blocks are 32 tokens
    run = play(R(0, p, 1), N=8, reserve=reserve)
    assert run.ends["R0"] == ("length" if p <= 32 else "rejected")


def test_with_nobody_active_the_watermark_is_usable() -> None:  # B02
    run = play(R(0, 32, 1), R(0, 4, 1), N=8, watermark=0.5)
    assert (run.started("R0"), run.started("R1")) == (0, 1)


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("p", range(1, 13))
def test_blocks_follow_the_tokens_at_every_length(p: int, caching: bool) -> None:  # B06
    for o in range(1, 6):
        run = play(R(0, p, o), N=8, S=1, caching=caching)
        # After step k the context has p + k tokens of KV: the last token said has none yet.
        assert run.used == {k: -(-(p + k) // 4) for k in range(o)}


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("p", range(1, 13))
def test_two_of_a_kind_at_every_length(p: int, caching: bool) -> None:  # B06: 2 x 4 blocks at the peak
    prompt = list(range(1, p + 1))
    for o in range(1, 6):
        run = play(R(0, prompt, o), R(0, prompt, o), N=8, S=2, caching=caching)
        assert run.output("R0") == run.output("R1") and not run.preempted
        assert sorted(run.steps) == list(range(o)), "no step without tokens while work exists"


@pytest.mark.parametrize("reserve", ["none", "prompt", "full"])
@pytest.mark.parametrize(("bs", "N", "p"), [(4, 4, 13), (4, 4, 4), (4, 4, 16), (3, 5, 7), (16, 1, 2)])
def test_the_last_token_needs_no_room(bs: int, N: int, p: int, reserve: str) -> None:  # B07
    o = bs * N - p + 1  # p + o - 1 == bs * N
    run = play(R(0, p, o), bs=bs, N=N, reserve=reserve)
    assert run.ends["R0"] == "length" and len(run.output("R0")) == o and max(run.used.values()) == N
    assert play(R(0, p, o + 1), bs=bs, N=N, reserve=reserve).ends == {"R0": "rejected"}


def test_the_context_bounds_what_is_needed() -> (
    None
):  # B07: of 100 tokens asked, 17 - 13 fit the context: 16 of KV, 4 blocks
    run = play(R(0, 13, 100), N=4, L=17, reserve="full")
    assert run.ends == {"R0": "length"} and len(run.output("R0")) == 4


@pytest.mark.parametrize(("p", "end"), [(15, "length"), (16, "rejected"), (17, "rejected")])
def test_a_prompt_leaves_room_for_one_token_of_context(p: int, end: str) -> None:
    run = play(R(0, p, 5), L=16)
    assert run.ends == {"R0": end} and len(run.output("R0")) == (16 - p if p < 16 else 0)
