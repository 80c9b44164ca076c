"""`interlock calibrate`: the table, the file, and folders that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from interlock.plugins.cli.main import invoke

LOOPED = """
engine: {prompt: split}
policies: [fcfs, refill]
executor:
  simulated:
    cost: {constant: {step_s: 1.0, prelude_s: 0.25, recurrent_s: 0.5, coda_s: 0.125}}
    model: {loops: 3, exit: {trace: [3, 1]}}
workload:
  requests: [{id: a, prompt: 8, output: 4}, {id: b, arrival: 1.0, prompt: 8, output: 3}]
"""


def recorded(config: str = "small.yaml") -> None:
    """Run a configuration into `out`."""
    assert invoke(["run", config, "--set", "policies=fcfs+mixed", "--out", "out", "--quiet"]) == 0


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a good command prints."""
    capsys.readouterr()
    assert invoke(["calibrate", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def row(table: str, name: str) -> list[str]:
    """The cells of a row."""
    return next(line for line in table.splitlines() if line.strip().startswith(name)).strip()[len(name) :].split()


def test_the_profile_lies_in_the_run_folder(capsys: pytest.CaptureFixture[str]) -> None:
    recorded()
    out = said(capsys, "out")
    assert row(out, "seconds per unit") == ["forward"]
    assert row(out, "base_s") == ["1.000e+00"]
    assert row(out, "error, mean") == row(out, "error, p90") == row(out, "time set aside") == ["0.0%"]
    assert int(row(out, "calls")[0]) == json.loads(Path("out/summary.json").read_text())["steps"]
    assert row(out, "profile") == ["out/profile.json"]
    assert json.loads(Path("out/profile.json").read_text())["coefficients"]["base_s"] == 1.0


def test_or_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    recorded()
    assert row(said(capsys, "out", "--out", "mine.json"), "profile") == ["mine.json"]
    again = "executor={simulated: {cost: {profile: {path: mine.json}}}}"
    assert invoke(["run", "small.yaml", "--set", "policies=fcfs+mixed", "--set", again, "--out", "new", "-q"]) == 0
    before, after = (json.loads(Path(name, "summary.json").read_text()) for name in ("out", "new"))
    assert after["e2e_s"] == before["e2e_s"] and after["ttft_s"] == before["ttft_s"]
    assert not Path("out/profile.json").exists()


def test_a_column_per_operation(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "looped.yaml").write_text(LOOPED)
    assert invoke(["run", "looped.yaml", "--out", "out", "--quiet"]) == 0
    out = said(capsys, "out")
    assert row(out, "seconds per unit") == ["coda", "prelude", "recurrent"]
    assert row(out, "base_s") == ["1.250e-01", "2.500e-01", "5.000e-01"]
    assert row(out, "prefill_token_s") == ["-", "0.000e+00", "0.000e+00"]


def test_what_is_wrong_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    recorded()
    lines = {
        ("nowhere",): "nowhere: found no such folder, allowed: a run folder",
        ("small.yaml",): "small.yaml: found a file, allowed: a run folder",
        ("out", "--out", "small.yaml"): "small.yaml: found another file, allowed: a cost profile",
        ("out", "--out", "absent/p.json"): "absent/p.json: cannot be written",
        (): "DIR",
    }
    for arguments, line in lines.items():
        capsys.readouterr()
        assert invoke(["calibrate", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and line in err
