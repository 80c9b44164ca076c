"""What becomes of a preempted request in each mode: it goes on where the mode says, and its caller cannot tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pressure import MODES, by_priority, engine_of, play, run, story
from scenario import R

from interlock.core import Engine, Policy, RequestStatus

PAST = {"recompute": "recompute", "yield": "yielded", "offload": "offloaded"}


def packaged(mode: str) -> list[Any]:
    """The records of configs/preemption.yaml."""
    engine = Engine.from_config("preemption", overrides=[f"policies.0.priority.preempt={mode}", "engine.max_repeat=1"])
    return list(engine.run())


def ends(records: list[Any]) -> dict[str, Any]:
    return {outcome.request_id: outcome for record in records for outcome in record.outcomes}


# -- re-entry of configs/preemption.yaml: `second` has said three tokens when `urgent` takes its slot at 3


@pytest.mark.parametrize("mode", MODES)
def test_the_preempted_request_goes_on_with_its_number_and_ends_once(mode: str) -> None:
    records = packaged(mode)
    moves = [move for record in records for move in record.transitions if move.request_id == "second"]
    assert [move.reason for move in moves] == ["arrived", "admitted", PAST[mode], "resumed", "stop"]
    assert len({move.request for move in moves}) == 1 and len({move.row for move in moves}) == 1
    versions = [move.version for move in moves]
    assert versions == sorted(set(versions))
    assert len([o for record in records for o in record.outcomes if o.request_id == "second"]) == 1
    assert ends(records)["second"].preemptions == 1
    assert ends(records)["first"].preemptions == ends(records)["urgent"].preemptions == 0


@pytest.mark.parametrize("mode", MODES)
def test_its_tokens_are_those_it_says_alone_and_each_is_delivered_once(mode: str) -> None:
    records = packaged(mode)
    one = Engine.from_config(
        {
            "engine": {"max_model_len": 64},
            "policies": "mixed",
            "executor": {"simulated": {"cost": {"constant": {"step_s": 1.0}}}},
            "workload": {"requests": [{"id": "second", "arrival": 0.0, "prompt": 8, "output": 7, "priority": 1}]},
        }
    )
    served_alone = ends(list(one.run()))["second"].output_ids.tolist()
    assert ends(records)["second"].output_ids.tolist() == served_alone
    number = ends(records)["second"].number
    delivered = [
        int(collected.result.tokens[0, at])
        for record in records
        for collected in record.collected
        for at in np.flatnonzero(collected.delivered[0])
        if collected.batch.numbers[at] == number
    ]
    assert delivered == served_alone


@pytest.mark.parametrize(("mode", "recomputed", "first"), [("recompute", 10, 11), ("yield", 0, 1), ("offload", 0, 1)])
def test_only_recompute_runs_the_context_again(mode: str, recomputed: int, first: int) -> None:
    # At 3 it has 8 + 3 tokens of context of which 10 are computed; it comes back with the slot of `first`, at 5.
    records = packaged(mode)
    assert ends(records)["second"].recomputed_tokens == recomputed
    number = ends(records)["second"].number
    ran = {
        round(r.time_s): int(r.batch.tokens[r.batch.numbers == number][0])
        for r in records
        if r.batch is not None and number in r.batch.numbers
    }
    assert ran == {0: 8, 1: 1, 2: 1, 5: first, 6: 1, 7: 1, 8: 1}


@pytest.mark.parametrize("mode", MODES)
def test_what_it_holds_while_it_waits_is_what_its_mode_says(mode: str) -> None:
    engine = Engine.from_config("preemption", overrides=[f"policies.0.priority.preempt={mode}"])
    for _ in range(4):
        engine.step()
    table, row = engine.state.table, engine.state.rows["second"]
    assert table.status[row] == RequestStatus.WAITING and table.slot[row] < 0
    held = {"recompute": (0, 0, 0), "yield": (3, 0, 10), "offload": (0, 3, 10)}  # blocks, on the host, computed
    assert (table.blocks[row], table.host[row], table.computed[row]) == held[mode]
    assert (table.emitted[row], engine.view.banked[row]) == (3, 13)
    assert (row in engine.state.resident) == (mode == "yield")
    assert 4096 - len(engine.state._host) == held[mode][1]


# -- looped models: depth, chunk and work survive YIELD and OFFLOAD


LOOPED = {"loops": 4, "split": True, "S": 1}
LONG = R(0, 8, 3, 9, id="L")  # alone: prelude, four loops, coda, and twice (prelude, four loops, coda): 18 batches
CHAIN = ["PROMPT_PRELUDE", *["PROMPT_RECURRENT"] * 4, "DECODE_CODA"]
CHAIN += ["DECODE_PRELUDE", *["DECODE_RECURRENT"] * 4, "DECODE_CODA"] * 2


@pytest.mark.parametrize("at", range(1, 18))
@pytest.mark.parametrize("mode", ["yield", "offload"])
def test_a_looped_request_loses_nothing_wherever_it_is_interrupted(mode: str, at: int) -> None:
    """It runs each piece of its work once, at the depths it would have run alone."""
    done = play(LONG, R(at, 4, 1, 0, id="H"), stack=by_priority(mode, "refill"), **LOOPED)
    assert [work for _, work, _, _ in story(done, "L")] == CHAIN
    depths = [depth for _, work, depth, _ in story(done, "L") if work.endswith("RECURRENT")]
    assert depths == [0, 1, 2, 3] * 3
    assert done.outcomes["L"].preemptions == 1 and done.outcomes["L"].recomputed_tokens == 0


@pytest.mark.parametrize("at", range(1, 18))
@pytest.mark.parametrize("mode", ["yield", "offload"])
def test_depth_chunk_and_work_are_as_they_were_when_it_resumes(mode: str, at: int) -> None:
    seen: list[tuple[int, ...]] = []

    def look(engine: Engine, record: Any) -> None:
        row = engine.state.rows.get("L")
        reasons = [move.reason for move in record.transitions if move.request_id == "L"]
        if row is not None and {"yielded", "offloaded", "resumed"} & set(reasons):
            table = engine.state.table
            columns = table.work, table.loop, table.chunk, table.computed, table.emitted
            seen.append(tuple(int(column[row]) for column in columns))

    play(LONG, R(at, 4, 1, 0, id="H"), stack=by_priority(mode, "refill"), **LOOPED, at=look)
    assert len(seen) == 2 and seen[0] == seen[1]


@pytest.mark.parametrize("at", range(1, 18))
def test_recompute_runs_a_looped_context_again_from_its_prelude(at: int) -> None:
    done = play(LONG, R(at, 4, 1, 0, id="H"), stack=by_priority("recompute", "refill"), **LOOPED)
    ran = story(done, "L")
    again = ran[at:]
    said = [i for i, work in enumerate(CHAIN) if work == "DECODE_CODA" and i < at]  # tokens delivered before
    assert [work for _, work, _, _ in ran[:at]] == CHAIN[:at]
    assert [work for _, work, _, _ in again[:6]] == CHAIN[:6] and again[0][3] == 8 + len(said)
    assert len(again) == 18 - 6 * len(said)
    computed = (8 if at >= 5 else 0) + (1 if at >= 11 else 0) + (1 if at >= 17 else 0)
    assert done.outcomes["L"].recomputed_tokens == computed


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_any_number_of_interruptions_changes_no_output(mode: str, data: Any) -> None:
    """Urgent requests at random times on one slot or two; hidden rows, KV and outputs are checked at every batch."""
    number = st.integers
    urgent = [
        R(data.draw(number(1, 60)), data.draw(number(1, 12)), data.draw(number(1, 3)), data.draw(number(0, 3)))
        for _ in range(data.draw(number(1, 5)))
    ]
    low = [R(0, data.draw(number(1, 12)), data.draw(number(1, 5)), 9) for _ in range(2)]
    loops = data.draw(st.sampled_from([1, 3]))
    stack = by_priority(mode, "mixed" if loops == 1 or data.draw(st.booleans()) else "refill")
    done = play(
        *low, *urgent, stack=stack, loops=loops, split=loops > 1, exits=[3, 1, 2], S=data.draw(number(1, 2)),
        N=data.draw(number(8, 16)), bs=2, B=data.draw(number(4, 20)), host=data.draw(st.sampled_from([0, 4, 99])),
        caching=data.draw(st.booleans()), reserve=data.draw(st.sampled_from(["none", "prompt", "full"])),
    )  # fmt: skip
    assert set(done.ends.values()) == {"length"}


# -- the host's space


def interrupted(host: int, mode: str = "offload", **more: Any) -> Any:
    # L holds 8 + 2 tokens, 3 blocks of 4, when H takes the only slot at 3.
    return play(R(0, 8, 7, 9, id="L"), R(3, 6, 3, 0, id="H"), stack=by_priority(mode, "mixed"), S=1, host=host, **more)


@pytest.mark.parametrize("host", [0, 1, 2])
def test_without_room_on_the_host_offload_falls_to_recompute(host: int) -> None:
    done = interrupted(host)
    assert done.reasons("L") == ["arrived", "admitted", "recompute", "resumed", "length"]
    assert done.outcomes["L"].recomputed_tokens == 10
    assert [str(victim.mode) for record in done.records for victim in record.preempted] == ["recompute"]


@pytest.mark.parametrize("host", [3, 4, 100])
def test_with_room_for_all_its_blocks_it_is_offloaded(host: int) -> None:
    done = interrupted(host)
    assert done.reasons("L") == ["arrived", "admitted", "offloaded", "resumed", "length"]
    assert done.outcomes["L"].recomputed_tokens == 0


def test_host_space_is_shared_by_all_who_wait_and_the_later_victim_falls_to_recompute() -> None:
    # Two victims of 3 blocks each at 3, room for 3 to 5 on the host: the first in the list takes it.
    low = [R(0, 8, 7, 9, id="L1"), R(0, 8, 7, 9, id="L2")]
    high = [R(3, 6, 3, 0, id="H1"), R(3, 6, 3, 0, id="H2")]
    done = play(*low, *high, stack=by_priority("offload", "mixed"), S=2, host=5)
    assert done.preempted == {3: ["L2", "L1"]}
    assert done.reasons("L2")[2] == "offloaded" and done.reasons("L1")[2] == "recompute"


def test_host_blocks_return_when_it_resumes() -> None:
    free: dict[int, int] = {}
    done = play(
        R(0, 8, 7, 9, id="L"), R(3, 6, 3, 0, id="H"), stack=by_priority("offload", "mixed"), S=1, host=10,
        at=lambda engine, record: free.__setitem__(round(record.time_s), len(engine.state._host)),
    )  # fmt: skip
    back = next(step for step in done.ran("L") if step > 3)
    assert [free[step] for step in (2, 3, back - 1, back)] == [10, 7, 7, 10]


def test_host_blocks_return_when_it_is_cancelled() -> None:
    free: dict[int, int] = {}
    done = play(
        R(0, 8, 7, 9, id="L", cancel_at=4.0), R(3, 6, 3, 0, id="H"), S=1, host=10,
        stack=by_priority("offload", "mixed"),
        at=lambda engine, record: free.__setitem__(round(record.time_s), len(engine.state._host)),
    )  # fmt: skip
    assert (free[3], free[4]) == (7, 10) and done.ends == {"L": "cancelled", "H": "length"}
    assert done.reasons("L") == ["arrived", "admitted", "offloaded", "cancelled"]


def test_a_row_that_comes_back_needs_room_for_its_next_token_too() -> None:  # B37
    # L has 8 tokens computed in 2 blocks of 4, and one unseen token that needs a third.
    low, high = R(0, 8, 4, 9, id="L"), R(1, 8, 5, 0, id="H")
    done = play(low, high, stack=by_priority("offload", "mixed"), N=4, reserve="none")
    back = next(step for step, reason in moves(done, "L") if reason == "resumed")
    # H's 8 + 5 - 1 tokens take 3 of the 4 blocks from step 2 on, so L waits for its end and then has 2 + 1.
    assert back == done.finished("H") + 1 and done.ran("L")[back] == 1


def moves(done: Any, name: str) -> list[tuple[int, str]]:
    """(time, reason) of a request's transitions."""
    return [(round(r.time_s), m.reason) for r in done.records for m in r.transitions if m.request_id == name]


# -- shared prefix blocks


SHARED = [7] * 8  # two blocks of 4


class Copies:
    """Notes what the executor is told to copy, by request id."""

    def __init__(self, engine: Engine) -> None:
        self.out: list[tuple[str, int]] = []
        self.back: list[tuple[str, int]] = []
        executor, state = engine.executor, engine.state
        suspend, resume = executor.suspend, executor.resume

        def note_out(rows: Any, modes: Any, copies: Any) -> None:
            self.out += [(state.entries[copy.row].request.id, len(copy.device)) for copy in copies]
            suspend(rows, modes, copies)

        def note_back(rows: Any, copies: Any) -> None:
            self.back += [(state.entries[copy.row].request.id, len(copy.device)) for copy in copies]
            resume(rows, copies)

        executor.suspend, executor.resume = note_out, note_back  # type: ignore[method-assign]


@pytest.mark.parametrize("caching", [True, False])
def test_shared_blocks_come_back_shared_where_they_are_still_cached(caching: bool) -> None:
    # L and K begin alike and share two blocks; K stays, so L finds them at its return and only its own are copied.
    low, keeps = R(0, [*SHARED, 1, 2, 3], 8, 9, id="L"), R(0, [*SHARED, 4], 12, 0, id="K")
    engine = engine_of(keeps, low, R(3, 6, 2, 0, id="H"), stack=by_priority("offload", "mixed"), S=2, caching=caching)
    copies = Copies(engine)
    done = run(engine)
    assert done.reasons("L") == ["arrived", "admitted", "offloaded", "resumed", "length"]
    assert copies.out == [("L", 4)]  # 11 + 2 tokens
    assert copies.back == [("L", 1 if caching else 4)], "its own full block is cached, too, where blocks are"
    assert done.outcomes["L"].recomputed_tokens == 0


def test_shared_blocks_are_held_by_both_again() -> None:
    held: dict[int, int] = {}

    def look(engine: Engine, record: Any) -> None:
        rows = engine.state.rows
        if "L" in rows and "K" in rows:
            both = np.intersect1d(engine.state.held(rows["L"]), engine.state.held(rows["K"]))
            held[round(record.time_s)] = len(both)

    low, keeps = R(0, [*SHARED, 1, 2, 3], 8, 9, id="L"), R(0, [*SHARED, 4], 12, 0, id="K")
    done = play(keeps, low, R(3, 6, 2, 0, id="H"), stack=by_priority("offload", "mixed"), S=2, caching=True, at=look)
    back = next(step for step, reason in moves(done, "L") if reason == "resumed")
    assert (held[2], held[3], held[back]) == (2, 0, 2)


def test_what_was_evicted_meanwhile_is_copied_back_whole() -> None:
    # Alone with H, whose prompt takes all the blocks, so nothing of L's is cached when it returns.
    low, high = R(0, [*SHARED, 1, 2, 3], 5, 9, id="L"), R(3, 20, 5, 0, id="H")
    engine = engine_of(low, high, stack=by_priority("offload", "mixed"), S=1, N=6, caching=True)
    copies = Copies(engine)
    done = run(engine)
    assert copies.out == [("L", 4)] and copies.back == [("L", 4)]
    assert done.outcomes["L"].recomputed_tokens == 0


# -- a yielded holder that is reclaimed: one preemption, its place kept


@pytest.mark.parametrize(("host", "turned"), [(10, "offloaded"), (3, "offloaded"), (2, "recompute"), (0, "recompute")])
def test_a_reclaimed_holder_counts_one_preemption_and_records_the_change(host: int, turned: str) -> None:
    low, high = R(0, 8, 9, 9, id="L"), R(2, 12, 6, 0, id="H")
    wait = R(1, 4, 2, 9, id="W")
    # H takes the only slot at 2: L yields 3 blocks of 6 (8 + 2 tokens). H's 12 tokens take the other 3, and its
    # growth at 3 needs a fourth: L's are reclaimed while it waits.
    done = play(low, wait, high, stack=by_priority("yield", "mixed"), S=1, N=6, host=host)
    assert done.reasons("L") == ["arrived", "admitted", "yielded", turned, "resumed", "length"]
    change = next(m for r in done.records for m in r.transitions if m.request_id == "L" and m.reason == turned)
    assert (change.from_status, change.to_status) == (RequestStatus.WAITING, RequestStatus.WAITING)
    assert done.outcomes["L"].preemptions == 1
    assert sum(len(record.preempted) for record in done.records) == 1
    assert done.started("W") > next(step for step, reason in moves(done, "L") if reason == "resumed"), (
        "its place is kept"
    )
    assert done.outcomes["L"].recomputed_tokens == (0 if turned == "offloaded" else 9)


@pytest.mark.parametrize("host", [0, 10])
def test_when_slots_suffice_and_blocks_do_not_yield_turns_in_the_same_commit(host: int) -> None:
    # H needs the only slot and 3 blocks; 2 are free beside L's 3 of 5.
    done = play(R(0, 8, 9, 9, id="L"), R(2, 12, 2, 0, id="H"), stack=by_priority("yield", "mixed"), S=1, N=5, host=host)
    turned = "offloaded" if host else "recompute"
    assert done.reasons("L") == ["arrived", "admitted", turned, "resumed", "length"]
    assert done.started("H") == 2 and done.outcomes["L"].preemptions == 1


def test_where_blocks_alone_are_missing_yield_means_that_from_the_start() -> None:
    # Two slots: H lacks only blocks.
    done = play(R(0, 13, 4, 9, id="L"), R(1, 8, 2, 0, id="H"), stack=by_priority("yield", "mixed"), S=2, N=5)
    assert done.reasons("L") == ["arrived", "admitted", "offloaded", "resumed", "length"]
    assert done.started("H") == 1


@pytest.mark.parametrize("mode", ["yield", "offload"])
def test_growth_takes_blocks_in_every_mode(mode: str) -> None:
    done = play(R(0, 8, 6, 0, id="H"), R(0, 7, 6, 9, id="L"), stack=by_priority(mode, "mixed"), N=4, S=2)
    assert done.reasons("L") == ["arrived", "admitted", "offloaded", "resumed", "length"]
    assert done.preempted == {1: ["L"]} and done.outcomes["L"].recomputed_tokens == 0
    assert done.finished("H") == 5 and done.finished("L") == 10


# -- each victim its own mode


class Modes(Policy):
    """Uses a mode for each request, by id."""

    def __init__(self, modes: dict[str, str]) -> None:
        super().__init__()
        self.modes = modes

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        for row in victims.rows.tolist():
            victims.use(self.modes.get(view.request(row).id, "recompute"), np.arange(view.capacity) == row)


def test_each_victim_may_give_way_in_its_own_mode() -> None:
    low = [R(0, 8, 9, 9, id=name) for name in "abc"]
    high = [R(3, 4, 2, 0, id=name) for name in "xyz"]
    own = Modes({"a": "yield", "b": "offload", "c": "recompute"})
    done = play(*low, *high, stack=(*by_priority("recompute"), own, "mixed"), S=3)
    assert [done.reasons(name)[2] for name in "abc"] == ["yielded", "offloaded", "recompute"]
    told = [victim.mode for record in done.records for victim in record.preempted]
    assert told == ["recompute", "offload", "yield"], "latest admitted first"


class Heard(Policy):
    """Listens to who gave way and who came."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: list[tuple[str, str]] = []

    def on_preempted(self, rows: Any, modes: Any, view: Any) -> None:
        self.gone += [(view.request(row).id, str(mode)) for row, mode in zip(rows.tolist(), modes, strict=True)]


@pytest.mark.parametrize("mode", MODES)
def test_policies_hear_who_gave_way_and_how(mode: str) -> None:
    heard = Heard()
    play(R(0, 8, 7, 9, id="L"), R(3, 6, 3, 0, id="H"), stack=(*by_priority(mode, "mixed"), heard), S=1)
    assert heard.gone == [("L", mode)]


# -- copies take time


ROOFLINE = {"cost": {"roofline": {"model": "llama-3-8b", "device": "a100-80gb"}}}


@pytest.mark.parametrize("gbps", [1.0, 25.0])
def test_copies_delay_the_batches_beside_which_they_run(gbps: float) -> None:
    """L's 3 blocks of 4 tokens of 131,072 bytes go out with H's first batch and come back with L's next one."""
    copied = round(3 * 4 * 131_072 / (gbps * 1e9) * 1e9)

    def durations(mode: str) -> tuple[dict[int, int], Any]:
        low, high = R(0, 8, 7, 9, id="L"), R(0.02, 6, 3, 0, id="H")
        simulated = {**ROOFLINE, "copy_gbps": gbps}
        done = run(engine_of(low, high, stack=by_priority(mode, "mixed"), S=1, simulated=simulated))
        spans = {c.batch.step: int(c.result.ends_ns[-1]) - r0 for r0, c in _starts(done)}
        return spans, done

    plain, kept = durations("yield")
    slower, moved = durations("offload")
    assert kept.reasons("L")[2] == "yielded" and moved.reasons("L")[2] == "offloaded"
    late = {step: slower[step] - plain[step] for step in plain if slower[step] != plain[step]}
    out = next(r.step for r in moved.records if r.preempted)
    back = next(r.step for r in moved.records for m in r.transitions if m.reason == "resumed")
    assert set(late) == {out, back} and all(abs(late[step] - copied) <= 1 for step in late)


def _starts(done: Any) -> Any:
    """(start of the batch, its result)."""
    started = {r.batch.step: r.batch.start_ns for r in done.records if r.batch is not None}
    return [(started[c.batch.step], c) for r in done.records for c in r.collected]


# -- stress: modes change from preemption to preemption


class AnyMode(Policy):
    """A random mode each time."""

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        victims.use(MODES[int(view.rng.integers(3))])


@pytest.mark.parametrize("seed", range(12))
def test_modes_may_change_from_one_preemption_to_the_next(seed: int) -> None:
    dice = np.random.default_rng(seed)
    requests = [
        R(int(dice.integers(0, 12)), int(dice.integers(1, 14)), int(dice.integers(1, 7)), int(dice.integers(0, 4)))
        for _ in range(8)
    ]
    stack = (*by_priority("yield"), AnyMode(), "mixed")
    done = play(
        *requests, stack=stack, S=2, N=10, bs=2, host=6, B=8, seed=seed, caching=bool(seed % 2), reserve="none",
        loops=1 + 2 * (seed % 3 == 0), split=seed % 3 == 0,
    )  # fmt: skip
    assert set(done.ends.values()) == {"length"}
