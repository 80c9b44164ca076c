"""The auditor in runs: silent where all is well, by name in YAML, sampled, stopping or going on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from pressure import MODES, by_priority, engine_of, load, looped_settings, run
from scenario import R, play

from interlock.core import BoundaryRecord, ConfigError, Engine
from interlock.core.view import View
from interlock.plugins.audit import Audit, AuditError
from interlock.plugins.cli.main import invoke
from interlock.plugins.run.session import execute

CONFIG: dict[str, Any] = {
    "engine": {"max_num_seqs": 2, "max_model_len": 64},
    "kv": {"num_blocks": 16, "block_size": 4},
    "policies": [{"priority": {"preempt": "yield"}}, "mixed"],
    "executor": {"simulated": {"cost": {"constant": {"step_s": 1.0}}}},
    "workload": {"requests": [{"id": f"r{i}", "arrival": float(i), "prompt": 6, "output": 9} for i in range(4)]},
}


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """The command line sets logging up for its process."""
    yield
    structlog.reset_defaults()


class Thief:
    """An observer that gives one request's slot to another at this boundary and at all that follow."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, 0

    def on_start(self, view: View) -> None:
        self.table = view._state.table

    def on_boundary(self, record: BoundaryRecord) -> None:
        self.seen += 1
        if self.seen == self.at:
            self.table.slot[1] = self.table.slot[0]


def stepwise(**more: Any) -> dict[str, Any]:
    """The configuration with a boundary for each step."""
    return {**CONFIG, "engine": {**CONFIG["engine"], "max_repeat": 1}, **more}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_found_under_pressure(seed: int, mode: str) -> None:
    audit = Audit()
    requests, settings = load(seed)
    engine = engine_of(*requests, stack=by_priority(mode, "mixed"), observers=[audit], **settings)
    done = run(engine)
    assert audit.audits >= len(done.records) and not audit.counts


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_found_in_a_loop(seed: int, split: bool) -> None:
    audit = Audit()
    requests, settings = load(seed)
    stack = by_priority(MODES[seed % 3], "refill")
    done = run(
        engine_of(*requests, stack=stack, split=split, observers=[audit], **settings, **looped_settings(seed, 3))
    )
    assert audit.audits >= len(done.records)


def test_nothing_is_found_when_batches_fail() -> None:
    audit = Audit()

    def look(engine: Engine, record: BoundaryRecord) -> None:
        audit.on_start(engine.view)
        audit.on_boundary(record)

    requests = [R(0, [1] * 8 + [i], 6) for i in range(4)]
    play(*requests, caching=True, fails=range(0, 40, 3), N=12, reserve="none", at=look)
    assert audit.audits and not audit.counts


def test_it_changes_nothing() -> None:
    sessions = [execute(config(plugins)) for plugins in ([], ["audit"], [{"audit": {"every": 3}}])]
    assert [session.error for session in sessions] == [None] * 3
    assert len({session.summary()["digest"] for session in sessions}) == 1


def config(plugins: list[Any]) -> Any:
    """The configuration with these observers."""
    from interlock.core import EngineConfig

    return EngineConfig.load({**CONFIG, "plugins": plugins})


@pytest.mark.parametrize(("every", "at"), [(1, 3), (4, 4), (5, 5)])
def test_it_is_sampled(every: int, at: int) -> None:
    thief = Thief(3)
    seen = []
    engine = Engine.from_config(stepwise(), observers=[thief, Audit(Audit.Options(every=every))])
    with pytest.raises(AuditError, match="'a slot has one owner'"):
        seen.extend(engine.run())
    assert thief.seen == at


def test_the_last_boundary_is_always_audited() -> None:
    audit = Audit(Audit.Options(every=10_000))
    list(Engine.from_config(stepwise(), observers=[audit]).run())
    assert audit.audits >= 1


def test_without_stop_it_counts_and_logs_and_goes_on() -> None:
    audit = Audit(Audit.Options(stop=False))
    with structlog.testing.capture_logs() as logs:
        outcomes = [one for record in _tolerant(audit) for one in record.outcomes]
    assert len(outcomes) >= 1
    assert audit.counts["a slot has one owner"] >= 2
    assert len(audit.findings) == min(sum(audit.counts.values()), 100)
    told = [line for line in logs if "'a slot has one owner'" in line.get("finding", "")]
    assert len(told) == 1, "at a limited rate"
    assert logs[-1]["findings"] == dict(audit.counts)


def _tolerant(audit: Audit) -> list[BoundaryRecord]:
    records = []
    engine = Engine.from_config(stepwise(), observers=[Thief(3), audit])
    for record in engine.run():
        records.append(record)
        if len(records) > 9:  # a slot that two give back breaks the engine, sooner or later
            break
    engine.stop()
    return records


def test_a_run_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audited.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "plugins": ["audit"]}))
    assert invoke(["run", str(path), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    thief = f"{__file__}:Eager"
    path.write_text(yaml.safe_dump({**CONFIG, "plugins": [thief, "audit"]}))
    assert invoke(["run", str(path), "--out", str(tmp_path / "stopped"), "--quiet"]) == 1
    told = capsys.readouterr().err
    assert "'a slot has one owner' does not hold for row 0 (request 'r0'), row 1 (request 'r1')" in told
    assert (tmp_path / "stopped" / "summary.json").is_file()


class Eager(Thief):
    """A thief that needs no options."""

    def __init__(self) -> None:
        super().__init__(3)


@pytest.mark.parametrize(
    ("options", "told"),
    [({"every": 0}, "every: found 0"), ({"often": 1}, "often: unknown key"), ({"stop": 3}, "stop")],
)
def test_wrong_options_are_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        config([{"audit": options}])
