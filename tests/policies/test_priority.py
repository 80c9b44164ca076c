"""Priorities, with and without displacement, and with ageing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scenario import R, engine_of, play

from interlock.core import PreemptMode
from interlock.core.claims import DisplacesOnlyLower, NeverPreempts, NoPriorityInversion
from interlock.plugins.testing import Boundary, boundary
from interlock.policies.priority import Priority


def turn(waiting: dict[str, int], active: dict[str, int] | None = None, *, slots: int = 2, **options: Any) -> Boundary:
    """One boundary of requests by priority."""
    return boundary(
        waiting=[{"id": name, "prompt": 4, "priority": p} for name, p in waiting.items()],
        active=[{"id": name, "prompt": 4, "priority": p} for name, p in (active or {}).items()],
        stack=[Priority(**options), "mixed"],
        max_num_seqs=slots,
    )


def test_the_smallest_number_is_served_first_and_equal_ones_keep_their_order() -> None:
    told = turn({"a": 2, "b": 0, "c": 2, "d": -1, "e": 0}, slots=3)
    assert told.order == ["d", "b", "e", "a", "c"] and told.admitted == ["d", "b", "e"]


def test_a_higher_standing_takes_the_slot_of_the_lowest() -> None:
    told = turn({"a": 1}, {"x": 3, "y": 5})
    assert told.preempted == ["y"] and told.admitted == ["a"] and told.modes == {"y": PreemptMode.RECOMPUTE}
    assert {name for name, _ in told.batch} == {"x", "a"}


def test_of_equal_victims_the_latest_admitted_gives_way() -> None:
    assert turn({"a": 1}, {"x": 5, "y": 5}).preempted == ["y"]


@pytest.mark.parametrize("waiting", [{"a": 5}, {"a": 6}, {"a": 5, "b": 9}])
def test_equal_or_lower_standing_displaces_nobody(waiting: dict[str, int]) -> None:
    assert turn(waiting, {"x": 5, "y": 5}).preempted == []


def test_as_many_give_way_as_are_needed() -> None:
    assert turn({"a": 1, "b": 2, "c": 4}, {"x": 3, "y": 5}).preempted == ["y", "x"]


@pytest.mark.parametrize("options", [{"displace": False}, {"preempt": None}])
def test_displacement_can_be_turned_off(options: dict[str, Any]) -> None:
    told = turn({"a": 1, "b": 0}, {"x": 3, "y": 5}, **options)
    assert told.preempted == [] and told.order == ["b", "a"]


@pytest.mark.parametrize("mode", list(PreemptMode))
def test_the_mode_is_an_option(mode: PreemptMode) -> None:
    assert turn({"a": 1}, {"x": 3}, slots=1, preempt=mode).modes == {"x": mode}


def test_growth_takes_from_the_lowest_standing_first() -> None:
    """Without displacement, too: R0 came first and is the least urgent."""
    for options in ({}, {"displace": False}):
        run = play(R(0, 4, 12, 5), R(0, 4, 12, 1), stack=[{"priority": options}, "mixed"], N=6, bs=4)
        assert {name for gone in run.preempted.values() for name in gone} == {"R0"}


def test_ageing_lets_those_pass_who_have_waited_long_enough() -> None:
    """With 0.5 a second, two seconds make up for one step of priority."""
    waiting = [{"id": "new", "prompt": 4, "priority": 1, "arrival": at} for at in (0.0,)]

    def order(gap: float) -> list[str]:
        old = {"id": "old", "prompt": 4, "priority": 2, "arrival": 0.0}
        return boundary(waiting=[old, {**waiting[0], "arrival": gap}], stack=[Priority(aging=0.5)]).order

    assert order(1.9) == ["new", "old"] and order(2.1) == ["old", "new"] and order(2.0) == ["old", "new"]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), min_size=2, max_size=6))
def test_the_order_of_ageing_does_not_change_while_requests_wait(entries: list[tuple[int, int]]) -> None:
    """Everybody gains at the same rate: nobody overtakes back."""
    stack = [Priority(aging=0.25, displace=False), "mixed"]
    engine = engine_of(*[R(at, 2, 3, p) for at, p in entries], stack=stack, S=1)
    moves = [move for record in engine.run() for move in record.transitions]
    standing = {i: p + 0.25 * at for i, (at, p) in enumerate(sorted(entries, key=lambda entry: entry[0]))}
    arrived: set[int] = set()
    for move in moves:
        if move.reason == "arrived":
            arrived.add(move.request)
        elif move.reason == "admitted":
            assert standing[move.request] == min(standing[number] for number in arrived)
            arrived.remove(move.request)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(1, 10), st.integers(1, 8), st.integers(0, 3)), min_size=1, max_size=7
    ),
    st.integers(1, 3),
)
def test_no_request_is_admitted_while_a_more_urgent_one_waits_that_fits(entries: list[Any], slots: int) -> None:
    """The claim; with blocks for all, everybody fits who finds a slot."""
    engine = engine_of(*[R(*entry) for entry in entries], stack=["priority", "mixed"], S=slots, N=64, bs=4)
    for record in engine.run():
        entered = [move for move in record.transitions if move.reason in ("admitted", "resumed")]
        table, waiting = engine.state.table, engine.state.waiting.rows
        for move in entered:
            assert not (table.priority[waiting] < table.priority[move.row]).any()


def test_its_claims_depend_on_its_options() -> None:
    assert list(Priority().claims()) == [NoPriorityInversion(), DisplacesOnlyLower()]
    assert list(Priority(displace=False).claims()) == [NoPriorityInversion(), NeverPreempts()]
    assert list(Priority(aging=1.0, preempt=None).claims()) == [NeverPreempts()]


@pytest.mark.parametrize("options", [{"aging": -1.0}, {"preempt": "swap"}, {"agin": 1.0}])
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Priority(**options)
