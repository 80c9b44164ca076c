"""The trace: a line for each boundary, where it is put, and what happens when it cannot be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from interlock.core import Engine
from interlock.plugins.cli.main import invoke

CONFIG: dict[str, Any] = {
    "engine": {"max_num_seqs": 1},
    "kv": {"num_blocks": 16, "block_size": 4},
    "executor": {"simulated": {"cost": {"constant": {"step_s": 1.0}}}},
    "plugins": ["trace"],
    "workload": {
        "requests": [
            {"id": "a", "arrival": 0.0, "prompt": 4, "output": 2},
            {"id": "b", "arrival": 0.0, "prompt": 2, "output": 1},
        ]
    },
}


def run(folder: Path, plugins: list[Any], *arguments: str) -> int:
    """`interlock run` in a folder, with these plugins."""
    (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "plugins": plugins}))
    return invoke(["run", str(folder / "config.yaml"), "--quiet", *arguments])


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a trace, read."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests work in a folder of their own; logging is as it was afterwards."""
    monkeypatch.chdir(tmp_path)
    yield
    structlog.reset_defaults()


def test_a_line_for_each_boundary(tmp_path: Path) -> None:
    assert run(tmp_path, ["trace"], "--out", "out") == 0
    told = lines(tmp_path / "out" / "trace.jsonl")
    # One slot: the prompt of a (4 tokens), its second token, then b, whose only token comes of its prompt.
    ran = [
        (line["time_s"], [(m["request_id"], m["work"], m["tokens"]) for m in line["batch"]["members"]])
        for line in told[:3]
    ]
    assert ran == [
        (0.0, [("a", "PROMPT_ATOMIC", 4)]),
        (1.0, [("a", "DECODE_ATOMIC", 1)]),
        (2.0, [("b", "PROMPT_ATOMIC", 2)]),
    ]
    moves = [(one["request_id"], one["from"], one["to"], one["reason"]) for one in told[0]["transitions"]]
    assert moves == [
        ("a", None, "WAITING", "arrived"),
        ("b", None, "WAITING", "arrived"),
        ("a", "WAITING", "ACTIVE", "admitted"),
    ]
    assert told[0]["waits"] == [{"request_id": "b", "request": 1, "reason": "slot", "by": ""}]
    assert told[1]["collected"] == [{"step": 0, "runs": 1, "end_s": 1.0, "delivered_to": [0]}]
    assert (told[0]["running"], told[0]["waiting"], told[0]["used_blocks"]) == (1, 1, 1)
    assert told[-1]["batch"] is None and told[-1]["running"] == 0


def test_equal_runs_write_equal_traces(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert run(tmp_path, ["trace"], "--out", name) == 0
    assert (tmp_path / "one/trace.jsonl").read_bytes() == (tmp_path / "two/trace.jsonl").read_bytes()


def test_a_path_is_relative_to_the_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    assert run(folder, [{"trace": {"path": "mine.jsonl"}}, "audit"], "--out", "out") == 0
    assert len(lines(folder / "mine.jsonl")) >= 3
    assert not (tmp_path / "out" / "trace.jsonl").exists()


def test_outside_of_a_run_it_is_in_the_current_folder(tmp_path: Path) -> None:
    list(Engine.from_config(CONFIG).run())
    assert len(lines(tmp_path / "trace.jsonl")) >= 3


def test_a_place_that_cannot_be_written_is_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, [{"trace": {"path": "no/such/folder.jsonl"}}], "--out", "out") == 2
    told = capsys.readouterr().err
    assert "plugins.trace.path" in told and "cannot be written" in told and told.count("\n") == 1
    assert not (tmp_path / "out").exists()
