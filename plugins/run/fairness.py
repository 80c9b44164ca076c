"""How evenly tenants were served. Service is prompt tokens at first admission plus twice each output token."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from interlock.core.request import RequestStatus
from interlock.plugins.run.outcomes import NEVER, Outcomes

if TYPE_CHECKING:
    from interlock.plugins.run.recorder import Recorder

OUTPUT_WEIGHT = 2


def fairness(recorder: Recorder) -> dict[str, float | None]:
    """Jain's index over the tenants' service, and the largest gap between two tenants while both are backlogged."""
    outcomes = recorder.outcomes
    if not len(outcomes):
        return {"jain": None, "service_gap": None}
    names, tenant = np.unique([one.tenant for one in outcomes.all], return_inverse=True)
    prompt = outcomes.ints(lambda one: one.prompt_tokens) * (outcomes.admitted != NEVER)
    service = np.bincount(tenant, prompt + OUTPUT_WEIGHT * outcomes.output_tokens, len(names))
    gap = service_gap(recorder, outcomes, tenant, prompt, len(names)) if len(names) > 1 else 0
    return {"jain": jain(service), "service_gap": float(gap)}


def jain(service: np.ndarray) -> float | None:
    """(sum x)^2 / (n sum x^2): 1 for equal shares, 1/n when one has all, None when nobody was served."""
    squares = float((service * service).sum())
    return float(service.sum()) ** 2 / (len(service) * squares) if squares else None


def service_gap(recorder: Recorder, outcomes: Outcomes, tenant: np.ndarray, prompt: np.ndarray, tenants: int) -> int:
    """Over every stretch of time in which two tenants both had a WAITING request: how far the service that one got in
    any part of it exceeds what the other got there. The largest of all.

    At a boundary tokens are delivered before anybody is admitted or arrives, so each time counts twice.
    """
    served, changed = _served(recorder, outcomes, tenant, prompt), _changes(recorder, outcomes, tenant)
    moments = np.unique(np.concatenate([served.at, changed.at]))
    everything = np.arange(len(moments))
    waiting = np.stack([changed.total(one, moments, everything) > 0 for one in range(tenants)])
    crowded = np.flatnonzero(waiting.sum(axis=0) > 1)
    waiting = waiting[:, crowded]
    total = np.stack([served.total(one, moments, crowded) for one in range(tenants)])
    return max(_widest(total[: one + 1], waiting[: one + 1], crowded) for one in range(tenants))


class _Events(NamedTuple):
    """Moments, whose they are, and by how much they change something. A moment is twice a time, or one more."""

    at: np.ndarray
    tenant: np.ndarray
    amount: np.ndarray

    def total(self, tenant: int, moments: np.ndarray, which: np.ndarray) -> np.ndarray:
        """The tenant's running total, int64, at those of the sorted `moments` that `which` points at."""
        mine = self.tenant == tenant
        places = np.searchsorted(moments, self.at[mine])
        changes = np.bincount(places, self.amount[mine], len(moments)).astype(np.int64)
        return np.asarray(np.cumsum(changes)[which])


def _served(recorder: Recorder, outcomes: Outcomes, tenant: np.ndarray, prompt: np.ndarray) -> _Events:
    """Service as it is given."""
    deliveries = recorder.flat.deliveries
    at, there = outcomes.index_of(deliveries.numbers)
    admitted = np.flatnonzero(outcomes.admitted != NEVER)
    return _Events(
        np.concatenate([deliveries.times_ns[there] * 2, outcomes.admitted[admitted] * 2 + 1]),
        np.concatenate([tenant[at[there]], tenant[admitted]]),
        np.concatenate([np.full(int(there.sum()), OUTPUT_WEIGHT), prompt[admitted]]),
    )


def _changes(recorder: Recorder, outcomes: Outcomes, tenant: np.ndarray) -> _Events:
    """Requests that begin (+1) or cease (-1) to be WAITING."""
    moves = [
        (one.time_ns * 2 + 1, one.request, 1 if one.to_status is RequestStatus.WAITING else -1)
        for one in recorder.transitions
        if (one.to_status is RequestStatus.WAITING) != (one.from_status is RequestStatus.WAITING)
    ]
    moments, numbers, amounts = np.array(moves, np.int64).reshape(-1, 3).T
    at, there = outcomes.index_of(numbers)
    return _Events(moments[there], tenant[at[there]], amounts[there])


def _widest(total: np.ndarray, waiting: np.ndarray, moments: np.ndarray) -> int:
    """The largest gap between the last tenant and each before it: the widest range of the difference of their totals
    within one stretch of consecutive `moments` at which both wait.
    """
    others, columns = np.nonzero(waiting[:-1] & waiting[-1])
    if not len(others):
        return 0
    difference = total[-1, columns] - total[others, columns]
    apart = (np.diff(others) != 0) | (np.diff(moments[columns]) > 1)
    begins = np.concatenate([[0], np.flatnonzero(apart) + 1])
    return int((np.maximum.reduceat(difference, begins) - np.minimum.reduceat(difference, begins)).max())
