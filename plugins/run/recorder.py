"""The observer that remembers a run: references to arrays while it goes on, expanded only when it is over."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from interlock.core.record import BoundaryRecord, Outcome, Preempted, Transition, Wait
from interlock.plugins.run.flat import Flat
from interlock.plugins.run.outcomes import Outcomes
from interlock.plugins.run.steps import Step, Submission, add


class Waiting(NamedTuple):
    """A wait with the boundary that began it."""

    step: int
    time_ns: int
    wait: Wait


class Recorder:
    """Accumulates what the boundaries say. Read it after the run; a batch that was never collected is not in it."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.transitions: list[Transition] = []
        self.finished: list[Outcome] = []
        self.preempted: list[Preempted] = []
        self.waits: list[Waiting] = []
        self.end_ns = 0
        self._open: dict[int, Submission] = {}
        self._quiet = True

    def on_boundary(self, record: BoundaryRecord) -> None:
        """Take over what this boundary adds. Keeps the record's arrays, so they must not change afterwards."""
        for collected in record.collected:
            add(self.steps, self._open.pop(collected.batch.step), collected, record.time_ns)
        self._take(record)
        if record.transitions or record.admitted or record.preempted:
            self._quiet = False
        if record.batch is not None:
            self._open[record.batch.step] = Submission.of(record, record.batch, self._quiet)
            self._quiet = True

    def _take(self, record: BoundaryRecord) -> None:
        self.end_ns = record.time_ns
        self.transitions += record.transitions
        self.finished += record.outcomes
        self.preempted += record.preempted
        if record.waits:
            self.waits += [Waiting(record.step, record.time_ns, wait) for wait in record.waits]

    @cached_property
    def flat(self) -> Flat:
        """The steps as flat arrays. For after the run."""
        return Flat.of(self.steps)

    @cached_property
    def outcomes(self) -> Outcomes:
        """The finished requests as arrays, in the order of their numbers. For after the run."""
        return Outcomes(self.finished)
