"""Each edit of a proposal does what it says, restrictions only add up, and one that cannot be is an error at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenario import R, engine_of, play

from interlock.core import (
    Demand,
    LivelockError,
    Offer,
    Plan,
    Policy,
    PolicyViolation,
    PreemptMode,
    Victims,
    View,
    WorkKey,
)
from interlock.core.proposals import Ordering, Retention
from interlock.plugins.testing import Boundary, boundary

WAITING = [
    {"id": "a", "prompt": 6, "priority": 2, "tenant": "x"},
    {"id": "b", "prompt": 4, "priority": 1, "tenant": "y"},
    {"id": "c", "prompt": 8, "priority": 2, "tenant": "x"},
    {"id": "d", "prompt": 10, "priority": 0, "tenant": "y"},
]
ACTIVE = [{"id": "s", "prompt": 5, "tenant": "x"}, {"id": "t", "prompt": 20, "computed": 8, "tenant": "y"}]
MIX = (WorkKey.PROMPT_ATOMIC, WorkKey.DECODE_ATOMIC)
ATOMIC, DECODE, CODA = WorkKey.PROMPT_ATOMIC, WorkKey.DECODE_ATOMIC, WorkKey.DECODE_CODA

Edit = Callable[[Any, View], None]


def policy(hook: str, edit: Edit, name: str = "mine") -> Policy:
    """A policy of one hook."""

    class One(Policy):
        if hook == "admit":

            def admit(self, offer: Offer, view: View) -> None:
                edit(offer, view)

        elif hook == "select":

            def select(self, plan: Plan, view: View) -> None:
                edit(plan, view)

        elif hook == "release":

            def release(self, retention: Retention, view: View) -> None:
                edit(retention, view)

        else:

            def preempt(self, victims: Victims, demand: Demand, view: View) -> None:
                edit(victims, view)

    one = One()
    one.name = name
    return one


def admit(*edits: Edit, **scene: Any) -> Boundary:
    """Each edit is a policy of its own."""
    stack = [policy("admit", edit, f"mine{i}") for i, edit in enumerate(edits)]
    return boundary(**{"waiting": WAITING, "stack": stack, **scene})


def select(*edits: Edit, **scene: Any) -> Boundary:
    stack = [policy("select", edit, f"mine{i}") for i, edit in enumerate(edits)]
    return boundary(**{"waiting": WAITING, "active": ACTIVE, "stack": stack, **scene})


class Gate(Policy):
    """Holds requests until a time, or for ever."""

    def __init__(self, name: str, gates: dict[str, float | None]) -> None:
        super().__init__()
        self.name, self.gates = name, gates

    def admit(self, offer: Offer, view: View) -> None:
        for name, until in self.gates.items():
            offer.hold(where(view, offer.rows, name), until=until)


def where(view: View, rows: np.ndarray, *names: str) -> np.ndarray:
    """A mask aligned with rows."""
    return np.array([view.request(row).id in names for row in rows], bool)


# -- orders


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        (["priority"], "dbac"),
        (["-priority"], "acbd"),
        (["arrival"], "abcd"),
        (["tenant", "-priority"], "acbd"),
        (["-tenant", "prompt_tokens"], "bdac"),
        ([lambda view: view.prompt_tokens], "bacd"),
        ([lambda view: -view.prompt_tokens.astype(float)], "dcab"),
        ([lambda view: np.array([3, 1, 2, 0])], "dbca"),
        ([lambda view: np.array([True, False, True, False])], "bdac"),
        (["tenant", lambda view: np.array([0.5, 0.0, -np.inf, np.inf])], "cabd"),
    ],
)
def test_keys_ascend_and_the_first_is_the_most_significant(keys: list[Any], order: str) -> None:
    def sort(offer: Offer, view: View) -> None:
        offer.sort_by(*[key(view) if callable(key) else key for key in keys])

    assert "".join(admit(sort).order) == order


def test_sorts_are_stable_so_the_last_one_dominates() -> None:
    """In one hook and across a stack."""

    def twice(offer: Offer, view: View) -> None:
        offer.sort_by("prompt_tokens")
        offer.sort_by("tenant")

    assert admit(twice).order == ["a", "c", "b", "d"]
    assert admit(lambda o, v: o.sort_by("-prompt_tokens"), lambda o, v: o.sort_by("tenant")).order == [
        "c",
        "a",
        "d",
        "b",
    ]


def test_rows_show_the_order_left_by_the_policies_before_and_aligned_keys_follow_it() -> None:
    def after(offer: Offer, view: View) -> None:
        assert [view.request(row).id for row in offer.rows] == ["d", "b", "a", "c"]
        offer.sort_by(np.array([1, 0, 1, 0]))
        assert [view.request(row).id for row in offer.rows] == ["b", "c", "d", "a"]
        offer.reorder(offer.rows[::-1])

    assert admit(lambda o, v: o.sort_by("priority"), after).order == ["a", "d", "c", "b"]


@given(st.data())
def test_any_sequence_of_sorts_is_the_same_sequence_of_stable_sorts(data: Any) -> None:
    columns = ("priority", "-priority", "prompt_tokens", "tenant", "-arrival", "deadline", "predicted")
    engine = engine_of(*[R(0, 2 + i % 3, 2, i % 2, tenant="xyz"[i % 3]) for i in range(7)], S=2)
    engine.step()
    view = engine.view
    offer = Offer(view.waiting, view)
    expected = view.waiting.tolist()
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["name", "table", "aligned", "reorder", "look"]))
        if kind == "look":
            offer.rows  # noqa: B018 - resolving an order changes nothing
        elif kind == "reorder":
            expected = data.draw(st.permutations(expected))
            offer.reorder(np.array(expected))
        elif kind == "name":
            names = data.draw(st.lists(st.sampled_from(columns), min_size=1, max_size=2))
            offer.sort_by(*names)
            for name in reversed(names):
                column, sign = getattr(view, name.lstrip("-")), -1.0 if name.startswith("-") else 1.0
                expected.sort(key=lambda row: sign * float(column[row]))
        else:
            size = view.capacity if kind == "table" else len(expected)
            key = np.array(data.draw(st.lists(st.integers(-2, 2), min_size=size, max_size=size)))
            by = dict(enumerate(key)) if kind == "table" else dict(zip(expected, key, strict=True))
            offer.sort_by(key)
            expected.sort(key=lambda row: by[row])
    assert offer.rows.tolist() == expected


def test_a_key_may_hold_nan_where_no_candidate_stands() -> None:
    """`first_token_s` is NaN for those who wait; the active ones have it."""
    engine = engine_of(R(0, 4, 9), R(0, 4, 9), R(0, 4, 9), S=2)
    engine.step(), engine.step()
    victims = Victims(engine.view.active, engine.view)
    victims.sort_by("-first_token_s")
    assert sorted(victims.rows.tolist()) == sorted(engine.view.active.tolist())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda o, v: o.sort_by(), "needs a key"),
        (lambda o, v: o.sort_by("priorty"), "no column is called 'priorty'; did you mean 'priority'"),
        (lambda o, v: o.sort_by("-dedline"), "did you mean 'deadline'"),
        (lambda o, v: o.sort_by("limit"), "no column is called 'limit'"),
        (lambda o, v: o.sort_by("first_token_s"), r"\(request 'a'\): a key is NaN"),
        (lambda o, v: o.sort_by(np.array([0.0, np.nan, 1.0, 2.0])), r"\(request 'b'\): a key is NaN"),
        (lambda o, v: o.sort_by("priority", np.full(v.capacity, np.nan)), "a key is NaN"),
        (
            lambda o, v: o.sort_by(np.arange(3)),
            r"a key has shape \(3,\); allowed: view.capacity = 64 or len\(rows\) = 4",
        ),
        (lambda o, v: o.sort_by(np.arange(63)), "shape"),
        (lambda o, v: o.sort_by(np.zeros((4, 1))), "shape"),
        (lambda o, v: o.sort_by(3), "shape"),
        (lambda o, v: o.sort_by(np.array(list("abcd"))), "an array of numbers"),
        (lambda o, v: o.sort_by(np.array([None, 1, 2, 3])), "an array of numbers"),
        (lambda o, v: o.sort_by(np.array([1j, 1, 2, 3])), "an array of numbers"),
        (lambda o, v: o.reorder(o.rows[:3]), "permutation"),
        (lambda o, v: o.reorder(np.repeat(o.rows[:2], 2)), "permutation"),
        (lambda o, v: o.reorder(o.rows + 1), "permutation"),
        (lambda o, v: o.reorder(o.rows.astype(float)), "permutation"),
        (lambda o, v: o.reorder([]), "permutation"),
    ],
)
def test_orders_that_cannot_be(edit: Edit, message: str) -> None:
    with pytest.raises(PolicyViolation, match=message) as caught:
        admit(edit)
    assert (caught.value.plugin, caught.value.hook, caught.value.rule) == ("mine0", "admit", Offer.rule)
    assert str(caught.value).startswith("mine0.admit broke rule") and "\n" not in str(caught.value)


def test_an_order_is_resolved_only_when_somebody_looks() -> None:
    engine = engine_of(R(0, 4, 2), R(0, 4, 2))
    engine.step()
    order = Ordering(np.array([1, 0]), keys=(np.zeros(engine.view.capacity),))
    assert order.base.tolist() == [1, 0] == order.resolve(engine.view).tolist()


# -- masks


MASKS = [
    (lambda p, v: np.zeros(3, bool), "a mask has shape"),
    (lambda p, v: np.zeros((v.capacity, 1), bool), "a mask has shape"),
    (lambda p, v: True, "a mask has shape"),
    (lambda p, v: np.zeros(v.capacity, int), "a mask is an array of bool, not of int64"),
    (lambda p, v: np.ones(v.capacity), "a mask is an array of bool, not of float64"),
    (lambda p, v: p.rows, "a mask is an array of bool"),
]


@pytest.mark.parametrize(("mask", "message"), MASKS)
@pytest.mark.parametrize(
    ("hook", "use"),
    [
        ("admit", lambda p, m: p.hold(m)),
        ("admit", lambda p, m: p.reject(m, "no")),
        ("select", lambda p, m: p.cap(m, 1)),
        ("select", lambda p, m: p.budget(1, m)),
        ("select", lambda p, m: p.drop(m)),
    ],
)
def test_masks_that_cannot_be(hook: str, use: Callable[[Any, Any], None], mask: Edit, message: str) -> None:
    with pytest.raises(PolicyViolation, match=message):
        boundary(waiting=WAITING, stack=[policy(hook, lambda p, v: use(p, mask(p, v)))])


def test_a_mask_over_the_table_touches_candidates_alone() -> None:
    """Active rows are no candidates of an offer, nor is a free row."""
    turn = admit(lambda o, v: o.hold(~np.isin(np.arange(v.capacity), o.rows)), active=ACTIVE)
    assert turn.admitted == ["a", "b", "c", "d"]
    turn = admit(lambda o, v: o.reject(np.arange(v.capacity) >= 0, "all"), active=ACTIVE)
    assert set(turn.rejected) == set("abcd")


# -- offers


def test_held_rows_do_not_enter_and_holds_are_united() -> None:
    turn = admit(lambda o, v: o.hold(where(v, o.rows, "a")), lambda o, v: o.hold(where(v, o.rows, "c")))
    assert turn.admitted == ["b", "d"] and turn.waits == {"a": "held", "c": "held"}


@pytest.mark.parametrize("until", [5.0, np.array([5.0, 5.0]), lambda view: np.full(view.capacity, 5.0)])
def test_a_hold_ends_at_its_time(until: Any) -> None:
    class Later(Policy):
        def admit(self, offer: Offer, view: View) -> None:
            if len(offer.rows) == 2:
                offer.hold(np.ones(2, bool), until=until(view) if callable(until) else until)

    run = play(R(0, 4, 1), R(0, 4, 1), stack=[Later()])
    assert run.started("R0") == run.started("R1") == 5


def test_of_two_times_the_later_holds() -> None:
    gates = [{"R0": 3.0, "R1": 5.0}, {"R0": 4.0, "R1": 2.0}]
    run = play(*[R(0, 4, 1)] * 2, stack=[Gate(f"gate{i}", each) for i, each in enumerate(gates)])
    assert (run.started("R0"), run.started("R1")) == (4, 5)
    both = play(R(0, 4, 1), stack=[Gate("one", {"R0": 6.0}), Gate("none", {})])
    assert both.started("R0") == 6


def test_a_hold_without_a_time_outlasts_one_with() -> None:
    stack = [Gate("until", {"R0": 3.0}), Gate("never", {"R0": None})]
    with pytest.raises(LivelockError, match="'R0'"):
        play(R(0, 4, 1), stack=stack)


@pytest.mark.parametrize(
    "until", [0.1 + 0.2, 0.7, 1.1, 1e-9, 0.3 + 1e-17, 1 / 3, np.nextafter(0.3, 1), np.nextafter(0.1, 1)]
)
def test_a_hold_ends_whatever_its_fraction_of_a_nanosecond(until: float) -> None:
    """The clock counts whole nanoseconds; the end of a hold is reached all the same."""
    engine = engine_of(R(0, 4, 1), stack=[Gate("gate", {"R0": float(until)})])
    for _ in range(10):
        if engine.step() is None:
            break
    else:
        pytest.fail("the hold does not end")


def test_a_hold_whose_time_has_come_holds_nobody() -> None:
    assert admit(lambda o, v: o.hold(np.ones(4, bool), until=v.now)).admitted == ["a", "b", "c", "d"]
    assert admit(lambda o, v: o.hold(np.ones(4, bool), until=-1.0)).admitted == ["a", "b", "c", "d"]


def test_limits_bound_who_enters_and_the_smallest_holds() -> None:
    assert admit(lambda o, v: o.limit(2)).admitted == ["a", "b"]
    assert admit(lambda o, v: o.limit(3), lambda o, v: o.limit(1), lambda o, v: o.limit(2)).admitted == ["a"]
    assert admit(lambda o, v: o.limit(0)).admitted == []
    assert admit(lambda o, v: o.limit(np.int64(2))).admitted == ["a", "b"]
    assert set(admit(lambda o, v: o.limit(0)).waits.values()) == {"limit"}
    assert admit(lambda o, v: o.limit(1)).waits == {"b": "limit", "c": "limit", "d": "limit"}


def test_limits_of_tokens_count_the_whole_context() -> None:
    """One that does not fit in the rest is passed over; the next may fit."""
    assert admit(lambda o, v: o.limit(None, tokens=10)).admitted == ["a", "b"]
    assert admit(lambda o, v: o.limit(None, tokens=15)).admitted == ["a", "b"]
    assert admit(lambda o, v: o.limit(None, tokens=5)).admitted == ["b"]
    assert admit(lambda o, v: o.limit(1, tokens=5)).admitted == ["b"]
    assert admit(lambda o, v: o.limit(None, tokens=0)).admitted == []


def test_limits_per_column_count_each_value() -> None:
    assert admit(lambda o, v: o.limit(1, per="tenant")).admitted == ["a", "b"]
    assert admit(lambda o, v: o.limit(1, per="priority")).admitted == ["a", "b", "d"]
    assert admit(lambda o, v: o.limit(None, tokens=7, per="tenant")).admitted == ["a", "b"]
    assert admit(lambda o, v: o.limit(1, per="tenant"), lambda o, v: o.limit(1)).admitted == ["a"]


def test_limits_per_column_may_differ_by_value() -> None:
    assert admit(lambda o, v: o.limit(np.array([2, 0]), per="tenant")).admitted == ["a", "c"]
    assert admit(lambda o, v: o.limit(np.array([0, 1]), per="tenant")).admitted == ["b"]
    assert admit(lambda o, v: o.limit(np.array([1]), per="tenant")).admitted == ["a"], "a value beyond the array: none"


def test_a_value_below_zero_has_no_place_in_an_array_of_limits() -> None:
    waiting = [{"id": "a", "prompt": 4, "priority": -1}, {"id": "b", "prompt": 4, "priority": 1}]
    turn = admit(lambda o, v: o.limit(np.array([0, 5]), per="priority"), waiting=waiting)
    assert turn.admitted == ["b"], "-1 is not the last place"


def test_rejected_rows_end_with_the_reason() -> None:
    turn = admit(
        lambda o, v: o.reject(v.prompt_tokens > 8, "too long"),
        lambda o, v: o.reject(where(v, o.rows, "a", "d"), "again"),
    )
    assert turn.rejected == {"d": "too long", "a": "again"} and turn.admitted == ["b", "c"]


def test_a_rejected_row_is_rejected_even_if_held_and_even_if_nobody_can_enter() -> None:
    turn = admit(lambda o, v: o.hold(np.ones(4, bool)), lambda o, v: o.reject(where(v, o.rows, "a"), "no"))
    assert turn.rejected == {"a": "no"}
    turn = admit(lambda o, v: o.reject(where(v, o.rows, "a"), "no"), active=ACTIVE, max_num_seqs=2)
    assert turn.rejected == {"a": "no"} and turn.admitted == []


def test_only_rows_never_admitted_can_be_rejected() -> None:
    class Unkind(Policy):
        def admit(self, offer: Offer, view: View) -> None:
            if (view.preemptions[offer.rows] > 0).any():
                offer.reject(view.preemptions > 0, "slow")

    with pytest.raises(PolicyViolation, match=r"unkind.admit .* \(request 'R0'\): only rows never admitted"):
        play(R(0, 4, 9, 5), R(2, 4, 2, 0), stack=[{"priority": {}}, Unkind()], S=1)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda o, v: o.hold(np.ones(4, bool), until=np.nan), "hold until NaN"),
        (lambda o, v: o.hold(np.ones(4, bool), until=np.array([1.0, np.nan, 1.0, 1.0])), "hold until NaN"),
        (lambda o, v: o.hold(np.ones(4, bool), until=np.ones(3)), "a time has shape"),
        (lambda o, v: o.limit(-1), "limit is a whole number of at least 0, found -1"),
        (lambda o, v: o.limit(1.5), "whole number"),
        (lambda o, v: o.limit(True), "whole number"),
        (lambda o, v: o.limit(None, tokens=-3), "limit of tokens is a whole number of at least 0, found -3"),
        (lambda o, v: o.limit(None, tokens=2.0), "whole number"),
        (lambda o, v: o.limit(np.array([1, -1]), per="tenant"), "whole number"),
        (lambda o, v: o.limit(np.array([1, 1])), "needs `per`"),
        (lambda o, v: o.limit(np.ones((2, 2), int), per="tenant"), "limit"),
        (lambda o, v: o.limit(1, per="tenent"), "limit per 'tenent'.*did you mean 'tenant'"),
        (lambda o, v: o.limit(1, per="deadline"), "limit per 'deadline'"),
        (lambda o, v: o.reject(np.ones(4, bool), ""), "needs a reason"),
        (lambda o, v: o.reject(np.ones(4, bool), 3), "needs a reason"),
    ],
)  # fmt: skip
def test_restrictions_of_offers_that_cannot_be(edit: Edit, message: str) -> None:
    with pytest.raises(PolicyViolation, match=message) as caught:
        admit(edit)
    assert caught.value.rule == Offer.rule


# -- plans


def mixed(plan: Plan, view: View) -> None:
    plan.prefer(MIX)


def test_a_plan_lists_active_rows_in_the_order_of_admission_then_the_offered_ones() -> None:
    turn = boundary(waiting=WAITING, active=ACTIVE, stack=[policy("admit", lambda o, v: o.sort_by("priority"))])
    assert turn.walk == ["s", "t", "d", "b", "a", "c"]


def test_the_walk_follows_the_plan_with_active_and_offered_rows_together() -> None:
    turn = select(mixed, lambda p, v: p.sort_by("-prompt_tokens"))
    assert turn.batch == [("t", 12), ("d", 10), ("c", 8), ("a", 6), ("s", 1), ("b", 4)]
    turn = select(mixed, lambda p, v: p.reorder(p.rows[::-1]), max_num_batched_tokens=25)
    assert turn.batch == [("d", 10), ("c", 8), ("b", 4), ("a", 3)] and turn.admitted == ["d", "c", "b", "a"]


def test_caps_bound_each_row_and_the_smallest_holds() -> None:
    def cap(names: str, tokens: Any) -> Edit:
        return lambda p, v: p.cap(where(v, p.rows, *names), tokens)

    assert select(mixed, cap("ta", 3)).tokens == {"s": 1, "t": 3, "a": 3, "b": 4, "c": 8, "d": 10}
    assert select(mixed, cap("tad", 5), cap("td", 2), cap("d", 7)).tokens == {
        "s": 1,
        "t": 2,
        "a": 5,
        "b": 4,
        "c": 8,
        "d": 2,
    }
    assert select(mixed, cap("stabcd", np.array([1, 2, 3, 4, 5, 6]))).tokens == {
        "s": 1,
        "t": 2,
        "a": 3,
        "b": 4,
        "c": 5,
        "d": 6,
    }
    table = select(mixed, lambda p, v: p.cap(v.prompt_tokens > 5, v.prompt_tokens // 2))
    assert table.tokens == {"s": 1, "t": 10, "a": 3, "b": 4, "c": 4, "d": 5}


def test_a_cap_of_nothing_keeps_a_row_out() -> None:
    turn = select(mixed, lambda p, v: p.cap(where(v, p.rows, "s", "a"), 0))
    assert turn.tokens == {"t": 12, "b": 4, "c": 8, "d": 10} and turn.waits == {"a": "limit"}


def test_budgets_bound_the_batch_or_a_part_of_it() -> None:
    assert select(mixed, lambda p, v: p.budget(20), lambda p, v: p.budget(40)).tokens == {
        "s": 1,
        "t": 12,
        "a": 6,
        "b": 1,
    }
    assert select(mixed, lambda p, v: p.budget(10**6), max_num_batched_tokens=15).tokens == {"s": 1, "t": 12, "a": 2}
    assert select(mixed, lambda p, v: p.budget(0)).batch == []
    part = select(mixed, lambda p, v: p.budget(9, where(v, p.rows, "a", "b")))
    assert part.tokens == {"s": 1, "t": 12, "a": 6, "b": 3, "c": 8, "d": 10}
    active = select(mixed, lambda p, v: p.budget(5, where(v, p.rows, "t")))
    assert active.tokens == {"s": 1, "t": 5, "a": 6, "b": 4, "c": 8, "d": 10}


def test_parts_of_the_budget_may_overlap() -> None:
    turn = select(
        mixed,
        lambda p, v: p.budget(9, where(v, p.rows, "t", "a", "b")),
        lambda p, v: p.budget(6, where(v, p.rows, "a", "c", "t")),
    )
    assert turn.tokens == {"s": 1, "t": 6, "b": 3, "d": 10}
    assert turn.waits == {"a": "limit", "c": "limit"}


def test_dropped_rows_do_not_run_and_do_not_enter() -> None:
    turn = select(mixed, lambda p, v: p.drop(where(v, p.rows, "t", "b")), lambda p, v: p.drop(where(v, p.rows, "a")))
    assert turn.tokens == {"s": 1, "c": 8, "d": 10} and turn.admitted == ["c", "d"]
    assert turn.waits == {"a": "held", "b": "held"}


@pytest.mark.parametrize(
    ("groups", "batch"),
    [
        ([], ["t", "a", "b", "c", "d"]),  # prompts before decodes
        ([ATOMIC], ["t", "a", "b", "c", "d"]),
        ([DECODE], ["s"]),
        ([CODA], ["t", "a", "b", "c", "d"]),  # nobody has it: the others follow in the default order
        ([CODA, DECODE], ["s"]),
        ([MIX], ["s", "t", "a", "b", "c", "d"]),
        ([[DECODE, ATOMIC]], ["s", "t", "a", "b", "c", "d"]),
        ([7], ["s"]),
    ],
)
def test_the_first_group_that_yields_a_batch_runs(groups: list[Any], batch: list[str]) -> None:
    assert [name for name, _ in select(lambda p, v: p.prefer(*groups)).batch] == batch


def test_of_two_preferences_the_last_holds() -> None:
    assert select(mixed, lambda p, v: p.prefer(DECODE)).batch == [("s", 1)]
    assert select(lambda p, v: p.prefer(DECODE), lambda p, v: p.prefer()).batch[0] == ("t", 12)


def test_a_group_that_yields_no_batch_is_undone_and_the_next_is_tried() -> None:
    def no_prompts(plan: Plan, view: View) -> None:
        plan.prefer(ATOMIC, DECODE)
        plan.cap(view.work == ATOMIC, 0)

    turn = select(no_prompts)
    assert turn.batch == [("s", 1)]
    assert turn.admitted == ["a", "b", "c", "d"], "those whose work is not in the chosen group enter without tokens"


def test_groups_are_all_work_keys_each_once() -> None:
    def look(plan: Plan, view: View) -> None:
        plan.prefer(DECODE, (WorkKey.PROMPT_ATOMIC, WorkKey.SPECULATIVE))
        groups = plan.groups()
        assert groups[:2] == ((DECODE,), (WorkKey.PROMPT_ATOMIC, WorkKey.SPECULATIVE))
        named = [key for group in groups for key in group]
        assert sorted(named) == [key for key in WorkKey if key is not WorkKey.NONE]

    select(look)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda p, v: p.cap(np.ones(6, bool), -1), "a cap is a whole number of at least 0, found -1"),
        (lambda p, v: p.cap(np.ones(6, bool), 1.5), "whole number"),
        (lambda p, v: p.cap(np.ones(6, bool), np.array([1, 2, -3, 4, 5, 6])), "whole number"),
        (lambda p, v: p.cap(np.ones(6, bool), np.ones(4, int)), "a cap has shape"),
        (lambda p, v: p.cap(np.ones(6, bool), None), "whole number"),
        (lambda p, v: p.budget(-1), "a budget is a whole number of at least 0, found -1"),
        (lambda p, v: p.budget(2.5), "whole number"),
        (lambda p, v: p.budget(np.array([1, 2])), "whole number"),
        (lambda p, v: p.budget(-1, np.ones(6, bool)), "whole number"),
        (lambda p, v: p.prefer((ATOMIC, CODA)), "PROMPT_ATOMIC, DECODE_CODA run as different operations"),
        (lambda p, v: p.prefer((WorkKey.PROMPT_PRELUDE, WorkKey.DECODE_PRELUDE)), "the executor cannot mix"),
        (lambda p, v: p.prefer(DECODE, MIX), "names a work key twice"),
        (lambda p, v: p.prefer((DECODE, DECODE)), "names a work key twice"),
        (lambda p, v: p.prefer(()), "a group is a WorkKey or several"),
        (lambda p, v: p.prefer(WorkKey.NONE), "a group is a WorkKey or several"),
        (lambda p, v: p.prefer(12), "a group is a WorkKey or several"),
        (lambda p, v: p.prefer("decode"), "a group is a WorkKey or several"),
        (lambda p, v: p.prefer(None), "a group is a WorkKey or several"),
    ],
)  # fmt: skip
def test_edits_of_plans_that_cannot_be(edit: Edit, message: str) -> None:
    with pytest.raises(PolicyViolation, match=message) as caught:
        select(edit)
    assert (caught.value.rule, caught.value.hook) == (Plan.rule, "select")


# -- victims


HOLDERS = [{"id": name, "prompt": 6, "priority": n} for n, name in enumerate("stu", start=5)]


def displace(*edits: Edit, **scene: Any) -> Boundary:
    stack = [policy("preempt", edit, f"mine{i}") for i, edit in enumerate(edits)]
    waiting = [{"id": "new", "prompt": 4, "priority": 1}]
    return boundary(**{"waiting": waiting, "active": HOLDERS, "stack": stack, "max_num_seqs": 3, **scene})


def test_victims_come_latest_admitted_first() -> None:
    seen: list[list[str]] = []
    displace(lambda p, v: seen.append([v.request(row).id for row in p.rows]))
    assert seen == [["u", "t", "s"]]


def test_the_first_of_the_list_that_serves_gives_way() -> None:
    assert displace(lambda p, v: p.sort_by("-priority")).preempted == ["u"]
    assert displace(lambda p, v: p.sort_by("-priority", "ready")).preempted == ["u"]
    assert displace(lambda p, v: p.sort_by(-v.priority)).preempted == ["u"]


def test_protected_rows_do_not_give_way_and_protections_are_united() -> None:
    def protect(name: str) -> Edit:
        return lambda p, v: p.protect(where(v, p.rows, name))

    assert displace(lambda p, v: p.sort_by("-priority"), protect("u")).preempted == ["t"]
    assert displace(lambda p, v: p.sort_by("-priority"), protect("u"), protect("t")).preempted == ["s"]
    assert displace(lambda p, v: p.sort_by("-priority"), protect("u"), protect("t"), protect("s")).preempted == []


@pytest.mark.parametrize(
    "edit",
    [
        lambda p, v: None,  # no key
        lambda p, v: p.reorder(p.rows[::-1]),
        lambda p, v: p.sort_by(np.array([3, 2, 1])),  # aligned with the rows
        lambda p, v: (p.sort_by("-priority"), p.sort_by(np.zeros(3))),  # the last one counts
        lambda p, v: (p.sort_by("-priority"), p.reorder(p.rows)),
        lambda p, v: p.sort_by("tenant", "-priority"),  # the first key counts, and all are equal in it
        lambda p, v: p.sort_by("priority"),  # nobody comes strictly before 1
    ],
)
def test_without_standing_nobody_active_gives_way(edit: Edit) -> None:
    assert displace(edit).preempted == []


def test_of_two_modes_the_last_one_set_holds() -> None:
    engine = engine_of(R(0, 4, 9), R(0, 4, 9))
    engine.step()
    victims, first, second = Victims(engine.view.active, engine.view), *engine.view.active.tolist()
    assert victims.mode_of(first) is PreemptMode.RECOMPUTE
    victims.use("yield", engine.view.active == first)
    assert (victims.mode_of(first), victims.mode_of(second)) == (PreemptMode.YIELD, PreemptMode.RECOMPUTE)
    victims.use(PreemptMode.OFFLOAD)
    assert (victims.mode_of(first), victims.mode_of(second)) == (PreemptMode.OFFLOAD, PreemptMode.OFFLOAD)
    victims.use("recompute", engine.view.active == second)
    assert (victims.mode_of(first), victims.mode_of(second)) == (PreemptMode.OFFLOAD, PreemptMode.RECOMPUTE)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda p, v: p.use("swap"), "no preemption mode 'swap'; allowed: yield, offload, recompute"),
        (lambda p, v: p.use("yield", np.ones(2, bool)), "a mask has shape"),
        (lambda p, v: p.protect(np.ones(3)), "array of bool"),
        (lambda p, v: p.sort_by("priorities"), "did you mean 'priority'"),
    ],
)
def test_edits_of_victims_that_cannot_be(edit: Edit, message: str) -> None:
    with pytest.raises(PolicyViolation, match=message) as caught:
        displace(edit)
    assert (caught.value.rule, caught.value.hook) == (Victims.rule, "preempt")


@pytest.mark.parametrize("part", [2, 3, 5, 8, 14])
def test_parts_of_the_budget_hold_where_candidates_displace(part: int) -> None:
    """Two enter in place of two; together they run no more than their part."""

    def ask(victims: Any, view: View) -> None:
        victims.sort_by("-priority")

    stack = [
        policy("select", lambda p, v: p.budget(part, where(v, p.rows, "m", "n", "s")), "part"),
        policy("select", mixed, "mixed"),
        policy("preempt", ask, "ask"),
    ]
    waiting = [{"id": name, "prompt": 10, "priority": 1} for name in "mn"]
    turn = boundary(waiting=waiting, active=HOLDERS, stack=stack, max_num_seqs=3)
    assert turn.admitted == ["m", "n"][: len(turn.admitted)] and turn.admitted
    assert sum(tokens for name, tokens in turn.batch if name in "mns") <= part


# -- retention


def test_dropped_rows_leave_nothing_to_hit() -> None:
    prompt = list(range(1, 9))

    def run(*edits: Edit) -> int:
        stack = [policy("release", edit, f"mine{i}") for i, edit in enumerate(edits)]
        again = play(R(0, prompt, 1), R(5, prompt, 1), stack=stack, caching=True)
        return again.outcomes["R1"].cached_tokens

    assert run() == 4
    assert run(lambda r, v: r.drop(np.ones(len(r.rows), bool))) == 0
    assert run(lambda r, v: r.drop(np.zeros(len(r.rows), bool))) == 4


def test_blocks_of_retiring_rows_are_given_back_in_the_order_of_the_retention() -> None:
    def freed(*edits: Edit) -> list[int]:
        engine = engine_of(R(0, 4, 1), R(0, 8, 1), stack=[policy("release", edit) for edit in edits], N=4, bs=4)
        list(engine.run())
        return engine.state.pool.queue().tolist()

    assert freed() == [3, 0, 2, 1]
    assert freed(lambda r, v: r.sort_by("-prompt_tokens")) == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda r, v: r.keep(np.ones(len(r.rows), bool), np.nan), "NaN"),
        (lambda r, v: r.keep(np.ones(len(r.rows), bool), 1.0, until=np.nan), "NaN"),
        (lambda r, v: r.keep(np.ones(len(r.rows), bool), np.ones(7)), "a weight has shape"),
        (lambda r, v: r.keep(np.ones(len(r.rows)), 1.0), "array of bool"),
        (lambda r, v: r.drop(np.ones(5, bool)), "a mask has shape"),
    ],
)
def test_edits_of_retentions_that_cannot_be(edit: Edit, message: str) -> None:
    with pytest.raises(PolicyViolation, match=message) as caught:
        list(engine_of(R(0, 4, 1), stack=[policy("release", edit)]).run())
    assert (caught.value.rule, caught.value.hook) == (Retention.rule, "release")
