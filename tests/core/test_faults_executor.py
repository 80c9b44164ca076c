"""An executor that fails a batch, or hands out a result twice."""

from __future__ import annotations

from typing import Any

import pytest
from scenario import MIXED, URGENT, R, engine_of, play

from interlock.core import BatchResult, ExecutorError, Policy

# With fails={k} the k-th submission fails: step k of the boundary at time k. It takes its second like any other.


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("k", range(6))
def test_a_failed_batch_is_tried_once_more_and_nothing_is_lost(k: int, caching: bool) -> None:
    run = play(R(0, 10, 5), R(0, 6, 4), B=12, caching=caching, fails={k})
    assert run.ends == {"R0": "length", "R1": "length"}
    # R0's 10 tokens and R1's 2 are step 0, R1's other 4 step 1; R0 would end in step 4, R1 in step 4.
    assert max(run.finished("R0"), run.finished("R1")) == (5 if k <= 4 else 4)


def test_the_rows_of_a_failed_batch_are_as_they_were() -> None:
    stands: dict[int, tuple[Any, ...]] = {}

    def note(engine: Any, record: Any) -> None:
        state, table = engine.state, engine.state.table
        row = state.rows.get("R0")
        if row is not None:
            columns = ("status", "work", "slot", "version", "computed", "emitted", "loop", "preemptions", "blocks")
            stands[round(record.time_s)] = tuple(int(getattr(table, name)[row]) for name in columns)

    run = play(R(0, 7, 5), at=note, fails={2})
    assert stands[2] == stands[3], "what was submitted at 2 is submitted again at 3"
    assert run.ran("R0") == {0: 7, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
    assert run.reasons("R0") == ["arrived", "admitted", "length"]


@pytest.mark.parametrize("k", [0, 1, 3])
def test_a_second_failure_in_a_row_ends_the_rows_of_the_batch_with_error(k: int) -> None:
    run = play(R(0, 4, 6), R(0, 4, 6), R(k + 2, 4, 2, id="later"), fails={k, k + 1})
    assert run.ends == {"R0": "error", "R1": "error", "later": "length"}
    assert run.outcomes["R0"].finished_ns == (k + 2) * 10**9 and len(run.output("R0")) == k
    assert "device lost" in str(run.outcomes["R0"].reject_reason)


def test_who_is_not_in_the_failed_batches_is_unharmed() -> None:
    class First(Policy):
        def select(self, plan: Any, view: Any) -> None:
            late = [view.request(row).id == "R1" for row in plan.rows]
            if view.step < 2 and any(late):
                import numpy as np

                plan.drop(np.array(late))

    run = play(R(0, 4, 6), R(0, 4, 6), stack=(*MIXED, First()), fails={0, 1})
    assert run.ends == {"R0": "error", "R1": "length"}


def test_failures_far_apart_are_each_tried_again() -> None:
    # The batch's rows may be tried once more: a row whose second attempt succeeded is as good as new.
    run = play(R(0, 4, 12), fails={1, 6, 9})
    assert run.ends == {"R0": "length"} and len(run.output("R0")) == 12


def test_policies_are_told_of_a_failed_batch() -> None:
    told: list[Any] = []

    class Listens(Policy):
        def on_batch_failed(self, batch: Any, view: Any) -> None:
            told.append((batch.step, batch.numbers.tolist(), (view.in_flight[batch.rows] == 0).all()))

    play(R(0, 4, 3), R(0, 4, 3), stack=(*MIXED, Listens()), fails={1})
    assert told == [(1, [0, 1], True)]


def test_policies_are_told_of_those_who_end_with_error() -> None:
    told: list[int] = []

    class Listens(Policy):
        def on_finished(self, rows: Any, view: Any) -> None:
            told.extend(rows.tolist())

    play(R(0, 4, 3), R(0, 4, 3), stack=(*MIXED, Listens()), fails={1, 2})
    assert len(told) == 2


def test_what_a_failed_batch_published_is_withdrawn() -> None:
    # R0's two blocks are published with step 0. It fails; R0 is held back by the plan, and R1, of the same prompt,
    # finds nothing.
    class Late(Policy):
        def select(self, plan: Any, view: Any) -> None:
            if 1 <= view.step < 3:
                import numpy as np

                plan.drop(np.array([view.request(row).id == "R0" for row in plan.rows]))

    prompt = list(range(1, 10))
    run = play(R(0, prompt, 2), R(1, prompt, 2), caching=True, fails={0}, stack=(*MIXED, Late()))
    assert run.outcomes["R1"].cached_tokens == 0 and run.ran("R1") == {1: 9, 2: 1}


@pytest.mark.parametrize("k", range(8))
def test_a_failure_under_pressure_loses_nothing(k: int) -> None:
    for stack in (MIXED, URGENT):
        run = play(R(0, 8, 6, 0), R(0, 7, 6, 9), R(2, 5, 2, 1), N=5, S=3, caching=True, stack=stack, fails={k})
        assert set(run.ends.values()) == {"length"}


@pytest.mark.parametrize("at", [1.0, 2.0])
def test_a_cancellation_beside_a_failure_ends_it_once(at: float) -> None:
    run = play(R(0, 8, 6, cancel_at=at), R(0, 8, 3), fails={0})
    assert run.ends == {"R0": "cancelled", "R1": "length"}


# -- late and false results


@pytest.mark.parametrize("k", [0, 1, 2])
def test_a_second_result_of_a_ticket_is_refused_and_counted(k: int) -> None:
    run = play(R(0, 4, 3), R(0, 4, 5), twice={k})
    assert run.engine.stats.refused_results == 1
    assert run.ends == {"R0": "length", "R1": "length"}


def test_a_late_result_of_an_old_ticket_does_not_reach_the_row_s_next_owner() -> None:
    engine = engine_of(R(0, 4, 1, id="x"), R(1, 4, 3, id="x"), S=1)
    executor, late = engine.executor, []
    collect = executor.collect

    def handing(block: bool) -> list[BatchResult]:
        results = list(collect(block))
        late.extend(results)
        return results + late[:1] if len(late) > 1 and results else results

    executor.collect = handing  # type: ignore[method-assign]
    while engine.step() is not None:
        pass
    engine.audit.drained()  # type: ignore[attr-defined]
    assert engine.stats.refused_results >= 1
    assert [len(stream) for stream in engine.audit.streams.values()] == [1, 3]  # type: ignore[attr-defined]


def test_a_row_that_must_sample_and_has_no_token_is_the_executor_s_fault() -> None:
    import numpy as np

    engine = engine_of(R(0, 4, 3))
    collect = engine.executor.collect

    def lying(block: bool) -> list[BatchResult]:
        return [BatchResult(r.ticket, r.ends_ns, np.full_like(r.tokens, -1)) for r in collect(block)]

    engine.executor.collect = lying  # type: ignore[method-assign]
    engine.step()
    with pytest.raises(ExecutorError, match="no token"):
        engine.step()
