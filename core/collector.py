"""The collect stage: what became of a ticket reaches its rows, exactly once."""

from __future__ import annotations

import numpy as np

from interlock.core.batch import Batch, BatchResult
from interlock.core.errors import ExecutorError
from interlock.core.lifecycle import Lifecycle
from interlock.core.looped import advance
from interlock.core.record import Collected
from interlock.core.request import FinishReason, RequestStatus
from interlock.core.settled import Settled
from interlock.core.stack import Stack
from interlock.core.state import State
from interlock.core.stretch import settle_runs
from interlock.core.view import View
from interlock.core.work import Operation, WorkKey

_NO_STOP, _EOS, _ONE_BY_ONE = 0, 1, 2


def stops_of(ignore_eos: bool, min_tokens: int, stop_token_ids: tuple[int, ...]) -> int:
    """How a request's tokens are examined for an end (the column `stops`)."""
    if stop_token_ids or (min_tokens > 1 and not ignore_eos):
        return _ONE_BY_ONE
    return _NO_STOP if ignore_eos else _EOS


class Collector:
    """Applies results: advances `computed`, appends tokens, detects ends, delivers."""

    def __init__(self, state: State, stack: Stack, view: View, lifecycle: Lifecycle, eos: tuple[int, ...]) -> None:
        self.state, self.stack, self.view, self.lifecycle = state, stack, view, lifecycle
        self.eos = eos
        self._eos = np.array(eos, np.int32)
        self._failed: set[int] = set()  # numbers of the requests whose last batch failed
        self.dropped = 0  # results that reached a finished or re-versioned row

    def apply(self, result: BatchResult, settled: Settled | None = None) -> None:
        """One ticket's result. The ticket is known to be out, and is collected once.

        `settled`: the decision that its batch repeats, whose dense arrays then stand for gathers from the columns.
        """
        batch = result.ticket.batch
        self._check(batch, result)
        table = self.state.table
        table.in_flight[batch.rows] -= 1
        live = table.version[batch.rows] == batch.versions
        every = bool(live.all())
        if self._failed:
            self._failed -= set(
                batch.numbers.tolist()
            )  # a failure is tried again once, however long ago the last one was
        self.dropped += 0 if every else int((~live).sum())
        keep = slice(None) if every else live
        computed = batch.tokens[keep] * result.runs
        if settled is not None and every:
            ended = self._advance_again(batch, result, settled)
        elif self.state.loops > 1:
            computed, ended = self._advance_looped(batch, result, keep)
        else:
            ended = self._advance(batch, result, keep)
        for row, reason in ended:
            self.lifecycle.finish(row, reason)
        numbers = tuple(self.state.entries[row].number for row, _ in ended)
        delivered = np.broadcast_to(batch.samples & live, result.tokens.shape)
        self.lifecycle.record.collected.append(Collected(batch, result, delivered, numbers))
        if self.stack.implements("on_result"):
            emitted = np.where(batch.samples[keep], result.runs, 0)
            self.stack.tell("on_result", batch.rows[keep], computed, emitted, self.view)
        self.lifecycle.tell_finished()

    def _check(self, batch: Batch, result: BatchResult) -> None:
        """Whether the executor keeps to its protocol."""
        shape = (result.runs, len(batch))
        if not 1 <= result.runs <= batch.repeat or result.tokens.shape != shape:
            raise ExecutorError(
                f"batch {batch.step}: {result.runs} runs with tokens of shape {result.tokens.shape}; "
                f"at most {batch.repeat} runs and {shape} are due"
            )
        sampled = result.tokens if batch.samples.all() else result.tokens[:, batch.samples]
        if sampled.size and int(sampled.min()) < 0:
            raise ExecutorError(f"batch {batch.step}: a row that samples has no token")

    def _advance(self, batch: Batch, result: BatchResult, keep: slice | np.ndarray) -> list[tuple[int, FinishReason]]:
        """Columns of the rows that are still the same. Returns who ended, in batch order."""
        table, runs = self.state.table, result.runs
        rows, end = batch.rows[keep], (batch.start + batch.tokens)[keep]
        table.computed[rows] = end if runs == 1 else end + (runs - 1)
        table.ready[rows] = self.state.ready_stamps(len(rows))
        prompts = bool(batch.is_prompt.any())
        if prompts:
            self._count_recomputed(batch, keep)
        return self._emit(batch, result, keep, WorkKey.DECODE_ATOMIC if prompts else None)

    def _advance_looped(
        self, batch: Batch, result: BatchResult, keep: slice | np.ndarray
    ) -> tuple[np.ndarray, list[tuple[int, FinishReason]]]:
        """As `_advance`, on a looped model. Returns tokens newly valid, too."""
        self.state.table.ready[batch.rows[keep]] = self.state.ready_stamps(len(batch.rows[keep]))
        if batch.operation in (Operation.FORWARD, Operation.PRELUDE):
            self._count_recomputed(batch, keep)
        computed = advance(self.state, batch, result, keep)
        if batch.operation is not Operation.CODA:
            return computed, []
        return computed, self._emit(batch, result, keep, WorkKey.DECODE_PRELUDE)

    def _emit(
        self, batch: Batch, result: BatchResult, keep: slice | np.ndarray, work: WorkKey | None
    ) -> list[tuple[int, FinishReason]]:
        """Append what was sampled; `work` is what is pending for these rows now, None where it stays."""
        table, runs = self.state.table, result.runs
        rows, end = batch.rows[keep], (batch.start + batch.tokens)[keep]
        samples, tokens = batch.samples[keep], result.tokens[:, keep]
        if not samples.all():
            rows, end, tokens = rows[samples], end[samples], tokens[:, samples]
        if not len(rows):
            return []
        # The tokens come first: blocks that later runs of a stretch filled are published by their content.
        holders = table.holder[rows]
        if runs == 1:
            self.state.context[holders, np.minimum(end, self.state.limits.max_model_len - 1)] = tokens[0]
        else:
            self.state.context[holders, end + np.arange(runs)[:, None]] = tokens
            settle_runs(self.state, batch, runs)
        emitted = table.emitted[rows] + runs
        table.emitted[rows] = emitted
        table.last_token_ns[rows] = result.ends_ns[-1]
        if work is not None:
            table.work[rows] = work
            first = rows[table.first_token_ns[rows] < 0]
            table.first_token_ns[first] = result.ends_ns[0]
        return self._ended(rows, tokens, emitted)

    def _advance_again(self, batch: Batch, result: BatchResult, settled: Settled) -> list[tuple[int, FinishReason]]:
        """As `_advance`, for a batch in which every row decodes."""
        table, rows, runs = self.state.table, batch.rows, result.runs
        end = batch.start + 1
        if runs == 1:
            self.state.context[settled.holders, np.minimum(end, self.state.limits.max_model_len - 1)] = result.tokens[0]
        else:
            self.state.context[settled.holders, end + np.arange(runs)[:, None]] = result.tokens
            settle_runs(self.state, batch, runs)
        settled.advance(runs)
        table.computed[rows] = settled.computed
        table.emitted[rows] = settled.emitted
        table.ready[rows] = self.state.ready_stamps(len(rows))
        table.last_token_ns[rows] = result.ends_ns[-1]
        at_eos = self._at_eos(result.tokens[-1]) & settled.heeds_eos
        if len(settled.one_by_one) or int(settled.left.min()) < 1 or at_eos.any():
            return self._ended(rows, result.tokens, settled.emitted)
        return []

    def _ended(self, rows: np.ndarray, tokens: np.ndarray, emitted: np.ndarray) -> list[tuple[int, FinishReason]]:
        table = self.state.table
        stops = table.stops[rows]
        stopped = self._at_eos(tokens[-1]) & (stops == _EOS)
        by_one = np.flatnonzero(stops == _ONE_BY_ONE)
        for at in by_one.tolist():
            stopped[at] = self._stops(int(rows[at]), int(tokens[-1, at]), int(emitted[at]))
        ended = stopped | (emitted >= table.limit[rows])
        if not ended.any():
            return []
        return [
            (int(rows[at]), FinishReason.STOP if stopped[at] else FinishReason.LENGTH)
            for at in np.flatnonzero(ended).tolist()
        ]

    def _at_eos(self, tokens: np.ndarray) -> np.ndarray:
        return tokens == self._eos[0] if len(self.eos) == 1 else np.isin(tokens, self._eos)

    def _stops(self, row: int, token: int, emitted: int) -> bool:
        sampling = self.state.entries[row].request.sampling
        if emitted < sampling.min_tokens:
            return False
        return token in sampling.stop_token_ids or (token in self.eos and not sampling.ignore_eos)

    def _count_recomputed(self, batch: Batch, keep: slice | np.ndarray) -> None:
        """Tokens that a preemption had taken away and that were computed again."""
        rows, start, tokens = batch.rows[keep], batch.start[keep], batch.tokens[keep]
        again = np.clip(self.state.table.peak[rows] - start, 0, tokens)
        for at in np.flatnonzero(again).tolist():
            self.state.entries[int(rows[at])].recomputed_tokens += int(again[at])

    # -- failures

    def fail(self, result: BatchResult, published: list[np.ndarray]) -> None:
        """A failed ticket: its rows are as they were, what it published is withdrawn, a second failure ends them."""
        state, table, batch, error = self.state, self.state.table, result.ticket.batch, result.error
        table.in_flight[batch.rows] -= 1
        withdrawn = np.concatenate(published) if published else np.empty(0, np.int32)
        state.pool.unpublish(withdrawn)
        for row in state.active.tolist():
            self._cut_back(row, withdrawn)
        ended: list[int] = []
        for row, version in zip(batch.rows.tolist(), batch.versions.tolist(), strict=True):
            if table.version[row] != version or table.status[row] != RequestStatus.ACTIVE:
                continue
            number = state.entries[row].number
            if number in self._failed:
                self.lifecycle.finish(row, FinishReason.ERROR, f"{type(error).__name__}: {error}")
                ended.append(row)
                continue
            self._failed.add(number)
            if state.kv.enable_prefix_caching:
                self._rewind_chain(row)
        numbers = tuple(state.entries[row].number for row in ended)
        nothing = np.zeros((result.runs, len(batch)), bool)
        self.lifecycle.record.collected.append(Collected(batch, result, nothing, numbers))
        if self.stack.implements("on_batch_failed"):
            self.stack.tell("on_batch_failed", batch, self.view)
        self.lifecycle.tell_finished()

    def _cut_back(self, row: int, withdrawn: np.ndarray) -> None:
        """A row that hit what was never computed has it recomputed in blocks of its own."""
        state, table = self.state, self.state.table
        held = state.held(row)
        valid = int(table.computed[row]) // state.pool.block_size
        bad = np.flatnonzero(np.isin(held[:valid], withdrawn))
        if not len(bad):
            return
        keep = int(bad[0])
        state.pool.give_back(held[keep:][::-1].copy())
        table.blocks[row] = keep
        table.computed[row] = keep * state.pool.block_size
        self._rewind_chain(row)

    def _rewind_chain(self, row: int) -> None:
        """The block chain as of the tokens that are computed."""
        state, holder = self.state, int(self.state.table.holder[row])
        tokens = state.context[holder, : int(state.table.computed[row])]
        chain = state.hash.chain(tokens, state.salt(row))
        state.chain[holder] = chain[-1] if len(chain) else np.uint64(state.salt(row))
