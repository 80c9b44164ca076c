"""The guarantee that any finite set of requests, each of which fits alone, drains under every policy.

A request is rescued when a boundary forms no batch though somebody could run, or when a window of boundaries passes
without banking. It has absolute first place until it finishes. Finishing, not banking, is what makes this drain: a
rescue that ended at the first banked token would let the others recompute for ever.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import structlog

from interlock.core.batch import Batch
from interlock.core.errors import LivelockError
from interlock.core.record import BoundaryRecord, Collected
from interlock.core.state import State
from interlock.core.stats import Stats
from interlock.core.work import Operation

log = structlog.get_logger("interlock")
_REMEMBERED = 8


class Progress:
    """Watches what is banked, and names the request to rescue."""

    def __init__(self, state: State, stats: Stats, *, repair: bool) -> None:
        self.state, self.stats, self.repair = state, stats, repair
        self._idle = 0  # boundaries without banking
        self._allowance = 0  # boundaries more than the window, for recomputing the most that was lost meanwhile
        self._last: deque[tuple[int, Batch]] = deque(maxlen=_REMEMBERED)

    def note(self, record: BoundaryRecord) -> None:
        """A boundary is over."""
        if record.batch is not None:
            self._idle += 1
            if self._idle == 2 or record.preempted:  # a loss is largest where it occurs, and where recomputing begins
                self._allowance = max(self._allowance, self._lost() * (2 + self.state.loops))
            self._last.append((record.step, record.batch))

    def collected(self, collected: list[Collected]) -> None:
        """Whether these results banked anything: a token, or for some row more than it ever had."""
        for one in collected:
            if one.result.error is not None or one.batch.operation is Operation.PRELUDE:
                continue
            if one.delivered.any() or self._banked(one.batch.rows):
                self._idle = self._allowance = 0

    def _banked(self, rows: np.ndarray) -> bool:
        live = rows[self.state.table.slot[rows] >= 0]
        return bool(len(live)) and bool(self.state.banked(live).any())

    def overdue(self) -> bool:
        """Whether the window, and as many boundaries more as recomputing what live rows lost takes, has passed."""
        limits = self.state.limits
        if self._idle <= limits.progress_window or self.state.rescued is not None:
            return False
        self._allowance = max(self._allowance, self._lost() * (2 + self.state.loops))
        return self._idle > limits.progress_window + self._allowance

    def _lost(self) -> int:
        """Tokens that live rows had computed and have to compute again."""
        table, rows = self.state.table, np.fromiter(self.state.rows.values(), np.intp, len(self.state.rows))
        return int(np.maximum(table.high_water[rows] - table.emitted[rows] - table.computed[rows], 0).sum())

    def rescue(self, why: str) -> None:
        """Give the oldest runnable request first place; under `raise`, LivelockError takes its place."""
        state = self.state
        row = min(state.rows.values(), key=lambda live: int(state.table.number[live]))
        request = state.entries[row].request.id
        if not self.repair or state.rescued is not None:
            recent = "; ".join(_told(step, batch) for step, batch in self._last) or "no batch was ever formed"
            raise LivelockError(
                f"step {state.step}: {why}; {len(state.waiting)} requests wait, {len(state.active)} are active, "
                f"the oldest is {request!r}. Last boundaries: {recent}"
            )
        self._idle = self._allowance = 0
        state.rescued = row
        self.stats.rescues["forced"] += 1
        log.warning("rescue", request=request, why=why, step=state.step)


def _told(step: int, batch: Batch) -> str:
    names = ", ".join(str(number) for number in batch.numbers[:4].tolist())
    return f"step {step}: {batch.operation.name} of requests {names}{'...' if len(batch) > 4 else ''}"
