"""Simulator against reality, as far as no real model is needed: files know no host clock, durations act through the
engine's clock alone, the future is shown by an explicit oracle only, and a run says which policies it was made with."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interlock.core import BatchResult, BoundaryRecord, Engine, EngineConfig, Policy
from interlock.executors.simulated.executor import Simulated
from interlock.plugins.run.folder import RunFolder
from interlock.plugins.run.session import execute

ROOT = Path(__file__).parents[3]
CONFIG: dict[str, Any] = {
    "engine": {"max_num_seqs": 3, "max_num_batched_tokens": 16, "max_model_len": 64, "hook_warn_s": 10.0},
    "kv": {"num_blocks": 20, "block_size": 4, "reserve": "none"},
    "policies": [{"priority": {"preempt": "offload"}}, "mixed"],
    "executor": {"simulated": {"cost": {"linear": {"base_s": 0.4, "prefill_token_s": 0.05, "decode_token_s": 0.1}}}},
    "workload": {
        "requests": [
            {"id": f"r{i}", "arrival": 0.7 * i, "prompt": 3 + i % 7, "output": 2 + i % 5, "priority": i % 3}
            for i in range(24)
        ]
    },
}


class Dozes(Policy):
    """Does nothing, and takes its time over it when `wakes_after` is above 0."""

    wakes_after = 0.0

    def admit(self, offer: Any, view: Any) -> None:
        self._doze()

    def select(self, plan: Any, view: Any) -> None:
        self._doze()

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        self._doze()

    def release(self, retention: Any, view: Any) -> None:
        self._doze()

    def on_result(self, rows: Any, computed: Any, emitted: Any, view: Any) -> None:
        self._doze()

    def _doze(self) -> None:
        if self.wakes_after:
            time.sleep(random.random() * self.wakes_after)


# -- no host clock in virtual time (B103)


def files(place: Path) -> dict[str, Any]:
    """What a run leaves, without what is the host's own: times of it, and the date."""
    session = execute(EngineConfig.load({**CONFIG, "policies": [*CONFIG["policies"], f"{__file__}:Dozes"]}))
    numbers = session.summary()
    session.write(RunFolder(place), numbers)
    left: dict[str, Any] = {path.name: path.read_bytes() for path in place.iterdir() if path.suffix == ".yaml"}
    for path in place.glob("*.parquet"):
        table = pq.read_table(path)
        left[path.name] = _bytes(table.drop_columns(["host_s"]) if "host_s" in table.column_names else table)
    for own in ("wall_s", "scheduler_s"):
        del numbers[own]
    del numbers["versions"]["date"]
    return {**left, "summary.json": numbers}


def _bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_hooks_that_doze_leave_every_file_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    awake = files(tmp_path / "awake")
    loaded = EngineConfig.load({**CONFIG, "policies": [f"{__file__}:Dozes"]}).build_policies()
    monkeypatch.setattr(type(loaded[0]), "wakes_after", 0.002)
    assert files(tmp_path / "dozing") == awake
    assert len(awake) == 6


CLOCKS = r"time\.\w+\(|datetime\.now\(|perf_counter\w*\(|random\.\w+\(|default_rng\(\)"
HOST = {
    "plugins/cli/progress.py": {"time.monotonic("},  # when the bar is painted again
    "plugins/run/session.py": {"time.perf_counter("},  # wall_s
    "plugins/run/versions.py": {"datetime.now("},  # the date
    "plugins/audit/observer.py": {"time.monotonic("},  # how often a finding is logged
    "plugins/conformance/report.py": {"datetime.now("},  # the date
}


@pytest.mark.parametrize("folder", ["policies", "executors", "plugins"])
def test_who_looks_at_the_host_s_clock_or_throws_dice_is_known(folder: str) -> None:
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        calls = set(re.findall(rf"(?<![\w.])(?:{CLOCKS})", path.read_text("utf-8")))
        if calls:
            found[str(path.relative_to(ROOT))] = calls
    assert found == {name: calls for name, calls in HOST.items() if name.startswith(folder) and (ROOT / name).is_file()}


# -- the policy that is simulated is the policy that runs (B101)


class Durations:
    """The simulated model behind a device whose batches take what this list says, one after the other."""

    def __init__(self, durations: list[float]) -> None:
        self.inner, self.left = Simulated({"cost": {"constant": {"step_s": 1.0}}}), iter(durations)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def collect(self, block: bool) -> list[BatchResult]:
        """As the inner one, ended when the list says."""
        done = []
        for result in self.inner.collect(block):
            ends = np.array([result.ticket.batch.start_ns + round(next(self.left) * 1e9)])
            done.append(BatchResult(result.ticket, ends, result.tokens, result.exits))
        return done


def decided(durations: list[float], *, at_once: bool = False) -> tuple[list[Any], list[float]]:
    """What is decided on a device with these durations, and how long each batch took."""
    requests = [{**one, "arrival": 0.0} if at_once else one for one in CONFIG["workload"]["requests"]]
    engine = {**CONFIG["engine"], "max_repeat": 1}
    config = EngineConfig.load({**CONFIG, "engine": engine, "workload": {"requests": requests}})
    built = Engine(config, config.build_policies(), Durations(durations), feed=config.build_feed())  # type: ignore[arg-type]
    log: list[Any] = []
    took: list[float] = []
    for record in built.run():
        log += _decisions(record)
        took += [(int(one.result.ends_ns[-1]) - one.batch.start_ns) / 1e9 for one in record.collected]
    return log, took


def _decisions(record: BoundaryRecord) -> list[Any]:
    moves = [(one.request_id, one.to_status.name, one.reason) for one in record.transitions]
    batch = record.batch
    return moves if batch is None else [*moves, (batch.numbers.tolist(), batch.work.tolist(), batch.tokens.tolist())]


def measured(seed: int) -> list[float]:
    """Durations as a device has them: no two alike."""
    dice = random.Random(seed)
    return [0.2 + dice.expovariate(3.0) for _ in range(2000)]


def test_a_run_is_simulated_from_its_own_durations() -> None:
    log, took = decided(measured(1))
    again, _ = decided(took)
    assert again == log
    assert decided(measured(2))[0] != log, "arrivals meet other batches"


def test_durations_reach_decisions_through_the_clock_alone() -> None:
    """When everybody is there from the start, and no policy looks at the clock, only times differ."""
    log, took = decided(measured(1), at_once=True)
    other, longer = decided([10 * one for one in measured(2)], at_once=True)
    assert other == log and longer != took


def test_a_run_names_the_policies_that_it_was_made_with() -> None:
    versions = execute(EngineConfig.load(CONFIG)).summary()["versions"]
    assert [one["name"] for one in versions["policies"]] == ["priority", "mixed"]
    assert all(one["distribution"] == "interlock" and len(one["source_hash"]) == 16 for one in versions["policies"])


# -- no look into the future (B104)


class Guesses(Policy):
    """Keeps what policies are shown of lengths."""

    shown: list[tuple[int, int]] = []

    def on_arrival(self, rows: Any, view: Any) -> None:
        self.shown += [(int(view.predicted[row]), int(view.max_tokens[row])) for row in rows]


@pytest.mark.parametrize(
    ("workload", "predicted", "most"),
    [
        ({"max_tokens": 30}, -1, 30),
        ({"max_tokens": "context"}, -1, 60),
        ({"max_tokens": 30, "predict": "oracle"}, 3, 30),
        ({}, -1, 3),  # max_tokens: output, which the run is labelled with
    ],
)
def test_lengths_are_shown_by_an_explicit_word_that_labels_the_run(
    workload: dict[str, Any], predicted: int, most: int
) -> None:
    requests = {"requests": [{"id": "a", "arrival": 0.0, "prompt": 4, "output": 3}]}
    config = EngineConfig.load({**CONFIG, "workload": {**requests, **workload}})
    guesses = Guesses()
    guesses.shown = []
    list(Engine.from_config(config, policies=[*config.build_policies(), guesses]).run())
    assert guesses.shown == [(predicted, most)]
    known = predicted >= 0 or most == 3
    assert execute(config).summary()["lengths_known"] is known
    assert config.resolved()["workload"]["predict"] == workload.get("predict", "none")
