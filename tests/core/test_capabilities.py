"""What a backend says of its model, and what the engine makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from interlock.core import BoundaryRecord, Capabilities, ConfigError, Engine, EngineConfig, Request, SamplingParams
from interlock.core.config import EngineSection
from interlock.executors.simulated.executor import Simulated


def backend(*, loops: int = 1, blocks: int | None = None, refuses: str | None = None, **said: Any) -> Simulated:
    """A simulated backend that says these things of its model besides."""

    class Special(Simulated):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, **said)

    executor = Special({"cost": {"constant": {"step_s": 1.0}}, "model": {"loops": loops}})
    if blocks is not None:
        executor.auto_blocks = lambda block_size, limits: blocks  # type: ignore[attr-defined]
    if refuses is not None:
        executor.refuses = lambda request: refuses  # type: ignore[attr-defined]
    return executor


def engine_of(executor: Simulated, policies: tuple[Any, ...] = ("fcfs",), **sections: Mapping[str, Any]) -> Engine:
    given = {"engine": {"max_num_batched_tokens": 30, "max_model_len": 200}, "kv": {"num_blocks": 64, "block_size": 4}}
    config = EngineConfig.load({"policies": list(policies), **given, **sections})
    return Engine(config, config.build_policies(), executor)


def run(engine: Engine) -> list[BoundaryRecord]:
    return list(engine.run())


def prompts_of(records: list[BoundaryRecord]) -> list[list[tuple[int, int]]]:
    """(start, tokens) of each prompt row, batch by batch."""
    found = []
    for record in records:
        if record.batch is not None and record.batch.is_prompt.any():
            at = record.batch.is_prompt
            found.append(list(zip(record.batch.start[at].tolist(), record.batch.tokens[at].tolist(), strict=True)))
    return found


# -- prompts that run whole


@pytest.mark.parametrize("policies", [("fcfs",), ("fcfs", "mixed")])
def test_a_prompt_that_has_to_run_whole_is_never_cut(policies: tuple[str, ...]) -> None:
    engine = engine_of(backend(whole_prompts=True, shares_prefixes=False), policies)
    for i, tokens in enumerate((20, 20, 7, 30)):
        engine.submit(Request(f"r{i}", tokens, SamplingParams(max_tokens=3)))
    batches = prompts_of(run(engine))
    assert sorted(chunk for batch in batches for chunk in batch) == [(0, 7), (0, 20), (0, 20), (0, 30)]
    assert all(sum(tokens for _, tokens in batch) <= 30 for batch in batches)


def test_one_that_is_longer_than_the_budget_is_rejected_at_once() -> None:
    engine = engine_of(backend(whole_prompts=True, shares_prefixes=False))
    handle = engine.submit(Request("long", 31, SamplingParams(max_tokens=3)))
    run(engine)
    assert handle.outcome is not None
    assert handle.outcome.reject_reason == (
        "exceeds_budget: 31 prompt tokens have to run at once, max_num_batched_tokens is 30"
    )


def test_a_threshold_for_long_prompts_does_not_cut_it_either() -> None:
    limits = {"max_num_batched_tokens": 30, "max_model_len": 200, "long_prefill_token_threshold": 8}
    engine = engine_of(backend(whole_prompts=True, shares_prefixes=False), engine=limits)
    engine.submit(Request("a", 25, SamplingParams(max_tokens=2)))
    assert prompts_of(run(engine)) == [[(0, 25)]]


def test_whoever_computes_again_runs_the_prompt_whole_and_what_was_emitted_as_it_fits() -> None:
    kv = {"num_blocks": 13, "block_size": 4, "reserve": "none"}
    engine = engine_of(backend(whole_prompts=True, shares_prefixes=False), kv=kv)
    handles = [engine.submit(Request(f"r{i}", 20, SamplingParams(max_tokens=25, ignore_eos=True))) for i in range(2)]
    records = run(engine)
    assert any(one.reason == "recompute" for record in records for one in record.transitions)
    assert all(start > 0 or tokens >= 20 for batch in prompts_of(records) for start, tokens in batch)
    assert [len(handle.token_ids) for handle in handles] == [25, 25]


# -- what may be shared


def test_where_no_prefix_is_shared_there_is_no_prefix_caching() -> None:
    for shares, cached in ((True, 40), (False, 0)):
        engine = engine_of(backend(shares_prefixes=shares))
        assert engine.config.kv.enable_prefix_caching is shares
        prompt = np.arange(1, 25)
        handles = [engine.submit(Request(f"r{i}", prompt, SamplingParams(max_tokens=1))) for i in range(2)]
        later = engine.submit(Request("later", prompt, SamplingParams(max_tokens=1), arrival=20.0))
        run(engine)
        assert sum(handle.result().cached_tokens for handle in (*handles, later)) == cached


def test_where_outputs_are_not_shared_a_prompt_that_repeats_an_answer_finds_the_question_alone() -> None:
    for shares, cached in ((True, 16), (False, 8)):
        engine = engine_of(backend(loops=2, shares_outputs=shares), ("fcfs", "refill"))
        first = engine.submit(Request("first", np.arange(1, 9), SamplingParams(max_tokens=9, ignore_eos=True)))
        run_to_end(engine)
        again = np.concatenate([np.arange(1, 9), np.array(first.token_ids, np.int32)])
        second = engine.submit(Request("second", again, SamplingParams(max_tokens=1)))
        assert second.result().cached_tokens == cached


def run_to_end(engine: Engine) -> None:
    while engine.step() is not None:
        pass


# -- the vocabulary and the end


def test_any_of_several_end_tokens_ends_an_answer() -> None:
    plain = engine_of(backend())
    whole = plain.submit(Request("a", 10, SamplingParams(max_tokens=9)))
    run(plain)
    third = whole.token_ids[2]
    limits = {"max_model_len": 200, "max_repeat": 1}  # the simulated model itself does not know of these ends
    engine = engine_of(backend(eos_token_ids=(third, 31_999)), engine=limits)
    handle = engine.submit(Request("a", 10, SamplingParams(max_tokens=9)))
    run(engine)
    assert handle.token_ids == whole.token_ids[:3]
    assert handle.finish_reason == "stop"


def test_an_id_outside_the_vocabulary_is_named() -> None:
    engine = engine_of(backend(vocab_size=100))
    handles = [engine.submit(Request(name, ids)) for name, ids in (("a", [1, 99]), ("b", [1, 100]), ("c", [-1]))]
    counted = engine.submit(Request("synthetic", 5, SamplingParams(max_tokens=1)))
    run(engine)
    reasons = [handle.result().reject_reason for handle in (*handles, counted)]
    assert reasons == [
        None,
        "unknown_token: 100 is not in the vocabulary of 100 tokens",
        "unknown_token: -1 is not in the vocabulary of 100 tokens",
        None,
    ]


def test_a_backend_may_refuse_a_request_for_reasons_of_its_own() -> None:
    engine = engine_of(backend(refuses="odd_request: not today"))
    handle = engine.submit(Request("a", 5))
    run(engine)
    assert handle.result().reject_reason == "odd_request: not today"


# -- what the configuration leaves to the backend


def test_a_context_length_that_is_the_default_is_cut_to_the_model_s_own() -> None:
    default = EngineSection().max_model_len
    assert engine_of(backend(max_model_len=512), engine={}).config.engine.max_model_len == 512
    assert engine_of(backend(max_model_len=10**6), engine={}).config.engine.max_model_len == default
    with pytest.raises(ConfigError, match=r"engine\.max_model_len: found 600, allowed: at most 512, the model's own"):
        engine_of(backend(max_model_len=512), engine={"max_model_len": 600})


def test_a_pool_of_automatic_size_is_as_large_as_the_backend_says() -> None:
    engine = engine_of(backend(blocks=77), kv={"num_blocks": "auto"})
    assert (engine.config.kv.num_blocks, engine.state.pool.num_blocks) == (77, 77)
    with pytest.raises(ConfigError, match=r"kv\.num_blocks: found 'auto', which executor 'simulated' cannot size"):
        engine_of(backend(), kv={"num_blocks": "auto"})
