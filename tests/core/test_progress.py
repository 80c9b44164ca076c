"""What guarantees progress: protection, the window, rescues; and what looks like a stall and is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pressure import MODES, by_priority, engine_of, forced, play, run, story
from scenario import Hold, R

from interlock.core import LivelockError, Policy


class DropsAll(Policy):
    """Nobody runs."""

    def select(self, plan: Any, view: Any) -> None:
        plan.drop(np.ones(view.capacity, bool))


class HoldsAll(Policy):
    """Nobody enters, and nobody knows for how long."""

    def __init__(self, until: float | None = None) -> None:
        super().__init__()
        self.until = until

    def admit(self, offer: Any, view: Any) -> None:
        if self.until is None or view.now < self.until:
            offer.hold(np.ones(view.capacity, bool), until=self.until)


class Restricts(Policy):
    """Allows nothing, by one of the verbs."""

    def __init__(self, verb: str) -> None:
        super().__init__()
        self.verb = verb

    def admit(self, offer: Any, view: Any) -> None:
        if self.verb == "limit":
            offer.limit(0)
        elif self.verb == "limit of tokens":
            offer.limit(None, tokens=0)
        elif self.verb == "limit per tenant":
            offer.limit(0, per="tenant")
        elif self.verb == "hold":
            offer.hold(np.ones(view.capacity, bool))

    def select(self, plan: Any, view: Any) -> None:
        every = np.ones(view.capacity, bool)
        if self.verb == "cap":
            plan.cap(every, 0)
        elif self.verb == "budget":
            plan.budget(0)
        elif self.verb == "part of the budget":
            plan.budget(0, mask=every)
        elif self.verb == "drop":
            plan.drop(every)


VERBS = ("limit", "limit of tokens", "limit per tenant", "hold", "cap", "budget", "part of the budget", "drop")
THREE = [R(0, 6, 3), R(0, 4, 2), R(1, 5, 4)]
DENSE, LOOPED = {"loops": 1}, {"loops": 3, "split": True}


class Flips(Policy):
    """Whoever waits stands above whoever runs: the order turns with each admission."""

    def __init__(self, mode: str = "recompute") -> None:
        super().__init__()
        self.mode = mode

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        victims.sort_by(np.where(np.arange(view.capacity) == demand.row, 1, 0))
        victims.use(self.mode)


# -- a stall: no batch, nothing in flight, somebody could run


@pytest.mark.parametrize("shape", [DENSE, LOOPED], ids=["dense", "looped"])
@pytest.mark.parametrize("verb", VERBS)
def test_under_raise_a_stall_is_an_error_that_names_the_oldest(verb: str, shape: dict[str, Any]) -> None:
    engine = engine_of(*THREE, stack=(Restricts(verb),), **shape)
    with pytest.raises(LivelockError, match=r"no batch forms.*2 requests wait, 0 are active.*'R0'.*no batch was ever"):
        run(engine)
    assert forced_of(engine) == 0


def forced_of(engine: Any) -> int:
    return int(engine.stats.rescues["forced"])


@pytest.mark.parametrize("shape", [DENSE, LOOPED], ids=["dense", "looped"])
@pytest.mark.parametrize("verb", VERBS)
def test_under_repair_each_is_rescued_in_turn_over_every_restriction(verb: str, shape: dict[str, Any]) -> None:
    done = play(*THREE, stack=(Restricts(verb),), on_violation="repair", **shape)
    assert forced(done) == 3 and set(done.ends.values()) == {"length"}
    assert done.finished("R0") < done.started("R1") and done.finished("R1") < done.started("R2"), "until it finishes"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [DENSE, LOOPED], ids=["dense", "looped"])
def test_the_rescued_one_is_nobodys_victim_and_is_never_interrupted(shape: dict[str, Any], mode: str) -> None:
    rescued: list[tuple[int, list[int]]] = []

    def look(engine: Any, record: Any) -> None:
        row = engine.state.rescued
        if row is not None:
            rescued.append((engine.state.entries[row].number, [victim.request for victim in record.preempted]))

    requests = [R(k % 3, 6, 3, k % 2) for k in range(5)]
    stack = (*by_priority(mode), Flips(mode), DropsAll())
    done = play(*requests, stack=stack, S=2, N=5, on_violation="repair", at=look, **shape)
    assert rescued and all(number not in victims for number, victims in rescued)
    numbers = [number for number, _ in rescued]
    assert numbers == sorted(numbers), "one after the other, the oldest first"
    assert forced(done) == len(set(numbers))


def test_an_active_row_that_is_dropped_is_rescued_too() -> None:
    class DropsLater(DropsAll):
        def select(self, plan: Any, view: Any) -> None:
            if view.step >= 3:
                super().select(plan, view)

    # R1 has its two tokens before step 3; R0 and R2 are in the middle of theirs.
    done = play(*THREE, stack=(DropsLater(),), on_violation="repair")
    assert forced(done) == 2 and set(done.ends.values()) == {"length"}


def test_a_rescue_takes_the_fewest_victims_it_needs() -> None:
    # Three rows hold 2, 4 and 2 of 8 blocks when all is dropped; R0, which is held out until then, is the oldest and
    # needs 4: the one with the most gives way, and it alone.
    class Late(DropsAll):
        def admit(self, offer: Any, view: Any) -> None:
            if view.step < 2:
                offer.hold(np.array([view.request(row).id == "R0" for row in offer.rows.tolist()], bool))

        def select(self, plan: Any, view: Any) -> None:
            if view.step >= 2:
                super().select(plan, view)

    requests = [R(0, 13, 3), R(0, 5, 3), R(0, 13, 3), R(0, 5, 3)]
    done = play(*requests, stack=("mixed", Late()), N=8, on_violation="repair")
    assert done.preempted[2] == ["R2"] and done.started("R0") == 2


def test_a_rescue_ends_with_a_cancellation_and_the_next_one_is_rescued() -> None:
    requests = [R(0, 6, 20, cancel_at=4.0), R(0, 4, 3)]
    done = play(*requests, stack=(DropsAll(),), on_violation="repair")
    assert done.ends == {"R0": "cancelled", "R1": "length"} and forced(done) == 2
    assert done.started("R1") == 4


def test_who_comes_while_another_is_rescued_waits_for_its_end() -> None:
    done = play(R(0, 4, 9), R(2, 4, 1, -9), stack=(*by_priority("recompute"), DropsAll()), on_violation="repair")
    assert done.finished("R0") == 8 and done.started("R1") == 9 and forced(done) == 2


def test_a_rejection_by_a_policy_is_progress_and_no_stall() -> None:
    class Rejects(Policy):
        def admit(self, offer: Any, view: Any) -> None:
            offer.reject(np.ones(len(offer.rows), bool), "no")

    done = play(*THREE, stack=(Rejects(),))
    assert set(done.ends.values()) == {"rejected"} and forced(done) == 0


# -- holds


@pytest.mark.parametrize("until", [1.5, 7.0, 1000.0])
def test_a_hold_until_a_time_is_no_stall_and_the_clock_moves_there(until: float) -> None:
    done = play(*THREE, stack=("mixed", HoldsAll(until)))
    assert forced(done) == 0
    admitted = {outcome.admitted_ns for outcome in done.outcomes.values()}
    assert min(admitted) == round(until * 1e9), "not one nanosecond before or after"


def test_of_several_holds_the_clock_moves_to_the_earliest() -> None:
    # R1's two steps end at 7.25, which is the first boundary at or after 7; R2's second one at 9.25.
    done = play(*THREE, stack=("mixed", Hold({"R0": 9.0, "R1": 5.25, "R2": 7.0})))
    assert [done.outcomes[f"R{i}"].admitted_ns for i in range(3)] == [round(t * 1e9) for t in (9.25, 5.25, 7.25)]


@pytest.mark.parametrize("shape", [DENSE, LOOPED], ids=["dense", "looped"])
def test_a_hold_without_a_time_is_a_stall_as_soon_as_nobody_runs(shape: dict[str, Any]) -> None:
    gates = {"R1": Hold.NEVER}
    with pytest.raises(LivelockError, match="'R1'"):
        play(R(0, 6, 3), R(0, 4, 2), stack=(Hold(gates, until=False),), **shape)
    done = play(R(0, 6, 3), R(0, 4, 2), stack=(Hold(gates, until=False),), on_violation="repair", **shape)
    assert forced(done) == 1 and done.started("R1") > done.finished("R0")


def test_a_hold_of_all_while_an_arrival_is_still_to_come_is_a_stall_all_the_same() -> None:
    # The clock could pass to 50, but R0 could run now and nobody says when it will.
    with pytest.raises(LivelockError, match="'R0'"):
        play(R(0, 6, 3), R(50, 4, 2), stack=(HoldsAll(),))


def test_who_is_held_for_ever_ends_by_its_own_timer() -> None:
    done = play(R(0, 6, 3, timeout_s=12.0), stack=(HoldsAll(),))
    assert done.ends == {"R0": "timeout"} and forced(done) == 0


# -- protection


def stream(count: int) -> list[dict[str, Any]]:
    """Urgent requests of one step each, every other second from 1 on, and a low one of 5 chunks of 4."""
    return [R(0, 20, 1, 9, id="L"), *[R(1 + 2 * k, 1, 1, 0, id=f"H{k}") for k in range(count)]]


def test_without_protection_recompute_would_starve_it_and_with_it_two_steps_are_won() -> None:
    # Each H takes the slot after L's first chunk of 4: L banks 4 tokens once, and then never more than that mark,
    # until two preemptions in a row without banking protect it: it then runs until it is past the mark.
    done = play(*stream(60), stack=by_priority("recompute", "mixed"), S=1, B=4, max_preemptions=2)
    assert done.engine.stats.protections >= 2
    assert done.finished("L") < done.finished("H59")
    assert set(done.ends.values()) == {"length"} and forced(done) == 0


@pytest.mark.parametrize("most", [1, 2, 3, 8])
def test_nobody_is_preempted_more_often_without_banking(most: int) -> None:
    strikes: list[int] = []

    def look(engine: Any, record: Any) -> None:
        rows = list(engine.state.entries)
        strikes.append(int(engine.state.table.strikes[rows].max(initial=0)))

    done = play(*stream(120), stack=by_priority("recompute", "mixed"), S=1, B=4, max_preemptions=most, at=look)
    assert max(strikes) == most and done.engine.stats.protections >= 1
    # The slot changes hands `most` times without banking for each mark: 4, 8, 12, 16 tokens. (20 is the end.)
    assert done.engine.stats.protections <= 4


@pytest.mark.parametrize("mode", ["yield", "offload"])
def test_who_keeps_its_progress_banks_each_time_and_is_never_protected(mode: str) -> None:
    done = play(*stream(60), stack=by_priority(mode, "mixed"), S=1, B=4, max_preemptions=2)
    assert done.engine.stats.protections == 0 and done.outcomes["L"].preemptions == 4


@pytest.mark.parametrize("mode", ["yield", "offload"])
def test_a_prelude_banks_nothing_and_a_loop_does(mode: str) -> None:
    # L's slot is taken after each of its pieces. After the prelude it has banked nothing: one strike. Each loop banks.
    low = R(0, 8, 1, 9, id="L")
    high = [R(1 + 3 * k, 1, 1, 0, id=f"H{k}") for k in range(9)]
    strikes: list[tuple[str, int]] = []

    def look(engine: Any, record: Any) -> None:
        row = engine.state.rows.get("L")
        for victim in record.preempted:
            assert row is not None
            work = engine.state.table.work[row]
            strikes.append((str(int(work)) + str(victim.mode)[0], int(engine.state.table.strikes[row])))

    done = play(low, *high, stack=by_priority(mode, "refill"), S=1, loops=4, split=False, max_preemptions=8, at=look)
    assert done.engine.stats.protections == 0 and all(count <= 1 for _, count in strikes)


def test_protection_ends_when_it_banks() -> None:
    gone: list[int] = []
    play(
        *stream(60), stack=by_priority("recompute", "mixed"), S=1, B=4, max_preemptions=1,
        at=lambda engine, record: gone.append(round(record.time_s)) if record.preempted else None,
    )  # fmt: skip
    # 0: L computes 4. 1: H0 takes the slot, one strike: L is protected until it is past 4 tokens. 2, 3: L computes
    # 8, past H1. 4: H1, who waited, takes the slot. And so on: 3 chunks need 3 steps, past H2 ...
    assert gone[:2] == [1, 4] and len(gone) >= 3


# -- the window


def test_preludes_without_end_are_ended_by_the_window() -> None:
    # With one slot, whoever waits takes it after the other's prelude; under recompute no prelude is ever used.
    requests = [R(0, 8, 2), R(0, 8, 2)]
    config: dict[str, Any] = {"S": 1, "loops": 4, "split": True, "max_preemptions": 10**6, "progress_window": 30}
    engine = engine_of(*requests, stack=("refill", Flips()), **config)
    with pytest.raises(LivelockError, match=r"nothing was banked in 30 boundaries.*step \d+: PRELUDE of requests"):
        run(engine)
    assert 30 <= engine.state.step <= 34
    done = play(*requests, stack=("refill", Flips()), on_violation="repair", **config)
    assert forced(done) >= 1 and set(done.ends.values()) == {"length"}


def test_protection_alone_ends_the_same_without_force() -> None:
    done = play(R(0, 8, 2), R(0, 8, 2), stack=("refill", Flips()), S=1, loops=4, split=True)
    assert forced(done) == 0 and done.engine.stats.protections >= 1


@pytest.mark.parametrize("shape", [{"B": 1}, {"B": 4, "loops": 4, "split": True}], ids=["dense", "looped"])
@pytest.mark.parametrize("length", [40, 100])
def test_computing_again_what_was_lost_is_no_livelock(length: int, shape: dict[str, Any]) -> None:
    # L is displaced near the end of its prompt, and computes it again in more boundaries than the window has.
    loops, B = shape.get("loops", 1), shape["B"]
    at = (length // B) * (1 if loops == 1 else 1 + loops) - 1
    done = play(
        R(0, length, 2, 9, id="L"), R(at, 2, 1, 0, id="H"), S=1, N=99, L=128,
        stack=by_priority("recompute", "mixed"), progress_window=12, **shape,
    )  # fmt: skip
    assert done.outcomes["L"].recomputed_tokens >= length - 2 * B and len(story(done, "L")) > 12
    assert forced(done) == 0


def test_a_window_of_one_stops_nobody_who_banks_at_each_step() -> None:
    done = play(*[R(0, 8, 4) for _ in range(3)], progress_window=1)
    assert forced(done) == 0


def test_idle_time_does_not_count() -> None:
    done = play(R(0, 4, 1), R(5000, 4, 1), stack=("mixed", HoldsAll(3.0)), progress_window=1)
    assert set(done.ends.values()) == {"length"}
