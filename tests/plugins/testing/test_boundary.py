"""`boundary` sets a scene and tells what one boundary of a real engine decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from interlock.core import (
    ConfigError,
    Offer,
    Plan,
    Policy,
    PolicyViolation,
    PreemptMode,
    Request,
    SamplingParams,
    View,
    WorkKey,
    column,
)
from interlock.plugins.testing import boundary
from interlock.policies.mixed import Mixed
from interlock.policies.priority import Priority

SAME = [7] * 40


def test_an_empty_scene_decides_nothing() -> None:
    turn = boundary()
    assert (turn.order, turn.walk, turn.batch, turn.admitted, turn.preempted) == ([], [], [], [], [])
    assert (turn.rejected, turn.waits) == ({}, {})


def test_waiting_requests_enter_in_the_order_of_the_list() -> None:
    turn = boundary(
        waiting=[{"id": "a", "prompt": 5}, {"id": "b", "prompt": 7}, {"id": "c", "prompt": 3}], max_num_seqs=2
    )
    assert turn.admitted == ["a", "b"]
    assert turn.batch == [("a", 5), ("b", 7)]
    assert turn.tokens == {"a": 5, "b": 7}
    assert turn.waits == {"c": "slot"}
    assert turn.order == ["a", "b", "c"] and turn.walk == ["a", "b", "c"]


def test_arrivals_order_those_who_wait() -> None:
    turn = boundary(waiting=[{"id": "late", "prompt": 5, "arrival": 2.0}, {"id": "early", "prompt": 5, "arrival": 1.0}])
    assert turn.admitted == ["early", "late"]
    assert turn.record.time_s == 3.0


def test_active_requests_stand_where_they_are_said_to_stand() -> None:
    turn = boundary(
        active=[
            {"id": "chunk", "prompt": 64, "computed": 10},
            {"id": "decode", "prompt": 30, "emitted": 4},
            {"id": "fresh", "prompt": 9},
        ],
        waiting=[{"id": "new", "prompt": 8}],
    )
    view, rows = turn.engine.view, turn.engine.state.rows
    assert turn.batch == [("chunk", 54), ("decode", 1), ("fresh", 1), ("new", 8)]
    assert [int(view.computed[rows[name]]) for name in ("chunk", "decode", "fresh")] == [10, 33, 9]
    assert [int(view.emitted[rows[name]]) for name in ("chunk", "decode", "fresh")] == [0, 4, 1]
    assert turn.admitted == ["new"]


def test_chunks_longer_than_the_budget_are_reached_in_several_steps() -> None:
    turn = boundary(active=[{"id": "a", "prompt": 50, "computed": 41}], max_num_batched_tokens=8)
    assert turn.batch == [("a", 8)]


def test_requests_may_be_request_objects() -> None:
    turn = boundary(
        active=[Request("a", 12, SamplingParams(max_tokens=4))],
        waiting=[Request("b", [1, 2, 3]), Request("c", 4, arrival=0.5)],
    )
    assert turn.batch == [("a", 1), ("b", 3), ("c", 4)]


@pytest.mark.parametrize("priority", [Priority, Priority(), "priority", {"priority": {}}])
def test_a_stack_holds_classes_instances_names_and_mappings(priority: Any) -> None:
    turn = boundary(
        active=[{"id": "low", "prompt": 8, "priority": 5}],
        waiting=[{"id": "high", "prompt": 8, "priority": 1}],
        stack=["fcfs", priority, Mixed()],
        max_num_seqs=1,
    )
    assert turn.admitted == ["high"] and turn.preempted == ["low"]
    assert turn.modes == {"low": PreemptMode.RECOMPUTE}
    assert turn.batch == [("high", 8)]


@pytest.mark.parametrize("stack", ["fcfs+mixed", Mixed, Mixed(), {"mixed": {"order": "admission"}}, ["fcfs", "mixed"]])
def test_a_stack_of_one_needs_no_list(stack: Any) -> None:
    turn = boundary(active=[{"id": "a", "prompt": 4}], waiting=[{"id": "b", "prompt": 4}], stack=stack)
    assert turn.batch == [("a", 1), ("b", 4)]


def test_without_a_stack_the_core_decides() -> None:
    """Prompts run before decodes, and do not share a batch with them."""
    turn = boundary(active=[{"id": "a", "prompt": 4}], waiting=[{"id": "b", "prompt": 4}], stack=[])
    assert turn.batch == [("b", 4)] and turn.order == ["b"] and turn.walk == ["a", "b"]


def test_limits_are_keys_of_engine_and_kv() -> None:
    turn = boundary(
        waiting=[{"id": "a", "prompt": 9}, {"id": "b", "prompt": 9}],
        num_blocks=5, block_size=4, max_num_batched_tokens=100, max_model_len=20, enable_prefix_caching=False,
    )  # fmt: skip
    assert turn.admitted == [] or turn.admitted == ["a"]
    assert turn.engine.state.pool.num_blocks == 5 and turn.engine.state.limits.max_model_len == 20


def test_rejections_are_told_at_the_door_and_by_policies() -> None:
    class NoLong(Policy):
        def admit(self, offer: Offer, view: View) -> None:
            offer.reject(view.prompt_tokens > 10, "too long for me")

    turn = boundary(
        waiting=[{"id": "huge", "prompt": 50}, {"id": "long", "prompt": 11}, {"id": "ok", "prompt": 4}],
        stack=NoLong,
        max_model_len=40,
    )
    assert turn.rejected == {
        "huge": "exceeds_context: 50 prompt tokens and one more, max_model_len is 40",
        "long": "too long for me",
    }
    assert turn.admitted == ["ok"] and turn.order == ["long", "ok"]


def test_orders_are_those_that_the_stack_leaves() -> None:
    class Shortest(Policy):
        def admit(self, offer: Offer, view: View) -> None:
            offer.sort_by("prompt_tokens")

        def select(self, plan: Plan, view: View) -> None:
            plan.prefer((WorkKey.PROMPT_ATOMIC, WorkKey.DECODE_ATOMIC))
            plan.sort_by("-priority")

    turn = boundary(
        active=[{"id": "x", "prompt": 4}],
        waiting=[{"id": "a", "prompt": 9, "priority": 1}, {"id": "b", "prompt": 5, "priority": 3}],
        stack=Shortest,
    )
    assert turn.order == ["b", "a"]
    assert turn.walk == ["b", "a", "x"] and turn.batch == [("b", 5), ("a", 9), ("x", 1)]


def test_hooks_of_the_stack_are_called_for_this_boundary_alone_and_hear_every_event() -> None:
    asked: list[str] = []

    class Listens(Policy):
        served = column(np.int64, initial=0)

        def on_result(self, rows: np.ndarray, computed: np.ndarray, emitted: np.ndarray, view: View) -> None:
            self.served[rows] += computed

        def admit(self, offer: Offer, view: View) -> None:
            asked.append("admit")
            assert self.served[view.active].tolist() == [12, 6]

        def select(self, plan: Plan, view: View) -> None:
            asked.append("select")

    boundary(
        active=[{"id": "a", "prompt": 10, "emitted": 3}, {"id": "b", "prompt": 9, "computed": 6}],
        waiting=[{"id": "c", "prompt": 3}],
        stack=Listens,
    )
    assert asked == ["admit", "select"]


def test_time_is_a_second_after_the_latest_arrival_or_what_is_asked() -> None:
    seen: list[float] = []

    class Clock(Policy):
        def select(self, plan: Plan, view: View) -> None:
            seen.append(view.now)
            assert (view.admitted_s[view.active] < 1.0).all()

    active = [{"id": "a", "prompt": 10, "arrival": 0.25}]
    boundary(active=active, stack=Clock)
    boundary(active=active, waiting=[{"id": "b", "prompt": 3, "arrival": 4.0}], stack=Clock)
    boundary(active=active, stack=Clock, now=7.0)
    assert seen == [1.25, 5.0, 7.0]


def test_the_engine_goes_on_from_there() -> None:
    turn = boundary(active=[{"id": "a", "prompt": 10, "output": 3}], waiting=[{"id": "b", "prompt": 3, "output": 2}])
    outcomes = [outcome for record in turn.engine.run() for outcome in record.outcomes]
    assert {each.request_id: len(each.output_ids) for each in outcomes} == {"a": 3, "b": 2}


def test_a_boundary_in_which_nobody_runs_is_told_too() -> None:
    class Nobody(Policy):
        def admit(self, offer: Offer, view: View) -> None:
            offer.limit(0)

    turn = boundary(waiting=[{"id": "a", "prompt": 10}], stack=Nobody)
    assert turn.batch == [] and turn.admitted == [] and set(turn.waits) == {"a"}


def test_what_the_boundary_raises_is_raised() -> None:
    class Wrong(Policy):
        def admit(self, offer: Offer, view: View) -> None:
            offer.limit(-1)

    with pytest.raises(PolicyViolation, match="limit"):
        boundary(waiting=[{"id": "a", "prompt": 10}], stack=Wrong)


@pytest.mark.parametrize(
    ("scene", "message"),
    [
        ({"waiting": [{"id": "a"}]}, "prompt is missing"),
        ({"waiting": [{"prompt": 3}]}, "id is missing"),
        ({"waiting": [{"id": "a", "prompt": 3, "priorty": 1}]}, "did you mean 'priority'"),
        ({"waiting": [{"id": "a", "prompt": 3, "emitted": 1}]}, "unknown key 'emitted'"),
        ({"active": [{"id": "a", "prompt": 3, "computed": 3}]}, "allowed: 1 to 2"),
        ({"active": [{"id": "a", "prompt": 3, "computed": 0}]}, "allowed: 1 to 2"),
        ({"active": [{"id": "a", "prompt": 3, "emitted": 0}]}, "allowed: at least 1"),
        ({"active": [{"id": "a", "prompt": 3, "emitted": 4, "output": 4}]}, "fewer than it ends with"),
        ({"active": [{"id": "a", "prompt": 3, "emitted": 2, "computed": 3}]}, "allowed: 4 with 2"),
        ({"active": [{"id": "a", "prompt": 40}, {"id": "b", "prompt": 40}], "num_blocks": 4}, "do not all fit"),
        ({"active": [{"id": "a", "prompt": 3}, {"id": "b", "prompt": 3}], "max_num_seqs": 1}, "do not all fit"),
        ({"active": [{"id": "a", "prompt": 99}], "max_model_len": 50}, "'a' ended, exceeds_context"),
        ({"active": [{"id": "a", "prompt": SAME}, {"id": "b", "prompt": SAME, "computed": 9}]}, "of .b. is cached"),
        ({"waiting": [{"id": "a", "prompt": 3, "arrival": 2.0}], "now": 1.0}, "later than the arrivals"),
        ({"max_num_seq": 2}, "did you mean 'max_num_seqs'"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"stack": "fcsf"}, "did you mean 'fcfs'"),
        ({"stack": [Mixed(), Mixed()]}, "twice"),
    ],
)  # fmt: skip
def test_scenes_that_cannot_be_say_so_in_one_line(scene: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        boundary(**scene)
    assert "\n" not in str(caught.value)
