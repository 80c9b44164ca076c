"""First come, first served."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from scenario import R, engine_of, play

from interlock.core import Offer, Policy, View
from interlock.core.claims import ArrivalOrder, NeverPreempts
from interlock.plugins.testing import boundary
from interlock.policies.fcfs import Fcfs

WAITING = [{"id": name, "prompt": 4, "arrival": at} for name, at in (("c", 2.0), ("a", 0.0), ("b", 1.0))]


def test_who_has_waited_longest_enters_first() -> None:
    turn = boundary(waiting=WAITING, stack="fcfs", max_num_seqs=2)
    assert turn.order == ["a", "b", "c"] and turn.admitted == ["a", "b"]


def test_it_undoes_what_a_policy_before_it_did_and_not_what_one_after_it_does() -> None:
    class Lifo(Policy):
        def admit(self, offer: Offer, view: View) -> None:
            offer.reorder(offer.rows[::-1])

    assert boundary(waiting=WAITING, stack=[Lifo(), Fcfs()]).order == ["a", "b", "c"]
    assert boundary(waiting=WAITING, stack=[Fcfs(), Lifo()]).order == ["c", "b", "a"]


def test_nobody_passes_one_that_lacks_blocks() -> None:
    waiting = [{"id": "large", "prompt": 30, "max_tokens": 1}, {"id": "small", "prompt": 4, "max_tokens": 1}]
    turn = boundary(waiting=waiting, active=[{"id": "x", "prompt": 5, "max_tokens": 2}], num_blocks=8, block_size=4)
    assert turn.admitted == [] and turn.waits == {"large": "blocks", "small": "order"}


def test_nobody_gives_way_to_a_candidate() -> None:
    active = [{"id": "x", "prompt": 4, "priority": 9}]
    assert boundary(waiting=WAITING, active=active, stack="fcfs+mixed", max_num_seqs=1).preempted == []


def test_the_latest_admitted_gives_way_to_growth_and_comes_back_in_its_place() -> None:
    run = play(R(0, 4, 12), R(0, 4, 12), R(1, 4, 2), stack=["fcfs", "mixed"], N=6, bs=4, S=2)
    assert {name for gone in run.preempted.values() for name in gone} == {"R1"}
    back = min(step for step in run.ran("R1") if step > max(run.preempted))
    assert back <= run.started("R2"), "a later arrival does not pass it"


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=8))
def test_first_admissions_are_in_arrival_order(entries: list[Any]) -> None:
    """The claim, whatever the slots and blocks."""
    engine = engine_of(*[R(*entry) for entry in entries], stack=["fcfs", "mixed"], N=6, bs=4, S=2, B=8)
    moves = [move for record in engine.run() for move in record.transitions]
    assert [move.request for move in moves if move.reason == "admitted"] == list(range(len(entries)))


def test_its_claims() -> None:
    assert tuple(Fcfs().claims()) == (ArrivalOrder(), NeverPreempts()) and Fcfs.reads == {"arrival"}
    assert Fcfs.hooks() == ("admit",)
