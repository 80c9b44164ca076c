"""Hand-made boundaries: what an engine would say, written down in whole seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from interlock.core.batch import Batch, BatchResult, Ticket
from interlock.core.record import BoundaryRecord, Collected, Counts, Outcome, Transition, Wait
from interlock.core.request import FinishReason, RequestStatus
from interlock.core.work import Operation, WorkKey
from interlock.plugins.run.recorder import Recorder

S = 1_000_000_000
PROMPT, DECODE = WorkKey.PROMPT_ATOMIC, WorkKey.DECODE_ATOMIC
NEW, WAITING, ACTIVE, FINISHED = None, RequestStatus.WAITING, RequestStatus.ACTIVE, RequestStatus.FINISHED


class Story:
    """A recorder and what it is told. Request n has row n, version 1 and the id "rn" unless said otherwise."""

    def __init__(self) -> None:
        self.recorder = Recorder()

    def batch(self, step: int, at: float, rows: Sequence[tuple[int, WorkKey, int, int]], **fields: Any) -> Batch:
        """A batch of (number, work, start, tokens)."""
        numbers, work, start, tokens = (np.array(column) for column in zip(*rows, strict=True))
        values = {
            "step": step,
            "operation": Operation.FORWARD,
            "start_ns": round(at * S),
            "rows": numbers.astype(np.intp),
            "versions": np.ones(len(rows), np.int64),
            "numbers": numbers.astype(np.int64),
            "work": work.astype(np.int8),
            "start": start.astype(np.int64),
            "tokens": tokens.astype(np.int64),
            "samples": np.ones(len(rows), bool),
            "loop": np.zeros(len(rows), np.int64),
            "holders": numbers.astype(np.intp),
            "block_table": np.zeros((len(rows), 1), np.int32),
            "context": np.zeros((len(rows), 1), np.int32),
            "new": {},
        }
        return Batch(**{**values, **fields})

    def result(
        self,
        batch: Batch,
        ends: Sequence[float],
        tokens: Sequence[Sequence[int]],
        delivered: Sequence[Sequence[bool]] | None = None,
        finished: tuple[int, ...] = (),
        error: Exception | None = None,
    ) -> Collected:
        """What became of a batch: a token per run and row, -1 for none; delivered wherever there is one."""
        sampled = np.array(tokens, np.int32).reshape(-1, len(batch))
        got = sampled >= 0 if delivered is None else np.array(delivered, bool)
        ends_ns = np.array([round(end * S) for end in ends], np.int64)
        return Collected(batch, BatchResult(Ticket(batch.step, batch), ends_ns, sampled, error=error), got, finished)

    def move(
        self, number: int, at: float, origin: RequestStatus | None, to: RequestStatus, reason: str, **fields: Any
    ) -> Transition:
        """A transition."""
        values = {"version": 1, "work": DECODE, "computed": 0, "emitted": 0, "blocks": 0, "slot": -1, "step": 0}
        names = {"time_ns": round(at * S), "request": number, "request_id": f"r{number}", "row": number}
        return Transition(**{**values, **names, "from_status": origin, "to_status": to, "reason": reason, **fields})

    def outcome(
        self, number: int, arrival: float, finished: float, tokens: Sequence[float] = (), **fields: Any
    ) -> Outcome:
        """A request that was delivered its tokens at these times; all of its life is queue, prefill and decode."""
        admitted = fields.pop("admitted", arrival if tokens else None)
        first = tokens[0] if tokens else None
        ends = [finished if x is None else x for x in (admitted, first)]
        values = {
            "request_id": f"r{number}",
            "tenant": "",
            "priority": 0,
            "arrival_ns": round(arrival * S),
            "admitted_ns": None if admitted is None else round(admitted * S),
            "first_token_ns": None if first is None else round(first * S),
            "last_token_ns": round(tokens[-1] * S) if tokens else None,
            "finished_ns": round(finished * S),
            "queue_ns": round((ends[0] - arrival) * S),
            "prefill_ns": round((ends[1] - ends[0]) * S),
            "decode_ns": round((finished - ends[1]) * S),
            "preempted_ns": 0,
            "transfer_ns": 0,
            "prompt_tokens": 4,
            "cached_tokens": 0,
            "predicted_tokens": -1,
            "recomputed_tokens": 0,
            "output_ids": np.arange(len(tokens), dtype=np.int32),
            "finish_reason": FinishReason.LENGTH,
            "reject_reason": None,
            "preemptions": 0,
            "bypasses": 0,
            "overtaken": 0,
            "deadline_ns": None,
        }
        return Outcome(**{"number": number, **values, **fields})

    def boundary(self, step: int, at: float, **fields: Any) -> BoundaryRecord:
        """Tell the recorder of a boundary."""
        if fields.get("batch") is not None:
            fields.setdefault("counts", Counts(1, 0, 10, 0, 2, 0, 2, 2048))
        record = BoundaryRecord(step=step, time_ns=round(at * S), **fields)
        self.recorder.on_boundary(record)
        return record

    def two_requests(self) -> Recorder:
        """r0 (4 prompt tokens, 3 output) and r1 (2 and 1, arrives at 1 and waits a second); each batch takes one."""
        a, b = self.batch(0, 0, [(0, PROMPT, 0, 4)]), self.batch(1, 1, [(0, DECODE, 4, 1)])
        c, d = self.batch(2, 2, [(1, PROMPT, 0, 2)]), self.batch(3, 3, [(0, DECODE, 5, 1)])
        came, entered = self.move(0, 0, NEW, WAITING, "arrived"), self.move(0, 0, WAITING, ACTIVE, "admitted")
        self.boundary(0, 0, transitions=[came, entered], admitted=[0], batch=a, host_ns=1000)
        came = self.move(1, 1, NEW, WAITING, "arrived", step=1)
        wait = Wait(1, "slot", "core")
        self.boundary(1, 1, collected=[self.result(a, [1], [[7]])], transitions=[came], waits=[wait], batch=b)
        entered = self.move(1, 2, WAITING, ACTIVE, "admitted", step=2)
        got = self.result(b, [2], [[8]])
        self.boundary(2, 2, collected=[got], transitions=[entered], admitted=[1], batch=c)
        ended = self.move(1, 3, ACTIVE, FINISHED, "length", step=3)
        first = self.outcome(1, 1, 3, [3], admitted=2, prompt_tokens=2, output_ids=np.array([5], np.int32))
        got = self.result(c, [3], [[5]], finished=(1,))
        self.boundary(3, 3, collected=[got], transitions=[ended], outcomes=[first], batch=d)
        ended = self.move(0, 4, ACTIVE, FINISHED, "length", step=4)
        second = self.outcome(0, 0, 4, [1, 2, 4], output_ids=np.array([7, 8, 9], np.int32))
        got = self.result(d, [4], [[9]], finished=(0,))
        self.boundary(4, 4, collected=[got], transitions=[ended], outcomes=[second])
        return self.recorder

    def decoding(self, stretches: Sequence[int], start: Batch | None = None) -> Recorder:
        """r0 and r1 decode together, a token each second, in submissions of so many runs."""
        first = start or self.batch(0, 0, [(0, DECODE, 4, 1), (1, DECODE, 9, 1)])
        pending: list[Collected] = []
        at = 0
        for runs in stretches:
            batch = replace(
                first, step=at, start_ns=at * S, start=first.start + at, rows=first.rows.copy(), repeat=runs, new={}
            )
            self.boundary(at, at, collected=pending, batch=batch, host_ns=10 * (at + 1))
            ends, tokens = range(at + 1, at + runs + 1), [[10 + t, 20 + t] for t in range(at, at + runs)]
            pending = [self.result(batch, list(ends), tokens)]
            at += runs
        self.boundary(at, at, collected=pending)
        return self.recorder


@pytest.fixture
def story() -> Story:
    """A story that has not begun."""
    return Story()


@pytest.fixture
def another() -> Story:
    """A second one, to compare with."""
    return Story()
