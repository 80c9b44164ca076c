"""What a policy may promise. Each claim's docstring is its formal definition; the conformance suite checks it.

Words of the definitions. A boundary *forms* at most one batch. A request is *barred* at a boundary when a policy holds
it or a drop, a cap, a limit or a part of the budget stops it there. A waiting request *fits* when `View.fits` says so
before the plan: a slot, a token and its blocks are there beside what the active requests take. Nothing is claimed of
boundaries at which a rescue rules.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """Base of all claims."""


@dataclass(frozen=True, slots=True)
class ArrivalOrder(Claim):
    """First admissions happen in arrival order.

    When a request is first admitted, no earlier arrival that was never admitted still waits, but for barred ones and
    for those that lack blocks and may be passed over (`engine.bypass_limit` above 0).
    """


@dataclass(frozen=True, slots=True)
class NoPriorityInversion(Claim):
    """No request is admitted while one with a strictly smaller priority number waits on that fits and is not barred."""


@dataclass(frozen=True, slots=True)
class DisplacesOnlyLower(Claim):
    """An active request gives way to a candidate only if its priority number is strictly larger than the candidate's.

    Giving way to the growth of an active request is another matter.
    """


@dataclass(frozen=True, slots=True)
class NeverPreempts(Claim):
    """Nobody gives way to a candidate, neither slot nor blocks; only the growth of active requests takes blocks."""


@dataclass(frozen=True, slots=True)
class WorkConserving(Claim):
    """A boundary forms a batch when an active request has work pending that is not in flight, or when a waiting one
    fits and is not barred."""


@dataclass(frozen=True, slots=True)
class BoundedBypass(Claim):
    """No request is passed over for want of blocks by more than `times` others.

    A request is passed over by each one behind it in the offer that enters at a boundary at which it lacks blocks.
    """

    times: int


@dataclass(frozen=True, slots=True)
class BoundedOvertaking(Claim):
    """No request sees more than `times` later arrivals first admitted while it waits for its own first admission."""

    times: int


@dataclass(frozen=True, slots=True)
class StarvationBound(Claim):
    """Every request is first admitted within `steps` batches of its arrival.

    Only requests that fit alone are meant, and batches of boundaries at which the request is barred do not count.
    """

    steps: int


@dataclass(frozen=True, slots=True)
class DecodeGap(Claim):
    """Between two tokens of a request that stays active, at most `steps` batches run without it."""

    steps: int


@dataclass(frozen=True, slots=True)
class DecodesFirst(Claim):
    """A batch that runs prompt tokens leaves out no active request with decode work of the same operation ready.

    Boundaries at which somebody is displaced are excepted: there every entrant runs at least one token. So are those
    at which another policy caps, drops, or divides the budget.
    """


@dataclass(frozen=True, slots=True)
class BoundedPrompts(Claim):
    """While an active request of a looped model has decode work in the loop ready, at most `batches` batches with
    prompt tokens in the loop (or through the whole depth) run in a row without one with decode rows in the loop."""

    batches: int


@dataclass(frozen=True, slots=True)
class Cohorts(Claim):
    """On a looped model no decode enters the loop (its prelude runs) while another active request has decode work in
    the loop, or behind it, ready."""
