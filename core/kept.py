"""Cached blocks that a policy's `release` asked to keep longer than others."""

from __future__ import annotations

import bisect
from typing import NamedTuple


class Keeping(NamedTuple):
    """One block that is kept. Sorts by weight, then by the order in which blocks came."""

    weight: float
    came: int
    block: int
    until_ns: float


class Kept:
    """Blocks in the order in which they are given up: the smallest weight first, of equal ones the oldest."""

    def __init__(self) -> None:
        self._sorted: list[Keeping] = []
        self._by_block: dict[int, Keeping] = {}
        self._came = 0

    def __len__(self) -> int:
        return len(self._sorted)

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    def blocks(self) -> list[int]:
        """The blocks in the order in which they are given up."""
        return [keeping.block for keeping in self._sorted]

    def add(self, block: int, weight: float, until_ns: float) -> None:
        """Keep this block."""
        self._came += 1
        self.restore(Keeping(weight, self._came, block, until_ns))

    def restore(self, keeping: Keeping) -> None:
        """Put back what `remove` returned."""
        bisect.insort(self._sorted, keeping)
        self._by_block[keeping.block] = keeping

    def remove(self, block: int) -> Keeping:
        """Keep this block no longer."""
        keeping = self._by_block.pop(block)
        del self._sorted[bisect.bisect_left(self._sorted, keeping)]
        return keeping

    def expired(self, now_ns: int) -> list[int]:
        """Blocks whose time is over."""
        return [keeping.block for keeping in self._sorted if keeping.until_ns <= now_ns]
