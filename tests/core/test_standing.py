"""Who may displace whom, how many give way, and that nobody does for nothing. In all three modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pressure import MODES, by_priority, load, looped_settings, play, story
from scenario import R

from interlock.core import DemandKind, Policy, PolicyViolation, PreemptMode

PAST = {"recompute": "recompute", "yield": "yielded", "offload": "offloaded"}


def moves(done: Any, name: str) -> dict[str, int]:
    """The time of each of a request's transitions, by reason; of equal ones the last."""
    return {m.reason: round(r.time_s) for r in done.records for m in r.transitions if m.request_id == name}


# -- plan before yielding: a slot that is taken is used, by the one it was taken for


@pytest.mark.parametrize("N", range(5, 9))
@pytest.mark.parametrize("mode", MODES)
def test_who_takes_a_slot_and_then_lacks_blocks_enters_at_that_boundary(mode: str, N: int) -> None:
    # L holds 3 blocks at 2, H needs 5 (17 tokens): whatever is missing beside the slot comes from L in the same commit.
    done = play(R(0, 8, 9, 9, id="L"), R(2, 17, 3, 0, id="H"), stack=by_priority(mode, "mixed"), S=1, N=N)
    assert done.started("H") == 2 and done.preempted == {2: ["L"]}
    assert moves(done, "L")["resumed"] == done.finished("H") + 1, "not before H has ended"


@pytest.mark.parametrize("at", range(1, 7))
@pytest.mark.parametrize("N", [7, 8, 9, 12])
@pytest.mark.parametrize("mode", MODES)
def test_the_same_in_the_middle_of_a_chunk(mode: str, N: int, at: int) -> None:
    low, high = R(0, 24, 2, 9, id="L"), R(at, 24, 2, 0, id="H")
    done = play(low, high, stack=by_priority(mode, "mixed"), S=1, N=N, loops=4, split=True)
    assert done.started("H") == at and list(done.preempted) == [at]
    assert moves(done, "L")["resumed"] == done.finished("H") + 1
    work = [key for _, key, _, _ in story(done, "H")]
    assert work[:6] == ["PROMPT_PRELUDE", *["PROMPT_RECURRENT"] * 4, "DECODE_CODA"], "H is not interrupted"


@pytest.mark.parametrize("mode", MODES)
def test_two_victims_where_one_is_not_enough(mode: str) -> None:
    # A victim suspended for nothing, because one was not enough and only one was asked for. H needs 4 blocks; L2 and L1
    # hold 2 each, and nothing is free.
    low = [R(0, 5, 3, 9, id="L1"), R(0, 5, 3, 9, id="L2")]
    done = play(*low, R(1, 16, 1, 0, id="H"), stack=by_priority(mode, "mixed"), N=4, S=4)
    assert done.preempted == {1: ["L2", "L1"]} and done.started("H") == 1


@pytest.mark.parametrize("mode", MODES)
def test_nobody_gives_way_where_all_together_do_not_suffice(mode: str) -> None:
    # U (0) holds 6 of 10 blocks and stands above H; with L's 2 and the 2 that are free H would have 4 of 5.
    requests = [R(0, 20, 5, 0, id="U"), R(0, 4, 5, 9, id="L"), R(1, 20, 2, 5, id="H")]
    done = play(*requests, N=10, S=2, stack=by_priority(mode, "mixed"))
    assert not done.preempted and done.started("H") == 5


@pytest.mark.parametrize("several", [2, 4, 5])
@pytest.mark.parametrize("mode", MODES)
def test_a_candidate_takes_the_fewest(mode: str, several: int) -> None:
    # B25 in each mode: L's hold 2 blocks of 3 and grow by 1; H needs 2.
    low = [R(0, 8, 8, 9, id=f"L{i}") for i in range(1, several + 1)]
    done = play(*low, R(1, 8, 2, 0, id="H"), N=3 * several, stack=by_priority(mode, "mixed"))
    assert done.preempted[1] == [f"L{several}"]


@pytest.mark.parametrize(("rows", "blocks"), [(2, 2), (3, 1), (4, 2), (6, 2), (7, 3), (8, 1)])
@pytest.mark.parametrize("mode", MODES)
def test_growth_takes_the_fewest(mode: str, rows: int, blocks: int) -> None:
    # B108 in each mode: n rows of b full blocks, no block free; the least v with b v >= n - v.
    done = play(*[R(0, 4 * blocks, 2) for _ in range(rows)], N=rows * blocks, B=128, stack=by_priority(mode, "mixed"))
    victims = next(v for v in range(rows + 1) if blocks * v >= rows - v)
    assert sorted(done.preempted[1]) == [f"R{i}" for i in range(rows - victims, rows)]
    assert list(done.steps[1]) == [f"R{i}" for i in range(rows - victims)]


@pytest.mark.parametrize("need", range(1, 13))
@pytest.mark.parametrize("mode", MODES)
def test_blocks_come_from_as_many_as_it_takes(mode: str, need: int) -> None:
    # Four rows of 3 blocks with room for more tokens fill 13 blocks but one; H needs `need` of them.
    low = [R(0, 10, 2, 9) for _ in range(4)]
    done = play(*low, R(1, 4 * need, 1, 0, id="H"), N=13, B=64, stack=by_priority(mode, "mixed"))
    victims = -(-(need - 1) // 3)
    assert done.preempted.get(1, []) == [f"R{i}" for i in range(3, 3 - victims, -1)]
    assert done.started("H") == 1


# -- residents


def test_a_resident_that_is_reclaimed_keeps_depth_and_chunk_and_place_and_count() -> None:
    # L is at depth 2 of its chunk when H takes its slot at 3: it keeps its 3 blocks of 6. W waits behind it. H's chunk
    # is 12 tokens, so that both fit; its 13th token takes a fourth block, which is L's, in the middle of H's run.
    requests = [R(0, 12, 3, 9, id="L"), R(1, 4, 1, 9, id="W"), R(3, 12, 3, 0, id="H")]
    seen: list[tuple[str, int, int, int, int]] = []

    def look(engine: Any, record: Any) -> None:
        row, table = engine.state.rows.get("L"), engine.state.table
        for move in record.transitions:
            if move.request_id == "L" and row is not None:
                queue = engine.state.waiting.rows.tolist()
                place = queue.index(row) if row in queue else -1
                facts = int(table.computed[row]), int(table.loop[row]), int(table.chunk[row])
                seen.append((move.reason, *facts, place))

    done = play(*requests, stack=by_priority("yield", "refill"), S=1, N=6, loops=4, split=True, at=look)
    kept = [facts for facts in seen if facts[0] in ("yielded", "offloaded", "resumed")]
    assert kept == [("yielded", 0, 2, 12, 0), ("offloaded", 0, 2, 12, 0), ("resumed", 0, 2, 12, -1)]
    assert done.outcomes["L"].preemptions == 1 and done.outcomes["L"].recomputed_tokens == 0
    assert done.started("W") > moves(done, "L")["resumed"]
    assert [depth for _, work, depth, _ in story(done, "L") if work == "PROMPT_RECURRENT"] == [0, 1, 2, 3]


@pytest.mark.parametrize("more", [("mixed",), ()], ids=["mixed", "alone"])
def test_a_yielded_holder_is_reclaimed_while_nothing_is_active(more: tuple) -> None:
    # L yields its slot to H at 2 and keeps 3 blocks of 5; H ends in step 3, when U comes, which needs 4. Nobody is
    # active, U stands before L in the offer: without a reclaim U would wait for L, and L could not be passed.
    requests = [R(0, 8, 9, 9, id="L"), R(2, 4, 2, 0, id="H"), R(4, 13, 2, 0, id="U")]
    done = play(*requests, stack=by_priority("yield", *more), S=1, N=5)
    assert done.finished("H") == 3 and done.started("U") == 4
    assert done.reasons("L") == ["arrived", "admitted", "yielded", "offloaded", "resumed", "length"]
    assert done.outcomes["L"].preemptions == 1


def test_a_yielded_holder_serves_any_candidate_whatever_its_standing() -> None:
    # E is L's equal and stands above nobody. A slot is free, blocks are not: it may have those of L, which waits,
    # since L, which came first and needs no block, is back already: only who cannot resume is reclaimed.
    requests = [R(0, 8, 9, 9, id="L"), R(2, 4, 4, 0, id="H"), R(3, 8, 2, 9, id="E")]
    done = play(*requests, stack=by_priority("yield", "mixed"), S=1, N=5)
    assert done.reasons("L") == ["arrived", "admitted", "yielded", "resumed", "length"]
    assert moves(done, "L")["resumed"] == 6 and done.started("E") > 6


class Holds(Policy):
    """Keeps one request out while another condition lasts."""

    def __init__(self, name: str, until: float) -> None:
        super().__init__()
        self.held, self.time = name, until

    def admit(self, offer: Any, view: Any) -> None:
        if view.now < self.time:
            mask = np.zeros(view.capacity, bool)
            mask[
                [row for row in offer.rows.tolist() if view.request(row).id == self.held and view.admitted_s[row] >= 0]
            ] = 1
            offer.hold(mask, until=self.time)


def test_an_equal_may_have_the_blocks_of_a_holder_that_is_held_back() -> None:
    # As before, but L is held until 20: now E takes the free slot and, of L's blocks, what it needs.
    requests = [R(0, 8, 9, 9, id="L"), R(2, 4, 2, 0, id="H"), R(3, 12, 2, 9, id="E")]
    done = play(*requests, stack=(*by_priority("yield", "mixed"), Holds("L", 20.0)), S=1, N=5)
    assert done.started("E") == 4
    assert done.reasons("L") == ["arrived", "admitted", "yielded", "offloaded", "resumed", "length"]


# -- keys that give standing


class Keyed(Policy):
    """Orders victims by a verb, in a mode; candidates by priority."""

    def __init__(self, verb: str, mode: str = "recompute", since: int = 0) -> None:
        super().__init__()
        self.verb, self.mode, self.since = verb, mode, since

    def admit(self, offer: Any, view: Any) -> None:
        offer.sort_by("priority")

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        verb = self.verb if view.step >= self.since else "name"
        if verb == "name":
            victims.sort_by("-priority")
        elif verb == "table":
            victims.sort_by(-view.priority)
        elif verb == "two keys":
            victims.sort_by("-priority", "-arrival")
        elif verb == "reorder":
            victims.reorder(victims.rows[::-1].copy())
        elif verb == "aligned":
            victims.sort_by(-view.priority[victims.rows])
        elif verb == "key, then reorder":
            victims.sort_by("-priority")
            victims.reorder(victims.rows.copy())
        elif verb == "table, then aligned":
            victims.sort_by(-view.priority)
            victims.sort_by(-view.priority[victims.rows])
        elif verb == "aligned, then name":
            victims.sort_by(-view.priority[victims.rows])
            victims.sort_by("-priority")
        victims.use(self.mode)


LOW = [R(0, 4, 30, 9, id="L1"), R(0, 4, 30, 9, id="L2")]
GIVES = ("name", "table", "two keys", "aligned, then name")
GIVES_NONE = ("nothing", "reorder", "aligned", "key, then reorder", "table, then aligned")


@pytest.mark.parametrize("verb", GIVES)
@pytest.mark.parametrize("mode", MODES)
def test_a_name_or_a_table_long_key_gives_standing(mode: str, verb: str) -> None:
    done = play(*LOW, R(3, 4, 4, 0, id="H"), S=2, stack=(Keyed(verb, mode), "mixed"))
    assert done.started("H") == 3 and done.preempted == {3: ["L2"]} and done.reasons("L2")[2] == PAST[mode]


@pytest.mark.parametrize("verb", GIVES_NONE)
@pytest.mark.parametrize("mode", MODES)
def test_aligned_keys_and_reorder_give_none(mode: str, verb: str) -> None:
    done = play(*LOW, R(3, 4, 4, 0, id="H"), S=2, stack=(Keyed(verb, mode), "mixed"))
    assert not done.preempted and done.started("H") == 30


@pytest.mark.parametrize("verb", [verb for verb in GIVES if verb != "two keys"])
@pytest.mark.parametrize("mode", MODES)
def test_equals_do_not_displace_each_other_whatever_the_key(mode: str, verb: str) -> None:
    done = play(*LOW, R(3, 4, 4, 9, id="E"), S=2, stack=(Keyed(verb, mode), "mixed"))
    assert not done.preempted and done.started("E") == 30


def test_only_the_first_key_counts_for_standing() -> None:
    # By the second key E, which came later, would stand below the others; it does not count, and E is their equal.
    done = play(*LOW, R(3, 4, 4, 9, id="E"), S=2, stack=(Keyed("two keys", "yield"), "mixed"))
    assert not done.preempted


@pytest.mark.parametrize("verb", GIVES_NONE)
def test_without_standing_holders_are_still_reclaimed_from(verb: str) -> None:
    # Until step 3 there is standing, so L yields to H at 2; then there is none, and U takes L's blocks with H's slot.
    requests = [R(0, 8, 9, 9, id="L"), R(2, 4, 2, 0, id="H"), R(4, 13, 2, 0, id="U")]
    done = play(*requests, stack=(Keyed(verb, "yield", since=3), "mixed"), S=1, N=5)
    assert done.started("U") == 4
    assert done.reasons("L") == ["arrived", "admitted", "yielded", "offloaded", "resumed", "length"]


class ByLength(Policy):
    """The longest prompt gives way."""

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        victims.sort_by("-prompt_tokens")


def test_the_last_sort_of_the_stack_gives_the_standing() -> None:
    # By priority H stands above both; by length, which comes last, H of 6 stands above the longer one alone.
    low = [R(0, 9, 30, 9, id="long"), R(0, 4, 30, 9, id="short")]
    done = play(*low, R(3, 6, 4, 0, id="H"), S=2, stack=(*by_priority("recompute"), ByLength(), "mixed"))
    assert done.preempted == {3: ["long"]}
    done = play(*low, R(3, 10, 4, 0, id="H"), S=2, stack=(*by_priority("recompute"), ByLength(), "mixed"))
    assert not done.preempted, "and above nobody when it is the longest itself"


class Protects(Policy):
    """Protects requests by id."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        victims.protect(np.array([view.request(row).id in self.names for row in victims.rows.tolist()], bool))


@pytest.mark.parametrize("mode", MODES)
def test_a_protected_row_is_nobodys_victim(mode: str) -> None:
    done = play(*LOW, R(3, 4, 4, 0, id="H"), S=2, stack=(*by_priority(mode), Protects("L2"), "mixed"))
    assert done.preempted == {3: ["L1"]}
    done = play(*LOW, R(3, 4, 4, 0, id="H"), S=2, stack=(*by_priority(mode), Protects("L1", "L2"), "mixed"))
    assert not done.preempted and done.started("H") == 30


def test_a_growing_row_may_give_way_itself_though_it_is_protected() -> None:
    # H's ninth token needs a block and L is protected, and so is H: H gives way itself.
    done = play(R(0, 8, 6, id="H"), R(0, 7, 6, id="L"), N=4, S=2, stack=("fcfs", Protects("H", "L"), "mixed"))
    assert done.preempted == {1: ["H"]} and set(done.ends.values()) == {"length"}


class Flips(Policy):
    """Asks for a mode that is none."""

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        victims.use("swap")


def test_a_mode_that_is_none_is_an_error_that_names_what_is_allowed() -> None:
    allowed = ", ".join(PreemptMode)
    with pytest.raises(PolicyViolation, match=f"flips.preempt broke rule .*'swap'; allowed: {allowed}"):
        play(R(0, 8, 6), R(0, 7, 6), N=4, stack=("fcfs", Flips(), "mixed"))


# -- properties over random loads


def replay(done: Any, check: Any) -> None:
    """Call check(record, active before it gave anybody away, by admission), boundary by boundary."""
    active: list[int] = []
    for record in done.records:
        for move in record.transitions:
            if move.to_status.name == "FINISHED" and move.request in active:
                active.remove(move.request)
        check(record, list(active))
        for move in record.transitions:
            if move.to_status.name == "WAITING" and move.request in active:
                active.remove(move.request)
        active += record.admitted


CASES = [
    (by_priority(mode, *more), loops)
    for mode in MODES
    for more, loops in [(("mixed",), 1), ((), 1), (("mixed",), 3), (("refill",), 3)]
]


@pytest.mark.parametrize(("stack", "loops"), CASES, ids=str)
def test_nobody_is_displaced_for_nothing(stack: tuple, loops: int) -> None:
    """Where somebody gives way to a candidate, one that stands strictly above it enters at that boundary, and the
    victim does not come back at it."""
    for seed in range(300, 312):
        requests, settings = load(seed)
        priority = {i: request["priority"] for i, request in enumerate(requests)}
        done = play(
            *requests, stack=stack, split=loops > 1, **settings, **(looped_settings(seed, loops) if loops > 1 else {})
        )
        rank = {number: priority[int(name[1:])] for number, name in done.ids.items()}

        def check(record: Any, active: list[int], rank: dict[int, int] = rank, seed: int = seed) -> None:
            displaced = [v for v in record.preempted if v.demand != DemandKind.GROWTH]
            growth = [v for v in record.preempted if v.demand == DemandKind.GROWTH]
            assert not (displaced and growth), "a boundary at which growth takes victims displaces nobody"
            assert not (growth and record.admitted), "and admits nobody"
            assert not {v.request for v in record.preempted} & set(record.admitted)
            assert len(displaced) <= len(active)
            for victim in displaced:
                assert any(rank[other] < rank[victim.request] for other in record.admitted), f"seed {seed}"

        replay(done, check)


@pytest.mark.parametrize(("stack", "loops"), CASES, ids=str)
def test_among_equals_only_growth_takes_blocks_and_the_latest_admitted_gives_way(stack: tuple, loops: int) -> None:
    for seed in range(320, 330):
        requests, settings = load(seed)
        settings |= {"caching": False}  # each block has one owner, so each victim frees something
        requests = [{**request, "priority": 1} for request in requests]
        done = play(
            *requests, stack=stack, split=loops > 1, **settings, **(looped_settings(seed, loops) if loops > 1 else {})
        )

        def check(record: Any, active: list[int], loops: int = loops) -> None:
            gone = [victim.request for victim in record.preempted]
            assert all(victim.demand == DemandKind.GROWTH for victim in record.preempted)
            if loops == 1:
                assert sorted(gone) == sorted(active[len(active) - len(gone) :])

        replay(done, check)


@settings(max_examples=120, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_no_smaller_number_of_victims_would_have_done(data: Any) -> None:
    """One urgent candidate among random low rows: the victims are the shortest prefix with which `view.fits`."""
    number = st.integers
    low = [R(0, data.draw(number(1, 12)), 9, data.draw(number(6, 9))) for _ in range(data.draw(number(1, 5)))]
    high = R(3, data.draw(number(1, 24)), 2, 5, id="H")
    asked: list[tuple[int, list[list[str]]]] = []

    class Expects(Policy):
        """After `priority`: prefixes of the list with which H would fit."""

        def preempt(self, victims: Any, demand: Any, view: Any) -> None:
            if demand.kind is not DemandKind.GROWTH and view.request(demand.row).id == "H" and not asked:
                rows = victims.rows
                names = [view.request(row).id for row in rows.tolist()]
                fit = [names[:k] for k in range(len(rows) + 1) if view.fits(demand.row, without=rows[:k])]
                asked.append((round(view.now), fit))

    mode = data.draw(st.sampled_from(MODES))
    total = sum(-(-(request["prompt"] + 8) // 4) for request in low)
    slots, blocks = data.draw(number(1, len(low))), data.draw(number(max(7, total // 2), max(7, total + 2)))
    done = play(
        *low, high, stack=(*by_priority(mode), Expects(), "mixed"), S=slots, N=blocks, B=128, reserve=data.draw(
            st.sampled_from(["none", "prompt", "full"])
        ),
    )  # fmt: skip
    for step, fit in asked:
        assert sorted(done.preempted.get(step, [])) == (sorted(fit[0]) if fit else [])
        assert (done.started("H") == step) == bool(fit)
