"""A batch that ran and whose result was lost runs again, and nobody's answer shows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from interlock.core import Engine, EngineConfig, Request, SamplingParams
from interlock.core.batch import BatchResult, Ticket
from interlock.executors.torch.executor import Torch


class Lossy(Torch):
    """Loses every third result after the batch ran, as a device does that fails on the way back."""

    lost, seen = 0, 0

    def _result(self, ticket: Ticket) -> BatchResult:
        result = super()._result(ticket)
        self.seen += 1
        if self.seen % 3:
            return result
        self.lost += 1
        nothing = np.empty((0, len(ticket.batch)), np.int32)
        return BatchResult(ticket, result.ends_ns[:1], nothing, error=RuntimeError("the device is lost"))


@pytest.mark.parametrize(
    ("model", "prompt", "policies"),
    [
        ("tiny-llama", "atomic", ["fcfs", "mixed"]),
        ("tiny-ouro", "atomic", ["fcfs", "refill"]),
        ("tiny-ouro", "split", ["fcfs", "refill", "mixed"]),
        ("tiny-huginn", "split", ["fcfs", "no_refill"]),
    ],
)
@pytest.mark.parametrize("exits", [{"threshold": 0.6}, {"threshold": 0.6, "delayed": True}])
def test_lost_results_change_no_answer(model: str, prompt: str, policies: list[Any], exits: dict[str, Any]) -> None:
    config = EngineConfig.load(
        {
            "engine": {"max_num_seqs": 4, "max_num_batched_tokens": 16, "prompt": prompt},
            "kv": {"num_blocks": 200, "block_size": 4},
            "policies": policies,
            "executor": {
                "torch": {
                    "model": model,
                    "dtype": "float64",
                    "exit": {} if model == "tiny-llama" else exits,
                    "cost": {"constant": {"step_s": 1.0}},
                }
            },
        }
    )
    answers = []
    for kind in (Torch, Lossy):
        executor = kind(config.executor.options)
        engine = Engine(config, config.build_policies(), executor)
        handles = [
            engine.submit(Request(f"r{i}", np.arange(1, 9 + 3 * i), SamplingParams(max_tokens=12))) for i in range(4)
        ]
        for _ in engine.run():
            pass
        answers.append([handle.token_ids for handle in handles])
    assert isinstance(executor, Lossy)
    assert executor.lost
    assert answers[0] == answers[1]
