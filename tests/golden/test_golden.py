"""What is decided is what the golden logs say. `decisions.py` tells how to replace one on purpose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .decisions import FOLDER, LOGS, difference, load, log_of

EXPECTED = {
    "no-refill-atomic", "no-refill-split", "priority-atomic", "priority-dense", "priority-split", "refill-atomic",
    "refill-split",
}  # fmt: skip


def test_the_logs_are_there() -> None:
    assert {path.stem for path in LOGS} == EXPECTED


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_what_is_decided_is_what_the_log_says(path: Path) -> None:
    assert difference(path) == ""
    golden = load(path)
    assert golden["decisions"], "an empty log says nothing"
    assert all(isinstance(line, str) and line for line in golden["derived"])


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_every_request_comes_and_ends(path: Path) -> None:
    golden = load(path)
    ids = {request["id"] for request in golden["config"]["workload"]["requests"]}
    for verb in ("-> WAITING arrived", "-> FINISHED stop"):
        assert {line.split()[1] for line in golden["decisions"] if verb in line} == ids


def test_another_order_of_stages_is_another_log() -> None:
    golden = load(FOLDER / "refill-split.json")
    golden["config"]["policies"] = ["fcfs", "no_refill"]
    assert log_of(golden["config"]) != golden["decisions"]


def test_comparing_replaces_nothing() -> None:
    before = {path: path.read_bytes() for path in LOGS}
    done = subprocess.run([sys.executable, str(FOLDER / "decisions.py")], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
    assert {path: path.read_bytes() for path in LOGS} == before
