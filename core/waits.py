"""Why each waiting request waits, told as changes: what the run's `waits` are made of."""

from __future__ import annotations

import numpy as np

from interlock.core.draft import Draft, Reason
from interlock.core.planner import Planner
from interlock.core.record import BoundaryRecord, Wait
from interlock.core.stack import Stack
from interlock.core.state import State


class Waits:
    """Keeps the last reason of each waiting row, so that only changes are written."""

    def __init__(self, state: State, stack: Stack) -> None:
        self.state, self.stack = state, stack
        self._codes: dict[Reason, int] = {}
        self._last = np.zeros(0, np.int32)  # by row: code of the reason last told, 0 none
        self._told_to = np.zeros(0, np.int64)  # by row: the request number it was told for
        self._seen = (-1, Reason(""))
        self._special: dict[int, Reason] = {}

    def note(self, record: BoundaryRecord, draft: Draft | None, planner: Planner) -> None:
        """Write what changed at this boundary."""
        waiting = self.state.waiting
        if draft is not None and draft.entrants:
            entered = np.array([entrant.row for entrant in draft.entrants], np.intp)
            self._told_to[entered[entered < len(self._told_to)]] = -1  # should they wait again, it is told anew
        rest, special = self._now(draft, planner)
        if self._seen == (waiting.version, rest) and special == self._special:
            return
        self._seen, self._special = (waiting.version, rest), special
        if len(waiting):
            self._tell(record, waiting.rows, rest, special)

    def _now(self, draft: Draft | None, planner: Planner) -> tuple[Reason, dict[int, Reason]]:
        if draft is None:
            rest, reasons = planner.rest, planner.reasons
        else:
            rest, reasons = draft.rest, draft.reasons
        return self._signed(rest), {row: self._signed(reason) for row, reason in reasons.items()}

    def _signed(self, reason: Reason) -> Reason:
        """With the policy that decided, where one did."""
        if reason.by or reason.what in ("slot", "blocks", "tokens"):
            return reason
        return Reason(reason.what, self.stack.author_of("admit") or self.stack.author_of("select"))

    def _tell(self, record: BoundaryRecord, rows: np.ndarray, rest: Reason, special: dict[int, Reason]) -> None:
        table = self.state.table
        if len(self._last) < table.capacity:
            self._last = np.concatenate([self._last, np.zeros(table.capacity - len(self._last), np.int32)])
            self._told_to = np.concatenate([self._told_to, np.full(table.capacity - len(self._told_to), -1)])
        codes = np.full(len(rows), self._code(rest), np.int32)
        if special:
            place = {row: at for at, row in enumerate(rows.tolist())}
            for row, reason in special.items():
                if row in place:
                    codes[place[row]] = self._code(reason)
        news = (self._last[rows] != codes) | (self._told_to[rows] != table.number[rows])
        names = {code: reason for reason, code in self._codes.items()}
        for row, code in zip(rows[news].tolist(), codes[news].tolist(), strict=True):
            record.waits.append(Wait(int(table.number[row]), *names[code]))
        self._last[rows], self._told_to[rows] = codes, table.number[rows]

    def _code(self, reason: Reason) -> int:
        return self._codes.setdefault(reason, len(self._codes) + 1)
