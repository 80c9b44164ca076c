"""What a step says of the calls it stands for: when each began, and what it had to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from interlock.core.errors import ConfigError
from interlock.plugins.calibrate.observations import observations

from .runs import run_folder, step


def test_a_repeated_row_is_a_call_for_each_end(tmp_path: Path) -> None:
    found = observations(run_folder(tmp_path / "run", [step(1.0, [1.5, 1.75, 2.25], (0, 4, 100, 0))]))
    assert found.seconds.tolist() == [0.5, 0.25, 0.5]
    assert found.loads.tolist() == [[1, 0, 4, 100, 0], [1, 0, 4, 104, 0], [1, 0, 4, 108, 0]]


def test_a_prompt_is_what_the_file_says(tmp_path: Path) -> None:
    found = observations(run_folder(tmp_path / "run", [step(0.0, [0.5], (7, 2, 31, 28.0))]))
    assert found.loads.tolist() == [[1, 7, 2, 31, 28]]


def test_time_between_batches_is_the_later_one_s_while_somebody_runs(tmp_path: Path) -> None:
    rows = [step(0.0, [1.0, 2.0]), step(2.25, [3.0]), step(3.0, [3.5])]
    assert observations(run_folder(tmp_path / "run", rows)).seconds.tolist() == [1.0, 1.0, 1.0, 0.5]


def test_time_in_which_nobody_runs_is_no_one_s(tmp_path: Path) -> None:
    rows = [step(0.0, [1.0], running=2, finished=[4, 5]), step(7.0, [8.0])]
    assert observations(run_folder(tmp_path / "run", rows)).seconds.tolist() == [1.0, 1.0]


def test_batches_that_overlap_begin_when_the_one_before_has_ended(tmp_path: Path) -> None:
    rows = [step(0.0, [1.0], running=1, finished=[1]), step(0.25, [1.5]), step(1.0, [2.5])]
    assert observations(run_folder(tmp_path / "run", rows)).seconds.tolist() == [1.0, 0.5, 1.0]


def test_calls_without_a_duration_say_nothing(tmp_path: Path) -> None:
    rows = [step(0.0, [1.0, 1.0, 2.0]), step(2.0, [2.0])]
    assert observations(run_folder(tmp_path / "run", rows)).seconds.tolist() == [1.0, 1.0]


def test_gauges_may_be_missing(tmp_path: Path) -> None:
    rows = [step(0.0, [1.0], running=None), step(1.5, [2.0])]
    assert observations(run_folder(tmp_path / "run", rows)).seconds.tolist() == [1.0, 0.5]


def test_operations_apart(tmp_path: Path) -> None:
    rows = [step(0.0, [1.0], operation="RECURRENT"), step(1.0, [3.0], operation="CODA")]
    rows += [step(3.0, [4.0, 5.0], operation="RECURRENT")]
    by_name = dict(observations(run_folder(tmp_path / "run", rows)).by_operation())
    assert {name: each.seconds.tolist() for name, each in by_name.items()} == {"coda": [2], "recurrent": [1, 1, 1]}


def test_differences_are_whole_nanoseconds(tmp_path: Path) -> None:
    late = 86_400.0
    found = observations(run_folder(tmp_path / "run", [step(late, [late + 0.001, late + 0.002000001])]))
    assert found.seconds.tolist() == [0.001, 0.001000001]


# -- folders that are none


def refused(folder: Path) -> str:
    """The one line that is said."""
    with pytest.raises(ConfigError) as caught:
        observations(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    return str(caught.value)


def test_what_is_no_run_folder(tmp_path: Path) -> None:
    assert "found no such folder, allowed: a run folder" in refused(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    assert "found a file" in refused(tmp_path / "file")
    assert "found no config.yaml in it" in refused(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    assert "found no steps.parquet in it" in refused(tmp_path)


def test_steps_that_cannot_be_read(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [step(0.0, [1.0])])
    table = pq.read_table(folder / "steps.parquet")
    pq.write_table(table.drop_columns(["running"]), folder / "steps.parquet")
    assert "steps.parquet has no column 'running'" in refused(folder)
    (folder / "steps.parquet").write_text("no parquet")
    assert "cannot be read as a run folder" in refused(folder)


@pytest.mark.parametrize("rows", [[], [step(0.0, [0.0])]], ids=["none", "no time"])
def test_a_run_without_steps(tmp_path: Path, rows: list[dict[str, object]]) -> None:
    assert "found no steps" in refused(run_folder(tmp_path / "run", rows))


def test_loads_are_numbers(tmp_path: Path) -> None:
    found = observations(run_folder(tmp_path / "run", [step(0.0, [1.0])]))
    assert found.loads.dtype == found.seconds.dtype == np.float64
