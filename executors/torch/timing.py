"""When the runs of a batch end: by the host's clock, or by a cost model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from interlock.core.batch import Batch
from interlock.executors.costs.cost import CostModel, Load
from interlock.executors.costs.timing import VirtualTime


class Watch(Protocol):
    """The time of one batch."""

    def ran(self) -> bool:
        """A run is over. Returns whether time allows another."""
        ...

    def ends(self) -> np.ndarray:
        """The engine time at which each run ended, int64 ns."""
        ...


_STRETCH_NS = 20_000_000  # how long a stretch may keep those waiting who arrive, cancel, or read tokens


class Wall:
    """The host's time, on the engine's clock. A stretch ends after 20 ms, or with the run that is longer."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns

    def begin(self, batch: Batch, runs: int) -> Watch:
        """The batch begins to run."""
        latest = self._now_ns() + _STRETCH_NS
        return _WallWatch(self._now_ns, latest if batch.until_ns is None else min(latest, batch.until_ns))


class _WallWatch:
    def __init__(self, now_ns: Callable[[], int], until_ns: int) -> None:
        self._now_ns, self._until_ns = now_ns, until_ns
        self._ends: list[int] = []

    def ran(self) -> bool:
        self._ends.append(self._now_ns())
        return self._ends[-1] < self._until_ns

    def ends(self) -> np.ndarray:
        return np.array(self._ends or [self._now_ns()], np.int64)


class Costed:
    """Virtual time: each run takes what the cost model says, however long the host took."""

    def __init__(self, cost: CostModel) -> None:
        self._time = VirtualTime(cost)

    def begin(self, batch: Batch, runs: int) -> Watch:
        """The batch begins; at most `runs` runs of it."""
        return _CostedWatch(self._time, self._time.ends(batch, Load.of(batch), runs))


class _CostedWatch:
    def __init__(self, time: VirtualTime, ends: np.ndarray) -> None:
        self._time, self._ends, self._runs = time, ends, 0

    def ran(self) -> bool:
        self._runs += 1
        return self._runs < len(self._ends)

    def ends(self) -> np.ndarray:
        ends = self._ends[: max(self._runs, 1)]
        self._time.passed(int(ends[-1]))
        return ends
