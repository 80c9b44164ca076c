"""Dense models say what `transformers` says, whoever shares their batches and whatever is taken from them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pressure import MODES, by_priority, run
from scenario import MIXED, Play, R

from interlock.core import FinishReason

from .answers import agree
from .conftest import FAMILIES, Family
from .kit import GIVES_WAY, engine_of, ids, reasons
from .loads import Load, loads

STACKS: dict[str, tuple[Any, ...]] = {
    "fcfs": ("fcfs",),
    "mixed": MIXED,
    "decode first": ("fcfs", {"mixed": {"order": "decode_first"}}),
    "priority, nobody gives way": ({"priority": {"preempt": None}}, "mixed"),
    **{f"priority, {mode}": by_priority(mode) for mode in MODES},
    **{f"priority + mixed, {mode}": ("fcfs", *by_priority(mode, "mixed")) for mode in MODES},
    **{f"growth, {mode}": (*MIXED, {GIVES_WAY: {"mode": mode}}) for mode in MODES},
}


Families = dict[str, Family]


def served(family: Family, *requests: dict[str, Any], **config: Any) -> Play:
    """The run of these requests. Every answer is `transformers`' own, or as much of it as its caller waited for."""
    done = run(engine_of(*requests, model=family.folder, **config))
    for at, request in enumerate(requests):
        outcome = done.outcomes[f"R{at}"]
        expected = family.theirs.greedy(request["prompt"], request["max_tokens"], ends=not request["ignore_eos"])
        if outcome.finish_reason is FinishReason.CANCELLED:
            expected = expected.first(len(outcome.output_ids))
        agree(outcome.output_ids.tolist(), expected)
    return done


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
@settings(max_examples=3)
@given(family=st.sampled_from(FAMILIES), load=loads())
def test_answers_are_those_of_generate(stack: tuple[Any, ...], family: str, load: Load, families: Families) -> None:
    requests, limits = load
    served(families[family], *requests, stack=stack, L=64, **limits)


@pytest.mark.soak
@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
@settings(max_examples=200)
@given(family=st.sampled_from(FAMILIES), load=loads(most=10))
def test_answers_are_those_of_generate_for_many(
    stack: tuple[Any, ...], family: str, load: Load, families: Families
) -> None:
    requests, limits = load
    served(families[family], *requests, stack=stack, L=64, **limits)


# -- loads that are known to take something from somebody

SLOT = [R(0, ids(1, 9), 12, 2), R(0, ids(2, 14), 12, 1), R(4, ids(3, 6), 8, 0), R(5, ids(4, 11), 5, 0)]
"""Two low requests have both slots when two high ones come."""
GROWTH = [R(0, ids(1, 7), 20), R(0, ids(2, 8), 20), R(1, ids(3, 5), 20)]
"""Three that enter at once, and whose answers outgrow the pool."""
LEFT = {"yield": "yielded", "offload": "offloaded", "recompute": "recompute"}


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_who_lost_its_slot_goes_on_as_if_nothing_had_been(mode: str, caching: bool, families: Families) -> None:
    done = served(families["qwen3"], *SLOT, stack=by_priority(mode, "mixed"), S=2, caching=caching)
    assert {LEFT[mode], "resumed"} <= reasons(done)
    assert done.outcomes["R0"].preemptions and done.outcomes["R0"].output_ids.size == 12


@pytest.mark.parametrize("max_repeat", [None, 1])
@pytest.mark.parametrize("mode", ["offload", "recompute"])
def test_who_gave_way_to_anothers_growth_goes_on_too(mode: str, max_repeat: int | None, families: Families) -> None:
    stack = (*MIXED, {GIVES_WAY: {"mode": mode}})
    done = served(families["llama"], *GROWTH, stack=stack, bs=2, N=18, reserve="none", max_repeat=max_repeat)
    assert {LEFT[mode], "resumed"} <= reasons(done)


def test_a_yielded_holder_whose_blocks_are_taken_comes_back_from_the_host(families: Families) -> None:
    requests = [R(0, ids(1, 9), 12, 2), R(3, ids(2, 9), 12, 1), R(6, ids(3, 16), 8, 0)]
    done = served(families["qwen2"], *requests, stack=by_priority("yield", "mixed"), S=1, N=8)
    assert done.reasons("R0")[2:5] == ["yielded", "offloaded", "resumed"]


def test_without_room_on_the_host_it_computes_again(families: Families) -> None:
    done = served(families["qwen2"], *SLOT, stack=by_priority("offload", "mixed"), S=2, N=9, host=1)
    assert "recompute" in reasons(done) and "offloaded" not in reasons(done)


# -- cached prefixes, chunks, stretches


@pytest.mark.parametrize("bs", [1, 4, 16])
def test_a_cached_prefix_stands_for_what_was_not_computed(bs: int, families: Families) -> None:
    shared = ids(5, 32)
    requests = [R(0, shared + ids(1, 3), 6), R(1, shared + ids(2, 5), 6), R(30, shared[:-1], 6), R(31, shared, 6)]
    done = served(families["llama"], *requests, bs=bs, N=128 // bs, caching=True)
    assert [done.outcomes[f"R{at}"].cached_tokens for at in range(4)] == [0, 32, (31 - 1) // bs * bs, 31 // bs * bs]


def test_an_answer_is_a_prefix_that_another_may_share(families: Families) -> None:
    said = families["llama"].theirs.greedy(ids(1, 9)).tokens
    requests = [R(0, ids(1, 9), len(said)), R(40, ids(1, 9) + said[:-1] + ids(2, 2), 6)]
    done = served(families["llama"], *requests, bs=2, caching=True)
    assert done.outcomes["R1"].cached_tokens == (9 + len(said) - 1) // 2 * 2


@pytest.mark.parametrize("B", [5, 6, 17, 64])
def test_a_prompt_in_chunks_of_any_size(B: int, families: Families) -> None:
    requests = [R(0, ids(seed, 61 - 7 * seed), 4) for seed in range(4)]
    done = served(families["qwen2"], *requests, B=B, bs=3, N=90)
    assert max(sum(tokens.values()) for tokens in done.steps.values()) == B


def test_a_stretch_ends_with_the_first_row_that_does(families: Families) -> None:
    requests = [R(0, ids(seed, 5), 24, ignore_eos=False) for seed in range(6)]
    long, short = (served(families["qwen3"], *requests, max_repeat=most) for most in (None, 1))
    assert all(long.output(name) == short.output(name) for name in long.outcomes)
    assert all(long.outcomes[name].finished_ns == short.outcomes[name].finished_ns for name in long.outcomes)
    assert len(long.records) < len(short.records)
    assert {"stop", "length"} == set(long.ends.values())
