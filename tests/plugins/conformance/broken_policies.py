"""Policies that break what a check of the conformance suite checks, one each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from interlock.core import Capability, Demand, DemandKind, Offer, Plan, Policy, Victims, View, WorkKey
from interlock.core.claims import (
    ArrivalOrder,
    BoundedBypass,
    BoundedOvertaking,
    BoundedPrompts,
    Claim,
    Cohorts,
    DecodeGap,
    DecodesFirst,
    DisplacesOnlyLower,
    NeverPreempts,
    NoPriorityInversion,
    StarvationBound,
    WorkConserving,
)


def _reversed(offer: Offer) -> None:
    offer.reorder(offer.rows[::-1].copy())


class HoldsForever(Policy):
    """Holds whoever is not alone, without saying until when."""

    def admit(self, offer: Offer, view: View) -> None:
        """The wait that nothing ends."""
        offer.hold(np.arange(len(offer.rows)) > 0)
        if len(view.active) == 0:
            offer.hold(np.ones(len(offer.rows), bool))


class AlwaysLater(Policy):
    """Holds everybody until a moment that it moves on each time."""

    def admit(self, offer: Offer, view: View) -> None:
        """Time passes, and nobody runs."""
        offer.hold(np.ones(len(offer.rows), bool), until=view.now + 1)


class Nonsense(Policy):
    """Names rows that are not there."""

    def select(self, plan: Plan, view: View) -> None:
        """A row number beyond the table."""
        plan.reorder(np.append(plan.rows, view.capacity))


class Raises(Policy):
    """Divides by the number of who waits."""

    def select(self, plan: Plan, view: View) -> None:
        """Fails where nobody waits."""
        _ = 1 // len(view.waiting)


class ReadsMore(Policy):
    """Says that it reads arrivals, and sorts by priority."""

    reads: ClassVar[set[str]] = {"arrival"}

    def admit(self, offer: Offer, view: View) -> None:
        """Not what it says."""
        offer.sort_by(-view.priority)


class CountsInHooks(Policy):
    """Changes its state where a plan may be refused."""

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self.asked = 0

    def admit(self, offer: Offer, view: View) -> None:
        """Takes turns by how often it was asked."""
        self.asked += 1
        if self.asked % 2:
            _reversed(offer)


class Dice(Policy):
    """Throws dice that nobody seeded."""

    def admit(self, offer: Offer, view: View) -> None:
        """Sorts by chance."""
        offer.sort_by(np.frombuffer(os.urandom(view.capacity), np.uint8).astype(float))


class SharedTurns(Policy):
    """Keeps its state on the class, where all engines of the process share it."""

    turns = 0

    def on_start(self, view: View) -> None:
        """As new, for all."""
        SharedTurns.turns = 0

    def on_admitted(self, rows: np.ndarray, view: View) -> None:
        """Another turn, for all."""
        SharedTurns.turns += 1

    def admit(self, offer: Offer, view: View) -> None:
        """Every other turn the other way round."""
        if SharedTurns.turns % 2:
            _reversed(offer)


class KeepsTime(Policy):
    """Says that it reads nothing, and lets nobody wait run in odd steps."""

    reads: ClassVar[set[str]] = set()

    def select(self, plan: Plan, view: View) -> None:
        """Drops the last row in odd steps."""
        if view.step % 2:
            plan.drop(np.arange(len(plan.rows)) > 0)


class BehavesUnderRaise(Policy):
    """Another policy in serving than in tests."""

    def admit(self, offer: Offer, view: View) -> None:
        """The other way round in serving."""
        if view.limits.on_violation == "repair":
            _reversed(offer)


# -- false claims


class LastFirst(Policy):
    """Last come, first served, which says otherwise."""

    def claims(self) -> Iterable[Claim]:
        """Both false."""
        return (ArrivalOrder(), BoundedOvertaking(0))

    def admit(self, offer: Offer, view: View) -> None:
        """The latest first."""
        _reversed(offer)


class LowestFirst(Policy):
    """The largest number first, which says otherwise."""

    def claims(self) -> Iterable[Claim]:
        """False."""
        return (NoPriorityInversion(),)

    def admit(self, offer: Offer, view: View) -> None:
        """The wrong way round."""
        offer.sort_by("-priority")


class Upwards(Policy):
    """The smallest number gives way first, which says otherwise."""

    def claims(self) -> Iterable[Claim]:
        """Both false."""
        return (DisplacesOnlyLower(), NeverPreempts())

    def admit(self, offer: Offer, view: View) -> None:
        """The largest number first."""
        offer.sort_by("-priority")

    def preempt(self, victims: Victims, demand: Demand, view: View) -> None:
        """The wrong way round."""
        if demand.kind is not DemandKind.GROWTH:
            victims.sort_by("priority")


class Rests(Policy):
    """Lets nobody enter in the first second, and says that it never rests."""

    def claims(self) -> Iterable[Claim]:
        """False."""
        return (WorkConserving(),)

    def select(self, plan: Plan, view: View) -> None:
        """Nobody runs while it is early."""
        if view.step == 1:
            plan.drop(np.ones(len(plan.rows), bool))


class ClaimsTooMuch(Policy):
    """The core's own order, with bounds that nobody could keep."""

    def claims(self) -> Iterable[Claim]:
        """All false."""
        return (BoundedBypass(0), StarvationBound(1), DecodeGap(0), BoundedPrompts(0))


class PromptsFirst(Policy):
    """Prompts and decodes together, prompts first, which says otherwise."""

    def claims(self) -> Iterable[Claim]:
        """False."""
        return (DecodesFirst(),)

    def select(self, plan: Plan, view: View) -> None:
        """In the wrong order."""
        plan.prefer((WorkKey.PROMPT_ATOMIC, WorkKey.DECODE_ATOMIC))
        plan.sort_by(view.work[plan.rows])


class Refills(Policy):
    """Preludes before everything else, which says that the loop is drained first."""

    def claims(self) -> Iterable[Claim]:
        """False."""
        return (Cohorts(),)

    def select(self, plan: Plan, view: View) -> None:
        """Who is ready enters the loop."""
        plan.prefer(WorkKey.DECODE_PRELUDE)


class NeedsDrafts(Policy):
    """Needs what no executor has unless it is told to."""

    requires: ClassVar[set[Capability]] = {Capability.SPECULATION}

    def select(self, plan: Plan, view: View) -> None:
        """Whatever."""


class HonestlyLate(HoldsForever):
    """Says that it does not drain."""

    expected_failures: ClassVar[dict[str, str]] = {"drains unaided": "it holds whoever is not alone"}


class FalselyModest(Policy):
    """Says that it fails what it passes."""

    expected_failures: ClassVar[dict[str, str]] = {"members": "it does not"}
