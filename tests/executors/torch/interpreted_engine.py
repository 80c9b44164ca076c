"""Engines on the Triton kernels in Triton's interpreter. Run by test_interpreted_engine.py, in a process of its own.

Decode steps go through `DecodeGraphs` as on a device, with a recorder that runs again in place of a graph.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import numpy as np
import torch
from torch import Tensor

from interlock.core import Engine, Request, SamplingParams
from interlock.executors.torch import executor as module
from interlock.executors.torch.attention.triton_attention import TritonAttention
from interlock.executors.torch.runner import DenseRunner

CPU_ATTENTION = module.attention_for


class Again:
    """Records by running the function again into the tensor of the first time."""

    def record(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        result = run()

        def replay() -> None:
            result.copy_(run())

        return replay, result


def answers(triton: bool, model: str, prompt: str, policies: list[Any]) -> tuple[list[list[int]], set[str]]:
    """What four requests are told, and why anybody changed his status."""
    module.attention_for = (lambda device: TritonAttention()) if triton else CPU_ATTENTION
    exits = {"threshold": 0.6} if model == "tiny-ouro" else {}
    engine = Engine.from_config(
        {
            "engine": {
                "max_num_seqs": 3, "max_num_batched_tokens": 24, "max_model_len": 128, "prompt": prompt,
                "on_violation": "repair",
            },
            "kv": {"num_blocks": 16, "block_size": 4, "reserve": "none"},
            "policies": policies,
            "executor": {"torch": {"model": model, "exit": exits, "cost": {"constant": {"step_s": 1.0}}}},
        }
    )  # fmt: skip
    handles = [
        engine.submit(
            Request(
                f"r{i}",
                np.arange(1, 9 + 6 * i),
                SamplingParams(max_tokens=7, ignore_eos=True, temperature=0.5 * (i % 2), seed=i),
                arrival=float(2 * i),
                priority=-i,
            )
        )
        for i in range(4)
    ]
    reasons = set()
    record = engine.step()
    runner = engine.executor._runner  # type: ignore[attr-defined]
    if triton and isinstance(runner, DenseRunner):
        runner.use_graphs(Again(), 3, 128, 4)
    while record is not None:
        reasons |= {one.reason for one in record.transitions}
        record = engine.step()
    engine.stop()
    return [handle.token_ids for handle in handles], reasons


def main(model: str, prompt: str, mode: str) -> None:
    """Fails where the kernels tell another answer than the CPU's attention."""
    torch.set_num_threads(1)
    last = "mixed" if model in ("tiny-llama", "tiny-qwen") else "refill"
    policies: list[Any] = ["fcfs", {"priority": {"preempt": mode}}, last]
    told, reasons = answers(True, model, prompt, policies)
    assert told == answers(False, model, prompt, policies)[0]
    assert reasons & {"offloaded", "recompute"}, reasons


if __name__ == "__main__":
    main(*sys.argv[1:])
