"""How a scene is set, and how the boundary is watched: both stand in for calls of the stack while they last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import numpy as np

from interlock.core import BoundaryRecord, ConfigError, Engine, Offer, Plan, Policy, View, WorkKey
from interlock.core.policy import HOOKS
from interlock.core.proposals import Proposal
from interlock.plugins.testing.actors import Actor

_Calls = dict[str, list[tuple[Policy, Callable[..., None]]]]


class _StandIn:
    """Puts other calls into a stack, and puts the old ones back."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._before: _Calls = dict(engine.stack._calls)

    def calls(self) -> _Calls:
        """The calls that stand in, by hook."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.engine.stack._calls = {**self._before, **self.calls()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.stack._calls = self._before


class Scene(_StandIn):
    """Brings active requests to where they are to be: one after the other through their prompts, then all together."""

    def __init__(self, engine: Engine, cast: Sequence[Actor]) -> None:
        super().__init__(engine)
        self.goals = {actor.request.id: actor.goal for actor in cast}
        self.reached = dict.fromkeys(self.goals, 0)
        self.cached_too_far = ""  # the request of which more is cached than it is to have computed
        self._director = _Director(self)

    def calls(self) -> _Calls:
        """The director alone; nobody gives way and all is left for reuse."""
        director = self._director
        silent: _Calls = {hook: [] for hook in HOOKS}
        return {**silent, "admit": [(director, director.admit)], "select": [(director, director.select)]}

    @property
    def set(self) -> bool:
        """Whether everybody is there, once the batch that is out is collected."""
        return self.reached == self.goals

    def note(self, record: BoundaryRecord | None) -> None:
        """A boundary of the scene is over."""
        for outcome in () if record is None else record.outcomes:
            raise self.impossible(f"{outcome.request_id!r} ended, {outcome.reject_reason or outcome.finish_reason}")
        if record is None or record.batch is None:
            raise self.impossible()
        if record.preempted:
            raise self.impossible("one gave way to another's growth")
        batch = record.batch
        for row, end in zip(batch.rows.tolist(), (batch.start + batch.tokens).tolist(), strict=True):
            self.reached[self.engine.view.request(row).id] = end

    def impossible(self, why: str = "") -> ConfigError:
        """The scene cannot be."""
        if not why and self.cached_too_far:
            why = f"more of {self.cached_too_far!r} is cached than it is to have computed"
        why = why or "they do not all fit in these limits"
        return ConfigError(f"boundary: the active requests cannot all be where they are to be: {why}")


class _Director(Policy):
    """Says who moves in a scene."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self.scene = scene

    def admit(self, offer: Offer, view: View) -> None:
        """One at a time."""
        offer.hold(np.arange(len(offer.rows)) > 0)

    def select(self, plan: Plan, view: View) -> None:
        """The first that is still in its prompt; when none is, everybody who is not there yet."""
        plan.prefer((WorkKey.PROMPT_ATOMIC, WorkKey.DECODE_ATOMIC))
        rows = plan.rows
        goals = np.array([self.scene.goals[view.request(row).id] for row in rows.tolist()])
        left = goals - view.computed[rows] - view.cached_prefix(rows)
        if (left < 0).any():
            self.scene.cached_too_far = view.request(int(rows[left < 0][0])).id
        in_prompt = (view.emitted[rows] == 0) & (left > 0)
        moves = np.arange(len(rows)) == in_prompt.argmax() if in_prompt.any() else left > 0
        plan.cap(np.ones(len(rows), bool), np.where(moves, np.maximum(left, 0), 0))


class Watch(_StandIn):
    """Looks over the shoulder of the last policy that edits an offer or a plan."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.order: list[str] = []
        self.walk: list[str] = []
        self._nobody = Policy()
        self._nobody.name = ""

    def calls(self) -> _Calls:
        """The last call of `admit` and of `select`, watched."""
        return {"admit": self._watched("admit", self._note_offer), "select": self._watched("select", self._note_plan)}

    def _watched(self, hook: str, note: Callable[[Proposal, View], None]) -> list[tuple[Policy, Callable[..., None]]]:
        before = self._before[hook]
        if not before:
            return [(self._nobody, note)]
        policy, method = before[-1]

        def call(proposal: Proposal, view: View) -> None:
            method(proposal, view)
            note(proposal, view)

        return [*before[:-1], (policy, call)]

    def _note_offer(self, proposal: Proposal, view: View) -> None:
        self.order = [view.request(row).id for row in proposal.rows.tolist()]

    def _note_plan(self, proposal: Proposal, view: View) -> None:
        self.walk = [view.request(row).id for row in proposal.rows.tolist()]
