"""A run's model calls, read from its folder: what each had to do, and how long it took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from interlock.core.errors import ConfigError
from interlock.plugins.run.folder import refuse_what_is_no_run

NAMES = ("base_s", "prefill_token_s", "decode_token_s", "context_token_s", "prompt_attention_s")
"""The coefficients of a profile, in the order of a load's columns."""

_LOADS = ("prompt_tokens", "decode_tokens", "context_tokens", "prompt_attention")
_COLUMNS = ("start_s", "ends_s", "operation", "running", "finished", *_LOADS)
_FILES = ("config.yaml", "steps.parquet")


@dataclass(frozen=True)
class Observations:
    """n model calls, in the order in which they ran.

    * `operations` str (n,): forward, prelude, recurrent or coda
    * `loads` float64 (n, 5): one, then prompt tokens, decode tokens, context tokens and prompt attention
    * `seconds` float64 (n,): above 0
    """

    operations: np.ndarray
    loads: np.ndarray
    seconds: np.ndarray

    def __len__(self) -> int:
        return len(self.seconds)

    def where(self, mask: np.ndarray) -> Observations:
        """Some of them."""
        return Observations(self.operations[mask], self.loads[mask], self.seconds[mask])

    def by_operation(self) -> Iterator[tuple[str, Observations]]:
        """Each operation that ran, and its calls."""
        for name in np.unique(self.operations).tolist():
            yield name, self.where(self.operations == name)


def observations(folder: Path) -> Observations:
    """The calls of a run. Raises ConfigError, one line, where the folder is no run's, or the run has no steps."""
    refuse_what_is_no_run(folder, _FILES)
    try:
        found = _observed(_steps(folder / "steps.parquet"))
    except (OSError, ValueError, KeyError, TypeError) as error:  # what pyarrow raises for what is no such file
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{folder}: cannot be read as a run folder: {why}") from None
    if not len(found):
        raise ConfigError(f"{folder}: found no steps, allowed: a run in which something ran")
    return found


def _steps(path: Path) -> Any:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    missing = [column for column in _COLUMNS if column not in table.column_names]
    if missing:
        raise ValueError(f"{path.name} has no column {missing[0]!r}")
    return table.select(list(_COLUMNS)).combine_chunks()


def _observed(steps: Any) -> Observations:
    """A row of the file is a call for each of its ends, and each of them finds one more token in every context."""
    ends_s, finished = (steps[name].combine_chunks() for name in ("ends_s", "finished"))
    runs, ends = _lengths(ends_s), _ns(ends_s.flatten())
    step = np.repeat(np.arange(len(runs)), runs)
    last = np.cumsum(runs)
    loads = np.ones((len(ends), 1 + len(_LOADS)))
    loads[:, 1:] = np.stack([_numbers(steps[name]) for name in _LOADS], axis=1)[step]
    loads[:, 3] += loads[:, 2] * (np.arange(len(ends)) - (last - runs)[step])
    left = _numbers(steps["running"]) - _lengths(finished)
    seconds = (ends - _begins(_ns(steps["start_s"].combine_chunks()), ends, last, runs, left > 0)) / 1e9
    names = np.char.lower(np.array(steps["operation"].to_pylist(), np.str_))[step]
    # Two batches that end at the same nanosecond say nothing about what a call takes.
    return Observations(names, loads, seconds).where(seconds > 0)


def _begins(start: np.ndarray, ends: np.ndarray, last: np.ndarray, runs: np.ndarray, busy: np.ndarray) -> np.ndarray:
    """When each call began, int64 ns: at the end of the one before, unless the engine had nothing to do then.

    `busy` says whether requests were running when a step's last call had ended. What passes from there to the next
    start is the host's time between two batches, for which requests wait as they do for the model.
    """
    begins = np.concatenate([start[:1], ends[:-1]])
    firsts = (last - runs)[1:]
    before = ends[firsts - 1]
    begins[firsts] = np.where(busy[:-1], before, np.maximum(start[1:], before))
    return begins


def _numbers(column: Any) -> np.ndarray:
    """float64, NaN for null."""
    return np.asarray(column.combine_chunks().to_numpy(zero_copy_only=False), np.float64)


def _ns(seconds: Any) -> np.ndarray:
    """Seconds as whole nanoseconds, int64: differences are then what was recorded."""
    return np.rint(np.asarray(seconds.to_numpy(zero_copy_only=False), np.float64) * 1e9).astype(np.int64)


def _lengths(lists: Any) -> np.ndarray:
    return np.asarray(lists.value_lengths().to_numpy(zero_copy_only=False), np.int64)
