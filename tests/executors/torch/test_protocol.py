"""The executor by itself, as the engine drives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pressure import by_priority, run
from scenario import R

from interlock.core import Batch, Capability, ConfigError, Copy, Engine, ExecutorError, PreemptMode, Request, WorkKey
from interlock.core.executor import ExecutorConfig
from interlock.executors.torch.cache import PagedCache
from interlock.executors.torch.executor import Torch
from interlock.executors.torch.runner import LONGEST_STRETCH

from .kit import COST, engine_of, ids

MakeBatch = Callable[..., Batch]
NOW = 7_000_000_000


def executor(**options: Any) -> Torch:
    """On a tiny model, in virtual time."""
    return Torch({"model": "tiny-llama", "device": "cpu", **COST, **options})


def started(made: Torch, blocks: int = 16) -> Torch:
    """Ready for batches; blocks of 4."""
    made.start(ExecutorConfig(4, 64, 128, blocks, 4, "atomic", 0, lambda: NOW))
    return made


def prompt_of(make_batch: MakeBatch, *prompts: list[int], **fields: Any) -> Batch:
    """The first batch of these, each row in four blocks of its own."""
    batch = make_batch([(WorkKey.PROMPT_ATOMIC, 0, len(prompt)) for prompt in prompts], **fields)
    context = np.zeros((len(prompts), 16), np.int32)
    for row, prompt in enumerate(prompts):
        context[row, : len(prompt)] = prompt
    table = np.arange(4 * len(prompts), dtype=np.int32).reshape(-1, 4)
    new = {row: (row, Request(f"r{row}", prompt)) for row, prompt in enumerate(prompts)}
    return replace(batch, context=context, block_table=table, new=new)


def decode_of(make_batch: MakeBatch, before: Batch, tokens: np.ndarray, **fields: Any) -> Batch:
    """The next token of each row of a batch of prompts, which gave these tokens."""
    ends = before.tokens
    batch = make_batch([(WorkKey.DECODE_ATOMIC, int(end), 1) for end in ends], **fields)
    context = before.context.copy()
    context[np.arange(len(ends)), ends] = tokens
    return replace(batch, context=context, block_table=before.block_table, new={})


# -- tickets and results


def test_results_come_once_in_the_order_of_submission(make_batch: MakeBatch) -> None:
    one = started(executor())
    assert list(one.collect(block=False)) == []
    first = prompt_of(make_batch, ids(1, 5), ids(2, 7))
    tickets = [one.submit(first), one.submit(first)]
    results = one.collect(block=True)
    assert [result.ticket for result in results] == tickets and len({ticket.id for ticket in tickets}) == 2
    assert np.array_equal(results[0].tokens, results[1].tokens), "running it again changes nothing"
    assert list(one.collect(block=False)) == []
    assert results[0].tokens.shape == (1, 2) and results[0].tokens.dtype == np.int32
    assert [result.ends_ns.tolist() for result in results] == [[1_000_000_000], [2_000_000_000]]


def test_a_stretch_is_what_single_steps_are(make_batch: MakeBatch) -> None:
    one = started(executor())
    prompts = prompt_of(make_batch, ids(1, 5), ids(2, 7))
    one.submit(prompts)
    (result,) = one.collect(block=True)
    one.submit(decode_of(make_batch, prompts, result.tokens[0], repeat=5, start_ns=NOW))
    (stretch,) = one.collect(block=True)
    assert stretch.ends_ns.tolist() == [NOW + (run + 1) * 1_000_000_000 for run in range(5)]
    step = decode_of(make_batch, prompts, result.tokens[0])
    for said in stretch.tokens:
        one.submit(step)
        assert np.array_equal(one.collect(block=True)[0].tokens[0], said)
        step = decode_of(make_batch, replace(step, tokens=step.start + 1), said)


def test_a_long_stretch_comes_back_now_and_then(make_batch: MakeBatch) -> None:
    one = started(executor(), blocks=32)
    prompts = prompt_of(make_batch, ids(1, 5))
    table = np.arange(32, dtype=np.int32)[None]
    one.submit(replace(prompts, block_table=table))
    (result,) = one.collect(block=True)
    decode = replace(decode_of(make_batch, prompts, result.tokens[0], repeat=100), block_table=table)
    one.submit(decode)
    assert one.collect(block=True)[0].runs == LONGEST_STRETCH
    one.submit(replace(decode, until_ns=int(1e9) + 3))
    assert one.collect(block=True)[0].runs == 1


def test_rows_that_sample_nothing_say_minus_one(make_batch: MakeBatch) -> None:
    one = started(executor())
    both = prompt_of(make_batch, ids(1, 5), ids(2, 7))
    one.submit(both)
    expected = one.collect(block=True)[0].tokens[0]
    for samples in ([True, False], [False, True], [False, False]):
        one.submit(replace(both, samples=np.array(samples)))
        assert one.collect(block=True)[0].tokens.tolist() == [np.where(samples, expected, -1).tolist()]


def test_without_a_cost_model_ends_are_told_by_the_engines_clock(make_batch: MakeBatch) -> None:
    one = started(executor(cost=None))
    one.submit(prompt_of(make_batch, ids(1, 5)))
    assert one.collect(block=True)[0].ends_ns.tolist() == [NOW]


# -- rows


def test_forgetting_and_stopping_twice_does_no_harm(make_batch: MakeBatch) -> None:
    one = executor()
    one.stop()
    started(one)
    one.submit(prompt_of(make_batch, ids(1, 5), ids(2, 7)))
    one.collect(block=True)
    for _ in range(2):
        one.forget(np.array([0, 1]))
        assert one._rows._stops == {}
    one.forget(np.array([3, 99]))
    one.stop()
    one.stop()


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-ouro"])
def test_nothing_is_kept_of_who_is_gone(model: str) -> None:
    requests = [R(at, ids(at, 6 + at), 5, at % 2, says=3, stop_token_ids=[7]) for at in range(6)]
    stack = by_priority("recompute", "mixed" if model == "tiny-llama" else "refill")
    kept: dict[str, int] = {}

    def note(engine: Engine, record: Any) -> None:
        rows, runner = engine.executor._rows, engine.executor._runner
        kept["rows"] = len(rows._stops)
        kept["chunks"] = sum(map(len, runner._carried._chunks)) if model == "tiny-ouro" else 0
        kept["lengths"] = len(engine.executor._known)

    run(engine_of(*requests, model=model, stack=stack, S=2), note)
    assert kept == {"rows": 0, "chunks": 0, "lengths": 0}


def test_what_is_known_of_a_request_that_never_ran_is_forgotten_too() -> None:
    requests = [
        R(0, ids(1, 6), 9),
        R(0, ids(2, 6), 9, says=3, cancel_at=2.0),
        R(0, ids(3, 6), 9, says=4, timeout_s=3.0),
    ]
    engine = engine_of(*requests, S=1)
    run(engine)
    inner = engine.executor.inner
    inner.start(ExecutorConfig(4, 64, 128, 16, 4, "atomic", 0, lambda: 0))
    assert inner._known == {}


def test_an_executor_can_be_started_again() -> None:
    made = executor()
    said = []
    for _ in range(2):
        engine = engine_of(R(0, ids(1, 9), 12, seed=1, temperature=1.0))
        engine.executor.inner = made
        said.append(run(engine).output("R0"))
    assert said[0] == said[1]


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-ouro"])
def test_engines_come_and_go(model: str) -> None:
    config = {"model": model, "stack": ("fcfs",), "poisoned": False}
    engines = [engine_of(R(0, ids(1, 9), 6), **config) for _ in range(3)]
    for _ in range(4):
        for engine in engines:
            engine.step()
    engines[1].stop()
    assert run(engines[0]).output("R0") == run(engines[2]).output("R0")


# -- copies


PARTS = ("prelude", "recurrent", "coda")


def filled(model: str) -> PagedCache:
    """A cache of 8 blocks whose every number is another."""
    cache: PagedCache = started(executor(model=model), blocks=8)._cache
    for part in cache._parts:
        part.copy_(torch.arange(part.numel()).view(part.shape))
    return cache


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-ouro", "tiny-huginn"])
def test_what_is_offloaded_comes_back_in_other_blocks_to_the_last_bit(model: str) -> None:
    cache = filled(model)
    before = {name: getattr(cache, name).clone() for name in PARTS}
    cache.offload(np.array([1, 6], np.int32), np.array([3, 0]))
    cache.offload(np.array([2], np.int32), np.array([40]))  # the host's memory grows meanwhile
    for part in cache._parts:
        part.fill_(torch.nan)
    cache.restore(np.array([7, 0, 4], np.int32), np.array([3, 0, 40]))
    for name in PARTS:
        after = getattr(cache, name)
        for there, here in ((7, 1), (0, 6), (4, 2)):
            assert torch.equal(after[:, :, :, there], before[name][:, :, :, here])
        assert after[:, :, :, [1, 2, 3, 5, 6, 8]].isnan().all()


def test_what_left_early_stands_for_the_deeper_planes_alone() -> None:
    cache = filled("tiny-ouro")
    before = cache.recurrent.clone()
    cache.spread(torch.tensor([5, 30]), torch.tensor([1, 2]))  # block 1, offset 1 after a loop; block 7, offset 2
    changed = (cache.recurrent != before).flatten(4).any(-1)[0, 0].nonzero().tolist()
    after, where = cache.recurrent, {(plane, block) for plane, block, *_ in changed}
    assert where == {(1, 1), (2, 1), (2, 7)}
    assert torch.equal(after[:, :, 1, 1, 1], before[:, :, 0, 1, 1])
    assert torch.equal(after[:, :, 2, 1, 1], before[:, :, 0, 1, 1])
    assert torch.equal(after[:, :, 2, 7, 2], before[:, :, 1, 7, 2])


def test_suspended_rows_lose_no_more_than_their_mode_says(make_batch: MakeBatch) -> None:
    one = started(executor())
    prompts = prompt_of(make_batch, ids(1, 5), ids(2, 7))
    one.submit(prompts)
    (result,) = one.collect(block=True)
    step = decode_of(make_batch, prompts, result.tokens[0])
    one.submit(step)
    expected = one.collect(block=True)[0].tokens
    blocks, host = np.array([0, 1], np.int32), np.array([0, 1])
    one.suspend(np.array([0, 1]), [PreemptMode.OFFLOAD, PreemptMode.YIELD], [Copy(0, blocks, host)])
    one._cache.recurrent[:, :, :, :2] = torch.nan
    one.resume(np.array([0, 1]), [Copy(0, np.array([13, 9], np.int32), host)])
    table = step.block_table.copy()
    table[0, :2] = [13, 9]
    one.submit(replace(step, block_table=table))
    assert np.array_equal(one.collect(block=True)[0].tokens, expected)


# -- what it says of itself


def test_capabilities() -> None:
    timed = {Capability.STEP_COST, Capability.VIRTUAL_TIME}
    flags = ("loops", "whole_prompts", "shares_prefixes", "shares_outputs")
    for model, features, told in (
        ("tiny-llama", {Capability.STRETCH}, (1, False, True, True)),
        ("tiny-ouro", {Capability.LOOPED}, (3, False, True, False)),
        ("tiny-huginn", {Capability.LOOPED}, (4, False, False, False)),
        ("tiny-hrm", {Capability.LOOPED}, (3, True, False, False)),
    ):
        for cost in (COST, {"cost": None}):
            can = executor(model=model, **cost).capabilities
            assert can.features == features | (timed if cost is COST else set())
            assert tuple(getattr(can, flag) for flag in flags) == told
            assert (can.vocab_size, can.eos_token_ids) == (512, (0,))
            assert can.can_mix(frozenset({WorkKey.PROMPT_ATOMIC, WorkKey.DECODE_ATOMIC}))
            assert can.can_mix(frozenset({WorkKey.PROMPT_RECURRENT, WorkKey.DECODE_RECURRENT})) == (can.loops > 1)


def test_a_step_costs_what_the_model_says_or_nobody_knows() -> None:
    assert executor().step_s(100, 3, 400) == 1.0
    with pytest.raises(ExecutorError, match="only with the option cost"):
        executor(cost=None).step_s(100, 3, 400)


def test_policies_for_looped_models_are_refused_by_a_dense_one() -> None:
    config = {"policies": ["fcfs", "refill"], "executor": {"torch": {"model": "tiny-llama"}}}
    with pytest.raises(ConfigError, match="policy 'refill' requires looped, which executor 'torch' lacks"):
        Engine.from_config(config)


def test_a_tiny_model_has_no_words() -> None:
    assert executor().tokenizer is None
    config = {
        "policies": ["fcfs"],
        "executor": {"torch": {"model": "tiny-llama"}},
        "workload": {"requests": [{"text": "hello"}]},
    }
    with pytest.raises(ConfigError, match="allowed: prompt, because the executor has no tokenizer"):
        Engine.from_config(config)


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-ouro", "tiny-huginn", "tiny-hrm"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_every_type_of_number_says_something(model: str, dtype: str) -> None:
    requests = [R(0, ids(at, 6), 5, seed=at, temperature=float(at)) for at in range(2)]
    done = run(engine_of(*requests, model=model, stack=("fcfs",), options={"dtype": dtype}))
    assert all(len(done.output(name)) == 5 and len(set(done.output(name))) > 1 for name in done.outcomes)
