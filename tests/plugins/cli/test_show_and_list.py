"""`interlock show`, `interlock list`, `--help`, `--version`."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from interlock.core.policy import Policy
from interlock.core.yamlfile import read_text
from interlock.plugins.cli import listing
from interlock.plugins.cli.main import invoke


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that succeeds prints."""
    assert invoke(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_show_is_the_resolved_configuration(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    text = shown(capsys, "show", "small.yaml", "--set", "kv.block_size=32", "--seed", "5")
    data = read_text(text, "shown").data
    assert (data["kv"]["block_size"], data["engine"]["seed"], data["engine"]["max_num_seqs"]) == (32, 5, 64)
    (here / "again.yaml").write_text(text)
    assert shown(capsys, "show", "again.yaml") == text


def test_show_takes_another_stack(capsys: pytest.CaptureFixture[str]) -> None:
    data = read_text(shown(capsys, "show", "small.yaml", "--policy", "[{./mine.py:Mine: {depth: 9}}]"), "shown").data
    (policy,) = data["policies"]
    assert list(policy.values()) == [{"depth": 9, "label": "no"}]


def test_list_names_everything_installed(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "list")
    for group in ("policies", "executors", "plugins"):
        assert re.search(f"^{group}$", out, re.M)
        for point in importlib.metadata.entry_points(group=f"interlock.{group}"):
            assert re.search(rf"^{point.name} +interlock \d", out, re.M)


class Point:
    """An entry point of some distribution."""

    dist = SimpleNamespace(name="someone-elses-very-long-distribution-name", version="1.2.3")

    def __init__(self, name: str, obj: Any) -> None:
        self.name, self.obj = name, obj

    def load(self) -> Any:
        """Import it."""
        if isinstance(self.obj, Exception):
            raise self.obj
        return self.obj


def test_list_shows_facts_and_survives_a_broken_plugin(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space: dict[str, Any] = {}
    exec((here / "mine.py").read_text(), space)
    mine: type[Policy] = space["Mine"]
    points = [Point("mine", mine), Point("broken", ImportError("no such\nthing"))]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points if "policies" in group else [])
    lines = shown(capsys, "list").splitlines()
    assert lines[0] == "policies"
    assert re.fullmatch(r"broken +someone-elses-very-long-distribution-name 1.2.3 +error .*no such thing", lines[1])
    assert re.fullmatch(r"mine +someone-elses-very-long-distribution-name 1.2.3 +hooks admit", lines[2])
    facts = [line.strip() for line in lines[3:6]]
    assert facts == ["options depth=3, label='no'", "claims NeverPreempts()", "requires step_cost"]
    assert lines[6:] == ["executors", "none", "plugins", "none"]


def test_a_claim_that_needs_an_option_without_default() -> None:
    class Needy(Policy):
        def claims(self) -> Any:
            raise KeyError("depth")

    assert listing.policy_facts(Needy) == [("claims", "depend on options (KeyError)")]


@pytest.mark.parametrize("command", [[], ["run"], ["show"], ["list"]])
def test_help_fits_eighty_columns(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    out = shown(capsys, *command, "--help")
    assert max(map(len, out.splitlines())) <= 80
    assert "completion" not in out
    assert "..." not in out.replace("[ARGS]...", "")


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys) == shown(capsys, "--help")


def test_version_and_module() -> None:
    version = importlib.metadata.version("interlock")
    command = [sys.executable, "-m", "interlock.plugins.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"interlock {version}\n"


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from interlock.plugins.cli.main import invoke; invoke(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "pyarrow", "pydantic", "rich"} & set(done.stdout.split())


def test_schema(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from interlock.core.config import EngineConfig

    monkeypatch.setattr(EngineConfig, "json_schema", classmethod(lambda cls: {"type": "object"}))
    assert json.loads(shown(capsys, "show", "--schema")) == {"type": "object"}
    assert json.loads(shown(capsys, "show", "small.yaml", "--schema")) == {"type": "object"}
