"""Stretches of waiting, from the boundaries at which reasons change."""

from __future__ import annotations

from typing import Any

from interlock.core.record import Wait
from interlock.core.request import RequestStatus
from interlock.plugins.run.waits import stretches


def rows(story: Any) -> list[tuple[Any, ...]]:
    """The stretches, times in seconds."""
    found = stretches(story.recorder)
    seconds = [[time / 1e9 for time in times] for times in (found.from_ns, found.to_ns)]
    return list(zip(found.requests, *seconds, found.reasons, found.by, strict=True))


def test_a_wait_ends_with_admission(story: Any) -> None:
    story.two_requests()
    assert rows(story) == [(1, 1.0, 2.0, "slot", "core")]


def test_another_reason_ends_a_wait_and_an_equal_one_continues_it(story: Any) -> None:
    waits = [Wait(3, "slot", "core"), Wait(3, "slot", "core"), Wait(3, "held", "gate"), Wait(3, "held", "quota")]
    for at, wait in enumerate(waits):
        story.boundary(at, at, waits=[wait])
    story.boundary(9, 9, transitions=[story.move(3, 9, RequestStatus.WAITING, RequestStatus.FINISHED, "cancelled")])
    assert rows(story) == [(3, 0.0, 2.0, "slot", "core"), (3, 2.0, 3.0, "held", "gate"), (3, 3.0, 9.0, "held", "quota")]


def test_a_preempted_request_waits_again(story: Any) -> None:
    story.boundary(0, 0, waits=[Wait(1, "slot", "core")])
    story.boundary(1, 1, transitions=[story.move(1, 1, RequestStatus.WAITING, RequestStatus.ACTIVE, "admitted")])
    lost = story.move(1, 2, RequestStatus.ACTIVE, RequestStatus.WAITING, "recompute")
    story.boundary(2, 2, transitions=[lost], waits=[Wait(1, "slot", "core")])
    story.boundary(5, 5, transitions=[story.move(1, 5, RequestStatus.WAITING, RequestStatus.ACTIVE, "resumed")])
    assert rows(story) == [(1, 0.0, 1.0, "slot", "core"), (1, 2.0, 5.0, "slot", "core")]


def test_an_active_request_that_waits_for_tokens_stops_waiting_when_it_runs(story: Any) -> None:
    entered = story.move(1, 0, RequestStatus.WAITING, RequestStatus.ACTIVE, "admitted")
    batches = [story.batch(0, 0, [(0, 7, 4, 1)]), story.batch(1, 1, [(0, 7, 5, 1)]), story.batch(2, 2, [(1, 0, 0, 4)])]
    story.boundary(0, 0, transitions=[entered], waits=[Wait(1, "tokens", "core")], batch=batches[0])
    story.boundary(1, 1, collected=[story.result(batches[0], [1], [[1]])], batch=batches[1])
    story.boundary(2, 2, collected=[story.result(batches[1], [2], [[1]])], batch=batches[2])
    story.boundary(3, 3, collected=[story.result(batches[2], [3], [[1]])])
    assert rows(story) == [(1, 0.0, 2.0, "tokens", "core")]


def test_what_still_waits_at_the_end_waits_until_then(story: Any) -> None:
    story.boundary(0, 1, waits=[Wait(1, "slot", "core"), Wait(2, "order", "fcfs")])
    story.boundary(0, 4)
    assert rows(story) == [(1, 1.0, 4.0, "slot", "core"), (2, 1.0, 4.0, "order", "fcfs")]
