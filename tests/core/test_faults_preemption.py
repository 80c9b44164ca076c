"""Who gives way, how many, and what becomes of them. The preemption mode is RECOMPUTE throughout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scenario import MIXED, URGENT, R, engine_of, play

from interlock.core import Engine, Policy, PolicyViolation

# -- a victim is not in the batch (B22). H and L hold two blocks each of four; H's ninth token needs a third in step 1.


def test_the_victim_is_not_in_the_batch_and_comes_back() -> None:
    # L has 7 + 1 tokens of context, so its 2 blocks come free with H's 4, in step 6; tokens 2 to 6 follow until step
    # 10.
    run = play(R(0, 8, 6, 0, id="H"), R(0, 7, 6, 9, id="L"), N=4, S=2, stack=URGENT)
    assert run.steps[1] == {"H": 1} and run.preempted == {1: ["L"]}
    assert (run.finished("H"), list(run.ran("L").items())[1], run.finished("L")) == (5, (6, 8), 10)
    assert run.outcomes["L"].preemptions == 1 and run.outcomes["L"].recomputed_tokens == 7


def test_the_victim_may_stand_before_the_row_that_grows() -> None:
    # L is walked first and fits its block; then H is short by one, and L, already walked, gives way.
    run = play(R(0, 7, 6, 9, id="L"), R(0, 8, 6, 0, id="H"), N=4, S=2, stack=URGENT)
    assert run.steps[1] == {"H": 1} and run.preempted == {1: ["L"]}
    assert (run.finished("H"), run.finished("L")) == (5, 10)


def test_a_row_that_heads_the_victims_list_gives_way_itself() -> None:
    run = play(R(0, 8, 6, 9, id="L"), R(0, 8, 6, 0, id="H"), N=4, S=2, stack=URGENT)
    assert run.steps[1] == {"H": 1} and run.preempted == {1: ["L"]}


def test_without_a_policy_the_latest_admitted_gives_way() -> None:
    run = play(R(0, 8, 6, 9, id="first"), R(0, 8, 6, 0, id="second"), N=4, S=2)
    assert run.steps[1] == {"first": 1} and run.preempted == {1: ["second"]}


@pytest.mark.parametrize("stack", [MIXED, URGENT])
def test_three_decodes_of_which_one_gives_way(stack: tuple) -> None:
    # B40: 5 tokens of prompt are 2 blocks, step 4 writes the ninth token and needs a third: 9 of 8. R2 leaves 2 free
    # and needs 3 to come back.
    run = play(*[R(0, 5, 7) for _ in range(3)], N=8, stack=stack)
    assert run.preempted == {4: ["R2"]}
    assert list(run.steps[4]) == list(run.steps[5]) == list(run.steps[6]) == ["R0", "R1"]
    assert run.started("R2") == 0 and list(run.ran("R2"))[4] == 7, "it resumes when they end"


# -- no more victims than needed (B25, B108)


@pytest.mark.parametrize("several", [2, 4, 5])
def test_a_candidate_takes_the_fewest_victims(several: int) -> None:
    # B25: each L holds 2 blocks and grows by 1 in step 1; H needs 2. Whoever gives way leaves its 2 and its growth.
    low = [R(0, 8, 8, 9, id=f"L{i}") for i in range(1, several + 1)]
    run = play(*low, R(1, 8, 2, 0, id="H"), N=3 * several, stack=URGENT)
    assert run.preempted[1] == [f"L{several}"]
    assert run.steps[1] == {**{f"L{i}": 1 for i in range(1, several)}, "H": 8}


def test_growth_takes_the_fewest_victims_in_one_pass() -> None:
    # B108: five rows of 2 full blocks each fill the pool, each needs 1 more. R4 frees 2 for R0 and R1, R3 frees 2 of
    # which R2 takes 1.
    run = play(*[R(0, 8, 4) for _ in range(5)], N=10, S=5)
    assert run.preempted[1] == ["R4", "R3"]
    assert run.steps[1] == {"R0": 1, "R1": 1, "R2": 1}


@pytest.mark.parametrize(("rows", "blocks"), [(2, 2), (3, 1), (4, 2), (6, 2), (7, 3), (8, 1)])
def test_growth_is_served_by_the_latest_and_no_more_of_them_than_needed(rows: int, blocks: int) -> None:
    # B108: n rows of b blocks, all full. v victims free b v blocks for n - v needs: the least v with b v >= n - v.
    run = play(*[R(0, 4 * blocks, 2) for _ in range(rows)], N=rows * blocks, B=128)
    victims = next(v for v in range(rows + 1) if blocks * v >= rows - v)
    assert sorted(run.preempted[1]) == [f"R{i}" for i in range(rows - victims, rows)]
    assert list(run.steps[1]) == [f"R{i}" for i in range(rows - victims)]


# -- slots and blocks (B26)


def test_an_urgent_request_displaces_for_a_slot() -> None:
    run = play(R(0, 16, 16, 9), R(0, 16, 16, 9), R(1, 8, 2, 0, id="H"), N=100, S=2, stack=URGENT)
    assert run.started("H") == 1 and run.preempted == {1: ["R1"]}


def test_an_urgent_request_displaces_for_blocks() -> None:
    # 13 tokens are 4 blocks with room for 3 more tokens: nobody grows in step 1, and nothing is free.
    run = play(R(0, 13, 4, 9), R(0, 13, 4, 9), R(1, 8, 2, 0, id="H"), N=8, stack=URGENT)
    assert run.started("H") == 1 and run.preempted == {1: ["R1"]}
    assert run.steps[1] == {"R0": 1, "H": 8}


def test_where_rows_grow_and_somebody_gave_way_the_urgent_one_enters_next() -> None:
    # B26 (outputs of 16 instead of 20, since 16 + 19 tokens never fit 8 blocks). Both grow in step 1, R1 gives way;
    # such a boundary admits nobody, and H finds 3 blocks free in step 2.
    run = play(R(0, 16, 16, 9), R(0, 16, 16, 9), R(1, 8, 2, 0, id="H"), N=8, stack=URGENT)
    assert run.started("H") == 2 and run.preempted[1] == ["R1"] and 2 not in run.preempted


# -- what a preemption must not do (B30, B38, B34, B29)


@pytest.mark.parametrize(("p", "B"), [(12, 16), (12, 8), (12, 5), (9, 6)])
def test_a_context_longer_than_the_budget_is_computed_again_in_chunks(p: int, B: int) -> None:
    # B30. With reserve `prompt`; the numbers below are those of the first case.
    run = play(R(0, p, 20), R(0, p, 20, 9), N=11, B=B, S=4)
    assert run.ends == {"R0": "length", "R1": "length"} and run.outcomes["R1"].preemptions == 1
    again = {step: tokens for step, tokens in run.ran("R1").items() if step > min(run.preempted)}
    context = run.outcomes["R1"].recomputed_tokens + 1
    assert max(again.values()) <= B
    chunks = [B] * (context // B) + ([context % B] if context % B else [])
    assert list(again.values())[: len(chunks)] == chunks
    if (p, B) == (12, 16):
        # Both hold 21 tokens, 6 blocks wanted each, in step 10; R0 ends in step 19; R1 runs 16 + 5, then tokens 11 to
        # 20.
        assert run.outcomes["R1"].recomputed_tokens == 20 and run.finished("R1") == 31


@pytest.mark.parametrize("o", [3, 8, 12])
def test_what_was_delivered_is_kept_and_nothing_is_delivered_twice(o: int) -> None:
    # B38: token i of the output was delivered i-th, at a time of its own.
    run = play(R(0, 8, o), R(0, 7, o), N=-(-(8 + o) // 4) + 1)
    number = next(n for n, name in run.ids.items() if name == "R1")
    assert run.outcomes["R1"].preemptions >= 1
    times = [
        c.result.ends_ns[0]
        for r in run.records
        for c in r.collected
        for at in np.flatnonzero(c.delivered[0])
        if c.batch.numbers[at] == number
    ]
    assert len(times) == len(set(times)) == o


class Twice(Policy):
    """Names a victim twice."""

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        victims.reorder(np.concatenate([victims.rows[:1], victims.rows]))


def test_nobody_gives_way_twice() -> None:
    # B34: the proposal refuses it with a named error, and the state stays whole; under `repair` the default serves.
    engine = engine_of(R(0, 8, 6), R(0, 7, 6), N=4, stack=(*MIXED, Twice()))
    engine.step()
    with pytest.raises(PolicyViolation, match=r"twice\.preempt broke rule"):
        _to_the_end(engine)
    assert engine.state.pool.available == 0 and (engine.state.table.preemptions == 0).all()
    run = play(R(0, 8, 6), R(0, 7, 6), N=4, stack=(*MIXED, Twice()), on_violation="repair")
    assert run.outcomes["R1"].preemptions == 1 and run.engine.stats.violations >= 1


def _to_the_end(engine: Engine) -> None:
    for _ in engine.run():
        pass


@pytest.mark.parametrize("stack", [MIXED, URGENT])
def test_a_preempted_request_keeps_its_place_before_those_who_came_later(stack: tuple) -> None:
    # B29. R1 gives way in step 1 and needs 2 blocks; the 1 block left would do for R2, which came later and never ran.
    # (An older request whose gate opens meanwhile goes before it here: the place is that of its arrival.)
    run = play(R(0, 8, 6), R(0, 7, 6), R(0, 4, 1), N=4, stack=stack)
    assert run.preempted == {1: ["R1"]}
    assert list(run.steps[6]) == ["R1", "R2"] and run.started("R2") == 6


def test_who_gave_way_last_comes_back_last() -> None:
    # B29: victims are the latest admitted, in step 1 R4 and R3; both come back in order of arrival.
    run = play(*[R(0, 8, 4) for _ in range(5)], N=10, S=5)
    back = [move.request_id for record in run.records for move in record.transitions if move.reason == "resumed"]
    assert run.preempted[1] == ["R4", "R3"] and back == ["R3", "R4"]


def test_a_row_that_keeps_giving_way_is_spared_until_it_banks() -> None:
    # With max_preemptions 1, whoever lost without banking is nobody's victim: both still end, by growing rows' own
    # leave.
    run = play(R(0, 8, 9), R(0, 8, 9), R(0, 8, 9), N=6, max_preemptions=1)
    assert set(run.ends.values()) == {"length"}


def test_rows_that_give_way_themselves_in_every_group_are_no_stall() -> None:
    # Step 18: all six blocks are held. R1 computes its context again after a preemption and is spared; it needs a block
    # and heads priority's list of victims, so the prompt group yields nothing. R0 decodes, needs a block, and may not
    # take R1's: the decode group yields nothing. One of them has to leave for the other.
    requests = [R(6, 10, 8, 1), R(0, 2, 9, 2)]
    config = {"N": 6, "S": 2, "B": 5, "reserve": "none", "long_prefill_token_threshold": 3, "max_preemptions": 1}
    run = play(*requests, stack=("priority",), **config)
    assert run.ends == {"R0": "length", "R1": "length"}
