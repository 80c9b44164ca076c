"""Simulated requests and iterations per CPU second on the common workload: 10,000 requests, one Llama-3-8B replica.

    python benchmarks/simulate.py [--policy STACK] [--limit N] [--max-repeat N]

Blocks, rules and records are on. CPU time is the process's own, from reading the trace to the last boundary. For
comparison, measured on a two-core virtual machine on the same workload: Vidur 676 requests and 8,300 iterations per
CPU second, a bare Python loop without plug-ins, blocks or records 16,100 and 210,000.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from interlock.core import Engine, EngineConfig
from interlock.plugins.run.recorder import Recorder

TRACE = Path(__file__).parent / "data" / "common_10000.csv"


def run(policy: str, limit: int, max_repeat: int | None) -> tuple[float, int, int, int]:
    """CPU seconds, requests, iterations, boundaries."""
    started = time.process_time()
    config = EngineConfig.load(
        {
            "engine": {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_repeat": max_repeat},
            "kv": {"num_blocks": 26000, "block_size": 16},
            "executor": {"simulated": {"cost": {"roofline": {"model": "llama-3-8b", "device": "a100-80gb"}}}},
            "workload": {"trace": {"path": str(TRACE), "limit": limit}},
        },
        policy=policy,
    )
    recorder = Recorder()
    engine = Engine.from_config(config, observers=[recorder])
    for _ in engine.run():
        pass
    spent = time.process_time() - started
    return spent, len(recorder.finished), engine.state.step, engine.stats.boundaries


def main() -> None:
    """Print the figures, the best of three runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="fcfs+mixed")
    parser.add_argument("--limit", type=int, default=10_000)
    parser.add_argument("--max-repeat", type=int)
    options = parser.parse_args()
    spent, requests, steps, boundaries = min(run(options.policy, options.limit, options.max_repeat) for _ in range(3))
    print(
        f"stack {options.policy}: {requests} requests, {steps} iterations, {boundaries} boundaries in {spent:.2f} CPU s"
    )
    print(f"{requests / spent:,.0f} requests and {steps / spent:,.0f} iterations per CPU second")
    print(f"ratio of requests per CPU second to Vidur's 676: {requests / spent / 676:.1f}")


if __name__ == "__main__":
    main()
