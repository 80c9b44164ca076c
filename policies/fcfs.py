"""First come, first served: who has waited longest enters first.

Nobody gives way to a candidate, and for growth the core's default serves: the latest admitted gives way.
"""

from __future__ import annotations

from collections.abc import Iterable

from interlock.core import Offer, Policy, View
from interlock.core.claims import ArrivalOrder, Claim, NeverPreempts


class Fcfs(Policy):
    """In which order do requests enter? In the order of their arrival."""

    reads = {"arrival"}

    def claims(self) -> Iterable[Claim]:
        """Arrival order; nobody gives way to a candidate."""
        return (ArrivalOrder(), NeverPreempts())

    def admit(self, offer: Offer, view: View) -> None:
        """The offer comes in arrival order; sorting by it undoes what a policy before may have done."""
        offer.sort_by("arrival")
