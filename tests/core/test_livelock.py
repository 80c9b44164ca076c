"""The livelock of priority, split prompts and preemption, and every small load: all drain without force.

Where a run does not drain, `LivelockError` ends it: under `on_violation: raise` no rescue hides it.
"""

from __future__ import annotations

from typing import Any

import pytest
from pressure import MODES, by_priority, forced, load, looped_settings, play, story
from scenario import MIXED, R

LOOPED_STACKS = ((), ("mixed",), ("refill",), ("no_refill",))


# -- looped-models.md, 3: the smallest case found


SMALLEST = {"S": 1, "N": 6, "bs": 4, "loops": 4, "progress_window": 40}


@pytest.mark.parametrize("more", LOOPED_STACKS[1:], ids="+".join)
@pytest.mark.parametrize("at", [0, 1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("mode", MODES)
def test_an_urgent_request_takes_the_only_slot_in_the_middle_of_a_chunk(mode: str, at: int, more: tuple) -> None:
    # Each prompt needs all six blocks. H comes while L is at depth `at` - 1 of its only chunk: L gives up slot and
    # blocks in one commit, H runs to its end (prelude, four loops, coda), and then L does. Without progress in the
    # middle L would take its slot back for ever (752 preludes and 2 loops elsewhere).
    low, high = R(0, 24, 1, 10, id="L"), R(at, 24, 1, 0, id="H")
    run = play(low, high, stack=by_priority(mode, *more), split=True, **SMALLEST)
    work = ["PROMPT_PRELUDE", *["PROMPT_RECURRENT"] * 4, "DECODE_CODA"]
    assert [key for _, key, _, _ in story(run, "H")] == work, "whoever is urgent is never interrupted"
    assert forced(run) == 0 and (run.finished("H") < run.finished("L") or at == 6)
    assert run.outcomes["L"].preemptions == (1 if 0 < at < 6 else 0)
    if mode == "recompute":
        lost = work[:at] if 0 < at < 6 else []
        assert [key for _, key, _, _ in story(run, "L")] == lost + work
    else:
        # Offloaded (a yield turns): the chunk keeps its depth, so L runs each of its pieces once.
        assert [key for _, key, _, _ in story(run, "L")] == work


@pytest.mark.parametrize("at", [0, 1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_the_same_with_atomic_prompts(mode: str, at: int) -> None:
    # L's prompt is one batch and its coda another; H comes before, between, with or after them.
    run = play(R(0, 24, 1, 10, id="L"), R(at, 24, 1, 0, id="H"), stack=by_priority(mode, "refill"), **SMALLEST)
    assert [key for _, key, _, _ in story(run, "H")] == ["PROMPT_ATOMIC", "DECODE_CODA"]
    again = mode == "recompute" and at == 1  # the one moment at which L has computed something that it can lose
    assert forced(run) == 0 and len(story(run, "L")) == 2 + again
    assert run.outcomes["L"].preemptions == (1 if at == 1 else 0)


# -- the case reported in the field


FIELD = {
    "S": 4, "N": 40, "bs": 2, "B": 6, "reserve": "none", "long_prefill_token_threshold": 4, "loops": 4, "L": 96,
    "progress_window": 60,
}  # fmt: skip


def crowd(count: int, low: int, high: int, output: int, gap: float) -> list[dict[str, Any]]:
    """Low ones fill the slots, then urgent ones come, `gap` apart."""
    half = count // 2
    early = [R(i % 2, low + i, output, 5) for i in range(half)]
    return early + [R(6 + gap * i, high + i, output, 0) for i in range(count - half)]


@pytest.mark.parametrize("split", [True, False], ids=["split", "atomic"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("count", "low", "high", "output", "gap"),
    [(4, 40, 40, 2, 0.0), (4, 70, 70, 3, 7.0), (6, 30, 60, 4, 1.0), (8, 20, 50, 2, 3.0), (8, 37, 41, 5, 11.0)],
)
def test_incremental_allocation_with_small_chunks_drains(
    count: int, low: int, high: int, output: int, gap: float, mode: str, split: bool
) -> None:
    stack = by_priority(mode, "mixed" if split else "refill")
    run = play(*crowd(count, low, high, output, gap), stack=stack, split=split, **FIELD)
    assert forced(run) == 0 and set(run.ends.values()) == {"length"}
    _no_endless_preludes(run, count)


def _no_endless_preludes(run: Any, count: int) -> None:
    """Preludes never follow one another for longer than it takes each slot to fill its chunk."""
    alone = longest = 0
    for record in run.records:
        if record.batch is not None:
            alone = alone + 1 if record.batch.operation.name == "PRELUDE" else 0
            longest = max(longest, alone)
    assert longest <= 2 * count, f"{longest} preludes in a row"


@pytest.mark.soak
@pytest.mark.parametrize("more", LOOPED_STACKS, ids=lambda more: "+".join(more) or "alone")
@pytest.mark.parametrize("mode", MODES)
def test_incremental_allocation_drains_at_all_lengths(mode: str, more: tuple) -> None:
    for count in (4, 6, 8):
        for low in range(5, 76, 10):
            for high in range(5, 76, 14):
                for gap in (0.0, 1.0, 5.0):
                    run = play(*crowd(count, low, high, 4, gap), stack=by_priority(mode, *more), split=True, **FIELD)
                    assert forced(run) == 0


# -- random loads: 2,000 with each stack in `make soak`, a tenth of them here, spread over the stacks


DENSE = [(stack, 1, False) for stack in [("fcfs",), MIXED, ("fcfs", {"mixed": {"order": "decode_first"}})]]
DENSE += [
    (by_priority(mode, *more, **options), 1, False)
    for mode in MODES
    for more, options in [((), {}), (("mixed",), {}), (("mixed",), {"aging": 0.2})]
]
LOOPED = [(("fcfs", *more), loops, True) for more in LOOPED_STACKS for loops in (2, 4)]
LOOPED += [(("fcfs", more), 3, False) for more in ("refill", "no_refill")]
LOOPED += [(by_priority(mode, *more), 3, True) for mode in MODES for more in LOOPED_STACKS]
LOOPED += [(by_priority(mode, more), 4, False) for mode in MODES for more in ("refill", "no_refill")]
STACKS = DENSE + LOOPED
HERE = -(-200 // len(STACKS))


def drains(seed: int, stack: tuple, loops: int, split: bool) -> None:
    """Nobody is forced, everybody ends, outputs are those of each request alone; invariants are audited."""
    requests, settings = load(seed)
    if loops > 1:
        settings |= looped_settings(seed, loops)
    run = play(*requests, stack=stack, split=split, **settings)
    assert forced(run) == 0 and len(run.ends) == len(requests)
    assert set(run.ends.values()) <= {"length", "cancelled"}


def name(value: Any) -> str:
    """Of a stack, for test ids."""
    if not isinstance(value, tuple):
        return str(value)
    return "+".join(
        str(next(iter(item.values())).get("preempt", item)) if isinstance(item, dict) else item for item in value
    )


@pytest.mark.parametrize(("stack", "loops", "split"), STACKS, ids=name)
def test_small_loads_drain_without_force(stack: tuple, loops: int, split: bool) -> None:
    first = 2000 + HERE * STACKS.index((stack, loops, split))
    for seed in range(first, first + HERE):
        drains(seed, stack, loops, split)


@pytest.mark.soak
@pytest.mark.parametrize(("stack", "loops", "split"), STACKS, ids=name)
def test_2000_small_loads_drain_without_force(stack: tuple, loops: int, split: bool) -> None:
    for seed in range(2000):
        drains(seed, stack, loops, split)
