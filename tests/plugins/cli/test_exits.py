"""Exit codes and error lines, with an engine that does as it is told."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from interlock.core.errors import ExecutorError, LivelockError, PolicyViolation
from interlock.plugins.cli.main import invoke


def raising(error: BaseException) -> Callable[[Any], None]:
    """An `act` that raises."""

    def act(engine: Any) -> None:
        raise error

    return staticmethod(act)


def summary(folder: str = "out") -> dict[str, Any]:
    """The summary in a run folder."""
    loaded: dict[str, Any] = json.loads(Path(folder, "summary.json").read_text())
    return loaded


def test_good(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "small.yaml"]) == 0
    out, err = capsys.readouterr()
    assert "runs/small-001" in out
    assert err == ""
    assert "interrupted" not in summary("runs/small-001")


def test_quiet_prints_nothing(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "small.yaml", "--quiet", "--out", "out"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (PolicyViolation("blocks", "gave two", plugin="mine"), 1, "mine broke rule 'blocks': gave two"),
        (LivelockError("nothing moves"), 1, "nothing moves"),
        (ExecutorError("the device\nis gone"), 3, "the device is gone"),
        (ZeroDivisionError("by zero"), 3, "unexpected ZeroDivisionError: by zero"),
    ],
)
def test_errors_of_a_run(
    engine: Any, capsys: pytest.CaptureFixture[str], error: Exception, code: int, line: str
) -> None:
    engine.act = raising(error)
    assert invoke(["run", "small.yaml", "--out", "out"]) == code
    err = capsys.readouterr().err
    assert err == f"interlock: {line}; what ran until then is in out\n"
    assert summary()["interrupted"] is True
    assert summary()["error"].startswith(type(error).__name__)


def test_an_error_before_anything_ran_leaves_no_folder(
    engine: Any, capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: Any) -> Any:
        raise ExecutorError("no device")
        yield

    monkeypatch.setattr(engine, "run", run)
    assert invoke(["run", "small.yaml", "--out", "out"]) == 3
    assert capsys.readouterr().err == "interlock: no device\n"
    assert sorted(os.listdir(here)) == ["mine.py", "small.yaml"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"rescues": {"forced": 2, "repaired": 0}}, "times progress needed force: 2"),
        ({"rescues": {"forced": 0, "repaired": 1}, "violations": 4}, "plans were repaired: 1, rules were broken: 4"),
    ],
)
def test_a_run_that_needed_help_is_not_good(
    engine: Any, capsys: pytest.CaptureFixture[str], change: dict[str, Any], line: str
) -> None:
    engine.act = staticmethod(lambda one: one.stats.__dict__.update(change))
    assert invoke(["run", "small.yaml", "--out", "out", "-q"]) == 1
    assert capsys.readouterr().err == f"interlock: {line}\n"
    assert "interrupted" not in summary()


def test_an_interrupted_run_leaves_a_readable_folder(
    engine: Any, interrupt: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.act = staticmethod(interrupt)
    assert invoke(["run", "small.yaml", "--out", "out", "--quiet"]) == 130
    assert capsys.readouterr().err == "interlock: interrupted; what ran until then is in out\n"
    assert summary()["interrupted"] is True
    assert pq.read_table("out/requests.parquet")["request_id"].to_pylist() == ["a"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interruption_does_not_wait_for_the_boundary(engine: Any, interrupt: Any) -> None:
    def twice(one: Any) -> None:
        interrupt(one)
        interrupt(one)
        raise AssertionError("went on")

    engine.act = staticmethod(twice)
    assert invoke(["run", "small.yaml", "--out", "out", "--quiet"]) == 130
    assert summary()["interrupted"] is True


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["rum", "small.yaml"], "No such command 'rum'"),
        (["run"], "CONFIG"),
        (["run", "small.yaml", "--sed", "3"], "No such option: --sed"),
        (["run", "small.yaml", "--seed", "x"], "--seed"),
        (["run", "small.yaml", "--log-level", "loud"], "--log-level"),
        (["run", "smal.yaml"], "smal.yaml"),
        (["run", "small.yaml", "--set", "kv.block_sise=3"], "block_size"),
        (["run", "small.yaml", "--policy", "./mine.py:Mime"], "Mine"),
        (["show"], "CONFIG"),
    ],
)
def test_wrong_commands_are_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("interlock: ")
    assert line in err
    assert not Path("runs").exists()


def test_a_full_folder_is_refused_before_the_run(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("out").mkdir()
    Path("out/mine").write_text("")
    engine.act = raising(AssertionError("ran"))
    assert invoke(["run", "small.yaml", "--out", "out"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    engine.act = staticmethod(lambda one: None)
    assert invoke(["run", "small.yaml", "--out", "out", "--overwrite"]) == 0


def test_tracebacks_are_for_those_who_debug(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    engine.act = raising(ZeroDivisionError("by zero"))
    assert invoke(["run", "small.yaml", "--out", "a", "-q", "--log-level", "info"]) == 3
    assert "Traceback" not in capsys.readouterr().err
    assert invoke(["run", "small.yaml", "--out", "b", "-q", "--log-level", "debug"]) == 3
    lines = capsys.readouterr().err.splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    assert [event["event"] for event in events] == ["transition", "failed"]
    assert (events[0]["request"], events[0]["to"], events[0]["reason"]) == ("a", "FINISHED", "rejected")
    assert "ZeroDivisionError" in events[1]["exception"]


def test_transitions_are_not_observed_at_higher_levels(engine: Any) -> None:
    seen: list[int] = []
    engine.act = staticmethod(lambda one: seen.append(len(one.observers)))
    invoke(["run", "small.yaml", "-q"])
    invoke(["run", "small.yaml", "-q", "--log-level", "debug"])
    assert seen == [1, 2]


def test_profile(engine: Any) -> None:
    import pstats

    assert invoke(["run", "small.yaml", "--profile", "--out", "out", "-q"]) == 0
    assert pstats.Stats("out/profile.pstats").total_calls > 0  # type: ignore[attr-defined]
    assert Path("out/hooks.txt").read_text().split()[:3] == ["policy", "hook", "calls"]
