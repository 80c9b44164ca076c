"""What is counted, how often, and when it is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scenario import MIXED, R, engine_of, play

from interlock.core import Engine, Policy, RequestStatus

PREFIX = list(range(1, 9))


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_a_hit_counts_once_however_often_admission_was_tried(attempts: int) -> None:
    # B99. R0 leaves 2 cached blocks and ends; Z then holds the 4 others of 6 for so many steps; R1 needs 3, 2 of them
    # hits.
    requests = [R(0, [*PREFIX, 99], 1), R(2, 13, attempts, id="Z"), R(2, [*PREFIX, 98], 2, id="R1")]
    run = play(*requests, N=6, caching=True)
    cached = [record.cached[2] for record in run.records if 2 in record.cached]
    # Z's 13 tokens take the three blocks never used and R0's part-filled one: the two cached ones stay.
    assert run.started("R1") == 2 + attempts
    assert cached == [8] and run.outcomes["R1"].cached_tokens == 8


def test_a_request_that_resumes_on_its_own_blocks_counts_no_hit() -> None:
    # B99. Five blocks free beside the pair's four, taken by nobody before R1 is back.
    run = play(R(0, 8, 6), R(0, 8, 6), R(0, 12, 2), N=8, caching=True)
    assert any(outcome.preemptions for outcome in run.outcomes.values())
    assert all(outcome.cached_tokens == 0 for outcome in run.outcomes.values())
    assert sum(sum(record.cached.values()) for record in run.records) == 0


def test_recomputed_tokens_are_those_that_were_computed_before() -> None:
    # R1 gives way in step 1 with 7 tokens computed and one said: its context of 8 runs again, 7 of it for the second
    # time.
    run = play(R(0, 8, 6), R(0, 7, 6), N=4)
    assert (run.outcomes["R1"].recomputed_tokens, run.outcomes["R0"].recomputed_tokens) == (7, 0)


class Monitor:
    """An observer that compares what it is told with the state of the engine at that moment."""

    engine: Engine

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_boundary(self, record: Any) -> None:
        state, counts = self.engine.state, record.counts
        status = state.table.status[sorted(state.entries)]
        assert (counts.running, counts.waiting) == (
            (status == RequestStatus.ACTIVE).sum(),
            (status == RequestStatus.WAITING).sum(),
        )
        assert (counts.used_blocks, counts.fenced_blocks) == (state.pool.used, state.pool.fenced)
        if record.batch is not None:
            self.steps.append(record.batch.step)
            assert (state.table.in_flight[record.batch.rows] == 1).all(), "the batch is out"
            assert state.step == record.batch.step + 1


def test_a_step_is_told_once_it_is_applied() -> None:  # B100
    monitor = Monitor()
    engine = engine_of(R(0, 8, 6), R(0, 7, 6), R(2, 4, 3, cancel_at=5.0), N=4)
    monitor.engine = engine
    engine.stack._observers["on_boundary"].append(monitor.on_boundary)
    for _ in engine.run():
        pass
    assert monitor.steps == list(range(len(monitor.steps)))


class Witness(Policy):
    """Checks in each event that what it tells has happened, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[int]] = {}
        self.tokens: dict[int, int] = {}

    def note(self, event: str, rows: np.ndarray, view: Any) -> None:
        self.seen.setdefault(event, []).extend(view._state.entries[int(row)].number for row in rows)

    def on_arrival(self, rows: Any, view: Any) -> None:
        new = rows[view.status[rows] != RequestStatus.FINISHED]  # who asked for nothing has ended by now
        assert (view.status[new] == RequestStatus.WAITING).all() and set(new) <= set(view.waiting)
        self.note("arrival", rows, view)

    def on_admitted(self, rows: Any, view: Any) -> None:
        assert (
            (view.status[rows] == RequestStatus.ACTIVE).all()
            and (view.slot[rows] >= 0).all()
            and set(rows) <= set(view.active)
        )
        self.note("admitted", rows, view)

    def on_batch(self, batch: Any, view: Any) -> None:
        assert set(batch.rows) <= set(view.active) and (view.in_flight[batch.rows] == 1).all()

    def on_result(self, rows: Any, computed: Any, emitted: Any, view: Any) -> None:
        assert (view.in_flight[rows] == 0).all() and (computed >= 1).all() and (emitted >= 0).all()
        for row, count in zip(rows.tolist(), emitted.tolist(), strict=True):
            number = view._state.entries[row].number
            self.tokens[number] = self.tokens.get(number, 0) + count

    def on_preempted(self, rows: Any, modes: Any, view: Any) -> None:
        assert (
            (view.status[rows] == RequestStatus.WAITING).all()
            and (view.slot[rows] < 0).all()
            and (view.blocks[rows] == 0).all()
        )
        assert [str(mode) for mode in modes] == ["recompute"] * len(rows)
        self.note("preempted", rows, view)

    def on_finished(self, rows: Any, view: Any) -> None:
        assert (view.status[rows] == RequestStatus.FINISHED).all()
        self.note("finished", rows, view)

    def on_retired(self, rows: Any, view: Any) -> None:
        assert (view.blocks[rows] == 0).all() and (view.slot[rows] < 0).all()
        self.note("retired", rows, view)


@pytest.mark.parametrize("caching", [False, True])
def test_events_tell_what_has_happened_and_each_thing_once(caching: bool) -> None:  # B100
    witness = Witness()
    requests = [R(0, 8, 6), R(0, 7, 6), R(1, 4, 3), R(2, 4, 9, cancel_at=4.0), R(3, 4, 9, timeout_s=2.0)]
    run = play(*requests, N=4, S=3, caching=caching, stack=(*MIXED, witness))
    everybody = list(range(5))
    assert (
        sorted(witness.seen["arrival"])
        == sorted(witness.seen["finished"])
        == sorted(witness.seen["retired"])
        == everybody
    )
    assert len(witness.seen["preempted"]) == sum(outcome.preemptions for outcome in run.outcomes.values()) > 0
    first = [run.ids[n] for n in dict.fromkeys(witness.seen["admitted"])]
    assert first == [move.request_id for r in run.records for move in r.transitions if move.reason == "admitted"]
    assert {run.ids[n]: count for n, count in witness.tokens.items() if count} == {
        name: len(outcome.output_ids) for name, outcome in run.outcomes.items() if len(outcome.output_ids)
    }


class Refuses(Policy):
    """Rejects those who wait with a prompt of more than 8 tokens."""

    def admit(self, offer: Any, view: Any) -> None:
        offer.reject(view.prompt_tokens > 8, "too long for us")


def test_a_policy_s_rejection_is_an_end_like_any_other() -> None:
    witness = Witness()
    run = play(R(0, 9, 2), R(0, 8, 2), stack=(*MIXED, Refuses(), witness))
    assert run.why("R0") == "rejected: too long for us" and run.ends["R1"] == "length"
    assert run.reasons("R0") == ["arrived", "rejected"]
    assert sorted(witness.seen["finished"]) == sorted(witness.seen["retired"]) == [0, 1]


def test_the_answers_of_those_who_end_at_the_door_are_told_to_policies_too() -> None:
    # max_tokens 0 ends on arrival: it has a row, so its end and its retirement are events as well.
    from interlock.core import Request, SamplingParams

    witness = Witness()
    engine = engine_of(R(0, 4, 2), stack=(*MIXED, witness))
    engine.submit(Request("x", 4, SamplingParams(max_tokens=0)))
    while engine.step() is not None:
        pass
    assert sorted(witness.seen["finished"]) == sorted(witness.seen["retired"]) == [0, 1]
