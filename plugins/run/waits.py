"""Stretches in which one reason kept a request from running, from the boundaries at which reasons changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from interlock.core.request import RequestStatus

if TYPE_CHECKING:
    from interlock.plugins.run.recorder import Recorder

_ENDS = (RequestStatus.ACTIVE, RequestStatus.FINISHED)


class Stretches(NamedTuple):
    """Columns over the stretches, by request and then by time. None is empty."""

    requests: list[int]
    from_ns: list[int]
    to_ns: list[int]
    reasons: list[str]
    by: list[str]


class _Event(NamedTuple):
    """A wait that begins, or (empty reason) a request that is activated, runs or finishes. Sorts as it happened.

    At one boundary what ends a wait comes first: a request may be activated there and wait for tokens from then on.
    """

    request: int
    time_ns: int
    step: int
    reason: str = ""
    by: str = ""


def stretches(recorder: Recorder) -> Stretches:
    """A wait lasts until another reason takes over, or the request is activated, is in a batch, or finishes."""
    out = Stretches([], [], [], [], [])
    begun: _Event | None = None
    for event in sorted(_events(recorder)):
        if begun is not None and event.request != begun.request:
            _close(out, begun, recorder.end_ns)
            begun = None
        if begun is not None and (event.reason, event.by) != (begun.reason, begun.by):
            _close(out, begun, event.time_ns)
            begun = None
        if begun is None and event.reason:
            begun = event
    if begun is not None:
        _close(out, begun, recorder.end_ns)
    return out


def _close(out: Stretches, begun: _Event, to_ns: int) -> None:
    if to_ns > begun.time_ns:
        out.requests.append(begun.request)
        out.from_ns.append(begun.time_ns)
        out.to_ns.append(to_ns)
        out.reasons.append(begun.reason)
        out.by.append(begun.by)


def _events(recorder: Recorder) -> list[_Event]:
    waits = recorder.waits
    waiting = {one.wait.request for one in waits}
    begins = [_Event(one.wait.request, one.time_ns, one.step, one.wait.reason, one.wait.by) for one in waits]
    changes = [
        _Event(one.request, one.time_ns, one.step)
        for one in recorder.transitions
        if one.to_status in _ENDS and one.request in waiting
    ]
    return begins + changes + _runs(recorder)


def _runs(recorder: Recorder) -> list[_Event]:
    """For each wait the first batch after it that the request is in: an active request may wait for tokens, too."""
    if not recorder.waits or not recorder.steps:
        return []
    flat, steps = recorder.flat, np.array([one.step for one in recorder.steps], np.int64)
    of_wait = np.array([(one.wait.request, one.step) for one in recorder.waits], np.int64)
    span = max(int(steps.max()), int(of_wait[:, 1].max())) + 1
    keys = flat.numbers * span + np.repeat(steps, flat.sizes)
    order = np.argsort(keys)
    at = np.searchsorted(keys[order], of_wait @ np.array([span, 1]), side="right")
    found = order[at[at < len(order)]]
    step = np.searchsorted(flat.member_at, found, side="right") - 1
    return [
        _Event(int(number), recorder.steps[index].start_ns, int(steps[index]))
        for number, index in zip(flat.numbers[found], step.tolist(), strict=True)
    ]
