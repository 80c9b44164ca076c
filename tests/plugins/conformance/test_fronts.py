"""The command and the pytest plugin: lines, paragraphs, files, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from interlock.plugins.cli.main import invoke

POLICY = '''
from interlock.core import Policy
from interlock.core.claims import NoPriorityInversion

class Mine(Policy):
    """The largest number first, which says otherwise."""

    def claims(self):
        return (NoPriorityInversion(),)

    def admit(self, offer, view):
        offer.sort_by("-priority")
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a policy."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(POLICY)
    return tmp_path


def test_check_tells_a_line_per_check_and_a_paragraph_per_failure(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["check", "./mine.py:Mine", "--max-examples", "12", "--json", "out/report.json"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("pass ") for line in lines) > 30
    (failed,) = [line for line in lines if line.startswith("fail ")]
    assert "NoPriorityInversion() of mine.py:Mine" in failed
    (told,) = [line for line in lines if "Shown by: interlock run" in line]
    assert "At the boundary of step 0, request " in told and "Right: it enters first." in told
    file = told.rsplit(" ", 1)[-1]
    report = json.loads((here / "out" / "report.json").read_text())
    assert not report["passed"] and report["versions"]["policies"][0]["source_hash"]
    failures = [check for check in report["checks"] if check["status"] == "fail"]
    assert [check["file"] for check in failures] == [file] and failures[0]["finding"]["right"] == "it enters first."
    assert invoke(["run", file, "--out", "shown", "-q"]) == 1
    assert "it enters first" in capsys.readouterr().err


def test_check_passes_with_nothing_left_behind(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["check", "fcfs", "--max-examples", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("fcfs: ")
    assert not (here / "check-failures").exists()


@pytest.mark.parametrize(
    "arguments",
    [["nope"], ["fcfs", "--max-examples", "0"], ["executor:nope"], ["executor:simulated", "--executor", "simulated"]],
)
def test_wrong_commands_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["check", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.startswith("interlock.plugins.conformance")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    assert invoke(["check", "fcfs"]) == 2
    assert "pip install 'interlock[check]'" in capsys.readouterr().err


def test_the_suite_as_tests(here: Path) -> None:
    plugin = [] if _registered(here) else ["-p", "interlock.plugins.conformance.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-rA", *plugin, "--pyargs", "interlock.plugins.conformance"]
    options = ["--interlock-policy", "./mine.py:Mine", "--interlock-max-examples", "12"]
    ran = subprocess.run([*command, *options], cwd=here, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "1 failed" in ran.stdout and "Right: it enters first." in ran.stdout
    assert "PASSED" in ran.stdout and "members" in ran.stdout
    bare = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert bare.returncode == 2 and "--interlock-policy STACK" in bare.stdout + bare.stderr


def _registered(here: Path) -> bool:
    """Whether pytest finds the plugin by itself, which an editable install from before it was there does not."""
    asked = "import importlib.metadata as m; print([p.value for p in m.entry_points(group='pytest11')])"
    told = subprocess.run([sys.executable, "-c", asked], cwd=here, capture_output=True, text=True, check=True)
    return "interlock.plugins.conformance.pytest_plugin" in told.stdout
