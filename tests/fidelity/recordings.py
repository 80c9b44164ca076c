"""Runs a recorded workload of vLLM's v1 scheduler and states, step by step, what was decided here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from interlock.core import BoundaryRecord, Engine


class Step(NamedTuple):
    """One scheduling step, as the recordings state it."""

    step: int
    tokens: list[tuple[str, int]]
    cached: dict[str, int]
    preempted: list[str]
    finished: list[str]
    running: int
    waiting: int
    free_blocks: int


def recorded(case: dict[str, Any]) -> list[Step]:
    """The peer's decisions."""
    return [
        Step(
            step["step"], list(step["tokens"].items()), step["cached"], sorted(step["preempted"]),
            sorted(step["finished"]), step["running"], step["waiting"], step["free_blocks"],
        )
        for step in case["steps"]
    ]  # fmt: skip


def configuration(case: dict[str, Any]) -> dict[str, Any]:
    """The same workload and settings as a configuration."""
    config = case["config"]
    policy = {"priority": {"preempt": "recompute", "displace": False}} if config["policy"] == "priority" else "fcfs"
    return {
        "engine": {
            "max_num_seqs": config["max_num_seqs"],
            "max_num_batched_tokens": config["max_num_batched_tokens"],
            "long_prefill_token_threshold": config["long_prefill_token_threshold"],
            "max_model_len": 8192,
            "max_repeat": 1,  # a record per step
            "max_preemptions": 10**6,  # the peer knows no protection
        },
        "kv": {
            "num_blocks": config["usable_blocks"],
            "block_size": config["block_size"],
            "enable_prefix_caching": config["prefix_caching"],
            "reserve": "none",
        },
        "policies": [policy, "mixed"],
        "executor": {"simulated": {"cost": {"constant": {"step_s": 1.0}}}},
        "workload": {"requests": [_request(request) for request in case["requests"]]},
    }


def _request(request: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": request["id"],
        "arrival": float(request["arrival_step"]),
        "prompt": request["prompt_token_ids"] or request["prompt_tokens"],
        "output": request["output_tokens"],
        "priority": request["priority"],
    }


def decided(case: dict[str, Any]) -> Iterator[Step]:
    """Our decisions. A step's `running`, `waiting` and `finished` are known when its result is applied."""
    engine = Engine.from_config(configuration(case))
    names = [request["id"] for request in case["requests"]]
    open_step: tuple[BoundaryRecord, dict[str, int]] | None = None
    preempted_before: set[int] = set()
    for record in engine.run():
        if open_step is not None:
            yield _step(*open_step, record, names, preempted_before)
            open_step = None
        preempted_before |= {victim.request for victim in record.preempted}
        if record.batch is not None:
            open_step = (record, {names[n]: tokens for n, tokens in record.cached.items() if tokens})


def _step(record: BoundaryRecord, cached: dict[str, int], after: BoundaryRecord, names: list[str], _: set[int]) -> Step:
    assert record.batch is not None and record.counts is not None
    finished = [outcome.request_id for outcome in after.outcomes]
    counts = record.counts
    return Step(
        round(record.time_s),
        [(names[n], t) for n, t in zip(record.batch.numbers.tolist(), record.batch.tokens.tolist(), strict=True)],
        cached,
        sorted(names[victim.request] for victim in record.preempted),
        sorted(finished),
        counts.running - len(finished),
        counts.waiting,
        counts.free_blocks + counts.cached_blocks,
    )


def first_difference(path: Path) -> str | None:
    """What differs first between a recording and us; None when nothing does."""
    case = json.loads(path.read_text())
    theirs = recorded(case)
    count = 0
    for ours in decided(case):
        if count >= len(theirs) or ours != theirs[count]:
            return f"{path.name}: ours {ours}, recorded {theirs[count] if count < len(theirs) else 'no more steps'}"
        count += 1
    return None if count == len(theirs) else f"{path.name}: {count} steps, recorded {len(theirs)}"
