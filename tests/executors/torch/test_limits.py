"""What memory, context, vocabulary and machine allow, and the one line that says so where they do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pressure import run
from scenario import R

from interlock.core import ConfigError, Engine, ExecutorError, Request, SamplingParams
from interlock.core.executor import ExecutorConfig
from interlock.executors.torch import memory
from interlock.executors.torch.cache import block_bytes
from interlock.executors.torch.executor import Torch

from .kit import COST, engine_of, ids

GIB = 2**30


def engine(*, limits: dict[str, Any] | None = None, kv: dict[str, Any] | None = None, **options: Any) -> Engine:
    """An engine as a configuration describes it."""
    torch_options = {"model": "tiny-llama", "device": "cpu", **options}
    sections = {"engine": limits or {}, "kv": kv or {}}
    return Engine.from_config({**sections, "policies": ["fcfs"], "executor": {"torch": torch_options}})


def refused(**config: Any) -> str:
    """The one line of why there is no such engine."""
    with pytest.raises(ConfigError) as caught:
        engine(**config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- memory


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["tiny-llama", "tiny-ouro", "tiny-huginn", "tiny-hrm"])
def test_a_block_is_as_large_as_it_is_said_to_be(model: str, dtype: str) -> None:
    made = Torch({"model": model, "device": "cpu", "dtype": dtype})
    made.start(ExecutorConfig(4, 64, 128, 10, 4, "atomic", 0, lambda: 0))
    size = block_bytes(made._model.shape, 4, made._model.dtype)
    assert sum(part.nbytes for part in made._cache._parts) == 11 * size, "ten, and the spare one"
    made.stop()


def test_auto_is_as_many_blocks_as_the_memory_holds() -> None:
    size = 2 * 2 * 2 * 16 * 16 * 4  # layers, keys and values, KV heads, tokens, head_dim, bytes
    for gib in (0.02, 0.5):
        made = engine(kv={"num_blocks": "auto"}, kv_memory_gib=gib)
        assert made.config.kv.num_blocks == int(gib * GIB) // size


def test_auto_takes_a_quarter_of_what_the_host_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_available_host_bytes", lambda: 1 << 28)
    size = 2 * 2 * 2 * 16 * 16 * 4
    assert engine(kv={"num_blocks": "auto"}).config.kv.num_blocks == (1 << 26) // size


def test_too_little_memory_is_told_with_what_would_do() -> None:
    told = refused(kv={"num_blocks": "auto"}, kv_memory_gib=1e-5)
    assert told == (
        "executor.torch.kv_memory_gib: found 1e-05 GiB, which holds 1 KV blocks; allowed: at least 0.00393, "
        "since one request of engine.max_model_len tokens takes 512"
    )
    assert engine(kv={"num_blocks": "auto"}, kv_memory_gib=0.00393).config.kv.num_blocks >= 512
    small = engine(limits={"max_model_len": 16}, kv={"num_blocks": "auto"}, kv_memory_gib=1e-5)
    assert small.config.kv.num_blocks == 1


def test_a_pool_that_the_device_does_not_hold_is_an_error_of_the_executor() -> None:
    made = Torch({"model": "tiny-llama", "device": "cpu"})
    with pytest.raises(ExecutorError, match=r"^no memory for 10000000000 KV blocks of 16 tokens on cpu: .*$"):
        made.start(ExecutorConfig(4, 64, 128, 10**10, 16, "atomic", 0, lambda: 0))
    made.stop()


# -- context


def test_the_default_context_is_cut_to_the_models() -> None:
    assert engine(model="tiny-ouro").config.engine.max_model_len == 1024
    assert engine(model="tiny-llama").config.engine.max_model_len == 8192
    assert engine(model="tiny-ouro", limits={"max_model_len": 100}).config.engine.max_model_len == 100


def test_another_context_beyond_the_models_is_refused() -> None:
    told = refused(model="tiny-ouro", limits={"max_model_len": 1025})
    assert told == "configuration: engine.max_model_len: found 1025, allowed: at most 1024, the model's own"


def test_a_prompt_longer_than_the_context_is_rejected_and_an_answer_ends_with_it() -> None:
    requests = [R(0, ids(1, 1024), 5), R(0, ids(1, 1023), 5), R(0, ids(1, 1022), 5)]
    done = run(engine_of(*requests, model="tiny-ouro", stack=("fcfs",), L=1024, N=600, B=2048))
    assert done.why("R0") == "rejected: exceeds_context: 1024 prompt tokens and one more, max_model_len is 1024"
    assert [(done.why(name), len(done.output(name))) for name in ("R1", "R2")] == [("length", 1), ("length", 2)]


# -- vocabulary


@pytest.mark.parametrize("stranger", [512, 31_999, -1])
def test_an_id_that_the_model_does_not_know_is_rejected(stranger: int) -> None:
    made = engine(limits={"max_model_len": 64}, kv={"num_blocks": 16}, **COST)
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    handles = [made.submit(Request(f"r{at}", [1, at, 2], sampling)) for at in (stranger, 511)]
    assert len(list(made.run())) > 0
    assert handles[0].result().reject_reason == f"unknown_token: {stranger} is not in the vocabulary of 512 tokens"
    assert len(handles[1].token_ids) == 3


def test_synthetic_prompts_are_folded_into_a_small_vocabulary() -> None:
    """A prompt given by its length has ids up to 32,000, as the simulator knows them."""
    done = run(engine_of(R(0, 40, 5), R(0, 40, 5)))
    assert len(done.output("R0")) == 5 and done.output("R0") != done.output("R1")


# -- depth


@pytest.mark.parametrize("exits", [{"threshold": 0.5}, {"max_loops": 1}, {"trace": [1]}])
def test_a_dense_model_has_no_exits(exits: dict[str, Any]) -> None:
    assert refused(exit=exits) == "executor.torch.exit: found exits, allowed: none, because the model is not looped"


@pytest.mark.parametrize("exits", [{"max_loops": 4}, {"trace": [1, 4, 2]}])
def test_exits_beyond_the_models_depth_are_told(exits: dict[str, Any]) -> None:
    told = refused(model="tiny-ouro", exit=exits)
    assert told == "executor.torch.exit: found depth 4, allowed: at most 3, the model's own"


# -- machine


def test_a_device_that_is_not_there_is_told() -> None:
    count = torch.cuda.device_count()
    found = f"{count} CUDA devices" if torch.cuda.is_available() else "no CUDA device"
    name = f"cuda:{count}"
    assert refused(device=name) == (
        f"executor.torch.device: found {name!r}, and this machine has {found}; allowed: auto, cpu"
    )


def test_a_device_of_another_kind_is_told() -> None:
    told = refused(device="tpu")
    assert told == "configuration: executor.torch.device: found 'tpu', allowed: auto, cpu, cuda, cuda:N"


def test_a_model_that_is_not_there_is_told_with_the_nearest() -> None:
    assert "did you mean 'tiny-llama'?" in refused(model="tiny-lama")


def test_threads_are_as_many_as_asked_for() -> None:
    before = torch.get_num_threads()
    try:
        run(engine_of(R(0, 4, 2), options={"cpu_threads": 2}))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
