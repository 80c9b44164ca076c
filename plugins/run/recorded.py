"""A run folder, read back: the batches and transitions that a run recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from interlock.core.errors import ConfigError
from interlock.core.work import WorkKey
from interlock.plugins.run.folder import CONFIG, SUMMARY, refuse_what_is_no_run

_FILES = (CONFIG, SUMMARY, "steps.parquet", "transitions.parquet", "requests.parquet")
_STEPS = ("step", "operation", "start_s", "ends_s", "repeat", "members")
_MOVES = ("step", "time_s", "request", "from_status", "to_status", "reason")


class Move(NamedTuple):
    """A transition as a file tells it. `origin` is None for a request that is new."""

    step: int
    time_s: float
    request: int
    origin: str | None
    to: str
    reason: str


class Decision(NamedTuple):
    """A batch that was decided on: its operation, and number, work key and tokens of its members, in batch order."""

    step: int
    operation: str
    requests: np.ndarray
    work: np.ndarray
    tokens: np.ndarray

    def same_as(self, other: Decision) -> bool:
        """Whether both decide the same, whatever the step is called."""
        return (
            self.operation == other.operation
            and np.array_equal(self.requests, other.requests)
            and np.array_equal(self.work, other.work)
            and np.array_equal(self.tokens, other.tokens)
        )


class Row(NamedTuple):
    """A line of steps.parquet: a decision and the engine seconds at which its batches began and ended."""

    decision: Decision
    start_s: float
    ends_s: np.ndarray


@dataclass(frozen=True)
class Recorded:
    """What a run recorded. `partial`: it was interrupted, or an error ended it."""

    folder: Path
    summary: dict[str, Any]
    rows: list[Row]
    moves: list[Move]
    names: dict[int, str]

    @classmethod
    def read(cls, folder: Path) -> Recorded:
        """Read a run folder. Raises ConfigError, one line, where it is none or cannot be read."""
        refuse_what_is_no_run(folder, _FILES)
        try:
            summary = json.loads((folder / SUMMARY).read_text("utf-8"))
            steps, moves = _table(folder, "steps", _STEPS), _table(folder, "transitions", _MOVES)
            names = _table(folder, "requests", ("request", "request_id")).to_pydict()
            told = zip(*moves.to_pydict().values(), strict=True)
            ids = dict(zip(*names.values(), strict=True))
            return cls(folder, dict(summary), list(_rows(steps)), [Move(*one) for one in told], ids)
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
        ) as error:  # what pyarrow and json raise for what is no such file
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(f"{folder}: cannot be read as a run folder: {why}") from None

    @property
    def config(self) -> Path:
        """The configuration of the run."""
        return self.folder / CONFIG

    @property
    def partial(self) -> bool:
        """Whether the run did not come to its end."""
        return bool(self.summary.get("interrupted"))

    @property
    def error(self) -> str | None:
        """What ended the run, if an error did."""
        return self.summary.get("error")


def _table(folder: Path, name: str, columns: tuple[str, ...]) -> Any:
    import pyarrow.parquet as pq

    table = pq.read_table(folder / f"{name}.parquet")
    missing = [column for column in columns if column not in table.column_names]
    if missing:
        raise ValueError(f"{name}.parquet has no column {missing[0]!r}")
    return table.select(list(columns)).combine_chunks()


def _rows(steps: Any) -> list[Row]:
    ends_at, ends = _lists(steps["ends_s"])
    member_at, members = _lists(steps["members"])
    requests, tokens = (members.field(name).to_numpy(zero_copy_only=False) for name in ("request", "tokens"))
    work, ends = _codes(members.field("work")), ends.to_numpy(zero_copy_only=False)
    plain = zip(*(steps[name].to_pylist() for name in ("step", "operation", "start_s")), strict=True)
    rows = []
    for at, (step, operation, start_s) in enumerate(plain):
        mine = slice(member_at[at], member_at[at + 1])
        decision = Decision(step, operation, requests[mine], work[mine], tokens[mine])
        rows.append(Row(decision, start_s, ends[ends_at[at] : ends_at[at + 1]]))
    return rows


def _lists(column: Any) -> tuple[np.ndarray, Any]:
    """Where each list of a column begins in their values, and the values."""
    array = column.combine_chunks()
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]), array.flatten()


def _codes(names: Any) -> np.ndarray:
    """Work keys by their names."""
    encoded = names.dictionary_encode()
    codes = np.array([int(WorkKey[name]) for name in encoded.dictionary.to_pylist()], np.int64)
    return codes[encoded.indices.to_numpy(zero_copy_only=False)] if len(codes) else np.empty(0, np.int64)
