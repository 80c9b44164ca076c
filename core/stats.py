"""Counters of a run."""

from __future__ import annotations

from interlock.core.lifecycle import Lifecycle
from interlock.core.record import BoundaryRecord
from interlock.core.stack import Stack


class Stats:
    """What the engine counts as it runs."""

    def __init__(self, stack: Stack, lifecycle: Lifecycle) -> None:
        self._stack, self._lifecycle = stack, lifecycle
        self.boundaries = 0
        self.now_ns = 0
        self.scheduler_ns = 0  # host time in boundaries, executor calls that block aside
        self.refused_results = 0  # results of tickets that were not out
        self.rescues = {"forced": 0, "repaired": 0}  # requests given first place; plans that lost rows to a rule

    @property
    def protections(self) -> int:
        """How often a row came under protection, after `max_preemptions` without banking."""
        return self._lifecycle.protections

    @property
    def violations(self) -> int:
        """Broken rules and raising hooks that were repaired."""
        return self._stack.violations

    @property
    def hook_ns(self) -> dict[str, int]:
        """Host time of each hook and event, by `policy.hook`."""
        return self._stack.hook_ns

    def note(self, record: BoundaryRecord) -> None:
        """One boundary is over."""
        self.boundaries += 1
        self.now_ns = record.time_ns
        self.scheduler_ns += record.host_ns
