"""Stretches: the same decode batch, several steps at once.

While nothing that the stack reads changes and nothing else can change the decision, the next boundary would form the
same batch again. Then the engine submits `repeat` steps together; results, files and digests are those of single steps.
"""

from __future__ import annotations

import numpy as np

from interlock.core.batch import Batch
from interlock.core.draft import Draft
from interlock.core.fill import chained
from interlock.core.stack import Stack
from interlock.core.state import State
from interlock.core.work import WorkKey

STEADY = frozenset(
    {
        "status", "work", "slot", "version", "arrival", "priority", "deadline", "tenant", "prompt_tokens", "max_tokens",
        "predicted", "loop", "preemptions", "bypasses", "overtaken", "admitted_s", "first_token_s",
        "waiting", "active", "capacity", "limits", "free_slots", "count", "pending", "remaining_prompt", "request",
        "tenants", "last_operation", "in_flight_work",
    }
)  # fmt: skip
"""What does not change while the same rows decode and nobody comes or goes."""


class Stretches:
    """Decides whether the next boundary would decide the same, and how often a decode batch may be repeated."""

    def __init__(self, state: State, stack: Stack, longest: int | None) -> None:
        self.state, self.longest = state, longest
        own = {name for policy in stack.policies for name in policy.columns() if not _moved(stack)}
        hooks = [stack.reads(hook) for hook in ("admit", "select", "preempt") if stack.implements(hook)]
        self.known_reads = all(reads is not None and reads <= STEADY | own for reads in hooks)

    def steady(self, draft: Draft, rows: np.ndarray) -> bool:
        """Whether this decision holds until somebody arrives, ends or is cancelled, or blocks run short.

        All active rows decode, everybody who waits is stopped by a shortage that only somebody's leaving can end, and
        the policies read nothing that moves meanwhile.
        """
        state, table = self.state, self.state.table
        if not self.known_reads or draft.victims or draft.entrants or len(rows) != len(state.active):
            return False
        if (table.work[rows] != WorkKey.DECODE_ATOMIC).any() or draft.limits.parts:
            return False
        return self._nobody_could_enter(draft)

    def repeat(self, batch: Batch, next_step: int | None) -> int:
        """How many times the batch of a steady decision may run."""
        state, table = self.state, self.state.table
        if self.longest == 1:
            return 1
        runs = int((table.limit[batch.rows] - table.emitted[batch.rows]).min())
        if self.longest is not None:
            runs = min(runs, self.longest)
        if next_step is not None:
            runs = min(runs, next_step - state.step)
        return max(self._until_short(batch.start, runs), 1) if runs > 1 else 1

    def _nobody_could_enter(self, draft: Draft) -> bool:
        """Whether those who wait cannot enter before somebody leaves."""
        state = self.state
        if not len(state.waiting):
            return True
        if (state.table.strikes[state.active] >= state.limits.max_preemptions).any():
            return False  # a protected row may bank, and be a victim again
        reasons = {draft.rest.what, *(reason.what for reason in draft.reasons.values())}
        if reasons <= {"slot"}:
            return True
        if reasons <= {"slot", "order", "blocks"} and state.limits.bypass_limit == 0:
            return not state.kv.enable_prefix_caching or self._no_new_hits(draft)
        return False

    def _no_new_hits(self, draft: Draft) -> bool:
        """Whether no block that the active rows will publish can be the next of a candidate that lacks blocks.

        Such a row's context would have to begin as the candidate's does, up to where the candidate's hits end.
        """
        state = self.state
        running = state.chain[state.table.holder[state.active]]
        for row, reason in draft.reasons.items():
            if reason.what != "blocks":
                continue
            hits = len(state.hits(row))
            chain = state.entries[row].chain
            known = np.empty(0, np.uint64) if chain is None else chain[:hits]
            if np.isin(running, np.append(known, np.uint64(state.salt(row)))).any():
                return False
        return True

    def _until_short(self, start: np.ndarray, runs: int) -> int:
        """Runs for which the pool has the blocks, this boundary's own taken already."""
        state = self.state
        if len(start) * (-(-runs // state.pool.block_size) + 1) <= state.pool.available:
            return runs
        crossings = Crossings(state, start, runs)
        if len(crossings.run) <= state.pool.available:
            return runs
        return int(crossings.run[state.pool.available])


def _moved(stack: Stack) -> bool:
    """Whether policies' own columns may change with each result."""
    return stack.implements("on_result") or stack.implements("on_batch")


class Crossings:
    """The moments in a stretch at which rows need a new block: run number and place in the batch, in order.

    `start` is each row's position in run 0, whose own block is not counted.
    """

    def __init__(self, state: State, start: np.ndarray, runs: int) -> None:
        size = state.pool.block_size
        first = size - start % size
        counts = np.maximum(-(-(runs - first) // size), 0)
        self.at = np.repeat(np.arange(len(start)), counts)
        nth = np.arange(len(self.at)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.run = first[self.at] + nth * size
        order = np.lexsort((self.at, self.run))
        self.at, self.run = self.at[order], self.run[order]


def foresee_blocks(state: State, batch: Batch) -> None:
    """Write the blocks that the later runs will take into the block table, past what the rows hold yet."""
    start = batch.start
    crossings = Crossings(state, start, batch.repeat)
    if not len(crossings.run):
        return
    coming = state.pool.next_free(len(crossings.run))
    places = (start[crossings.at] + crossings.run) // state.pool.block_size
    state.pool.table[batch.holders[crossings.at], places] = coming


def settle_runs(state: State, batch: Batch, runs: int) -> None:
    """Take the blocks and publish the full ones of runs 1 to `runs` - 1, in the order of single steps.

    Taking and publishing touch different blocks, so that each may be done for all runs at once.
    """
    pool, table = state.pool, state.table
    pool.begin()
    crossings = Crossings(state, batch.start, runs)
    if len(crossings.run):
        places = (batch.start[crossings.at] + crossings.run) // pool.block_size
        pool.table[batch.holders[crossings.at], places] = pool.take(len(crossings.run))
        table.blocks[batch.rows] += np.bincount(crossings.at, minlength=len(batch)).astype(np.int32)
    if state.kv.enable_prefix_caching:
        _publish_runs(state, batch, runs)


def _publish_runs(state: State, batch: Batch, runs: int) -> None:
    """Publish what runs 1 to `runs` - 1 fill; a row's blocks one after the other, since each key chains on the last."""
    size = state.pool.block_size
    first = size - 1 - batch.start % size
    first[first == 0] = size
    rounds = []
    for filled in range(-(-(runs - 1) // size)):
        at = np.flatnonzero(first + filled * size < runs)
        if not len(at):
            break
        run = first[at] + filled * size
        holders, chain, blocks = chained(state, batch.rows[at], batch.start[at] + run)
        state.chain[holders] = chain
        rounds.append((run, at, blocks, chain))
    if not rounds:
        return
    run, at, blocks, chain = (np.concatenate(parts) for parts in zip(*rounds, strict=True))
    order = np.lexsort((at, run))
    state.pool.publish(blocks[order], state.hash.keys(chain[order]))
