"""Invariants of order and of history: the queue, the active rows, versions, tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from interlock.core.request import RequestStatus
from interlock.plugins.audit.books import Books, Findings

_NONE = np.empty(0, np.int64)


def queue(books: Books) -> Findings:
    """The queue is the WAITING rows in arrival order, and so are its kept orders by other keys."""
    waiting = books.rows[books.having(RequestStatus.WAITING)]
    line = books.state.waiting.rows
    strays = books.unlike(line, waiting)
    if len(strays) or len(line) != len(waiting):
        detail = f"{len(line)} in the queue, {len(waiting)} wait"
        yield books.broken("the queue is the waiting rows", detail, strays)
        return
    back = np.diff(books.table.number[line]) <= 0
    if back.any():
        yield books.broken("the queue is in arrival order", "a later arrival stands before", line[:-1][back])
    for spec in books.state.waiting.specs:
        yield from _kept(books, spec, line)


def _kept(books: Books, spec: str, line: np.ndarray) -> Findings:
    """One order that the queue keeps."""
    numbers, keys = books.table.number, books.state.order_key(spec)
    kept = books.state.waiting.by(spec, keys, numbers)
    step, tie = np.diff(keys[kept]), np.diff(numbers[kept])
    if len(books.unlike(kept, line)) or ((step < 0) | ((step == 0) & (tie < 0))).any():
        yield books.broken("kept orders are the queue, sorted", f"the order by {spec!r} is another", kept)


class History:
    """What the last audit saw: versions never fall, tokens only grow, active rows keep their order.

    Rows are told apart by the number of their request, so that a new owner begins anew.
    """

    def __init__(self) -> None:
        self._number = self._version = self._status = self._emitted = _NONE
        self._active, self._active_versions = np.empty(0, np.intp), _NONE

    def check(self, books: Books, admitted: Sequence[int]) -> Findings:
        """Compare with the last audit. `admitted`: request numbers that were given a slot since, in order."""
        yield from self._columns(books)
        yield from self._order(books, admitted)
        self._remember(books)

    def _columns(self, books: Books) -> Findings:
        table, size = books.table, len(self._number)
        version, same = table.version[:size], table.number[:size] == self._number
        fell = version < self._version
        if fell.any():
            yield books.broken("versions never fall", "they were higher", np.flatnonzero(fell))
        moved = (version == self._version) & ((table.status[:size] != self._status) | ~same)
        if moved.any():
            yield books.broken("a transition raises the version", "it is the same", np.flatnonzero(moved))
        revived = same & (self._status == RequestStatus.FINISHED) & (table.status[:size] != RequestStatus.FINISHED)
        if revived.any():
            yield books.broken("nothing follows FINISHED", "it is live again", np.flatnonzero(revived))
        lost = same & (table.emitted[:size] < self._emitted)
        if lost.any():
            yield books.broken("emitted tokens only grow", "they were more", np.flatnonzero(lost))

    def _order(self, books: Books, admitted: Sequence[int]) -> Findings:
        """Active rows: those that were, in their old order, then those admitted since, in the order of admission."""
        table, active = books.table, books.state.active
        owed = books.rows[books.having(RequestStatus.ACTIVE)]
        strays = books.unlike(active, owed)
        if len(strays) or len(active) != len(owed):
            detail = f"{len(active)} listed, {len(owed)} active"
            yield books.broken("the active rows are those with status ACTIVE", detail, strays)
            return
        stayed = self._active[
            (table.version[self._active] == self._active_versions)
            & (table.status[self._active] == RequestStatus.ACTIVE)
        ]
        rest = active[len(stayed) :]
        new = set(table.number[rest].tolist())
        last = [number for number in dict.fromkeys(reversed(admitted)) if number in new][::-1]
        if not np.array_equal(active[: len(stayed)], stayed) or table.number[rest].tolist() != last:
            yield books.broken("active rows are in the order of their admission", "they are in another", active)

    def _remember(self, books: Books) -> None:
        table = books.table
        self._number, self._version = table.number.copy(), table.version.copy()
        self._status, self._emitted = table.status.copy(), table.emitted.copy()
        self._active = books.state.active
        self._active_versions = table.version[self._active]
