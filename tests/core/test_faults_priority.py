"""Priorities, ties, scores and clocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scenario import MIXED, URGENT, R, engine_of, play

from interlock.core import Demand, DemandKind, Policy, PolicyViolation

STAYS = ({"priority": {"displace": False}}, "mixed")
NEVER = ({"priority": {"preempt": None}}, "mixed")
LOW = [R(0, 4, 30, 9, id="L1"), R(0, 4, 30, 9, id="L2")]


# -- an urgent arrival and running seats (B27)


@pytest.mark.parametrize("at", [1, 3, 7])
def test_an_urgent_arrival_displaces_one_at_the_next_boundary_and_equals_nobody(at: int) -> None:
    run = play(*LOW, R(at, 4, 4, 0, id="H"), R(at + 2, 4, 4, 9, id="E"), S=2, stack=URGENT)
    assert run.started("H") == at and run.preempted == {at: ["L2"]}
    assert run.steps[at] == {"L1": 1, "H": 4}
    # H's slot is free after its four tokens: L2 came before E and takes it, with its 4 + `at` tokens of context.
    assert run.ran("L2")[at + 4] == 4 + at and run.started("E") == 30, "L1 ends in step 29"


def test_an_arrival_between_two_boundaries_displaces_at_the_next() -> None:
    run = play(*LOW, R(2.5, 4, 4, 0, id="H"), S=2, stack=URGENT)
    assert run.started("H") == 3


@pytest.mark.parametrize("stack", [STAYS, NEVER, MIXED])
def test_without_displacement_the_urgent_one_waits_for_a_natural_end(stack: tuple) -> None:
    run = play(*LOW, R(3, 4, 4, 0, id="H"), S=2, stack=stack)
    assert run.started("H") == 30 and not run.preempted


@pytest.mark.parametrize("n", [1, 2, 5])
def test_of_several_urgent_ones_each_displaces_one(n: int) -> None:
    low = [R(0, 4, 30, 9) for _ in range(5)]
    high = [R(3, 4, 4, 0, id=f"H{i}") for i in range(n)]
    run = play(*low, *high, S=5, stack=URGENT)
    assert run.preempted == {3: [f"R{i}" for i in range(4, 4 - n, -1)]}
    assert [run.started(f"H{i}") for i in range(n)] == [3] * n


def test_the_lowest_gives_way_and_among_equals_the_latest_admitted() -> None:
    low = [R(0, 4, 20, p) for p in (5, 9, 9, 7)]
    run = play(*low, R(2, 4, 2, 0), R(3, 4, 2, 6), R(4, 4, 2, 9), S=4, stack=URGENT)
    # R4 (0) takes the slot of R2, the later of the two 9; R5 (6) that of R1; R6 (9) stands above nobody.
    assert run.preempted[2] == ["R2"] and run.preempted[3] == ["R1"] and 4 not in run.preempted


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("reserve", ["none", "prompt", "full"])
def test_equal_priorities_never_displace_each_other(reserve: str, caching: bool) -> None:
    run = play(*[R(k, 4, 6, 3) for k in range(8)], S=2, reserve=reserve, caching=caching, stack=URGENT)
    assert not run.preempted and [run.started(f"R{k}") for k in range(8)] == sorted(
        run.started(f"R{k}") for k in range(8)
    )


def test_nobody_is_displaced_for_a_request_that_would_still_not_fit() -> None:
    # U holds 6 of 10 blocks from step 1 on, L 2: with L's, H would have 4 of the 5 blocks it needs.
    requests = [R(0, 20, 5, 0, id="U"), R(0, 4, 5, 9, id="L"), R(1, 20, 2, 5, id="H")]
    run = play(*requests, N=10, stack=URGENT)
    assert not run.preempted and run.started("H") == 5


def test_the_first_that_cannot_fit_ends_the_pass_for_those_behind_it() -> None:
    # The same, with a smaller one behind H that could displace L: H is first in the offer, so nobody is displaced for
    # it.
    requests = [R(0, 20, 5, 0, id="U"), R(0, 4, 5, 9, id="L"), R(1, 20, 2, 5, id="H"), R(1, 4, 2, 6, id="J")]
    run = play(*requests, N=10, S=2, stack=URGENT)
    assert not run.preempted


@pytest.mark.parametrize("preempt", ["recompute", None])
@pytest.mark.parametrize("displace", [True, False])
def test_growth_takes_from_the_lowest_also_where_candidates_displace_nobody(
    displace: bool, preempt: str | None
) -> None:
    stack = ({"priority": {"displace": displace, "preempt": preempt}}, "mixed")
    run = play(R(0, 7, 6, 9, id="L"), R(0, 8, 6, 0, id="H"), N=4, stack=stack)
    assert run.preempted[1] == ["L"]


def test_the_victims_list_is_asked_for_with_what_is_missing() -> None:
    asked: list[tuple[str, DemandKind, int]] = []

    class Listens(Policy):
        def preempt(self, victims: Any, demand: Demand, view: Any) -> None:
            asked.append((view.request(demand.row).id, demand.kind, demand.blocks))

    # Slots: H lacks one, and no block. Blocks: J needs 2 and there are none. Growth: R0's ninth token needs a block.
    play(R(0, 4, 5, 9), R(1, 4, 2, 0, id="H"), S=1, stack=(*URGENT, Listens()))
    assert asked[0] == ("H", DemandKind.SLOT, 0)
    asked.clear()
    play(R(0, 13, 4, 9), R(0, 13, 4, 9), R(1, 8, 2, 0, id="J"), N=8, stack=(*URGENT, Listens()))
    assert asked[0] == ("J", DemandKind.ADMISSION, 2)
    asked.clear()
    play(R(0, 8, 6), R(0, 7, 6), N=4, stack=(*MIXED, Listens()))
    assert asked[0] == ("R0", DemandKind.GROWTH, 1)


@pytest.mark.parametrize("verb", ["reorder", "aligned", "none"])
def test_only_a_key_gives_standing(verb: str) -> None:
    class NoStanding(Policy):
        def admit(self, offer: Any, view: Any) -> None:
            offer.sort_by("priority")

        def preempt(self, victims: Any, demand: Any, view: Any) -> None:
            if verb == "reorder":
                victims.reorder(victims.rows[::-1].copy())
            elif verb == "aligned":
                victims.sort_by(-view.priority[victims.rows])

    run = play(*LOW, R(3, 4, 4, 0, id="H"), S=2, stack=(NoStanding(), "mixed"))
    assert not run.preempted and run.started("H") == 30


# -- ties (B90)


@pytest.mark.parametrize("stack", [("fcfs",), MIXED, URGENT])
@pytest.mark.parametrize("S", [1, 2])
def test_equal_keys_keep_the_order_of_submission(S: int, stack: tuple) -> None:
    runs = [play(*[R(0, 4, 2, 1) for _ in range(5)], S=S, stack=stack) for _ in range(2)]
    for run in runs:
        assert run.outcomes["R0"].number == 0
        assert [move.request_id for r in run.records for move in r.transitions if move.reason == "admitted"] == [
            f"R{i}" for i in range(5)
        ]
    assert runs[0].steps == runs[1].steps


# -- scores that depend on time (B92)


class Hrrn(Policy):
    """Highest response ratio next: (waited + service) / service, computed when asked, one `now` for all."""

    def admit(self, offer: Any, view: Any) -> None:
        offer.sort_by(-(view.now - view.arrival + view.max_tokens) / np.maximum(view.max_tokens, 1))


@pytest.mark.parametrize(("until", "first"), [(6, "B"), (5, "A"), (20, "B")])
def test_a_score_that_depends_on_time_is_computed_when_it_is_used(until: int, first: str) -> None:
    # The slot is free at `until`. At 6, A has (6 + 100) / 100 = 1.06 and B (1 + 10) / 10 = 1.1; at 5, 1.05 and 1.0.
    run = play(
        R(0, 4, until, id="Z"), R(0.5, 4, 100, id="A"), R(5, 4, 10, id="B"), S=1, L=128, N=99, stack=(*MIXED, Hrrn())
    )
    assert min(("A", "B"), key=run.started) == first and min(run.started("A"), run.started("B")) == until


# -- scores that are no numbers (B93)


class Scored(Policy):
    """Sorts by given numbers, by request id."""

    def __init__(self, scores: dict[str, float], verb: str = "sort_by") -> None:
        super().__init__()
        self.scores, self.verb = scores, verb

    def admit(self, offer: Any, view: Any) -> None:
        values = np.zeros(view.capacity)
        for row in offer.rows:
            values[row] = self.scores.get(view.request(row).id, 0.0)
        if self.verb == "sort_by":
            offer.sort_by(values)
        else:
            offer.hold(np.ones(view.capacity, bool), until=values)


THREE = [R(0, 4, 1) for _ in range(3)]


@pytest.mark.parametrize("verb", ["sort_by", "hold"])
def test_nan_is_an_error_that_names_the_policy(verb: str) -> None:
    engine = engine_of(*THREE, S=1, stack=(*MIXED, Scored({"R1": float("nan")}, verb)))
    with pytest.raises(PolicyViolation, match=r"scored\.admit broke rule .*NaN"):
        engine.step()
    assert engine.state.pool.used == 0 and engine.state.free_slots == 1 and len(engine.state.waiting) == 3


@pytest.mark.parametrize("verb", ["sort_by", "hold"])
def test_under_repair_nan_falls_back_to_the_order_before_and_is_counted(verb: str) -> None:
    run = play(*THREE, S=1, stack=(*MIXED, Scored({"R1": float("nan")}, verb)), on_violation="repair")
    assert [run.started(f"R{i}") for i in range(3)] == [0, 1, 2]
    assert run.engine.stats.violations >= 1


def test_infinite_and_huge_scores_sort_as_numbers() -> None:
    scores = {"R0": float("inf"), "R1": 1e308, "R2": -float("inf"), "R3": 1e308}
    run = play(*[R(0, 4, 1) for _ in range(4)], S=1, stack=(*MIXED, Scored(scores)))
    assert sorted(run.outcomes, key=run.started) == ["R2", "R1", "R3", "R0"]


class Edf(Policy):
    """Earliest deadline first."""

    def admit(self, offer: Any, view: Any) -> None:
        offer.sort_by("deadline")


def test_requests_without_a_deadline_come_last_in_order_of_arrival() -> None:
    requests = [
        R(0, 4, 1),
        R(0, 4, 1, deadline_s=9.0),
        R(0, 4, 1),
        R(0, 4, 1, deadline_s=0.0),
        R(0, 4, 1, deadline_s=9.0),
    ]
    run = play(*requests, S=1, stack=("mixed", Edf()))
    assert sorted(run.outcomes, key=run.started) == ["R3", "R1", "R4", "R0", "R2"]


# -- the low band (B94)


def test_strict_priority_serves_the_low_band_last() -> None:
    run = play(R(0, 4, 1, 9, id="low"), *[R(k, 4, 1, 0) for k in range(40)], S=1, stack=URGENT)
    assert run.started("low") == 40


@pytest.mark.parametrize(("aging", "step"), [(1.0, 9), (0.5, 18), (3.0, 3), (0.25, 36)])
def test_ageing_bounds_the_wait_of_the_low_band(aging: float, step: int) -> None:
    # The order is that of priority + aging * arrival: low stands at 9, the high one of step k at aging k. Those below 9
    # run first, one a step; the one at 9 ties with low and came later.
    run = play(
        R(0, 4, 1, 9, id="low"),
        *[R(k, 4, 1, 0) for k in range(40)],
        S=1,
        stack=({"priority": {"aging": aging}}, "mixed"),
    )
    assert run.started("low") == step


def test_ageing_never_lets_two_displace_each_other_in_turn() -> None:
    requests = [R(k, 4, 12, k % 3) for k in range(12)]
    run = play(*requests, S=2, stack=({"priority": {"aging": 0.3}}, "mixed"))
    # Standing does not change while requests live, so nobody gives way more often than there are requests above them.
    standing = {f"R{k}": k % 3 + 0.3 * k for k in range(12)}
    for name, outcome in run.outcomes.items():
        assert outcome.preemptions <= sum(other < standing[name] for other in standing.values())
