"""Six policies that the package does not bring along, each about ten lines: the hooks suffice for them."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from interlock.core import (
    Capability,
    Demand,
    DemandKind,
    Offer,
    Plan,
    Policy,
    PolicyOptions,
    PreemptMode,
    Victims,
    View,
    column,
)


class Srpt(Policy):
    """Who is served first? Whoever has the least predicted output left; a shorter one displaces a longer one."""

    reads: ClassVar[set[str]] = {"predicted", "emitted"}

    def _left(self, view: View) -> np.ndarray:
        return np.where(view.predicted < 0, np.inf, view.predicted - view.emitted)

    def admit(self, offer: Offer, view: View) -> None:
        offer.sort_by(self._left(view))

    def preempt(self, victims: Victims, demand: Demand, view: View) -> None:
        victims.sort_by(-self._left(view))
        victims.use(PreemptMode.YIELD)


class Vtc(Policy):
    """Which tenant is served next? The one with the least service so far (virtual token counter, Sheng et al. 2024)."""

    class Options(PolicyOptions):
        """Weights of a prompt and of an output token."""

        prompt: float = 1.0
        output: float = 2.0

    def on_start(self, view: View) -> None:
        self.counter, self.live = np.zeros(0), np.zeros(0, np.int64)

    def on_arrival(self, rows: np.ndarray, view: View) -> None:
        """A tenant that was away is lifted to the least of those who are there, so that idling earns nothing."""
        new = len(view.tenants) - len(self.counter)
        self.counter, self.live = np.pad(self.counter, (0, new)), np.pad(self.live, (0, new))
        for tenant in view.tenant[rows].tolist():
            if not self.live[tenant] and self.live.any():
                self.counter[tenant] = max(self.counter[tenant], self.counter[self.live > 0].min())
            self.live[tenant] += 1

    def on_admitted(self, rows: np.ndarray, view: View) -> None:
        first = rows[view.preemptions[rows] == 0]
        np.add.at(self.counter, view.tenant[first], self.options.prompt * view.prompt_tokens[first])

    def on_result(self, rows: np.ndarray, computed: np.ndarray, emitted: np.ndarray, view: View) -> None:
        np.add.at(self.counter, view.tenant[rows], self.options.output * emitted)

    def on_finished(self, rows: np.ndarray, view: View) -> None:
        np.subtract.at(self.live, view.tenant[rows], 1)

    def admit(self, offer: Offer, view: View) -> None:
        """Each request stands where its tenant's counter will be once its tenant's earlier ones have entered."""
        tenant, prompts = view.tenant[offer.rows], view.prompt_tokens[offer.rows]
        ahead = np.zeros(len(tenant))
        for code in np.unique(tenant):
            mine = tenant == code
            ahead[mine] = np.cumsum(prompts[mine]) - prompts[mine]
        offer.sort_by(self.counter[tenant] + self.options.prompt * ahead)


class Edf(Policy):
    """Who is served first? The earliest deadline. One that cannot meet its deadline any more is turned away."""

    requires: ClassVar[set[Capability]] = {Capability.STEP_COST}

    def admit(self, offer: Offer, view: View) -> None:
        offer.sort_by("deadline")
        earliest_end = view.now + view.max_tokens * view.step_s(0, 1, 1)
        offer.reject((earliest_end > view.deadline) & np.isnan(view.admitted_s), "the deadline is out of reach")


class Mlfq(Policy):
    """Who is served first? The lowest level; a request sinks a level when it has used its quantum there."""

    class Options(PolicyOptions):
        """`quantum`: tokens of level 0; each level has twice that of the one above."""

        quantum: int = 4

    reads: ClassVar[set[str]] = {"level"}
    level = column(np.int64)
    used = column(np.int64)

    def on_result(self, rows: np.ndarray, computed: np.ndarray, emitted: np.ndarray, view: View) -> None:
        self.used[rows] += computed
        spent = rows[self.used[rows] >= self.options.quantum * 2 ** self.level[rows]]
        self.level[spent] += 1
        self.used[spent] = 0

    def admit(self, offer: Offer, view: View) -> None:
        offer.sort_by("level")

    def select(self, plan: Plan, view: View) -> None:
        plan.sort_by("level")

    def preempt(self, victims: Victims, demand: Demand, view: View) -> None:
        if demand.kind is not DemandKind.GROWTH:  # there the core's order serves: who yielded first, then the latest
            victims.sort_by("-level")
        victims.use(PreemptMode.YIELD)


class Lpm(Policy):
    """Who is served first? Whoever finds the most of its prompt cached (longest prefix match)."""

    def admit(self, offer: Offer, view: View) -> None:
        offer.sort_by(-view.cached_prefix(offer.rows))


class Quota(Policy):
    """How much may a tenant hold? At most `slots` slots at a time."""

    class Options(PolicyOptions):
        """`slots`: of each tenant."""

        slots: int = 2

    def admit(self, offer: Offer, view: View) -> None:
        held = np.bincount(view.tenant[view.active], minlength=len(view.tenants))
        offer.limit(np.maximum(self.options.slots - held, 0), per="tenant")
