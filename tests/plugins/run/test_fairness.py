"""Jain's index and the service gap, on timelines small enough to work out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from interlock.core.request import FinishReason, RequestStatus
from interlock.plugins.run.fairness import fairness, jain

NEW, WAITING, ACTIVE, FINISHED = None, RequestStatus.WAITING, RequestStatus.ACTIVE, RequestStatus.FINISHED


def test_jain() -> None:
    assert jain(np.array([5.0, 5.0])) == 1.0
    assert jain(np.array([8.0, 0.0])) == 0.5
    assert jain(np.array([1.0, 3.0])) == pytest.approx(16 / 20)
    assert jain(np.array([0.0])) is None


def test_nobody(story: Any) -> None:
    assert fairness(story.recorder) == {"jain": None, "service_gap": None}


def test_one_tenant_is_treated_evenly(story: Any) -> None:
    assert fairness(story.two_requests()) == {"jain": 1.0, "service_gap": 0.0}


def test_service_is_prompt_plus_twice_output_and_nothing_for_who_never_ran(story: Any) -> None:
    batch = story.batch(0, 0, [(0, 0, 0, 4), (1, 0, 0, 4)])
    story.boundary(0, 0, batch=batch)
    outcomes = [
        story.outcome(0, 0, 1, [1], tenant="x", prompt_tokens=4),
        story.outcome(1, 0, 1, [1], tenant="y", prompt_tokens=10),
        story.outcome(2, 0, 0, tenant="y", prompt_tokens=999, finish_reason=FinishReason.REJECTED),
    ]
    story.boundary(1, 1, collected=[story.result(batch, [1], [[1, 1]])], outcomes=outcomes)
    assert fairness(story.recorder)["jain"] == pytest.approx((6 + 12) ** 2 / (2 * (6**2 + 12**2)))


def backlog(story: Any, y_waits_until: int) -> float:
    """Requests 0 and 1 of tenant x run a second each, with 10 prompt tokens and one token; a third waits until 3.

    Request 5 of tenant y waits from 0 until it is admitted.
    """
    arrived = [story.move(n, 0, NEW, WAITING, "arrived") for n in (0, 1, 2, 5)]
    batches = {n: story.batch(n, n, [(n, 0, 0, 10)]) for n in (0, 1, 2)} | {5: story.batch(3, 3, [(5, 0, 0, 10)])}

    def enter(number: int, at: int) -> Any:
        return story.move(number, at, WAITING, ACTIVE, "admitted")

    def leaves(number: int, arrival: int, admitted: int, at: int, tenant: str) -> Any:
        return story.outcome(number, arrival, at, [at], tenant=tenant, admitted=admitted, prompt_tokens=10)

    at_y = {y_waits_until: [enter(5, y_waits_until)]}
    story.boundary(0, 0, transitions=[*arrived, enter(0, 0)], batch=batches[0])
    for at in (1, 2):
        done = leaves(at - 1, 0, at - 1, at, "x")
        got = story.result(batches[at - 1], [at], [[1]], finished=(at - 1,))
        moves = [enter(at, at), *at_y.get(at, [])]
        story.boundary(at, at, collected=[got], outcomes=[done], transitions=moves, batch=batches[at])
    got = story.result(batches[2], [3], [[1]])
    story.boundary(
        3, 3, collected=[got], outcomes=[leaves(2, 0, 2, 3, "x")], transitions=at_y.get(3, []), batch=batches[5]
    )
    got = story.result(batches[5], [4], [[1]])
    story.boundary(4, 4, collected=[got], outcomes=[leaves(5, 0, y_waits_until, 4, "y")])
    gap = fairness(story.recorder)["service_gap"]
    assert gap is not None
    return gap


def test_gap_while_both_are_backlogged(story: Any) -> None:
    # x enters at 0 (before both wait: the stretch begins with its 10), gets a token at 1 (2), a prompt at 1 (10) and a
    # token at 2 (2). At 2 its last request is admitted, and the stretch is over.
    assert backlog(story, y_waits_until=3) == 14


def test_gap_ends_where_one_of_them_has_nobody_waiting(story: Any) -> None:
    # At 1 y is admitted: only x's first token falls in the stretch.
    assert backlog(story, y_waits_until=1) == 2


def test_no_gap_without_a_common_backlog(story: Any) -> None:
    moves = [story.move(0, 0, NEW, WAITING, "arrived"), story.move(0, 5, WAITING, FINISHED, "cancelled")]
    moves += [story.move(1, 6, NEW, WAITING, "arrived"), story.move(1, 9, WAITING, FINISHED, "cancelled")]
    for move in moves:
        story.boundary(0, move.time_ns / 1e9, transitions=[move])
    story.boundary(0, 9, outcomes=[story.outcome(0, 0, 5, tenant="x"), story.outcome(1, 6, 9, tenant="y")])
    assert fairness(story.recorder) == {"jain": None, "service_gap": 0.0}
