"""The run folder: where it is, what is refused, and that nothing is ever half there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from interlock.core.errors import ConfigError, InterlockError
from interlock.core.yamlfile import read_file
from interlock.plugins.run.folder import RunFolder
from interlock.plugins.run.tables import tables


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: RunFolder, number: int = 1) -> Path:
    """A run with hardly anything in it."""
    return folder.write({"engine": {"seed": number}}, {"steps": number}, {})


def test_a_run_is_readable(story: Any) -> None:
    found = tables(story.two_requests())
    place = RunFolder(Path("out")).write({"name": "no", "x": "1e-3"}, {"steps": 4}, found)
    assert sorted(os.listdir(place)) == [
        "config.yaml", "requests.parquet", "steps.parquet", "summary.json", "transitions.parquet", "waits.parquet",
    ]  # fmt: skip
    assert read_file(place / "config.yaml").data == {"name": "no", "x": "1e-3"}
    assert json.loads((place / "summary.json").read_text()) == {"steps": 4}
    assert all(pq.read_table(place / f"{name}.parquet") == table for name, table in found.items())


def test_numbers_count_up_from_the_last(here: Path) -> None:
    assert write(RunFolder(None, "quick")) == Path("runs/quick-001")
    assert write(RunFolder(None, "quick")) == Path("runs/quick-002")
    (here / "runs/quick-041").mkdir()
    assert write(RunFolder(None, "quick")) == Path("runs/quick-042")
    assert write(RunFolder(None, "quick-042")) == Path("runs/quick-042-001")


def test_two_runs_at_once_do_not_take_one_place() -> None:
    one, two = RunFolder(None, "quick"), RunFolder(None, "quick")
    assert [write(one), write(two)] == [Path("runs/quick-001"), Path("runs/quick-002")]
    assert sorted(os.listdir("runs")) == ["quick-001", "quick-002"]


def test_odd_names_become_file_names() -> None:
    assert write(RunFolder(None, "my config:1")) == Path("runs/my-config-1-001")
    assert write(RunFolder(None, "../..")) == Path("runs/run-001")


def test_nothing_is_there_before_it_is_whole(here: Path) -> None:
    folder = RunFolder(here / "out")
    assert not (here / "out").exists()
    folder.discard()
    assert not os.listdir(here)
    folder.discard()


def test_an_empty_folder_is_free(here: Path) -> None:
    (here / "out").mkdir()
    assert write(RunFolder(Path("out"))) == Path("out")


def test_a_full_folder_is_refused(here: Path) -> None:
    write(RunFolder(Path("out")))
    with pytest.raises(ConfigError, match=r"^out: found a folder that is not empty, allowed: .*--overwrite$"):
        RunFolder(Path("out"))
    assert os.listdir(here) == ["out"]


def test_a_file_is_refused_even_to_overwrite(here: Path) -> None:
    (here / "out").write_text("mine")
    with pytest.raises(ConfigError, match=r"^out: found a file"):
        RunFolder(Path("out"), overwrite=True)


def test_overwriting_a_run_leaves_nothing_of_it(here: Path) -> None:
    old = write(RunFolder(Path("out")))
    (old / "trace.json").write_text("{}")
    write(RunFolder(Path("out"), overwrite=True), 2)
    assert sorted(os.listdir("out")) == ["config.yaml", "summary.json"]
    assert json.loads(Path("out/summary.json").read_text()) == {"steps": 2}
    assert os.listdir(here) == ["out"]


def test_overwriting_another_folder_keeps_what_is_not_ours(here: Path) -> None:
    (here / "out").mkdir()
    (here / "out/thesis.tex").write_text("years of work")
    write(RunFolder(Path("out"), overwrite=True))
    assert sorted(os.listdir("out")) == ["config.yaml", "summary.json", "thesis.tex"]
    assert os.listdir(here) == ["out"]


def test_a_link_stays_a_link(here: Path) -> None:
    (here / "disk").mkdir()
    (here / "out").symlink_to("disk")
    write(RunFolder(Path("out")))
    assert (here / "out").is_symlink()
    assert sorted(os.listdir("disk")) == ["config.yaml", "summary.json"]


def test_a_place_that_cannot_be_written_is_one_line(here: Path) -> None:
    (here / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file: cannot be written: .*; --out names another$"):
        RunFolder(Path("file/out"))


def test_what_was_written_in_the_meantime_is_not_replaced(here: Path) -> None:
    folder = RunFolder(Path("out"))
    (here / "out").mkdir()
    (here / "out/late").write_text("somebody was faster")
    with pytest.raises(InterlockError, match=r"the run cannot be written: .*; see .*\.partial$"):
        write(folder)
    folder.discard()
    assert os.listdir("out") == ["late"]
    assert sorted(os.listdir(folder.scratch)) == ["config.yaml", "summary.json"]
