"""The simulated executor: virtual time, tokens independent of batching, stretches equal to single steps, loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.batch import Batch, BatchResult
from interlock.core.errors import ExecutorError
from interlock.core.executor import Capability, Executor, ExecutorConfig
from interlock.core.request import PreemptMode, Request, SamplingParams
from interlock.core.work import Operation, WorkKey
from interlock.executors.simulated.executor import Simulated

MakeBatch = Callable[..., Batch]
SECOND = 1_000_000_000
CONSTANT = {"cost": {"constant": {"step_s": 1.0}}}
LOOPED = CONSTANT | {"model": {"loops": 4, "exit": {"trace": [4, 2, 3]}}}
DECODE = WorkKey.DECODE_ATOMIC
PROMPT = 8
"""Prompt tokens of every request here; a decode from `start` 8 + i - 1 yields output position i."""


def started(options: dict[str, Any] | None = None, seed: int = 0) -> Simulated:
    executor = Simulated(options)
    executor.start(ExecutorConfig(64, 2048, 8192, 4096, 16, "atomic", seed, lambda: 0))
    return executor


def expected(
    executor: Executor, outputs: Sequence[int | None], sampling: Sequence[SamplingParams] | None = None
) -> dict[int, tuple[int, Request]]:
    """New rows 0, 1, ... whose answers have these lengths."""
    new = {}
    for number, output in enumerate(outputs):
        request = Request(f"r{number}", PROMPT, sampling[number] if sampling else SamplingParams())
        executor.expect(number, request, output)
        new[number] = (number, request)
    return new


def run(executor: Executor, batch: Batch) -> BatchResult:
    ticket = executor.submit(batch)
    (result,) = executor.collect(True)
    assert result.ticket is ticket
    return result


def test_it_is_an_executor_of_virtual_time() -> None:
    executor: Executor = started()
    features = {Capability.STEP_COST, Capability.VIRTUAL_TIME, Capability.STRETCH}
    assert executor.capabilities.features == features
    assert (executor.capabilities.loops, executor.capabilities.eos_token_ids) == (1, (0,))


def test_capabilities_follow_the_options() -> None:
    capabilities = started(LOOPED | {"speculation": {"acceptance": 0.7}}).capabilities
    assert capabilities.features >= {Capability.LOOPED, Capability.SPECULATION}
    assert capabilities.loops == 4
    assert capabilities.can_mix(frozenset({WorkKey.PROMPT_RECURRENT, WorkKey.DECODE_RECURRENT}))
    assert capabilities.can_mix(frozenset({WorkKey.PROMPT_PRELUDE, WorkKey.DECODE_PRELUDE}))
    assert not started().capabilities.can_mix(frozenset({WorkKey.PROMPT_PRELUDE, WorkKey.DECODE_PRELUDE}))


def test_the_default_is_llama_3_8b_on_an_a100() -> None:
    # 10.5 ms for one decode at 512 tokens of context, by the reference roofline.
    assert Simulated().step_s(0, 1, 512) == pytest.approx(0.0105, rel=0.06)
    assert Simulated().step_s(512, 0, 0) == pytest.approx(0.0328, rel=0.06)


def test_a_batch_starts_when_the_one_before_has_ended(make_batch: MakeBatch) -> None:
    executor = started(CONSTANT)
    new = expected(executor, [None])
    executor.submit(make_batch([(DECODE, 8, 1)], new=new, start_ns=5 * SECOND))
    executor.submit(make_batch([(DECODE, 9, 1)], start_ns=5 * SECOND))
    executor.submit(make_batch([(DECODE, 10, 1)], start_ns=9 * SECOND))
    results = executor.collect(False)
    assert [result.ends_ns.tolist() for result in results] == [[6 * SECOND], [7 * SECOND], [10 * SECOND]]
    assert executor.collect(True) == []


def test_durations_are_rounded_to_whole_nanoseconds_one_by_one(make_batch: MakeBatch) -> None:
    executor = started({"cost": {"constant": {"step_s": 1.4e-9}}})
    result = run(executor, make_batch([(DECODE, 8, 1)], new=expected(executor, [None]), repeat=5))
    assert result.ends_ns.tolist() == [1, 2, 3, 4, 5]


def test_the_last_chunk_of_a_prompt_yields_the_first_token(make_batch: MakeBatch) -> None:
    executor = started()
    new = expected(executor, [None, 1])
    chunks = [(WorkKey.PROMPT_ATOMIC, 0, 4), (WorkKey.PROMPT_ATOMIC, 0, PROMPT)]
    first = run(executor, make_batch(chunks, new=new, samples=[False, True]))
    assert first.tokens.tolist() == [[-1, 0]]  # row 1 ends with its first token
    second = run(executor, make_batch([(WorkKey.PROMPT_ATOMIC, 4, 4)]))
    alone = started()
    whole = run(alone, make_batch([(WorkKey.PROMPT_ATOMIC, 0, PROMPT)], new=expected(alone, [None])))
    assert second.tokens.tolist() == whole.tokens.tolist()
    assert second.tokens.dtype == np.int32 and second.ends_ns.dtype == np.int64


def test_a_recomputed_row_goes_on_where_it_was(make_batch: MakeBatch) -> None:
    executor = started()
    run(executor, make_batch([(DECODE, 8, 1)], new=expected(executor, [None])))
    straight = run(executor, make_batch([(DECODE, 9, 1)]))
    rows = np.array([0])
    executor.suspend(rows, [PreemptMode.RECOMPUTE], [])
    executor.resume(rows, [])
    again = run(executor, make_batch([(WorkKey.PROMPT_ATOMIC, 0, 10)]))
    assert again.tokens.tolist() == straight.tokens.tolist()


def test_a_forgotten_row_and_number_start_afresh(make_batch: MakeBatch) -> None:
    executor = started()
    run(executor, make_batch([(DECODE, 8, 1)], new=expected(executor, [2])))
    executor.forget(np.array([0]))
    executor.forget(np.array([0]))
    again = run(executor, make_batch([(DECODE, 8, 1)], new={0: (0, Request("r0", PROMPT))}))
    assert again.tokens[0, 0] != 0


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.permutations(range(6)), st.integers(1, 6), st.integers(0, 20))
def test_tokens_do_not_depend_on_the_batch(make_batch: MakeBatch, order: list[int], size: int, position: int) -> None:
    outputs = [3, None, 1, 12, 9, 21]
    executor, alone = started(), started()
    starts = [PROMPT - 1 + min(position, (output or 99) - 1) for output in outputs]
    new, single = expected(executor, outputs), expected(alone, outputs)
    at = order[:size]
    batch = make_batch([(DECODE, starts[row], 1) for row in at], at=at, new={row: new[row] for row in at})
    together = run(executor, batch).tokens[0].tolist()
    apart = [
        int(run(alone, make_batch([(DECODE, starts[row], 1)], at=[row], new={row: single[row]})).tokens[0, 0])
        for row in at
    ]
    assert together == apart


COSTS: list[dict[str, Any]] = [
    {"constant": {"step_s": 0.0100000004}},
    {"linear": {"base_s": 0.005, "decode_token_s": 1e-4, "context_token_s": 1.0000001e-8}},
    {"roofline": {"model": "llama-3-8b", "device": "a100-80gb"}},
]


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    cost=st.sampled_from(COSTS),
    rows=st.lists(st.tuples(st.integers(1, 60), st.one_of(st.none(), st.integers(1, 400))), min_size=1, max_size=5),
    repeat=st.integers(1, 300),
    until_ms=st.one_of(st.none(), st.integers(0, 3000)),
    stops=st.booleans(),
)
def test_a_stretch_is_its_single_steps(
    make_batch: MakeBatch,
    cost: dict[str, Any],
    rows: list[tuple[int, int | None]],
    repeat: int,
    until_ms: int | None,
    stops: bool,
) -> None:
    outputs = [None if more is None else done + more for done, more in rows]
    # One token in sixteen stops the first row.
    stop_ids = tuple(range(1, 2_001)) if stops else ()
    sampling = [SamplingParams(stop_token_ids=stop_ids if not row else ()) for row in range(len(rows))]
    until = None if until_ms is None else until_ms * 1_000_000
    starts = [PROMPT - 1 + done for done, _ in rows]
    fast, slow = started({"cost": cost}), started({"cost": cost})
    batch = make_batch(
        [(DECODE, start, 1) for start in starts],
        new=expected(fast, outputs, sampling),
        start_ns=77,
        repeat=repeat,
        until_ns=until,
    )
    stretch = run(fast, batch)
    new, ends, tokens = expected(slow, outputs, sampling), [], []
    for i in range(repeat):
        single = make_batch([(DECODE, start + i, 1) for start in starts], new=new if not i else None, start_ns=77)
        result = run(slow, single)
        ends.append(int(result.ends_ns[0]))
        tokens.append(result.tokens[0].tolist())
        stopped = tokens[-1][0] in sampling[0].stop_token_ids
        if 0 in tokens[-1] or stopped or (until is not None and ends[-1] >= until):
            break
    assert stretch.ends_ns.tolist() == ends
    assert stretch.tokens.tolist() == tokens


def test_a_stretch_ends_with_the_run_in_which_a_stop_token_falls(make_batch: MakeBatch) -> None:
    rows = [(DECODE, 8, 1), (DECODE, 8, 1)]
    free = started(CONSTANT)
    said = run(free, make_batch(rows, new=expected(free, [None, None]), repeat=30)).tokens
    stop, executor = int(said[11, 1]), started(CONSTANT)
    sampling = [SamplingParams(), SamplingParams(stop_token_ids=(40_000, stop))]
    result = run(executor, make_batch(rows, new=expected(executor, [None, None], sampling), repeat=30))
    assert result.tokens.tolist() == said[:12].tolist()
    assert result.ends_ns[-1] == 12 * SECOND
    follow = run(executor, make_batch([(DECODE, 20, 1)], at=[0]))
    assert follow.ends_ns.tolist() == [13 * SECOND]  # the clock stands at the last run that counted


def test_a_stretch_ends_with_the_run_that_reaches_the_time_exactly(make_batch: MakeBatch) -> None:
    executor = started(CONSTANT)
    batch = make_batch([(DECODE, 8, 1)], new=expected(executor, [None]), repeat=9, until_ns=3 * SECOND)
    assert run(executor, batch).ends_ns.tolist() == [SECOND, 2 * SECOND, 3 * SECOND]


def test_a_huge_stretch_ends_at_the_next_event(make_batch: MakeBatch) -> None:
    executor = started(CONSTANT)
    batch = make_batch([(DECODE, 8, 1)], new=expected(executor, [None]), repeat=10**9, until_ns=200 * SECOND + 1)
    result = run(executor, batch)
    assert result.runs == 201 and result.ends_ns[-1] == 201 * SECOND


def test_only_dense_decodes_that_sample_repeat(make_batch: MakeBatch) -> None:
    executor = started()
    with pytest.raises(ExecutorError, match="only a batch of dense decode rows"):
        executor.submit(make_batch([(WorkKey.PROMPT_ATOMIC, 0, 4)], new=expected(executor, [None]), repeat=2))


def test_drafts_and_loops_that_it_cannot_run_are_refused(make_batch: MakeBatch) -> None:
    executor = started()
    with pytest.raises(ExecutorError, match="no drafts"):
        executor.submit(make_batch([(WorkKey.SPECULATIVE, 8, 4)], new=expected(executor, [None])))
    with pytest.raises(ExecutorError, match="PRELUDE needs a looped model"):
        executor.submit(make_batch([(WorkKey.DECODE_PRELUDE, 8, 1)], new=expected(executor, [None])))


def test_decodes_leave_the_loop_by_the_exit_model_and_prompts_at_full_depth(make_batch: MakeBatch) -> None:
    executor = started(LOOPED)
    new = expected(executor, [None] * 4)
    # Output positions 1 and 2 leave after 2 and 3 loops by the trace; `loop` counts the loops behind a row.
    rows = [
        (WorkKey.DECODE_RECURRENT, 8, 1),
        (WorkKey.DECODE_RECURRENT, 9, 1),
        (WorkKey.PROMPT_RECURRENT, 0, 4),
        (WorkKey.PROMPT_RECURRENT, 0, 4),
    ]
    result = run(executor, make_batch(rows, new=new, loop=[1, 1, 1, 3], samples=[False] * 4))
    assert result.exits is not None and result.exits.tolist() == [True, False, False, True]
    assert result.tokens.tolist() == [[-1, -1, -1, -1]]
    later = run(executor, make_batch(rows, loop=[3, 2, 2, 0], samples=[False] * 4))
    assert later.exits is not None and later.exits.tolist() == [True, True, False, False]


def test_the_coda_samples_what_a_dense_model_would_and_the_prelude_nothing(make_batch: MakeBatch) -> None:
    executor, dense = started(LOOPED), started(CONSTANT)
    new = expected(executor, [None, 2])
    prelude = run(executor, make_batch([(WorkKey.DECODE_PRELUDE, 8, 1), (WorkKey.DECODE_PRELUDE, 8, 1)], new=new))
    coda = run(executor, make_batch([(WorkKey.DECODE_CODA, 8, 1), (WorkKey.DECODE_CODA, 8, 1)]))
    forward = run(dense, make_batch([(DECODE, 8, 1), (DECODE, 8, 1)], new=expected(dense, [None, 2])))
    assert prelude.tokens.tolist() == [[-1, -1]] and prelude.exits is None
    assert coda.tokens.tolist() == forward.tokens.tolist() and coda.tokens[0, 1] == 0


def test_drawn_exits_follow_the_seed(make_batch: MakeBatch) -> None:
    options = CONSTANT | {"model": {"loops": 4, "exit": {"pmf": [0.25, 0.25, 0.25, 0.25]}}}

    def exits(seed: int) -> list[bool]:
        executor = started(options, seed)
        rows = [(WorkKey.DECODE_RECURRENT, 8 + i, 1) for i in range(40)]
        result = run(executor, make_batch(rows, new=expected(executor, [None] * 40), loop=[1] * 40))
        assert result.exits is not None
        return [bool(leaves) for leaves in result.exits]

    assert exits(1) == exits(1) != exits(2)
    assert 8 < sum(exits(1)) < 32  # 20 expected


def test_each_operation_of_a_looped_model_has_its_cost(make_batch: MakeBatch) -> None:
    cost = {"constant": {"step_s": 9.0, "prelude_s": 1.0, "recurrent_s": 2.0, "coda_s": 3.0}}
    executor = started({"cost": cost, "model": {"loops": 2}})
    new = expected(executor, [None])
    keys = [WorkKey.DECODE_PRELUDE, WorkKey.DECODE_RECURRENT, WorkKey.DECODE_RECURRENT, WorkKey.DECODE_CODA]
    ends = [run(executor, make_batch([(key, 8, 1)], new=new)).ends_ns[0] // SECOND for key in keys]
    assert ends == [1, 3, 5, 8]
    assert run(executor, make_batch([(WorkKey.PROMPT_ATOMIC, 0, 8)])).ends_ns[0] == 17 * SECOND


def test_start_and_stop_forget_everything(make_batch: MakeBatch) -> None:
    executor = started(CONSTANT)
    executor.submit(make_batch([(DECODE, 8, 1)], new=expected(executor, [None])))
    executor.stop()
    executor.stop()
    assert executor.collect(True) == []
    again = run(executor, make_batch([(DECODE, 8, 1)], new=expected(executor, [None])))
    assert again.ends_ns.tolist() == [SECOND]


def test_operations_have_the_names_that_the_options_use() -> None:
    assert [operation.name.lower() for operation in Operation] == ["forward", "prelude", "recurrent", "coda"]
