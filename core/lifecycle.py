"""Every change of a request's status, and of who owns slots and blocks. Nothing else writes those columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from interlock.core.draft import Entrant, Victim
from interlock.core.errors import InterlockError
from interlock.core.executor import Copy
from interlock.core.feed import Arrival
from interlock.core.handle import Handle
from interlock.core.proposals import Retention
from interlock.core.record import BoundaryRecord, Outcome, Preempted, Transition
from interlock.core.request import (
    TRANSITIONS,
    FinishReason,
    PreemptMode,
    Request,
    RequestStatus,
    SyntheticPrompt,
)
from interlock.core.stack import Stack
from interlock.core.state import Entry, State
from interlock.core.view import View
from interlock.core.work import WorkKey

_PREEMPTED_AS = {
    PreemptMode.YIELD: "yielded",
    PreemptMode.OFFLOAD: "offloaded",
    PreemptMode.RECOMPUTE: "recompute",
}


class Lifecycle:
    """Moves requests through their lives, and writes each move into the boundary's record."""

    def __init__(self, state: State, stack: Stack, view: View) -> None:
        self.state, self.stack, self.view = state, stack, view
        self.record = BoundaryRecord(0, 0)
        self.leaving: list[int] = []  # finished rows that are not retired, in the order in which they finished
        self._untold: list[int] = []  # finished rows that policies have not been told of
        self.retired: list[int] = []  # rows retired at this boundary
        self.copies_out: list[Copy] = []  # of this boundary, device to host
        self.copies_in: list[Copy] = []  # host to device
        self.protections = 0
        self.finished_ids: list[str] = []  # of the feed's requests, since it was last asked

    # -- arrival

    def reject(self, arrival: Arrival, number: int, reason: str, handle: Handle | None, from_feed: bool) -> None:
        """A request that never gets a row."""
        request = arrival.request
        self._write(number, request.id, -1, 0, None, RequestStatus.FINISHED, "rejected")
        outcome = Outcome(
            number, request.id, request.tenant, request.priority, arrival.at_ns, None, None, None, self.state.now_ns,
            self.state.now_ns - arrival.at_ns, 0, 0, 0, 0, request.prompt_tokens, 0, request.predicted, 0,
            np.empty(0, np.int32), FinishReason.REJECTED, reason, 0, 0, 0, _deadline_ns(arrival),
        )  # fmt: skip
        self._deliver(outcome, handle, from_feed)

    def arrive(
        self, arrival: Arrival, number: int, limit: int, stops: int, handle: Handle | None, from_feed: bool
    ) -> int:
        """A new request becomes WAITING. Returns its row."""
        state, table, request = self.state, self.state.table, arrival.request
        row = table.new_row()
        table.number[row] = number
        table.arrival_ns[row] = arrival.at_ns
        table.priority[row] = request.priority
        deadline = _deadline_ns(arrival)
        table.deadline[row] = np.inf if deadline is None else deadline / 1e9
        table.tenant[row] = state.tenant_code(request.tenant)
        table.prompt_tokens[row] = request.prompt_tokens
        table.max_tokens[row] = table.limit[row] = limit
        table.predicted[row] = request.predicted
        table.stops[row] = stops
        table.work[row] = state.first_work()
        table.ready[row] = state.ready_stamps(1)[0]
        state.entries[row] = Entry(request, number, handle, from_feed, since_ns=arrival.at_ns)
        state.rows[request.id] = row
        if handle is not None:
            handle._row = row
        table.status[row] = RequestStatus.WAITING
        table.version[row] += 1
        state.enqueue(row)
        self._log(row, None, RequestStatus.WAITING, "arrived")
        return row

    # -- entering and giving way

    def activate(self, entrant: Entrant) -> None:
        """The one way to a slot: for admission and resume alike."""
        state, table, row = self.state, self.state.table, entrant.row
        entry, first = state.entries[row], table.admitted_ns[row] < 0
        state.dequeue(row)
        state.resident.pop(row, None)
        table.slot[row] = state.take_slot()
        table.holder[row] = entrant.holder
        if table.host[row]:
            table.blocks[row] = len(entrant.hits)
            self._copy_back(row, entry, entrant)
        elif not table.blocks[row]:
            table.computed[row] = len(entrant.hits) * state.pool.block_size
            table.blocks[row] = len(entrant.hits)
        table.blocks[row] += entrant.blocks
        if first:
            table.admitted_ns[row] = state.now_ns
            entry.cached_tokens = int(table.computed[row])
            entry.queue_ns += state.now_ns - entry.since_ns
            state.context[entrant.holder, : table.prompt_tokens[row]] = entry.request.prompt_ids()
            self.record.cached[entry.number] = entry.cached_tokens
        else:
            entry.preempted_ns += state.now_ns - entry.since_ns
        entry.since_ns = state.now_ns
        table.ready[row] = state.ready_stamps(1)[0]
        self.record.admitted.append(entry.number)
        self._move(row, RequestStatus.ACTIVE, "admitted" if first else "resumed")

    def _copy_back(self, row: int, entry: Entry, entrant: Entrant) -> None:
        """From the host what is not shared; the host's blocks are free again."""
        host = entry.host_blocks
        assert host is not None
        shared = len(entrant.hits)
        device = self.state.pool.table[entrant.holder, shared : len(host)].copy()
        self.copies_in.append(Copy(row, device, host[shared:]))
        self._drop_host(row, entry)

    def _drop_host(self, row: int, entry: Entry) -> None:
        if entry.host_blocks is not None:
            self.state.return_host(entry.host_blocks)
            entry.host_blocks = None
            self.state.table.host[row] = 0

    def give_way(self, victim: Victim) -> None:
        """An active row goes back to its place in the queue, or one that had yielded gives its blocks as well.

        Blocks that are given up are back in the pool already; their content is still there until the next batch.
        """
        state, table, row = self.state, self.state.table, victim.row
        entry = state.entries[row]
        if not victim.resident:
            self._strike(row)
            self._close_active(entry, row)
            state.return_slot(int(table.slot[row]))
            table.slot[row] = -1
            table.preemptions[row] += 1
            self.record.preempted.append(Preempted(entry.number, victim.mode, str(victim.demand)))
        if victim.mode is PreemptMode.YIELD:
            if table.blocks[row]:
                state.resident[row] = None
        else:
            state.resident.pop(row, None)
            self._give_up_blocks(row, entry, victim.mode)
        if not victim.resident:
            entry.keys = entry.chain = None
            state.enqueue(row)
        self._move(row, RequestStatus.WAITING, _PREEMPTED_AS[victim.mode])

    def _give_up_blocks(self, row: int, entry: Entry, mode: PreemptMode) -> None:
        state, table = self.state, self.state.table
        if mode is PreemptMode.OFFLOAD:
            device = state.held(row).copy()
            entry.host_blocks = state.take_host(len(device))
            table.host[row] = len(device)
            self.copies_out.append(Copy(row, device, entry.host_blocks))
        else:
            table.peak[row] = max(table.peak[row], table.computed[row])
            table.computed[row] = table.loop[row] = table.chunk[row] = 0
            table.work[row] = state.first_work()
        table.blocks[row] = 0

    def _strike(self, row: int) -> None:
        """Count preemptions in a row without banking."""
        state, table = self.state, self.state.table
        if bool(state.banked(np.array([row]))[0]):
            table.strikes[row] = 0
            table.high_water[row] = table.emitted[row] + table.computed[row]
            table.high_loop[row] = table.loop[row]
        table.strikes[row] += 1
        if table.strikes[row] == state.limits.max_preemptions:
            self.protections += 1

    def _close_active(self, entry: Entry, row: int) -> None:
        """The active stretch that ends now belongs to prefill up to the first token, and to decode after it."""
        now, first = self.state.now_ns, int(self.state.table.first_token_ns[row])
        split = now if first < 0 else max(first, entry.since_ns)
        entry.prefill_ns += split - entry.since_ns
        entry.decode_ns += now - split
        entry.since_ns = now

    # -- the end

    def finish(self, row: int, reason: FinishReason, why: str | None = None) -> None:
        """The logical end: the caller has its answer. Slot and blocks stay until the row retires."""
        state, table = self.state, self.state.table
        entry, status = state.entries[row], RequestStatus(table.status[row])
        if status is RequestStatus.WAITING:
            state.dequeue(row)
            state.resident.pop(row, None)
            if table.admitted_ns[row] < 0:
                entry.queue_ns += state.now_ns - entry.since_ns
            else:
                entry.preempted_ns += state.now_ns - entry.since_ns
        elif status is RequestStatus.ACTIVE:
            self._close_active(entry, row)
        del state.rows[entry.request.id]
        self._drop_host(row, entry)
        if state.rescued == row:
            state.rescued = None
        table.work[row] = WorkKey.NONE
        self._move(row, RequestStatus.FINISHED, reason)
        self.leaving.append(row)
        self._untold.append(row)
        self._deliver(self._outcome(row, entry, reason, why), entry.handle, entry.from_feed)

    def tell_finished(self) -> None:
        """Tell the policies of all who ended since this was last called."""
        rows, self._untold = self._untold, []
        if rows and self.stack.implements("on_finished"):
            self.stack.tell("on_finished", np.array(rows, np.intp), self.view)

    def _outcome(self, row: int, entry: Entry, reason: FinishReason, why: str | None) -> Outcome:
        table, request = self.state.table, entry.request

        def time_of(column: np.ndarray) -> int | None:
            return int(column[row]) if column[row] >= 0 else None

        prompt, emitted, holder = int(table.prompt_tokens[row]), int(table.emitted[row]), int(table.holder[row])
        output = self.state.context[holder, prompt : prompt + emitted].copy() if emitted else np.empty(0, np.int32)
        return Outcome(
            entry.number, request.id, request.tenant, request.priority, int(table.arrival_ns[row]),
            time_of(table.admitted_ns), time_of(table.first_token_ns), time_of(table.last_token_ns), self.state.now_ns,
            entry.queue_ns, entry.prefill_ns, entry.decode_ns, entry.preempted_ns, entry.transfer_ns,
            prompt, entry.cached_tokens, request.predicted, entry.recomputed_tokens, output, reason, why,
            int(table.preemptions[row]), int(table.bypasses[row]), int(table.overtaken[row]),
            None if np.isinf(table.deadline[row]) else round(float(table.deadline[row]) * 1e9),
        )  # fmt: skip

    def _deliver(self, outcome: Outcome, handle: Handle | None, from_feed: bool) -> None:
        self.record.outcomes.append(outcome)
        if handle is not None:
            handle.outcome = outcome
        if from_feed:
            self.finished_ids.append(outcome.request_id)

    def retire(self) -> None:
        """The physical end of finished rows that no ticket touches: slot, blocks and row are free again."""
        table = self.state.table
        rows = np.array([row for row in self.leaving if not table.in_flight[row]], np.intp)
        if not len(rows):
            return
        self.leaving = [row for row in self.leaving if table.in_flight[row]]
        if self.stack.implements("release"):
            rows = self._release(rows)
        else:
            for row in rows.tolist():
                self._give_back_all(row)
        if self.stack.implements("on_retired"):
            self.stack.tell("on_retired", rows, self.view)
        for row in rows.tolist():
            del self.state.entries[row]
        table.free_rows(rows)
        self.retired.extend(rows.tolist())

    def _release(self, rows: np.ndarray) -> np.ndarray:
        """Give the rows' blocks back in the order, and keep what, the policies say. Returns the rows in that order."""
        retention = Retention(rows, self.view)
        self.stack.edit("release", retention, self.view, defer=True)
        rows = retention.rows.copy()
        self._forget_cached(rows, retention)
        for row in rows.tolist():
            left = self.state.held(row)[::-1].copy()
            self._give_back_all(row)
            for mask, weight, until in retention.kept:
                if mask[row]:
                    self.state.pool.keep(left, float(weight[row]), until * 1e9)
        return rows

    def _forget_cached(self, rows: np.ndarray, retention: Retention) -> None:
        if retention.forgotten is None:
            return
        pool = self.state.pool
        for row in rows[retention.forgotten[rows]].tolist():
            held = self.state.held(row)
            pool.unpublish(held[pool.references[held] == 1])

    def _give_back_all(self, row: int) -> None:
        state, table = self.state, self.state.table
        if table.blocks[row]:
            state.pool.give_back(state.held(row)[::-1])
            table.blocks[row] = 0
        if table.slot[row] >= 0:
            state.return_slot(int(table.slot[row]))
            table.slot[row] = -1
        if table.holder[row] >= 0:
            state.pool.return_holder(int(table.holder[row]))
            table.holder[row] = -1

    # -- records

    def _move(self, row: int, to: RequestStatus, reason: str) -> None:
        table = self.state.table
        before = RequestStatus(table.status[row])
        if reason not in TRANSITIONS.get((before, to), frozenset()):
            raise InterlockError(f"row {row}: no transition from {before.name} to {to.name} as {reason!r}")
        table.status[row] = to
        table.version[row] += 1
        self._log(row, before, to, reason)

    def _log(self, row: int, before: RequestStatus | None, to: RequestStatus, reason: str) -> None:
        entry = self.state.entries[row]
        self._write(entry.number, entry.request.id, row, int(self.state.table.version[row]), before, to, reason)

    def _write(
        self,
        number: int,
        request_id: str,
        row: int,
        version: int,
        before: RequestStatus | None,
        to: RequestStatus,
        reason: str,
    ) -> None:
        table, state = self.state.table, self.state
        facts: tuple[Any, ...] = (-1, 0, 0, 0, -1)
        if row >= 0:
            facts = (table.work[row], table.computed[row], table.emitted[row], table.blocks[row], table.slot[row])
        self.record.transitions.append(
            Transition(
                state.step, state.now_ns, number, request_id, row, version, before, to, str(reason), *map(int, facts)
            )
        )


def _deadline_ns(arrival: Arrival) -> int | None:
    seconds = arrival.request.deadline_s
    return None if seconds is None else arrival.at_ns + round(seconds * 1e9)


def validate(request: Request, state: State) -> str | None:
    """Why a request can never run, or may not come in now; None when it is welcome.

    Peak need is prompt + output - 1 tokens of KV, the formula that admission uses under `reserve: full`.
    """
    limits, pool = state.limits, state.pool
    prompt = request.prompt_tokens
    if prompt < 1:
        return "empty_prompt"
    if request.id in state.rows:
        return "duplicate_id"
    if (problem := request.sampling.problem()) is not None:
        return f"bad_sampling: {problem}"
    if prompt > limits.max_model_len - 1:
        return f"exceeds_context: {prompt} prompt tokens and one more, max_model_len is {limits.max_model_len}"
    if state.model.whole_prompts and prompt > limits.max_num_batched_tokens:
        budget = limits.max_num_batched_tokens
        return f"exceeds_budget: {prompt} prompt tokens have to run at once, max_num_batched_tokens is {budget}"
    vocabulary = state.model.vocab_size
    if vocabulary is not None and (stranger := _stranger(request, vocabulary)) is not None:
        return f"unknown_token: {stranger} is not in the vocabulary of {vocabulary} tokens"
    need = -(-(prompt + max(output_limit(request, state), 1) - 1) // pool.block_size)
    if need > pool.num_blocks:
        return f"never_fits: needs {need} blocks, the pool has {pool.num_blocks}"
    if limits.max_waiting is not None and len(state.waiting) >= limits.max_waiting:
        return f"queue_full: {len(state.waiting)} wait, max_waiting is {limits.max_waiting}"
    return None


def _stranger(request: Request, vocabulary: int) -> int | None:
    """The first id that a written-out prompt has and the model does not know. Synthetic ids are folded by a model."""
    if isinstance(request.prompt, int | np.integer | SyntheticPrompt):
        return None
    ids = request.prompt_ids()
    wrong = (ids < 0) | (ids >= vocabulary)
    return int(ids[wrong.argmax()]) if wrong.any() else None


def output_limit(request: Request, state: State) -> int:
    """Output tokens at which the length ends a request: max_tokens, or what the context leaves."""
    room = state.limits.max_model_len - request.prompt_tokens
    return room if request.sampling.max_tokens is None else min(request.sampling.max_tokens, room)
