"""How well a calibrated simulator predicts: a real model under Poisson arrivals, and the same requests simulated.

    python benchmarks/calibrate.py [--model PATH] [--requests N] [--load SHARE] [--policy STACK] [--clock cpu]
                                   [--threads N] [--keep DIR]

A first run, all requests at once, warms up and says how many requests per second the model can serve. In the second
they arrive at a share of that; its steps give the cost profile. The third is the second on the simulator, with the
profile. Times are the host's: on a machine that others use, the figures say how much they disturb, too. `--clock cpu`
counts the CPU time of this process instead, which others disturb less, and waits for arrivals by turning in circles.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from llama import made

from interlock.core import Engine, EngineConfig
from interlock.plugins.calibrate import Calibration, calibrate
from interlock.plugins.run.folder import RunFolder
from interlock.plugins.run.recorder import Recorder
from interlock.plugins.run.session import Session
from interlock.plugins.run.summary import Ran

LATENCIES = {"TTFT": "ttft_s", "TPOT": "tpot_s", "e2e": "e2e_s"}


class CpuClock:
    """An engine's clock that counts the CPU time of this process."""

    def __init__(self) -> None:
        self._start = time.process_time_ns()

    def now_ns(self) -> int:
        """Nanoseconds since the run began."""
        return time.process_time_ns() - self._start

    def advance_to(self, time_ns: int) -> None:
        """Time passes by itself."""

    def wait_until(self, time_ns: int, news: threading.Condition) -> None:
        """CPU time passes only where something is done."""
        while self.now_ns() < time_ns:
            pass


def configured(executor: dict[str, Any], options: argparse.Namespace, rate: float) -> EngineConfig:
    """The same requests and limits on any executor. Rate 1e6: all at once."""
    generate = {
        "count": options.requests,
        "arrivals": {"poisson": {"rate": rate}},
        "prompt": {"lognormal": {"mean": options.prompt, "sigma": 0.7}},
        "output": {"geometric": {"mean": options.output}},
    }
    sections = {
        "engine": {"max_num_seqs": 16, "max_num_batched_tokens": 512, "max_model_len": 2048, "seed": options.seed},
        "kv": {"num_blocks": 2048, "block_size": 16},
        "executor": executor,
        "workload": {"generate": generate},
    }
    return EngineConfig.load(sections, policy=options.policy)


def ran(config: EngineConfig, place: Path, clock: type[CpuClock] | None = None) -> dict[str, Any]:
    """Run it into a folder, by this clock instead of the executor's own; the summary."""
    recorder, started = Recorder(), time.perf_counter()
    engine = Engine.from_config(config, observers=[recorder])
    if clock is not None:
        engine.clock = clock()
    for _ in engine.run():
        pass
    spent = Ran(time.perf_counter() - started, engine.stats.scheduler_ns)
    session = Session(engine.config, recorder, spent)
    numbers = session.summary()
    session.write(RunFolder(place), numbers)
    return numbers


def compared(options: argparse.Namespace, work: Path) -> tuple[float, Calibration, dict[str, Any], dict[str, Any]]:
    """Requests per second, what was fitted, and the summaries of the measured and the simulated run."""
    model = options.model or str(made(work / "model"))
    real = {"torch": {"model": model, "device": "cpu", "dtype": "float32", "cpu_threads": options.threads}}
    clock = CpuClock if options.clock == "cpu" else None
    rate = options.load * ran(configured(real, options, 1e6), work / "warm", clock)["throughput"]["requests_per_s"]
    measured = ran(configured(real, options, rate), work / "measured", clock)
    found = calibrate(work / "measured")
    found.write(work / "profile.json")
    profile = {"simulated": {"cost": {"profile": {"path": str(work / "profile.json")}}}}
    return rate, found, measured, ran(configured(profile, options, rate), work / "predicted")


def report(rate: float, found: Calibration, measured: dict[str, Any], predicted: dict[str, Any]) -> None:
    """Print the table."""
    fitted = found.default
    finished, others = measured["requests"]["finished"], os.getloadavg()[0]
    print(f"{finished} requests at {rate:.2f} per second, load average {others:.1f}")
    print("  ".join(f"{name} {value:.3e}" for name, value in fitted.coefficients.items()))
    aside = f"{fitted.aside} of {fitted.calls:,} calls set aside, {fitted.aside_s / fitted.total_s:.1%} of the time"
    print(f"relative error of a call: {fitted.error:.1%} mean, {fitted.error_p90:.1%} p90; {aside}\n")
    print(f"{'':<10} {'measured s':>11} {'predicted s':>11} {'error':>8}")
    for name, key in LATENCIES.items():
        for point in ("mean", "p90"):
            real, simulated = measured[key][point], predicted[key][point]
            print(f"{name + ' ' + point:<10} {real:11.4f} {simulated:11.4f} {simulated / real - 1:+8.1%}")


def main() -> None:
    """Run the three and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a Hugging Face folder or a GGUF file; default: a Llama of 4 layers")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--prompt", type=float, default=96, help="mean tokens of a prompt")
    parser.add_argument("--output", type=float, default=32, help="mean tokens of an answer")
    parser.add_argument("--load", type=float, default=0.5, help="arrivals as a share of what can be served")
    parser.add_argument("--policy", default="fcfs+mixed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the run folders and the profile there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
        report(*compared(options, options.keep or Path(work)))


if __name__ == "__main__":
    main()
