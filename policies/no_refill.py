"""No refill: cohorts go through the depth of a looped model together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from interlock.core import Capability, Plan, Policy, View, WorkKey
from interlock.core.claims import Claim, Cohorts


class NoRefill(Policy):
    """What does refilling the loop gain? This is the measure: nobody enters the loop until it is empty.

    The loop is drained, then the codas, then it is filled again; a fast request waits for the slowest of its cohort.
    """

    reads: ClassVar[set[str]] = {"work"}
    requires: ClassVar[set[Capability]] = {Capability.LOOPED}

    def claims(self) -> Iterable[Claim]:
        """Nobody enters the loop until it is empty."""
        return (Cohorts(),)

    def select(self, plan: Plan, view: View) -> None:
        """Drain, then fill."""
        plan.prefer(
            WorkKey.DECODE_RECURRENT,
            WorkKey.DECODE_CODA,
            WorkKey.PROMPT_RECURRENT,
            WorkKey.PROMPT_ATOMIC,
            WorkKey.PROMPT_PRELUDE,
            WorkKey.DECODE_PRELUDE,
        )
