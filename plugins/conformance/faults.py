"""An executor and a policy that fail when they are told to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from interlock.core import Batch, BatchResult, Demand, Engine, Executor, Offer, Plan, Policy, Ticket, Victims, View
from interlock.core.draft import Draft
from interlock.plugins.conformance.scenario import Faults


class Faulty:
    """An executor that fails some batches as a whole, and hands some results out a second time with a later one."""

    def __init__(self, inner: Executor, faults: Faults) -> None:
        self.inner, self._fails, self._again = inner, frozenset(faults.fails), frozenset(faults.again)
        self._number: dict[int, int] = {}  # of the submission, by ticket
        self._kept: list[BatchResult] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, batch: Batch) -> Ticket:
        """As the executor within."""
        ticket = self.inner.submit(batch)
        self._number[ticket.id] = len(self._number)
        return ticket

    def collect(self, block: bool) -> Sequence[BatchResult]:
        """The results, some of them failed, and then those that are handed out again."""
        late, self._kept = self._kept, []
        results = [self._result(result) for result in self.inner.collect(block)]
        return [*results, *late]

    def _result(self, result: BatchResult) -> BatchResult:
        number = self._number[result.ticket.id]
        if number in self._fails:
            none = np.empty((1, 0), np.int32)
            result = BatchResult(result.ticket, result.ends_ns[:1], none, error=RuntimeError("the device is lost"))
        if number in self._again:
            self._kept.append(result)
        return result


class NextDoor(Policy):
    """A policy beside the stack that raises at some of its calls, which are counted over all hooks."""

    def __init__(self, raises: Iterable[int]) -> None:
        super().__init__()
        self.name = "nextdoor"
        self._raises, self._calls = frozenset(raises), 0

    def admit(self, offer: Offer, view: View) -> None:
        """Reverses the offer, then may raise: what it did must be undone."""
        self._maybe(offer)

    def select(self, plan: Plan, view: View) -> None:
        """As `admit`."""
        self._maybe(plan)

    def preempt(self, victims: Victims, demand: Demand, view: View) -> None:
        """As `admit`."""
        self._maybe(victims)

    def _maybe(self, proposal: Offer | Plan | Victims) -> None:
        self._calls += 1
        if self._calls in self._raises:
            proposal.reorder(proposal.rows[::-1].copy())
            raise RuntimeError("next door")


class Refused(Exception):
    """The allocator gave nothing although there was enough."""


def refuse_once(engine: Engine, after: int) -> None:
    """The pool of this engine refuses one taking of blocks while a plan is made, after so many that it granted."""
    pool, planner = engine.state.pool, engine.planner
    take, plan = pool.take, planner.plan
    calls, planning = 0, False

    def refusing(count: int) -> np.ndarray:
        nonlocal calls
        calls += planning and count > 0
        if planning and count and calls == after + 1:
            raise Refused(f"{count} blocks")
        return take(count)

    def watched(excluded: frozenset[int] = frozenset()) -> Draft | None:
        nonlocal planning
        planning = True
        try:
            return plan(excluded)
        finally:
            planning = False

    pool.take, planner.plan = refusing, watched  # type: ignore[method-assign]
