"""Engines on the device: what they say is what they say on the CPU, and their memory comes back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from interlock.core import Engine, Request, SamplingParams
from interlock.executors.torch.executor import Torch
from interlock.executors.torch.runner import DenseRunner

# Nothing is installed here, so that all goes by the names of modules.
EXECUTOR = "interlock.executors.torch.executor:Torch"
POLICIES = {
    "fcfs": "interlock.policies.fcfs:Fcfs",
    "priority": "interlock.policies.priority:Priority",
    "mixed": "interlock.policies.mixed:Mixed",
    "refill": "interlock.policies.refill:Refill",
}
MIB = 2**20
TIGHT = {"num_blocks": 40, "block_size": 4, "reserve": "none"}
Answers = list[list[int]]


def engine_of(device: str, kv: dict[str, Any], policies: list[Any], prompt: str = "atomic", **options: Any) -> Engine:
    return Engine.from_config(
        {
            "engine": {
                "max_num_seqs": 6, "max_num_batched_tokens": 32, "max_model_len": 512, "prompt": prompt,
                "on_violation": "repair",
            },
            "kv": kv,
            "policies": [
                {POLICIES[name]: options}
                for one in policies
                for name, options in (one.items() if isinstance(one, dict) else [(one, {})])
            ],
            "executor": {
                EXECUTOR: {"device": device, "dtype": "float32", "cost": {"constant": {"step_s": 1.0}}, **options}
            },
        }
    )  # fmt: skip


def answers(engine: Engine) -> tuple[Answers, set[str]]:
    """What eight requests are told, and for what reasons they changed their status."""
    handles = [
        engine.submit(
            Request(
                f"r{i}",
                np.arange(1, 10 + 5 * i) % 300,
                SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.8 * (i % 2), seed=i),
                arrival=float(3 * i),
                priority=-i,
            )
        )
        for i in range(8)
    ]
    reasons = {one.reason for record in engine.run() for one in record.transitions}
    engine.stop()
    return [handle.token_ids for handle in handles], reasons


@pytest.mark.parametrize("mode", ["yield", "offload", "recompute"])
@pytest.mark.parametrize("model", ["tiny-llama", "tiny-qwen"])
def test_a_dense_model_says_what_it_says_on_the_cpu(model: str, mode: str) -> None:
    policies = ["fcfs", {"priority": {"preempt": mode}}, "mixed"]
    there, reasons = answers(engine_of("cuda", TIGHT, policies, model=model))
    here, _ = answers(engine_of("cpu", TIGHT, policies, model=model))
    assert there == here
    assert reasons & {"yielded", "offloaded", "recompute"}


@pytest.mark.parametrize("prompt", ["atomic", "split"])
@pytest.mark.parametrize("policies", [["fcfs", "refill"], ["fcfs", {"priority": {"preempt": "offload"}}, "mixed"]])
@pytest.mark.parametrize("model", ["tiny-ouro", "tiny-huginn"])
def test_a_looped_model_says_what_it_says_on_the_cpu(model: str, policies: list[Any], prompt: str) -> None:
    options = {"model": model, "exit": {"threshold": 0.6}}
    there, _ = answers(engine_of("cuda", TIGHT, policies, prompt, **options))
    here, _ = answers(engine_of("cpu", TIGHT, policies, prompt, **options))
    assert there == here


def test_decode_runs_in_graphs() -> None:
    engine = engine_of("cuda", TIGHT, ["fcfs"], model="tiny-llama")
    engine.submit(Request("a", np.arange(1, 9), SamplingParams(max_tokens=4, ignore_eos=True)))
    while engine.step() is not None:
        assert isinstance(engine.executor, Torch)
        runner = engine.executor._runner
    assert isinstance(runner, DenseRunner)
    assert runner._graphs is not None
    assert len(runner._graphs._graphs) == 1


def test_an_engine_made_again_finds_the_same_pool() -> None:
    pools, free = [], []
    for _ in range(3):
        engine = engine_of("cuda", {"num_blocks": "auto", "block_size": 16}, ["fcfs"], model="tiny-llama")
        answers(engine)
        block = 2 * 2 * 2 * 16 * 16 * 4  # layers, keys and values, KV heads, tokens, head size, bytes
        pools.append(engine.state.pool.num_blocks * block)
        free.append(torch.cuda.mem_get_info()[0])
    assert max(pools) - min(pools) <= 16 * MIB
    assert max(free[1:]) - min(free[1:]) <= 16 * MIB
