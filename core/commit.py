"""The commit stage: a checked draft changes the state, all of it together, and becomes a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from interlock.core.batch import Batch
from interlock.core.draft import Draft
from interlock.core.lifecycle import Lifecycle
from interlock.core.request import Request
from interlock.core.settled import Settled
from interlock.core.stack import Stack
from interlock.core.state import State
from interlock.core.view import View
from interlock.core.work import OPERATION_OF, Operation


class Committer:
    """Applies drafts. Nothing in here can fail for a reason that the rules do not exclude."""

    def __init__(self, state: State, stack: Stack, view: View, lifecycle: Lifecycle) -> None:
        self.state, self.stack, self.view, self.lifecycle = state, stack, view, lifecycle

    def commit(self, draft: Draft, rows: np.ndarray, tokens: np.ndarray) -> Batch:
        """Victims leave, entrants enter, blocks are booked, and the batch is made."""
        table, walk = self.state.table, draft.walk
        table.blocks[walk.rows] += walk.blocks.astype(np.int32)
        for holders, chain in draft.chains:
            self.state.chain[holders] = chain
        if draft.victims:
            self._give_way(draft)
        if draft.entrants:
            self._enter(draft)
        for row, times in draft.passed.items():
            table.bypasses[row] += times
        return self._batch(OPERATION_OF[draft.group[0]], rows, tokens)

    def commit_again(self, draft: Draft, settled: Settled) -> Batch:
        """A decision repeated: only positions and blocks have changed since its last batch."""
        state, table = self.state, self.state.table
        table.blocks[draft.growing] += 1
        for holders, chain in draft.chains:
            state.chain[holders] = chain
        table.in_flight[settled.rows] += 1
        last = settled.batch
        start = settled.computed.copy()
        start.flags.writeable = False
        return Batch(
            state.step, last.operation, state.now_ns, last.rows, last.versions, last.numbers, last.work,
            start, last.tokens, last.samples, last.loop, last.holders,
            state.faces.of(state.pool.table), state.faces.of(state.context), {},
        )  # fmt: skip

    def _give_way(self, draft: Draft) -> None:
        for victim in draft.victims:
            self.lifecycle.give_way(victim)
        self.state.drop_inactive()
        if self.stack.implements("on_preempted"):
            rows = np.array([victim.row for victim in draft.victims], np.intp)
            modes = np.array([victim.mode for victim in draft.victims], object)
            self.stack.tell("on_preempted", rows, modes, self.view)

    def _enter(self, draft: Draft) -> None:
        state = self.state
        rows = np.array([entrant.row for entrant in draft.entrants], np.intp)
        first = rows[state.table.admitted_ns[rows] < 0]
        for entrant in draft.entrants:
            self.lifecycle.activate(entrant)
        for row in first.tolist():
            state.table.overtaken[state.waiting.earlier(int(state.table.number[row]))] += 1
        state.set_active(np.concatenate([state.active, rows]))
        if self.stack.implements("on_admitted"):
            self.stack.tell("on_admitted", rows, self.view)

    def _batch(self, operation: Operation, rows: np.ndarray, tokens: np.ndarray) -> Batch:
        state, table = self.state, self.state.table
        start = table.computed[rows]
        work = table.work[rows]
        if operation is Operation.CODA:
            start = start - 1  # the hidden row of the last computed position
        if state.loops == 1:
            samples = start + tokens == table.prompt_tokens[rows] + table.emitted[rows]
        else:
            samples = np.full(len(rows), operation is Operation.CODA)
        table.in_flight[rows] += 1
        return _sealed(
            step=state.step,
            operation=operation,
            start_ns=state.now_ns,
            rows=rows,
            versions=table.version[rows],
            numbers=table.number[rows],
            work=work,
            start=start,
            tokens=tokens,
            samples=samples,
            loop=table.loop[rows],
            holders=table.holder[rows],
            block_table=state.faces.of(state.pool.table),
            context=state.faces.of(state.context),
            new=self._new(rows),
        )

    def _new(self, rows: np.ndarray) -> dict[int, tuple[int, Request]]:
        """Requests that the executor has not seen."""
        new: dict[int, tuple[int, Request]] = {}
        for row in rows[self.state.table.last_token_ns[rows] < 0].tolist():
            entry = self.state.entries[row]
            if not entry.seen_by_executor:
                entry.seen_by_executor = True
                new[row] = (entry.number, entry.request)
        return new


def _sealed(**fields: Any) -> Batch:
    """A batch whose arrays nobody can write."""
    for array in fields.values():
        if isinstance(array, np.ndarray) and array.flags.owndata:
            array.flags.writeable = False
    return Batch(**fields)
