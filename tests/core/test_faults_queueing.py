"""Who waits behind whom: heads that do not fit, gates, long prompts, starving decodes, reservations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scenario import MIXED, Hold, R, engine_of, play

from interlock.core import LivelockError, Policy
from interlock.core.blocks import BlockPool
from interlock.core.work import WorkKey

# -- a head that does not fit (B08). R0: 5 blocks, 6 from step 1 to its end in step 4; R1 needs 5 of the 4 left.


def test_first_come_first_served_waits_behind_a_big_head() -> None:
    run = play(R(0, 20, 5), R(1, 20, 1), R(1, 4, 1), N=10)
    assert (run.started("R1"), run.started("R2")) == (5, 5)
    assert run.outcomes["R1"].bypasses == 0


def test_with_a_bypass_limit_small_ones_pass_a_big_head_that_starts_no_later() -> None:
    run = play(R(0, 20, 5), R(1, 20, 1), R(1, 4, 1), N=10, bypass_limit=1)
    assert (run.started("R2"), run.finished("R2"), run.started("R1")) == (1, 1, 5)
    assert run.outcomes["R1"].bypasses == 1


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_nobody_is_passed_more_often_than_the_limit(k: int) -> None:
    small = [R(1, 4, 1) for _ in range(4)]
    run = play(R(0, 20, 5), R(1, 20, 1), *small, N=10, bypass_limit=k)
    assert [run.started(f"R{i}") for i in range(2, 6)] == [1] * k + [5] * (4 - k)
    assert run.started("R1") == 5 and run.outcomes["R1"].bypasses == k


@pytest.mark.parametrize("k", [0, 1, 3])
def test_who_is_passed_over_for_other_reasons_than_blocks_is_no_bypass(k: int) -> None:
    run = play(R(0, 4, 1), R(0, 4, 1), R(0, 4, 1), stack=(*MIXED, Hold({"R0": 3.0})), bypass_limit=k)
    assert [run.started(f"R{i}") for i in range(3)] == [3, 0, 0]
    assert run.outcomes["R0"].bypasses == 0 and run.outcomes["R0"].overtaken == 2


# -- gates (B10, B12)


@pytest.mark.parametrize("until", [True, False])
def test_who_was_set_aside_comes_back_in_order_of_arrival(until: bool) -> None:
    # B10. Without `until` nothing would wake the engine, so somebody else runs meanwhile, in the second slot.
    other = [] if until else [R(0, 4, 9, id="other")]
    requests = [R(0, 4, 1, id=name) for name in ("R1", "R2", "R3")]
    gates = {"R1": 2.0, "R2": 2.0, "R3": 3.0}
    run = play(*other, *requests, S=2 - until, stack=(*MIXED, Hold(gates, until)))
    assert [run.started(name) for name in gates] == [2, 3, 4]


def test_a_held_request_owns_no_slot_and_times_out() -> None:
    # B12: gates that never open. R2 starts at once in one of the two slots; the others end by their own time-outs.
    gated = Hold({"R0": Hold.NEVER, "R1": Hold.NEVER})
    run = play(R(0, 4, 2, timeout_s=5.0), R(0, 4, 2, timeout_s=5.0), R(0, 4, 2), S=2, stack=(*MIXED, gated))
    assert run.started("R2") == 0
    assert run.ends == {"R0": "timeout", "R1": "timeout", "R2": "length"}
    assert run.outcomes["R0"].finished_ns == run.outcomes["R1"].finished_ns == 5 * 10**9


def test_many_held_requests_never_fill_the_slots() -> None:  # B12
    held = [R(0, 4, 2, timeout_s=20.0) for _ in range(6)]
    free = [R(i, 4, 2, id=f"free{i}") for i in range(4)]
    run = play(*held, *free, S=2, stack=(*MIXED, Hold({f"R{i}": Hold.NEVER for i in range(6)})))
    assert [run.started(f"free{i}") for i in range(4)] == [0, 1, 2, 3]


def test_a_hold_without_a_time_is_a_stall_when_nobody_else_runs() -> None:
    engine = engine_of(R(0, 4, 2), R(0, 4, 2), stack=(*MIXED, Hold({"R0": Hold.NEVER}, until=False)))
    with pytest.raises(LivelockError, match="'R0'"):
        for _ in engine.run():
            pass
    assert engine.state.step == 2, "R1 is served before that"


# -- long prompts and the budget (B11, B14, B21)


class Share(Policy):
    """While others wait, no prompt takes more than so many tokens."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens

    def select(self, plan: Any, view: Any) -> None:
        if len(view.waiting):
            plan.cap(view.work == WorkKey.PROMPT_ATOMIC, self.tokens)


LONG = [R(0, 80, 1), R(1, 2, 1), R(1, 2, 1)]


def test_a_long_prompt_takes_every_budget_under_plain_first_come_first_served() -> None:
    # B11: 80 tokens in chunks of 8 are steps 0 to 9.
    run = play(*LONG, stack=(*MIXED, Hold({"R2": 2.0})), B=8, S=4, N=100, L=128)
    assert (run.first_token("R0"), run.first_token("R1"), run.first_token("R2")) == (9, 10, 10)


def test_a_share_for_prompts_lets_newcomers_in() -> None:  # B11
    run = play(*LONG, stack=(*MIXED, Share(6), Hold({"R2": 2.0})), B=8, S=4, N=100, L=128)
    assert run.first_token("R1") == 1 and run.first_token("R2") in (2, 3)


def test_who_is_ready_is_told_apart_from_who_is_held_also_when_the_budget_is_spent() -> None:  # B11
    run = play(*LONG, stack=(*MIXED, Hold({"R2": 2.0})), B=8, S=4, N=100, L=128)
    waits = [(round(r.time_s), wait.reason) for r in run.records for wait in r.waits if run.ids[wait.request] == "R2"]
    assert waits[:2] == [(1, "held"), (2, "tokens")]


@pytest.mark.parametrize("order", ["admission", "decode_first"])
@pytest.mark.parametrize("p", [7, 8, 16])
def test_decodes_do_not_starve_under_a_stream_of_prompts_when_batches_are_mixed(p: int, order: str) -> None:  # B14
    stream = [R(k, p, 1) for k in range(1, 31)]
    run = play(R(0, 4, 20, id="D"), *stream, B=8, S=40, N=400, stack=("fcfs", {"mixed": {"order": order}}))
    assert list(run.ran("D")) == list(range(20)), "a token in every step"


def test_without_mixing_prompts_run_before_decodes() -> None:
    # B14: the default order of groups. D's second token comes when the 30 prompts of steps 1 to 30 are done.
    run = play(R(0, 4, 20, id="D"), *[R(k, 8, 1) for k in range(1, 31)], B=8, S=40, N=400, stack=("fcfs",))
    assert list(run.ran("D"))[:2] == [0, 31]


@pytest.mark.parametrize("waiting", [1, 5])
def test_nobody_is_matched_once_the_budget_is_spent(waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # B21: R0's chunks of 8 take the whole budget in steps 0 to 3.
    looked: dict[int, int] = {}
    match = BlockPool.match

    def counted(pool: BlockPool, keys: Any) -> Any:
        looked[-1] = looked.get(-1, 0) + 1
        return match(pool, keys)

    def note(engine: Any, record: Any) -> None:
        looked[round(record.time_s)] = looked.pop(-1, 0)

    monkeypatch.setattr(BlockPool, "match", counted)
    play(R(0, 32, 1), *[R(1, 8, 1) for _ in range(waiting)], B=8, caching=True, at=note)
    assert [looked[step] for step in (1, 2, 3)] == [0, 0, 0]


# -- what counts as free (B16), reservations (B17), chunk admission (B18)


def test_cached_blocks_without_a_holder_are_room() -> None:
    # B16: 33 tokens leave 8 full blocks cached and 2 free. R1 takes the 4 oldest in the queue: the block never used,
    # R0's part-filled one (freed first, being its last), and R0's 8th and 7th. 6 stay cached.
    run = play(R(0, 33, 1), R(5, 16, 1), N=10, caching=True)
    assert run.started("R1") == 5
    before = next(r.counts for r in run.records if round(r.time_s) == 1)
    assert (before.free_blocks, before.cached_blocks, before.used_blocks) == (2, 8, 0)
    after = next(r.counts for r in run.records if round(r.time_s) == 5)
    assert (after.free_blocks, after.cached_blocks, after.used_blocks) == (0, 6, 4)


LONG_LIMIT = [R(0, 4, 61, says=5) for _ in range(3)]  # 64 tokens of KV at most, 8 in truth


def test_a_full_reservation_serialises_and_says_so() -> None:  # B17: 16 blocks promised, 2 used
    run = play(*LONG_LIMIT, N=16, L=128, reserve="full")
    assert [run.started(f"R{i}") for i in range(3)] == [0, 5, 10] and not run.preempted
    assert run.ends == dict.fromkeys(("R0", "R1", "R2"), "stop")
    counts = [r.counts for r in run.records if r.batch is not None]
    assert {c.reserved_blocks for c in counts} == {16} and max(c.used_blocks for c in counts) == 2


@pytest.mark.parametrize("reserve", ["none", "prompt"])
def test_lighter_reservations_run_all_three_at_once(reserve: str) -> None:  # B17
    run = play(*LONG_LIMIT, N=16, L=128, reserve=reserve)
    assert [run.started(f"R{i}") for i in range(3)] == [0, 0, 0] and not run.preempted


PAIR = [R(0, 48, 12), R(0, 48, 4)]


def test_whole_prompt_admission_recomputes_nothing() -> None:
    # B18: R0 runs 3 chunks and 11 decodes, steps 0 to 13, on 12 to 15 of 20 blocks; R1 needs 12.
    run = play(*PAIR, N=20, B=16, S=4)
    assert run.started("R1") == 14 and not run.preempted and run.finished("R1") == 19
    assert run.outcomes["R1"].recomputed_tokens == 0


def test_chunk_admission_goes_to_and_fro_and_is_no_faster() -> None:  # B18
    run = play(*PAIR, N=20, B=16, S=4, reserve="none")
    assert run.finished("R1") == 19
    assert (run.outcomes["R1"].preemptions, run.outcomes["R1"].recomputed_tokens) == (5, 75)


# -- a row that may not share a batch (B20)


class Alone(Policy):
    """R1 never shares a batch with R0."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def select(self, plan: Any, view: Any) -> None:
        self.asked += 1
        names = {view.request(row).id: row for row in plan.rows}
        if "R0" in names and "R1" in names:
            plan.drop(np.arange(view.capacity) == names["R1"])


@pytest.mark.parametrize("late", [0, 2])
def test_a_row_left_out_of_a_batch_is_asked_for_once_per_boundary(late: int) -> None:
    # B20. R0 runs in steps 0 to 4. R1, active or waiting, is left for the next pass each time.
    policy = Alone()
    run = play(R(0, 4, 5), R(late, 4, 3), stack=(*MIXED, policy))
    assert list(run.ran("R0")) == [0, 1, 2, 3, 4] and run.started("R1") == 5
    assert policy.asked <= len(run.records)
