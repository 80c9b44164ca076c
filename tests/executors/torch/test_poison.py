"""KV that nobody owns is never read: with NaN in all of it, answers are the same to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pressure import MODES, by_priority, run
from scenario import MIXED, R

from interlock.core import BoundaryRecord, Engine

from .kit import GIVES_WAY, engine_of, ids
from .loads import Load, loads

STACKS = {"tiny-llama": "mixed", "tiny-qwen": "mixed", "tiny-ouro": "refill", "tiny-huginn": "no_refill"}
EARLY = {"tiny-ouro": {"exit": {"threshold": 0.5, "min_loops": 1}}}


def answers(*requests: dict[str, Any], **config: Any) -> dict[str, list[int]]:
    """What everybody says."""
    done = run(engine_of(*requests, **config))
    return {name: done.output(name) for name in done.outcomes}


@pytest.mark.parametrize("model", STACKS)
@settings(max_examples=3)
@given(load=loads(longest=24, output=8, most=5), mode=st.sampled_from(MODES))
def test_answers_do_not_depend_on_memory_that_nobody_owns(model: str, load: Load, mode: str) -> None:
    requests, limits = load
    stack = ("fcfs", *by_priority(mode, STACKS[model]), {GIVES_WAY: {"mode": mode}})
    config = {"model": model, "stack": stack, "options": EARLY.get(model, {}), "L": 64, **limits}
    assert answers(*requests, **config) == answers(*requests, poisoned=False, **config)


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("model", STACKS)
def test_a_pool_that_has_been_used_is_as_good_as_a_new_one(model: str, caching: bool) -> None:
    """The same requests come again when others have been everywhere: all of the pool is used twice and more."""
    again = [R(400 + at, ids(at, 9 + at), 6, seed=at) for at in range(3)]
    others = [R(7 * at, ids(20 + at, 13), 6, seed=at) for at in range(12)]
    config = {"model": model, "stack": ("fcfs", STACKS[model]), "options": EARLY.get(model, {}), "N": 16, "bs": 3}
    fresh = answers(*again, **config)
    used = answers(*again, *others, caching=caching, poisoned=False, **config)
    assert {name: used[name] for name in fresh} == fresh


class Memory:
    """How much of the memory is NaN at each boundary with a batch, as fractions of its places."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def __call__(self, engine: Engine, record: BoundaryRecord) -> None:
        if record.collected:
            bad = engine.executor._cache.recurrent.isnan().any(-1).any(-1)
            self.seen.append(float(bad.float().mean()))


def test_all_of_the_memory_but_what_is_owned_is_poisoned() -> None:
    """One request of 6 tokens in a pool of 10 blocks and the spare one, of 4: at most 9 of 44 places are its own."""
    memory = Memory()
    run(engine_of(R(0, ids(1, 6), 4), bs=4, N=10), memory)
    assert memory.seen == [pytest.approx(1 - own / 44) for own in (6, 9)], "a prompt, and a stretch of three"


def test_a_poison_that_is_read_would_be_noticed() -> None:
    """A single block of a live request, and its answer is another."""
    request = R(0, ids(1, 6), 8)

    def spoil(engine: Engine, record: BoundaryRecord) -> None:
        (row,) = engine.state.entries or [None]
        if row is not None and engine.state.table.emitted[row] == 2:
            engine.executor._cache.recurrent[:, :, :, engine.state.held(row)[0]] = torch.nan

    spoiled = run(engine_of(request, max_repeat=1), spoil).output("R0")
    assert spoiled != answers(request)["R0"]


@pytest.mark.parametrize("mode", ["offload", "recompute"])
def test_a_block_goes_from_one_to_the_other_and_back(mode: str) -> None:
    """A pool for one at a time: whoever runs has all of it, and finds nothing of the other's."""
    requests = [R(0, ids(1, 10), 20), R(0, ids(2, 10), 20)]
    stack = (*MIXED, {GIVES_WAY: {"mode": mode}})
    done = run(engine_of(*requests, stack=stack, N=8, bs=4, reserve="none"))
    alone = [answers(request, N=8)["R0"] for request in requests]
    assert [done.output(name) for name in ("R0", "R1")] == alone
    gone = sum(outcome.preemptions for outcome in done.outcomes.values())
    owners = {number for record in done.records if record.batch is not None for number in record.batch.numbers.tolist()}
    assert gone >= 1 and owners == {0, 1}
    assert np.unique(np.concatenate([np.array(alone[0]), np.array(alone[1])])).size > 4, "answers that say something"
