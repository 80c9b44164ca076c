"""What a policy may promise. Each claim's docstring is its formal definition; the conformance suite checks it.

A boundary "serves" a request when the request is in the batch formed there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """Base of all claims."""


@dataclass(frozen=True, slots=True)
class ArrivalOrder(Claim):
    """First admissions happen in arrival order."""


@dataclass(frozen=True, slots=True)
class NoPriorityInversion(Claim):
    """No request is admitted while one with a strictly smaller priority number waits that is not held and fits."""


@dataclass(frozen=True, slots=True)
class NeverPreempts(Claim):
    """Nobody gives way to a candidate; only growth takes blocks."""


@dataclass(frozen=True, slots=True)
class WorkConserving(Claim):
    """A boundary with pending work of active requests, or a candidate that fits, forms a batch."""


@dataclass(frozen=True, slots=True)
class BoundedBypass(Claim):
    """No request is passed over for want of blocks by more than `times` later candidates."""

    times: int


@dataclass(frozen=True, slots=True)
class BoundedOvertaking(Claim):
    """No waiting request sees more than `times` later arrivals admitted before it."""

    times: int


@dataclass(frozen=True, slots=True)
class StarvationBound(Claim):
    """Every request that fits alone and is not held is first admitted within `steps` batches of its arrival."""

    steps: int


@dataclass(frozen=True, slots=True)
class DecodeGap(Claim):
    """Between two tokens of an active request at most `steps` batches run without it."""

    steps: int
