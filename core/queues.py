"""Rows kept in an order: waiting rows by a key, active rows by admission."""

from __future__ import annotations

import numpy as np

_EMPTY = np.empty(0, np.intp)


class OrderedRows:
    """Rows sorted by (key, sequence number), kept so under insertions and removals.

    Appending at the end and removing at the front, which is what first come first served does, cost nothing that
    grows with the queue; anything else moves memory once per boundary.
    """

    def __init__(
        self, rows: np.ndarray = _EMPTY, keys: np.ndarray | None = None, ties: np.ndarray | None = None
    ) -> None:
        keys = np.zeros(len(rows), np.int64) if keys is None else keys
        ties = np.zeros(len(rows), np.int64) if ties is None else ties
        order = np.lexsort((ties, keys))
        size = max(64, 2 * len(rows))
        self._rows, self._keys, self._ties = (
            np.empty(size, np.intp),
            np.empty(size, keys.dtype),
            np.empty(size, np.int64),
        )
        self._head, self._tail = 0, len(rows)
        for buffer, values in ((self._rows, rows), (self._keys, keys), (self._ties, ties)):
            buffer[: len(rows)] = values[order]

    def __len__(self) -> int:
        return self._tail - self._head

    @property
    def rows(self) -> np.ndarray:
        """The rows in order. Valid until the next change; not to be written."""
        return self._rows[self._head : self._tail]

    def add(self, row: int, key: int | float, tie: int) -> None:
        """Insert one row."""
        at = self._find(key, tie)
        if at == self._tail:
            self._reserve(1)
            at = self._tail
        elif at == self._head and at > 0:
            self._head -= 1
            self._put(self._head, row, key, tie)
            return
        else:
            self._reserve(1)
            at = self._find(key, tie)
            for buffer in (self._rows, self._keys, self._ties):
                buffer[at + 1 : self._tail + 1] = buffer[at : self._tail].copy()
        self._tail += 1
        self._put(at, row, key, tie)

    def remove(self, row: int, key: int | float, tie: int) -> None:
        """Take out one row, which is there under this key and tie."""
        at = self._find(key, tie)
        if at >= self._tail or self._rows[at] != row:
            raise AssertionError(f"row {row} is not in the queue")
        if at == self._head:
            self._head += 1
            return
        for buffer in (self._rows, self._keys, self._ties):
            buffer[at : self._tail - 1] = buffer[at + 1 : self._tail].copy()
        self._tail -= 1

    def before(self, key: int | float, tie: int) -> np.ndarray:
        """The rows in front of (key, tie)."""
        return self._rows[self._head : self._find(key, tie)]

    def _find(self, key: int | float, tie: int) -> int:
        keys = self._keys[self._head : self._tail]
        low, high = int(np.searchsorted(keys, key, "left")), int(np.searchsorted(keys, key, "right"))
        ties = self._ties[self._head + low : self._head + high]
        return self._head + low + int(np.searchsorted(ties, tie, "left"))

    def _put(self, at: int, row: int, key: int | float, tie: int) -> None:
        self._rows[at], self._keys[at], self._ties[at] = row, key, tie

    def _reserve(self, count: int) -> None:
        if self._tail + count <= len(self._rows):
            return
        size = max(64, 2 * (len(self) + count))
        for name in ("_rows", "_keys", "_ties"):
            old = getattr(self, name)
            new = np.empty(size, old.dtype)
            new[: len(self)] = old[self._head : self._tail]
            setattr(self, name, new)
        self._head, self._tail = 0, len(self)


class WaitingQueue:
    """The waiting rows in arrival order, and in every other order that policies have asked for by a column's name."""

    def __init__(self) -> None:
        self._arrival = OrderedRows()
        self._indexes: dict[str, OrderedRows] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self._arrival)

    @property
    def rows(self) -> np.ndarray:
        """Rows in arrival order. Valid until the next change; not to be written."""
        return self._arrival.rows

    def by(self, spec: str, keys: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Rows by ascending keys (table-long, constant while a row waits), equal ones in arrival order.

        `spec` names the order; the first call sorts, later ones find it kept.
        """
        if spec not in self._indexes:
            rows = self.rows.copy()
            self._indexes[spec] = OrderedRows(rows, keys[rows], numbers[rows])
        return self._indexes[spec].rows

    def add(self, row: int, number: int, key_of: dict[str, int | float]) -> None:
        """A row waits. `key_of` gives its key for each order in `specs`."""
        self._arrival.add(row, 0, number)
        for spec, index in self._indexes.items():
            index.add(row, key_of[spec], number)
        self.version += 1

    def remove(self, row: int, number: int, key_of: dict[str, int | float]) -> None:
        """A row no longer waits."""
        self._arrival.remove(row, 0, number)
        for spec, index in self._indexes.items():
            index.remove(row, key_of[spec], number)
        self.version += 1

    @property
    def specs(self) -> tuple[str, ...]:
        """The orders kept beside arrival order."""
        return tuple(self._indexes)

    def earlier(self, number: int) -> np.ndarray:
        """Waiting rows that arrived before request `number`."""
        return self._arrival.before(0, number)
