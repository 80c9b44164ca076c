"""Priorities: the smallest number is served first, and equal ones keep their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
from pydantic import Field

from interlock.core import Demand, DemandKind, Offer, Policy, PolicyOptions, PreemptMode, Victims, View
from interlock.core.claims import Claim, DisplacesOnlyLower, NeverPreempts, NoPriorityInversion


class Priority(Policy):
    """Who is served first when not all can be? The smallest priority number; equal ones keep their order.

    Slots and blocks are taken only from strictly lower standing, so equal priorities never displace each other.

    With `aging` a, a request gains a for each second since its arrival. Everybody gains at the same rate, so the order
    is that of priority + a * arrival: it does not change while requests wait, so nobody starves or overtakes back.
    """

    class Options(PolicyOptions):
        """`preempt`: how victims give way, null for never. `displace`: whether a candidate may displace at all."""

        preempt: PreemptMode | None = PreemptMode.RECOMPUTE
        displace: bool = True
        aging: float = Field(default=0.0, ge=0.0)

    reads: ClassVar[set[str]] = {"priority", "arrival"}

    def claims(self) -> Iterable[Claim]:
        """Without ageing no inversion, and only lower ones give way; without preemption nobody does to a candidate."""
        if not self.options.aging:
            yield NoPriorityInversion()
            if self._displaces:
                yield DisplacesOnlyLower()
        if not self._displaces:
            yield NeverPreempts()

    @property
    def _displaces(self) -> bool:
        return self.options.displace and self.options.preempt is not None

    def _standing(self, view: View) -> np.ndarray | str:
        if not self.options.aging:
            return "priority"
        return np.asarray(view.priority + self.options.aging * view.arrival)

    def admit(self, offer: Offer, view: View) -> None:
        """The smallest number first."""
        offer.sort_by(self._standing(view))

    def preempt(self, victims: Victims, demand: Demand, view: View) -> None:
        """The largest number gives way first. Without a key there is no standing, so no candidate displaces."""
        if demand.kind is not DemandKind.GROWTH and not self._displaces:
            return
        standing = self._standing(view)
        victims.sort_by("-priority" if isinstance(standing, str) else -standing)
        if self.options.preempt is not None:
            victims.use(self.options.preempt)
