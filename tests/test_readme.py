"""The README does what it says: its policy, its commands, its figures, its configuration, its Python."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from interlock.core import EngineConfig
from interlock.core.registry import installed
from interlock.plugins.cli.main import app, invoke

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.S | re.M)


def commands() -> list[str]:
    """Every command line that the README tells people to type."""
    return [line for block in blocks("sh") for line in block.splitlines() if line.startswith("interlock ")]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the policy that the README shows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "srpt.py").write_text(blocks("python")[0])
    return tmp_path


def test_the_policy_has_eight_lines() -> None:
    assert len(blocks("python")[0].splitlines()) == 8


@pytest.mark.parametrize("command", commands())
def test_its_commands_run(command: str, here: Path) -> None:
    words = [*shlex.split(command)[1:], "--set", "workload.trace.limit=200"]  # what it prints at full length is below
    assert invoke([*words, "--out", "out", "--quiet"]) == 0
    assert (here / "out" / "summary.json").is_file()


def test_its_figures_are_those_of_its_command(here: Path) -> None:
    command = next(line for line in commands() if "speedup" in line)
    rows = re.findall(
        r"^\| `([^`]+\+[^`]+)` \| ([\d.]+) % \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", README, re.M
    )
    assert len(rows) == 2
    for stack, *told in rows:
        words = [stack if word.startswith("./srpt") else word for word in shlex.split(command)[1:]]
        assert invoke([*words, "--out", "out", "--overwrite", "--quiet"]) == 0
        summary = json.loads((here / "out" / "summary.json").read_text())
        ttft, e2e = summary["ttft_s"], summary["e2e_s"]
        found = [100 * summary["slo"]["attained"], ttft["p50"], ttft["p99"], e2e["mean"], e2e["p99"]]
        assert [float(number) for number in told] == pytest.approx(found, rel=0.02), stack


def test_its_configuration_loads() -> None:
    for block in blocks("yaml"):
        assert EngineConfig.load(yaml.safe_load(block)).policies


def test_its_python_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out


def test_it_lists_every_command_and_packaged_configuration() -> None:
    assert [one.name for one in app.registered_commands if f"interlock {one.name}" not in README] == []
    assert [path.stem for path in (ROOT / "configs").glob("*.yaml") if f"`{path.stem}`" not in README] == []


def test_the_first_screen_holds_what_matters() -> None:
    screen = "\n".join(README.splitlines()[:40])
    assert blocks("python")[0] in screen
    for word in ("interlock run", "tests/fidelity", "It is not"):
        assert word in screen


def test_it_lists_every_policy() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .*\?", README, re.M)
    assert sorted(rows) == sorted(entry.name for entry in installed("policies") if entry.distribution == "interlock")
