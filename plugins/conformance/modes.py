"""A policy that only says how victims give way, so that every stack is tested with every mode."""

from __future__ import annotations

from typing import ClassVar

from interlock.core import Demand, Policy, PolicyOptions, PreemptMode, Victims, View


class GivesWayAs(Policy):
    """How do victims give way? As it is told. Who does is left to the policies before it."""

    class Options(PolicyOptions):
        """`mode`: what victims give up."""

        mode: PreemptMode

    reads: ClassVar[set[str]] = set()

    def preempt(self, victims: Victims, demand: Demand, view: View) -> None:
        """The mode alone."""
        victims.use(self.options.mode)
