"""The Parquet tables of a run folder, as Arrow tables: requests, steps, transitions, waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from interlock.core.request import RequestStatus
from interlock.core.text import Tokenizer
from interlock.core.work import Operation, WorkKey
from interlock.plugins.run import columns as c
from interlock.plugins.run.flat import Deliveries, Flat
from interlock.plugins.run.outcomes import NEVER, Outcomes
from interlock.plugins.run.waits import Stretches, stretches

if TYPE_CHECKING:
    from interlock.plugins.run.recorder import Recorder


def tables(recorder: Recorder, tokens: bool = True, tokenizer: Tokenizer | None = None) -> dict[str, pa.Table]:
    """All tables of a run by file name without its ending.

    Without `tokens`, requests lack their two list columns, and their text; with a `tokenizer` they have it otherwise.
    """
    return {
        "requests": requests(recorder.outcomes, recorder.flat.deliveries, tokens, tokenizer),
        "steps": steps(recorder),
        "transitions": transitions(recorder),
        "waits": waits(stretches(recorder)),
    }


def requests(
    outcomes: Outcomes, deliveries: Deliveries, tokens: bool = True, tokenizer: Tokenizer | None = None
) -> pa.Table:
    """A row per finished request, in the order of their numbers."""
    columns = _identity(outcomes) | _latencies(outcomes, deliveries) | _facts(outcomes)
    if tokens:
        at = np.concatenate([[0], np.cumsum(outcomes.output_tokens)])
        ids = [one.output_ids for one in outcomes.all]
        columns["output_token_ids"] = c.lists(at, pa.array(np.concatenate([np.empty(0, np.int32), *ids]), pa.int32()))
        columns["token_times_s"] = c.lists(at, c.seconds(outcomes.times_of(deliveries)))
        if tokenizer is not None:
            columns["output_text"] = c.texts(tokenizer.decode(one) for one in ids)
    return pa.table(columns)


def _identity(outcomes: Outcomes) -> dict[str, c.Column]:
    return {
        "request": c.ints(outcomes.numbers),
        "request_id": c.texts(one.request_id for one in outcomes.all),
        "tenant": c.texts(one.tenant for one in outcomes.all),
        "priority": c.ints(outcomes.ints(lambda one: one.priority)),
        "arrival_s": c.seconds(outcomes.arrival),
        "admitted_s": c.seconds(outcomes.admitted, optional=True),
        "first_token_s": c.seconds(outcomes.first, optional=True),
        "finished_s": c.seconds(outcomes.ended),
    }


def _latencies(outcomes: Outcomes, deliveries: Deliveries) -> dict[str, c.Column]:
    return {
        "ttft_s": c.floats(outcomes.ttft_s),
        "tpot_s": c.floats(outcomes.tpot_s),
        **{f"{name}_s": c.seconds(interval) for name, interval in outcomes.intervals.items()},
        "e2e_s": c.floats(outcomes.e2e_s),
        "itl_max_s": c.seconds(longest_gap_ns(outcomes, deliveries), optional=True),
    }


def longest_gap_ns(outcomes: Outcomes, deliveries: Deliveries) -> np.ndarray:
    """The longest gap between two deliveries of each request; NEVER without one."""
    numbers, gaps = deliveries.gaps_ns()
    at, there = outcomes.index_of(numbers)
    longest = np.full(len(outcomes), NEVER, np.int64)
    np.maximum.at(longest, at[there], gaps[there])
    return longest


def _facts(outcomes: Outcomes) -> dict[str, c.Column]:
    predicted, no_deadline = outcomes.ints(lambda one: one.predicted_tokens), outcomes.deadline == NEVER
    return {
        "prompt_tokens": c.ints(outcomes.ints(lambda one: one.prompt_tokens)),
        "cached_tokens": c.ints(outcomes.ints(lambda one: one.cached_tokens)),
        "predicted_tokens": pa.array(predicted, pa.int64(), mask=predicted < 0),
        "output_tokens": c.ints(outcomes.output_tokens),
        "recomputed_tokens": c.ints(outcomes.ints(lambda one: one.recomputed_tokens)),
        "finish_reason": c.texts(str(one.finish_reason) for one in outcomes.all),
        "reject_reason": c.texts(one.reject_reason for one in outcomes.all),
        "preemptions": c.ints(outcomes.ints(lambda one: one.preemptions)),
        "bypasses": c.ints(outcomes.ints(lambda one: one.bypasses)),
        "overtaken": c.ints(outcomes.ints(lambda one: one.overtaken)),
        # Relative to arrival, as a workload states it: so this file is a trace that a workload can read.
        "deadline_s": c.seconds(np.where(no_deadline, NEVER, outcomes.deadline - outcomes.arrival), optional=True),
        "deadline_met": pa.array(outcomes.deadline_met, pa.bool_(), mask=no_deadline),
    }


def steps(recorder: Recorder) -> pa.Table:
    """A row per batch; equal decode batches in a row are one."""
    flat, rows = recorder.flat, recorder.steps
    last = flat.ends[flat.end_at[1:] - 1] if rows else np.empty(0, np.int64)
    return pa.table(
        {
            "step": c.ints([one.step for one in rows]),
            "start_s": c.seconds([one.start_ns for one in rows]),
            "end_s": c.seconds(last),
            "ends_s": c.lists(flat.end_at, c.seconds(flat.ends)),
            "operation": c.names([one.operation for one in rows], Operation),
            "repeat": c.ints(flat.repeats),
            **_amounts(flat),
            **_gauges(recorder),
            "admitted": c.int_lists([one.admitted for one in rows]),
            "finished": c.int_lists([one.finished for one in rows]),
            "preempted": c.int_lists([one.preempted for one in rows]),
            **_drafts(flat),
            "host_s": c.seconds([one.host_ns for one in rows]),
            "members": members(flat),
        }
    )


def _amounts(flat: Flat) -> dict[str, c.Column]:
    q, k, prompt = flat.tokens, flat.start, flat.is_prompt
    return {
        "tokens": c.ints(flat.per_step(q)),
        "prompt_tokens": c.ints(flat.per_step(q * prompt)),
        "decode_tokens": c.ints(flat.per_step(q * ~prompt)),
        "context_tokens": c.ints(flat.per_step((k + q) * ~prompt)),
        "prompt_attention": c.floats(flat.per_step((q * k + q * (q + 1) // 2) * prompt).astype(np.float64)),
    }


_GAUGES = (
    "budget",
    "running",
    "waiting",
    "free_blocks",
    "cached_blocks",
    "used_blocks",
    "fenced_blocks",
    "reserved_blocks",
)


def _gauges(recorder: Recorder) -> dict[str, c.Column]:
    counts = [one.counts for one in recorder.steps]
    return {
        name: pa.array([None if one is None else getattr(one, name) for one in counts], pa.int64()) for name in _GAUGES
    }


def _drafts(flat: Flat) -> dict[str, c.Column]:
    speculative = flat.work == WorkKey.SPECULATIVE
    accepted = np.maximum(flat.delivered.astype(np.int64) - 1, 0)
    return {
        "drafted": c.ints(flat.per_step((flat.tokens - 1) * speculative)),
        "accepted": c.ints(flat.per_step(accepted * speculative)),
    }


def members(flat: Flat) -> c.Column:
    """What each row of a batch ran, and how many tokens each batch delivered to it."""
    return c.lists(
        flat.member_at,
        c.structs(
            request=c.ints(flat.numbers),
            version=c.ints(flat.versions),
            work=c.names(flat.work, WorkKey),
            tokens=c.ints(flat.tokens),
            emitted=c.ints(flat.delivered),
        ),
    )


def transitions(recorder: Recorder) -> pa.Table:
    """A row per transition, in the order in which they happened."""
    rows = recorder.transitions
    return pa.table(
        {
            "step": c.ints([one.step for one in rows]),
            "time_s": c.seconds([one.time_ns for one in rows]),
            "request": c.ints([one.request for one in rows]),
            "version": c.ints([one.version for one in rows]),
            "from_status": c.texts(None if one.from_status is None else one.from_status.name for one in rows),
            "to_status": c.names([one.to_status for one in rows], RequestStatus),
            "reason": c.texts(one.reason for one in rows),
            "work": c.names([one.work for one in rows], WorkKey),
            "computed": c.ints([one.computed for one in rows]),
            "emitted": c.ints([one.emitted for one in rows]),
            "blocks": c.ints([one.blocks for one in rows]),
            "slot": c.ints([one.slot for one in rows]),
        }
    )


def waits(rows: Stretches) -> pa.Table:
    """A row per stretch of waiting, by request and then by time."""
    return pa.table(
        {
            "request": c.ints(rows.requests),
            "from_s": c.seconds(rows.from_ns),
            "to_s": c.seconds(rows.to_ns),
            "reason": c.texts(rows.reasons),
            "by": c.texts(rows.by),
        }
    )
