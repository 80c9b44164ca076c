"""Equal configuration and seed give equal decisions: across processes, hash seeds, host load and stretches."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from interlock.core import Engine, EngineConfig, Policy

GENERATED = {
    "count": 40,
    "arrivals": {"poisson": {"rate": 0.7}},
    "prompt": {"lognormal": {"mean": 14, "sigma": 0.8}},
    "output": {"geometric": {"mean": 9}},
}


def requests(seed: int) -> dict[str, Any]:
    """Forty requests with priorities, some with equal beginnings, some cancelled."""
    dice, at, entries = random.Random(seed), 0.0, []
    for _ in range(40):
        at += dice.expovariate(0.7)
        prompt = [1] * dice.randint(0, 12) + [dice.randint(2, 9) for _ in range(dice.randint(1, 14))]
        entry = {"arrival": at, "prompt": prompt, "output": dice.randint(1, 20), "priority": dice.randint(0, 3)}
        entries.append(entry | ({"cancel_at": at + dice.uniform(0, 20)} if dice.random() < 0.15 else {}))
    return {"requests": entries}


def configuration(seed: int, stack: list[Any], generated: bool = False, **engine: Any) -> dict[str, Any]:
    """Random requests on a pool that is too small for them, so that everything a boundary can decide comes up."""
    return {
        "engine": {"max_num_seqs": 5, "max_num_batched_tokens": 24, "max_model_len": 96, "seed": seed, **engine},
        "kv": {"num_blocks": 24, "block_size": 4, "reserve": "none"},
        "policies": stack,
        "executor": {
            "simulated": {"cost": {"linear": {"base_s": 0.4, "prefill_token_s": 0.05, "decode_token_s": 0.1}}}
        },
        "workload": {"generate": GENERATED} if generated else requests(seed),
    }


class Shuffle(Policy):
    """An order drawn from the view's own randomness."""

    def admit(self, offer: Any, view: Any) -> None:
        offer.reorder(view.rng.permutation(offer.rows))


class Sleeps(Policy):
    """Takes its time, and does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.dice = random.Random(time.time_ns())

    def admit(self, offer: Any, view: Any) -> None:
        time.sleep(self.dice.random() * 0.002)

    def select(self, plan: Any, view: Any) -> None:
        time.sleep(self.dice.random() * 0.002)

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        time.sleep(self.dice.random() * 0.002)

    def on_result(self, rows: Any, computed: Any, emitted: Any, view: Any) -> None:
        time.sleep(self.dice.random() * 0.001)


def decided(config: dict[str, Any], *extra: Policy) -> list[Any]:
    """All transitions, answers and batches with their tokens. A stretch is so many batches."""
    loaded = EngineConfig.load(config)
    engine = Engine.from_config(loaded, policies=[*loaded.build_policies(), *extra])
    moves: list[Any] = []
    answers: list[Any] = []
    batches: list[Any] = []
    for record in engine.run():
        moves += [tuple(map(str, move)) for move in record.transitions]
        answers += [(o.request_id, o.finished_ns, o.output_ids.tolist(), str(o.finish_reason)) for o in record.outcomes]
        for collected in record.collected:
            batch, result = collected.batch, collected.result
            for run in range(result.runs):
                where = batch.step + run, batch.numbers.tolist(), batch.tokens.tolist(), (batch.start + run).tolist()
                batches.append((*where, int(result.ends_ns[run]), result.tokens[run].tolist()))
    return [moves, answers, batches]


def decisions(config: dict[str, Any], *extra: Policy) -> str:
    """A hash of them."""
    return hashlib.sha256(repr(decided(config, *extra)).encode()).hexdigest()


STACKS = [["fcfs"], ["fcfs", "mixed"], [{"priority": {"aging": 0.1}}, {"mixed": {"order": "decode_first"}}]]


@pytest.mark.parametrize("stack", STACKS, ids=["fcfs", "mixed", "priority"])
@pytest.mark.parametrize("generated", [False, True])
def test_two_runs_decide_alike_and_another_seed_does_not(generated: bool, stack: list[Any]) -> None:
    first, again, other = (decisions(configuration(seed, stack, generated)) for seed in (7, 7, 8))
    assert first == again != other


def test_randomness_of_a_policy_comes_of_the_seed() -> None:
    first, again, other = (decisions(configuration(seed, ["mixed"]), Shuffle()) for seed in (7, 7, 8))
    assert first == again != other
    assert first != decisions(configuration(7, ["mixed"]))


@pytest.mark.parametrize("stack", STACKS[1:], ids=["mixed", "priority"])
def test_slow_hooks_change_nothing(stack: list[Any]) -> None:  # B103
    config = configuration(3, stack, hook_warn_s=10.0)
    assert decisions(config, Sleeps()) == decisions(config, Sleeps()) == decisions(config)


@pytest.mark.parametrize("stack", STACKS, ids=["fcfs", "mixed", "priority"])
@pytest.mark.parametrize("seed", range(3))
def test_stretches_change_nothing(seed: int, stack: list[Any]) -> None:
    one, few, many = (decided(configuration(seed, stack, max_repeat=repeat)) for repeat in (1, 3, None))
    for kind in range(3):
        assert one[kind] == few[kind] == many[kind]


_ALONE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("determinism", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
for stack in module.STACKS:
    print(module.decisions(module.configuration(7, stack)))
"""


def test_processes_and_hash_seeds_decide_alike() -> None:
    here = [decisions(configuration(7, stack)) for stack in STACKS]
    for hash_seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", _ALONE, __file__]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
        assert said.split() == here, f"PYTHONHASHSEED={hash_seed}"


CLOCKS = (
    "time.time(",
    "time.monotonic(",
    "datetime.now(",
    "perf_counter(",
    "random.random(",
    "np.random.rand",
    "default_rng()",
)


@pytest.mark.parametrize("folder", ["core", "policies", "executors/simulated"])
def test_nobody_reads_a_clock_or_dice_that_the_seed_does_not_set(folder: str) -> None:  # B103
    allowed = {("stack.py", "time.monotonic("), ("clock.py", "time.monotonic("), ("clock.py", "time.time(")}
    root = Path(__file__).parents[2] / folder
    found = {(path.name, call) for path in root.rglob("*.py") for call in CLOCKS if call in path.read_text()}
    assert found <= allowed
