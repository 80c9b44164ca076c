"""The plan stage of the boundary: offer, plan, growth, displacement, fill. Changes no column."""

from __future__ import annotations

from typing import Any

import numpy as np

from interlock.core.draft import Draft, Reason
from interlock.core.executor import Capabilities
from interlock.core.fill import Fill, Room, settle
from interlock.core.giving_way import GivingWay
from interlock.core.proposals import Limit, Offer, Plan
from interlock.core.settled import Settled
from interlock.core.stack import Stack
from interlock.core.state import State
from interlock.core.view import View
from interlock.core.work import WorkKey

_NO_ROWS = np.empty(0, np.intp)


class Planner:
    """Makes one proposal for the whole boundary out of the policies' edits and the core's defaults."""

    def __init__(self, state: State, stack: Stack, view: View, capabilities: Capabilities) -> None:
        self.state, self.stack, self.view, self.capabilities = state, stack, view, capabilities
        self.giving_way = GivingWay(state, stack, view)
        self.rejected: dict[int, str] = {}
        self.reasons: dict[int, Reason] = {}  # of rows that a hold keeps from the offer
        self.hold_until_s = np.inf  # the earliest time at which a hold of this boundary ends
        self.may_enter = False
        self.settled: Settled | None = None
        self._asked_version = -1  # of the waiting queue, when `admit` was last asked
        self._limits: tuple[Limit, ...] = ()
        self._groups_known: dict[Any, Any] = {}
        self._gave_up = False  # whether a growing row gave way itself in a draft of this boundary

    def plan(self, excluded: frozenset[int] = frozenset()) -> Draft | None:
        """The draft of the first group that yields a batch, its blocks taken under the pool's journal, or None.

        `excluded` rows take no part: a broken rule has taken them out of this boundary.
        """
        self.rest = Reason("order")
        self.rejected, self.reasons, self.hold_until_s, self._limits = {}, {}, np.inf, ()
        if self.settled is not None and not excluded:
            draft = self.settled.again()
            if draft is not None:
                return draft
        self.settled = None
        self.giving_way.begin()
        self.may_enter = self._may_enter()
        offered = self._offer(excluded)
        active = self._ready(excluded)
        plan = Plan(
            np.concatenate([active, offered]) if len(offered) else active,
            self.view,
            self.capabilities,
            self._groups_known,
        )
        if len(active) or len(offered):
            self.stack.edit("select", plan, self.view)
        draft = self._first_batch(plan, active, offered)
        if draft is None and (self._gave_up or bool(self.state.protected(np.concatenate([active, offered])).any())):
            self.giving_way.unprotected = True
            draft = self._first_batch(plan, active, offered)
        return draft

    def _first_batch(self, plan: Plan, active: np.ndarray, offered: np.ndarray) -> Draft | None:
        """The draft of the first group that yields a batch, its blocks taken."""
        work = self.state.table.work
        present = np.bincount(work[active] + 1, minlength=len(WorkKey)) > 0
        if len(offered):
            present |= np.bincount(work[offered] + 1, minlength=len(WorkKey)) > 0
        groups = [group for group in self._groups(plan) if any(present[key + 1] for key in group)]
        hopeless: list[tuple[WorkKey, ...]] = []
        self._gave_up = False
        for group in groups:
            draft = self._draft(plan, group, offered)
            if draft.forms_batch and not draft.gave_up:
                return draft
            self._gave_up |= draft.gave_up
            hopeless += [group] if draft.forms_batch else []
            self.reasons, self.rest = draft.reasons, draft.rest
            self.state.pool.undo()
        # A row that gave way itself cannot grow while those admitted before it stay: their groups went first.
        return self._draft(plan, hopeless[0], offered) if hopeless else None

    def _groups(self, plan: Plan) -> tuple[tuple[WorkKey, ...], ...]:
        """The groups in the order in which they are tried; that of a row being rescued comes first."""
        groups, rescued = plan.groups(), self.state.rescued
        if rescued is None:
            return groups
        work = WorkKey(int(self.state.table.work[rescued]))
        return tuple(sorted(groups, key=lambda group: work not in group))

    # -- offer

    def _may_enter(self) -> bool:
        """False when no slot is free and nobody could be displaced: candidates then need no look."""
        return len(self.state.waiting) > 0 and (self.state.free_slots > 0 or self._may_displace())

    def _may_displace(self) -> bool:
        state = self.state
        rescue = state.rescued is not None and state.is_waiting(state.rescued)
        return self.stack.implements("preempt") or bool(state.resident) or rescue

    def _offer(self, excluded: frozenset[int]) -> np.ndarray:
        """The rows that may enter, in offer order.

        `admit` is asked when it can matter: somebody may enter, or has newly come.
        """
        state = self.state
        if not len(state.waiting) or not (self.may_enter or self._asked_version != state.waiting.version):
            return _NO_ROWS
        self._asked_version = state.waiting.version
        state.offered_base = state.waiting.rows
        offer = Offer(state.offered_base, self.view)
        self.stack.edit("admit", offer, self.view)
        self._limits = offer.limits
        offered = self._without_held(offer, self._without_rejected(offer, offer.rows))
        if excluded:
            offered = offered[~np.isin(offered, list(excluded))]
        return self._rescued_first(offered) if self.may_enter else _NO_ROWS

    def _rescued_first(self, rows: np.ndarray) -> np.ndarray:
        """The row that is being rescued leads, whatever policies said of it."""
        rescued = self.state.rescued
        if rescued is None or not (rescued in rows or self.state.is_waiting(rescued)):
            return rows
        self.rejected.pop(rescued, None)
        return np.concatenate([np.array([rescued], np.intp), rows[rows != rescued]])

    def _without_rejected(self, offer: Offer, offered: np.ndarray) -> np.ndarray:
        for mask, reason in offer.rejected:
            gone = mask[offered]
            self.rejected.update((row, reason) for row in offered[gone].tolist())
            offered = offered[~gone]
        return offered

    def _without_held(self, offer: Offer, offered: np.ndarray) -> np.ndarray:
        if offer.held is None or offer.until is None:
            return offered
        held = offer.held[offered] & (offer.until[offered] > self.view.now)
        if held.any():
            self.hold_until_s = float(offer.until[offered[held]].min())
            by = Reason("held", self.stack.author_of("admit"))
            self.reasons = dict.fromkeys(offered[held].tolist(), by)
        return np.asarray(offered[~held])

    # -- plan

    def _ready(self, excluded: frozenset[int]) -> np.ndarray:
        """Active rows with pending work and nothing in flight, in the order of their admission."""
        table, active = self.state.table, self.state.active
        if not len(active):
            return active
        ready = (table.work[active] != WorkKey.NONE) & (table.in_flight[active] == 0)
        if excluded:
            ready &= ~np.isin(active, list(excluded))
        return active if ready.all() else active[ready]

    def _draft(self, plan: Plan, group: tuple[WorkKey, ...], offered: np.ndarray) -> Draft:
        draft = Draft(self.state, plan, group)
        draft.reasons = dict(self.reasons)
        order = plan.rows
        if self.state.rescued is not None and self.state.rescued in order:
            order = self._rescued_first(order)
        is_active = self.state.table.slot[order] >= 0 if len(offered) else None
        active = order if is_active is None else order[is_active]
        draft.walk = draft.take_walk(active, draft.limits.total)
        if int(draft.walk.blocks.sum()) > self.state.pool.available:
            self.giving_way.to_growth(draft, active)
            settle(draft)
            draft.rest = Reason("blocks")
        elif is_active is None:
            settle(draft)
            draft.rest = Reason("order" if self.may_enter else "slot")
        else:
            self._let_enter(draft, order, active, is_active, offered)
        return draft

    def _let_enter(
        self, draft: Draft, order: np.ndarray, active: np.ndarray, is_active: np.ndarray, offered: np.ndarray
    ) -> None:
        """Displacement, then the fill."""
        room = Room(draft, active, self._limits)
        if self._may_displace():
            noted = self.giving_way.to_candidates(draft, active, offered, room)
            if any(not victim.resident for victim in draft.victims):
                self.giving_way.seat(draft, order, noted)
                return
            if noted or draft.victims:
                room = Room(draft, active, self._limits)
        fill = Fill(draft, room)
        if is_active[: len(active)].all():
            fill.in_order(order[len(active) :])
        else:
            fill.interleaved(order)
