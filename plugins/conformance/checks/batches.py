"""Checks of the batch that each boundary forms, recomputed from the columns and from the results so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from interlock.core import Batch, Operation, RequestStatus, WorkKey
from interlock.core.record import Collected
from interlock.core.work import IS_PROMPT, OPERATION_OF
from interlock.plugins.conformance.checks.base import Check
from interlock.plugins.conformance.finding import Finding
from interlock.plugins.conformance.run import Turn


class _OfBatches(Check):
    """A check of each batch."""

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Where a batch was formed."""
        return () if turn.record.batch is None else self.batch(turn, turn.record.batch)

    def batch(self, turn: Turn, batch: Batch) -> Iterator[Finding]:
        """What is wrong with this batch."""
        raise NotImplementedError


class Members(_OfBatches):
    """Who may run."""

    name = "members"
    rule = "Whoever runs is live, active, in the batch once, in flight once, and did not give way at this boundary."

    def batch(self, turn: Turn, batch: Batch) -> Iterator[Finding]:
        """Row by row."""
        table, state = turn.engine.state.table, turn.engine.state
        gone = {victim.request for victim in turn.record.preempted}
        seen: set[int] = set()
        for row, number, version in zip(
            batch.rows.tolist(), batch.numbers.tolist(), batch.versions.tolist(), strict=True
        ):
            entry = state.entries.get(row)
            faults = {
                "it has no row": entry is None or entry.number != number,
                "it is in the batch twice": row in seen,
                f"its status is {RequestStatus(table.status[row]).name}": table.status[row] != RequestStatus.ACTIVE,
                f"its version is {table.version[row]}, not {version}": table.version[row] != version,
                f"{table.in_flight[row]} tickets of it are out": table.in_flight[row] != 1,
                "it gave way at this boundary": number in gone,
            }
            seen.add(row)
            for fault in (words for words, holds in faults.items() if holds):
                yield self.found(f"it runs, but {fault}.", "it does not run.", batch.step, turn.name(number))


class Budget(_OfBatches):
    """How much runs."""

    name = "budget"
    rule = "Tokens are positive and within what is pending; their sum and the rows are within the limits."

    def batch(self, turn: Turn, batch: Batch) -> Iterator[Finding]:
        """The sums, then row by row."""
        limits, counts = turn.engine.state.limits, turn.record.counts
        assert counts is not None
        budget = min(limits.max_num_batched_tokens, counts.budget)
        if int(batch.tokens.sum()) > budget:
            yield self.found(f"{batch.tokens.sum()} tokens run.", f"at most {budget}.", batch.step)
        if len(batch) > limits.max_num_seqs:
            yield self.found(f"{len(batch)} rows run.", f"at most {limits.max_num_seqs}.", batch.step)
        table = turn.engine.state.table
        context = table.prompt_tokens[batch.rows] + table.emitted[batch.rows]
        wrong = (batch.tokens < 1) | (batch.start + batch.tokens > context)
        for at in np.flatnonzero(wrong).tolist():
            seen = f"{batch.tokens[at]} tokens run from position {batch.start[at]}."
            right = f"1 to {context[at] - batch.start[at]} tokens, the context being {context[at]}."
            yield self.found(seen, right, batch.step, turn.name(int(batch.numbers[at])))


class Positions(_OfBatches):
    """Where what runs begins."""

    name = "positions"
    rule = "A chunk starts where the last one ended, and decode never runs before its prompt is computed."

    def __init__(self) -> None:
        self._valid: dict[int, int] = {}  # by request number, from results alone

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Follow results and preemptions, then look at the batch."""
        for collected in turn.record.collected:
            self._advance(turn, collected)
        for move in turn.record.transitions:
            if move.reason in ("admitted", "recompute"):
                self._valid[move.request] = int(move.computed)
            elif move.reason == "resumed" and not self._valid.get(move.request):
                self._valid[move.request] = int(move.computed)  # what it found cached
        return super().at(turn)

    def _advance(self, turn: Turn, collected: Collected) -> None:
        batch, result = collected.batch, collected.result
        if result.error is not None or batch.operation in (Operation.PRELUDE, Operation.CODA):
            return
        through = np.ones(len(batch), bool) if result.exits is None else result.exits
        for number, tokens in zip(batch.numbers[through].tolist(), batch.tokens[through].tolist(), strict=True):
            self._valid[number] = self._valid.get(number, 0) + tokens * result.runs

    def batch(self, turn: Turn, batch: Batch) -> Iterator[Finding]:
        """Row by row."""
        table = turn.engine.state.table
        for at, (row, number) in enumerate(zip(batch.rows.tolist(), batch.numbers.tolist(), strict=True)):
            valid = self._valid.get(number, 0)
            start = valid - (batch.operation is Operation.CODA)
            known = int(table.prompt_tokens[row] + table.emitted[row])
            if batch.start[at] != start:
                seen = f"it starts at position {batch.start[at]}."
                yield self.found(seen, f"at {start}.", batch.step, turn.name(number))
            elif not IS_PROMPT[batch.work[at]] and valid < known - 1:
                seen = f"it decodes with {valid} of {known} tokens computed."
                yield self.found(seen, "the rest of the context first.", batch.step, turn.name(number))


class Operations(_OfBatches):
    """What shares a batch."""

    name = "operations"
    rule = "A batch has one operation, each row runs its pending work, and the executor can mix what is in it."

    def batch(self, turn: Turn, batch: Batch) -> Iterator[Finding]:
        """The batch, then row by row."""
        table, keys = turn.engine.state.table, frozenset(WorkKey(key) for key in batch.work.tolist())
        operations = {OPERATION_OF[key] for key in keys}
        if operations != {batch.operation} or not turn.engine.executor.capabilities.can_mix(keys):
            names = ", ".join(sorted(key.name for key in keys))
            right = "work of one operation that the executor can mix."
            yield self.found(f"{batch.operation.name} runs {names}.", right, batch.step)
        for at in np.flatnonzero(table.work[batch.rows] != batch.work).tolist():
            pending = WorkKey(int(table.work[batch.rows[at]])).name
            seen = f"it runs {WorkKey(int(batch.work[at])).name}."
            yield self.found(seen, f"{pending}, which is pending.", batch.step, turn.name(int(batch.numbers[at])))


class Samples(_OfBatches):
    """Who says a token."""

    name = "samples"
    rule = "A row says a token exactly when its last known token is computed; on looped models the coda says it."

    def batch(self, turn: Turn, batch: Batch) -> Iterator[Finding]:
        """Row by row."""
        state, table = turn.engine.state, turn.engine.state.table
        context = table.prompt_tokens[batch.rows] + table.emitted[batch.rows]
        right = batch.start + batch.tokens == context
        if state.loops > 1:
            right = np.full(len(batch), batch.operation is Operation.CODA)
        for at in np.flatnonzero(batch.samples != right).tolist():
            words = ("a token is due.", "no token is due.")
            seen = "it says a token." if batch.samples[at] else "it says none."
            yield self.found(seen, words[int(not right[at])], batch.step, turn.name(int(batch.numbers[at])))


class OwnMemory(Check):
    """Whose KV is read."""

    name = "kv"
    rule = "A batch reads only KV that was computed for its own context."

    def at(self, turn: Turn) -> Iterable[Finding]:
        """What the memory behind the executor saw since the last boundary."""
        for finding in getattr(turn.engine.executor, "findings", ()):
            number = int(str(finding.request).removeprefix("number "))
            yield self.found(finding.seen, finding.right, finding.step, turn.name(number))


CHECKS: tuple[type[Check], ...] = (Members, Budget, Positions, Operations, Samples, OwnMemory)
