"""Who may enter: the three reservation modes, the watermark, and what `bypass_limit` and `scan_limit` allow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario import R, engine_of, play

from interlock.core import Demand, Policy, Victims, View
from interlock.plugins.testing import Boundary, boundary

BS = 4


def need(reserve: str, prompt: int, output: int, budget: int, longest: int = 64) -> int:
    """Blocks that a new request needs to enter, as section 9 has it."""
    tokens = {
        "none": min(prompt, budget),  # step by step
        "prompt": prompt,  # the whole known context
        "full": min(prompt + output, longest) - 1,  # the last token needs no KV
    }[reserve]
    return math.ceil(tokens / BS)


def enter(*waiting: dict[str, Any], active: list[dict[str, Any]] | None = None, **limits: Any) -> Boundary:
    config = {"stack": "fcfs+mixed", "block_size": BS, "enable_prefix_caching": False, "max_model_len": 64, **limits}
    return boundary(waiting=waiting, active=active or [], **config)


def one(prompt: int, output: int = 9, name: str = "a") -> dict[str, Any]:
    return {"id": name, "prompt": prompt, "max_tokens": output}


# -- the formulas


@pytest.mark.parametrize("reserve", ["none", "prompt", "full"])
@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([5, 16, 64]), st.integers(1, 14))
def test_a_request_enters_exactly_when_its_need_is_there(
    reserve: str, prompt: int, output: int, budget: int, spare: int
) -> None:
    """Beside one that decodes and needs nothing more for now: 5 tokens of 8."""
    holder = {"id": "x", "prompt": 5, "max_tokens": 4}
    held = 2
    peak = math.ceil((min(prompt + output, 64) - 1) / BS)
    if peak > held + spare:
        return  # it could never run, and is turned away at the door
    turn = enter(
        one(prompt, output), active=[holder], reserve=reserve, num_blocks=held + spare, max_num_batched_tokens=budget
    )
    left = budget - 1  # for the one that decodes
    assert (turn.admitted == ["a"]) == (need(reserve, prompt, output, left) <= spare)
    if turn.admitted:
        assert turn.tokens["a"] == min(prompt, left)
        assert turn.record.counts is not None and turn.record.counts.used_blocks == held + need(
            "none", prompt, output, left
        )


@pytest.mark.parametrize(("reserve", "reserved"), [("none", 2), ("prompt", 5), ("full", 7)])
def test_what_is_promised_to_active_requests_is_kept_for_them(reserve: str, reserved: int) -> None:
    """A prompt of 20 in chunks of 8, and 9 tokens of output: 2 blocks are held, 5 are its context, 7 its peak."""
    turn = enter(one(20, 9), reserve=reserve, num_blocks=12, max_num_batched_tokens=8)
    counts = turn.record.counts
    assert counts is not None and (counts.used_blocks, counts.reserved_blocks) == (2, reserved)


@pytest.mark.parametrize(("reserve", "admitted"), [("none", ["b"]), ("prompt", ["b"]), ("full", [])])
def test_promises_count_against_the_next(reserve: str, admitted: list[str]) -> None:
    """12 blocks: `a` decodes, holds 2, and will hold 8 at its end; `b` needs 5 now."""
    active = [{"id": "a", "prompt": 6, "max_tokens": 27}]
    assert enter(one(20, 1, "b"), active=active, reserve=reserve, num_blocks=12).admitted == admitted


def test_a_resumed_request_needs_its_whole_context_under_prompt() -> None:
    """R0 had 6 tokens of prompt and 6 of output when it gave way: 3 blocks, not the 2 of its prompt."""
    requests = R(0, 6, 12, 9), R(6, 5, 3, 0)
    run = play(*requests, stack=[{"priority": {}}, "mixed"], reserve="prompt", S=1, N=8, bs=BS)
    step = max(step for step, gone in run.preempted.items() if gone == ["R0"])
    back = min(s for s in run.ran("R0") if s > step)
    assert run.ran("R0")[back] == 6 + 6 and run.used[back] == 3


@pytest.mark.parametrize("pressure", [[R(0, 8, 20), R(0, 8, 20), R(1, 8, 20)], [R(0, 4, 30, 1), R(2, 20, 20, 0)]])
def test_nobody_gives_way_to_growth_under_full(pressure: list[dict[str, Any]]) -> None:
    for reserve in ("none", "prompt", "full"):
        run = play(*pressure, reserve=reserve, N=12, bs=BS, S=3)
        gave_way = sum(outcome.preemptions for outcome in run.outcomes.values())
        assert (gave_way == 0) if reserve == "full" else (gave_way > 0 or len(pressure) == 2), reserve


def test_under_full_no_more_than_the_context_is_set_aside() -> None:
    """max_tokens of 1,000 in a context of 20: 19 tokens of KV at most, 5 blocks."""
    turn = enter(one(6, 1000), reserve="full", num_blocks=5, max_model_len=20)
    assert turn.admitted == ["a"] and turn.record.counts is not None and turn.record.counts.reserved_blocks == 5
    assert enter(one(6, 1000), reserve="full", num_blocks=4, max_model_len=20).rejected


def test_shared_blocks_that_somebody_holds_cost_nothing_and_cached_ones_do() -> None:
    """Match, then size, then allocate."""
    same = [7] * 17
    active = [{"id": "x", "prompt": same, "max_tokens": 3}]
    held = enter({"id": "a", "prompt": same, "max_tokens": 3}, active=active, enable_prefix_caching=True, num_blocks=6)
    assert held.admitted == ["a"] and held.batch == [("x", 1), ("a", 1)], "one block of its own, four shared"
    # Nobody holds them: of 5 blocks 4 are cached and all 5 are needed, by a request of 17 tokens that hits 4.
    engine = engine_of(R(0, same, 1), R(5, same, 1), N=5, bs=BS, caching=True)
    records = list(engine.run())
    assert max(record.counts.used_blocks for record in records if record.counts) == 5
    # Beside one that holds 1 of the 5, it does not fit.
    crowd = engine_of(R(0, same, 1), R(4, [9], 8), R(5, same, 1), N=5, bs=BS, caching=True)
    moves = [move for record in crowd.run() for move in record.transitions if move.reason == "admitted"]
    told = {move.request_id: move.time_ns for move in moves}
    assert told["R2"] > told["R1"] + 5 * 10**9


# -- the watermark


def test_the_watermark_is_kept_free_while_anything_is_active() -> None:
    """20 blocks, a quarter of which is kept: 5."""
    limits = {"num_blocks": 20, "watermark": 0.25}
    active = [{"id": "x", "prompt": 5}]  # holds 2
    assert enter(one(4 * 13), active=active, **limits).admitted == ["a"]
    assert enter(one(4 * 13 + 1), active=active, **limits).admitted == []
    assert enter(one(4 * 13 + 1), active=active, num_blocks=20).admitted == ["a"]


def test_the_first_of_an_empty_engine_may_use_the_watermark() -> None:
    """Else a request that fits alone might never run. The one beside it may not."""
    turn = enter(one(60, 1, "a"), one(4, 1, "b"), num_blocks=18, watermark=0.25, max_num_batched_tokens=100)
    assert turn.admitted == ["a"] and turn.waits == {"b": "blocks"}
    assert enter(one(60, 1, "a"), one(4, 1, "b"), num_blocks=20, watermark=0.2).admitted == ["a", "b"]


def test_growth_may_use_the_watermark() -> None:
    run = play(R(0, 4, 29), N=8, bs=BS, watermark=0.5)
    assert max(run.used.values()) == 8 and not run.preempted


# -- bypass_limit


LARGE, SMALL = 30, 4


def crowd(*sizes: int, **limits: Any) -> Boundary:
    """An active request, and these who wait: 6 blocks are free."""
    waiting = [one(size, 1, name) for size, name in zip(sizes, "abcdefg", strict=False)]
    return enter(*waiting, active=[{"id": "x", "prompt": 5}], num_blocks=8, **limits)


def test_first_come_first_served_waits_behind_one_that_lacks_blocks() -> None:
    turn = crowd(LARGE, SMALL, SMALL)
    assert turn.admitted == [] and turn.waits == {"a": "blocks", "b": "order", "c": "order"}


@pytest.mark.parametrize(("limit", "admitted"), [(0, ""), (1, "b"), (2, "bc"), (3, "bcd"), (9, "bcde")])
def test_one_that_lacks_blocks_is_passed_over_so_many_times(limit: int, admitted: str) -> None:
    turn = crowd(LARGE, *[SMALL] * 4, bypass_limit=limit)
    assert "".join(turn.admitted) == admitted
    view, rows = turn.engine.view, turn.engine.state.rows
    assert view.bypasses[rows["a"]] == len(admitted), "and that is told"


def test_every_one_that_is_passed_over_counts_those_that_enter_after_it() -> None:
    turn = crowd(LARGE, SMALL, LARGE, SMALL, SMALL, bypass_limit=2)
    view, rows = turn.engine.view, turn.engine.state.rows
    assert turn.admitted == ["b", "d"]
    assert [int(view.bypasses[rows[name]]) for name in "ac"] == [2, 1]


def test_bypasses_add_up_over_boundaries_and_nobody_passes_at_the_limit() -> None:
    engine = engine_of(R(0, 4, 29), R(1, 32, 1), *[R(t, 4, 1) for t in range(2, 9)], N=9, bs=BS, bypass_limit=3, S=2)
    order = [move.request_id for record in engine.run() for move in record.transitions if move.reason == "admitted"]
    assert order[:5] == ["R0", "R2", "R3", "R4", "R1"] and sorted(order[5:]) == order[5:]


def test_a_resumed_request_that_enters_counts_too() -> None:
    """A displaced request that comes back past one that lacks blocks bypasses it."""
    engine = engine_of(
        R(0, 4, 40, 0), R(0, 20, 1, 2), R(1, 4, 20, 3), R(3, 4, 3, 1), N=8, bs=BS, S=2, bypass_limit=1, L=48,
        stack=[{"priority": {}}, "mixed"],
    )  # fmt: skip
    outcomes = {o.request_id: o for record in engine.run() for o in record.outcomes}
    assert outcomes["R1"].bypasses <= 1


@pytest.mark.parametrize("why", ["hold", "cap", "limit", "part", "drop"])
def test_what_a_policy_stops_is_passed_over_and_is_no_bypass(why: str) -> None:
    class Stops(Policy):
        def admit(self, offer: Any, view: View) -> None:
            first = np.arange(len(offer.rows)) == 0
            if why == "hold":
                offer.hold(first)
            if why == "limit":
                offer.limit(None, tokens=8)  # the first has more

        def select(self, plan: Any, view: View) -> None:
            first = view.prompt_tokens[plan.rows] == 20
            if why == "cap":
                plan.cap(first, 0)
            if why == "part":
                plan.budget(0, first)
            if why == "drop":
                plan.drop(first)

    turn = enter(one(20, 1, "a"), one(4, 1, "b"), one(4, 1, "c"), stack=["fcfs", Stops(), "mixed"], num_blocks=20)
    assert turn.admitted == ["b", "c"]
    assert turn.engine.view.bypasses[turn.engine.state.rows["a"]] == 0


def test_a_shortage_of_slots_or_tokens_ends_admission_whatever_the_limit() -> None:
    assert crowd(SMALL, SMALL, SMALL, bypass_limit=9, max_num_seqs=3).admitted == ["a", "b"]
    turn = crowd(SMALL, SMALL, SMALL, bypass_limit=9, max_num_batched_tokens=1 + 4 + 2)
    assert turn.batch == [("x", 1), ("a", 4), ("b", 2)] and turn.waits == {"c": "tokens"}


# -- scan_limit


class Standing(Policy):
    """Displaces by priority. Writes down whom it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def preempt(self, victims: Victims, demand: Demand, view: View) -> None:
        self.asked.append(f"{view.request(demand.row).id} {demand.kind} {demand.blocks}")
        victims.sort_by("-priority")


def displacing(*priorities: int, active: tuple[int, ...] = (9, 8, 7), **limits: Any) -> tuple[Boundary, list[str]]:
    holders = [{"id": name, "prompt": 5, "priority": p} for name, p in zip("xyz", active, strict=True)]
    waiting = [{"id": name, "prompt": 4, "priority": p} for name, p in zip("abcdef", priorities, strict=False)]
    standing = Standing()
    turn = boundary(
        waiting=waiting, active=holders, stack=["fcfs", standing, "mixed"],
        **{"max_num_seqs": 3, "block_size": BS, "num_blocks": 20, **limits},
    )  # fmt: skip
    return turn, standing.asked


@pytest.mark.parametrize(("limit", "admitted"), [(64, "abc"), (2, "ab"), (1, "a"), (0, "")])
def test_so_many_offered_rows_are_looked_at_for_displacement(limit: int, admitted: str) -> None:
    turn, asked = displacing(1, 2, 3, 4, scan_limit=limit)
    assert "".join(turn.admitted) == admitted
    assert turn.preempted == ["x", "y", "z"][: len(admitted)]
    assert [line[0] for line in asked[:3]] == list(admitted)


def test_the_first_that_cannot_fit_ends_the_pass_and_preempts_nobody() -> None:
    """`b` stands above nobody, so `c`, which does, is not looked at."""
    turn, asked = displacing(1, 9, 2)
    assert turn.admitted == ["a"] and turn.preempted == ["x"]
    assert asked == ["a slot 0", "b slot 0"]


def test_a_scan_ends_no_admission() -> None:
    """Beyond the scan the fill goes on: with slots and blocks there, everybody enters."""
    turn, _ = displacing(1, 2, 3, scan_limit=1, max_num_seqs=8)
    assert turn.admitted == ["a", "b", "c"] and turn.preempted == []


def test_demands_say_what_is_missing() -> None:
    """Each holder has 2 blocks of 8 or 7 and decodes inside its second; `a` needs one."""
    assert displacing(1)[1] == ["a slot 0"]
    turn, asked = displacing(1, max_num_seqs=4, num_blocks=6)
    assert asked == ["a admission 1"] and turn.preempted == ["x"]
    turn, asked = displacing(1, num_blocks=6)
    assert asked == ["a slot 1"] and turn.preempted == ["x"], "blocks missing besides"


def test_nobody_active_gives_way_to_one_that_stands_no_higher() -> None:
    assert displacing(9, active=(9, 9, 9))[0].preempted == []
    assert displacing(8, active=(9, 8, 7))[0].preempted == ["x"]


def test_victims_that_add_nothing_missing_are_skipped() -> None:
    """Only blocks are missing; x holds none that it does not share."""
    same = [3] * 8
    holders = [{"id": "x", "prompt": same, "priority": 9, "computed": None}, {"id": "y", "prompt": same, "priority": 5}]
    holders = [{key: value for key, value in each.items() if value is not None} for each in holders]
    standing = Standing()
    turn = boundary(
        waiting=[{"id": "a", "prompt": 24, "priority": 1, "max_tokens": 1}], active=holders,
        stack=["fcfs", standing, "mixed"], num_blocks=8, block_size=BS, max_num_seqs=4,
    )  # fmt: skip
    # Both share one block and hold one more each; each is about to take a third.
    assert turn.admitted == ["a"] and turn.preempted == ["x", "y"]


@pytest.mark.parametrize("reserve", ["none", "prompt", "full"])
@settings(max_examples=25)
@given(data=st.data())
def test_whatever_the_limits_everybody_gets_through(reserve: str, data: Any) -> None:
    """And nobody is passed over more often than is allowed (the audit of the scenario looks at all the rest)."""
    small = st.tuples(st.integers(0, 6), st.integers(1, 16), st.integers(1, 12), st.integers(0, 2))
    entries = [R(*each) for each in data.draw(st.lists(small, min_size=1, max_size=6))]
    limits = data.draw(
        st.fixed_dictionaries(
            {
                "bypass_limit": st.integers(0, 3),
                "scan_limit": st.integers(0, 3),
                "S": st.integers(1, 3),
                "B": st.sampled_from([4, 16]),
                "watermark": st.sampled_from([0.0, 0.2]),
            }
        )
    )
    run = play(*entries, stack=[{"priority": {}}, "mixed"], reserve=reserve, bs=BS, N=8, **limits)
    assert all(outcome.bypasses <= limits["bypass_limit"] for outcome in run.outcomes.values())
