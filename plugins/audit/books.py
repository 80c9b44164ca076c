"""What the engine's columns say at one boundary, as arrays over the rows that have an owner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from interlock.core.request import RequestStatus
from interlock.core.view import View

if TYPE_CHECKING:
    from interlock.core.state import State

_NAMED = 4  # rows that a message names before it counts the rest


class Finding(NamedTuple):
    """An invariant that does not hold: its name, what was found, the rows and the ids of their requests."""

    invariant: str
    detail: str
    rows: tuple[int, ...] = ()
    requests: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Invariant, rows and detail in one line."""
        return f"'{self.invariant}' does not hold{self._whom()}: {self.detail}"

    def _whom(self) -> str:
        """The rows with their requests, the first few of them."""
        if not self.rows:
            return ""
        named = zip(self.rows[:_NAMED], self.requests, strict=False)
        told = ", ".join(f"row {row} (request {request!r})" if request else f"row {row}" for row, request in named)
        more = len(self.rows) - _NAMED
        return f" for {told}" + (f" and {more} more" if more > 0 else "")


Findings = Iterator[Finding]


class Books:
    """The state between two boundaries. Reads only, and holds for the boundary at which it was opened.

    `rows` intp: the rows with an owner. The other columns are aligned with it.
    """

    def __init__(self, view: View) -> None:
        # The one place where the auditor leaves the public face of the engine. Views show policies neither the pool
        # nor the internal columns, on purpose, and there is no public accessor for observers.
        self.state: State = view._state
        self.table, self.pool = self.state.table, self.state.pool
        self.free = self.table.number < 0
        self.rows = np.flatnonzero(~self.free)
        self.status, self.work = self.table.status[self.rows], self.table.work[self.rows]
        self.slot, self.holder = self.table.slot[self.rows], self.table.holder[self.rows]
        self.blocks, self.host = self.table.blocks[self.rows], self.table.host[self.rows]

    def having(self, *statuses: RequestStatus) -> np.ndarray:
        """Which of `rows` have one of these statuses, bool."""
        if len(statuses) == 1:
            return np.asarray(self.status == statuses[0])
        return np.isin(self.status, statuses)

    def broken(self, invariant: str, detail: str, rows: np.ndarray | None = None) -> Finding:
        """A finding about these rows of the table."""
        named = () if rows is None else tuple(np.unique(rows).tolist())
        ids = tuple(self._id(row) for row in named[:_NAMED])
        return Finding(invariant, detail, named, ids)

    def unless(self, holds: np.ndarray, invariant: str, detail: str, *facts: np.ndarray) -> Findings:
        """A finding for those of `rows` that do not hold, if any. `facts` are columns to be shown, `{}` in `detail`."""
        if not holds.all():
            wrong = np.flatnonzero(~holds)
            shown = [", ".join(map(str, fact[wrong[:_NAMED]].tolist())) for fact in facts]
            yield self.broken(invariant, detail.format(*shown), self.rows[wrong])

    def unlike(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Rows of the table that are not equally often in both arrays of rows. intp."""
        size = self.table.capacity
        return np.flatnonzero(tally(one, size)[:size] != tally(other, size)[:size])

    def _id(self, row: int) -> str:
        entry = self.state.entries.get(row)
        return "" if entry is None else entry.request.id


def tally(values: np.ndarray, size: int) -> np.ndarray:
    """How often each of 0 to `size` - 1 is among `values`, then how many of them are none of these. int64."""
    counts = np.bincount(np.clip(values, -1, size) + 1, minlength=size + 2)
    counts[-1] += counts[0]
    return counts[1:]
