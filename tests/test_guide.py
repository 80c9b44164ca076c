"""The commands of the authors' guide do what it says, on the policy that it begins with."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from interlock.plugins.cli.main import invoke

GUIDE = (Path(__file__).parents[1] / "docs" / "policies.md").read_text("utf-8")
LINES = [line for block in re.findall(r"^```text\n(.*?)^```", GUIDE, re.S | re.M) for line in block.splitlines()]


def commands(start: str) -> list[str]:
    """Lines that begin so and are about `short.py`."""
    return [line for line in LINES if line.startswith(start) and "short_first" not in line and "NAME" not in line]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the policy that the guide begins with."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.py").write_text(re.findall(r"^```python\n(.*?)^```", GUIDE, re.S | re.M)[0])
    return tmp_path


@pytest.mark.parametrize("command", commands("interlock run"))
def test_its_runs(command: str, here: Path) -> None:
    words = [*shlex.split(command)[1:], "--set", "workload.trace.limit=100"]
    assert invoke([*words, "--out", "out", "--quiet"]) == 0
    assert (here / "out" / "summary.json").is_file()


@pytest.mark.parametrize("command", commands("interlock check"))
def test_its_checks(command: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*shlex.split(command)[1:], "--max-examples", "2"]) == 0
    assert "NeverPreempts() of " in capsys.readouterr().out
    assert "--json" not in command or (here / "report.json").is_file()


@pytest.mark.parametrize("command", commands("pytest --pyargs"))
def test_its_front_for_pytest(command: str, here: Path) -> None:
    words = [*shlex.split(command), "--interlock-max-examples", "2", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([sys.executable, "-m", *words], cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_shows_runs_checks_and_the_front_for_pytest() -> None:
    assert [len(commands(start)) for start in ("interlock run", "interlock check", "pytest --pyargs")] == [3, 3, 1]


def test_its_list_of_contents_is_whole() -> None:
    """Every section is linked at the top, and every link leads to one."""
    titles = re.findall(r"^## (.+)$", re.sub(r"^```.*?^```", "", GUIDE, flags=re.S | re.M), re.M)
    anchors = [re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles]
    top = GUIDE[: GUIDE.index("\n## ")]
    assert re.findall(r"\]\(#([\w-]+)\)", top) == anchors
    assert set(re.findall(r"\]\(#([\w-]+)\)", GUIDE)) <= set(anchors)
