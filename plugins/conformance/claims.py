"""One check for each claim of `interlock.core.claims`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from interlock.core import WorkKey, claims
from interlock.core.proposals import DemandKind
from interlock.core.work import IS_PROMPT, OPERATION_OF
from interlock.plugins.conformance.checks.base import Check
from interlock.plugins.conformance.claiming import ClaimCheck, first_admitted, still_waiting
from interlock.plugins.conformance.finding import Finding
from interlock.plugins.conformance.run import Before, Turn
from interlock.plugins.conformance.subject import Subject


class _ArrivalOrder(ClaimCheck):
    def see(self, turn: Turn, before: Before) -> Iterator[Finding]:
        numbers = [number for _, number in first_admitted(turn)]
        if not numbers:
            return
        table, step = turn.engine.state.table, turn.record.step
        if numbers != sorted(numbers):
            seen = f"{[turn.name(number) for number in numbers]} are admitted in this order."
            yield self.found(seen, "the order of their arrival.", step)
        excused = before.short if turn.engine.state.limits.bypass_limit else frozenset()
        for row in still_waiting(turn, before, never_admitted=True):
            if row not in excused and table.number[row] < max(numbers):
                seen = f"{turn.name(max(numbers))!r}, which arrived after it, is admitted, and it waits."
                yield self.found(seen, "it enters first.", step, self.name_of(turn, row))


class _NoPriorityInversion(ClaimCheck):
    def see(self, turn: Turn, before: Before) -> Iterator[Finding]:
        table = turn.engine.state.table
        entered = [move for move in turn.record.transitions if move.reason in ("admitted", "resumed")]
        for row in still_waiting(turn, before):
            mine = int(table.priority[row])
            for move in entered:
                if row in before.fits and table.priority[move.row] > mine:
                    other = int(table.priority[move.row])
                    seen = f"it waits with priority {mine} and fits, and {move.request_id!r} enters with {other}."
                    yield self.found(seen, "it enters first.", turn.record.step, self.name_of(turn, row))


class _DisplacesOnlyLower(ClaimCheck):
    def see(self, turn: Turn, before: Before) -> Iterator[Finding]:
        table = turn.engine.state.table
        for victim in () if before.draft is None else before.draft.victims:
            if victim.demand is DemandKind.GROWTH or victim.resident:
                continue
            mine, other = int(table.priority[victim.row]), int(table.priority[victim.requester])
            if mine <= other:
                seen = f"it has priority {mine} and gives way to one with {other}."
                yield self.found(seen, "it stays.", turn.record.step, self.name_of(turn, victim.row))


class _NeverPreempts(ClaimCheck):
    def see(self, turn: Turn, before: Before) -> Iterator[Finding]:
        for victim in turn.record.preempted:
            if victim.demand != DemandKind.GROWTH:
                seen = f"it gives way for {victim.demand}."
                yield self.found(seen, "it stays.", turn.record.step, turn.name(victim.request))
        for given in () if before.draft is None else before.draft.victims:
            if given.resident and given.demand is not DemandKind.GROWTH:
                name = self.name_of(turn, given.row)
                yield self.found("its blocks go to a candidate.", "it keeps them.", turn.record.step, name)


class _WorkConserving(ClaimCheck):
    def see(self, turn: Turn, before: Before) -> Iterator[Finding]:
        if turn.record.batch is not None:
            return
        for row in before.ready:
            if row in turn.engine.state.entries:
                name = self.name_of(turn, row)
                yield self.found(
                    "it is active with work pending, and no batch forms.", "it runs.", turn.record.step, name
                )
        for row in still_waiting(turn, before):
            if row in before.fits:
                name = self.name_of(turn, row)
                yield self.found("it fits, and no batch forms.", "it enters and runs.", turn.record.step, name)


class _BoundedBypass(ClaimCheck):
    claim: claims.BoundedBypass

    def begin(self) -> None:
        self._times: dict[int, int] = {}

    def see(self, turn: Turn, before: Before) -> Iterator[Finding]:
        entered = {move.row for move in turn.record.transitions if move.reason in ("admitted", "resumed")}
        for row in still_waiting(turn, before):
            if row not in before.short or row not in before.order:
                continue
            behind = entered & set(before.order[before.order.index(row) :])
            number = int(turn.engine.state.table.number[row])
            self._times[number] = self._times.get(number, 0) + len(behind)
            if behind and self._times[number] > self.claim.times:
                seen = f"it has been passed over {self._times[number]} times for want of blocks."
                yield self.found(seen, f"at most {self.claim.times}.", turn.record.step, self.name_of(turn, row))


class _BoundedOvertaking(ClaimCheck):
    claim: claims.BoundedOvertaking

    def begin(self) -> None:
        self._times: dict[int, int] = {}

    def see(self, turn: Turn, before: Before) -> Iterator[Finding]:
        table, numbers = turn.engine.state.table, [number for _, number in first_admitted(turn)]
        for row in still_waiting(turn, before, never_admitted=True):
            mine = int(table.number[row])
            later = sum(number > mine for number in numbers)
            self._times[mine] = self._times.get(mine, 0) + later
            if later and self._times[mine] > self.claim.times:
                seen = f"{self._times[mine]} later arrivals were admitted before it."
                yield self.found(seen, f"at most {self.claim.times}.", turn.record.step, self.name_of(turn, row))


class _StarvationBound(ClaimCheck):
    claim: claims.StarvationBound

    def begin(self) -> None:
        self._batches: dict[int, int] = {}
        self._waited: tuple[int, ...] = ()

    def see(self, turn: Turn, before: Before) -> Iterator[Finding]:
        runs, table = sum(one.result.runs for one in turn.record.collected), turn.engine.state.table
        for number in self._waited:
            self._batches[number] = self._batches.get(number, 0) + runs
        rows = still_waiting(turn, before, never_admitted=True)
        self._waited = tuple(int(table.number[row]) for row in rows)
        for row, number in zip(rows, self._waited, strict=True):
            if self._batches.get(number, 0) > self.claim.steps:
                seen = f"it has waited for its first admission through {self._batches[number]} batches."
                yield self.found(seen, f"at most {self.claim.steps}.", turn.record.step, self.name_of(turn, row))


class _DecodeGap(ClaimCheck):
    claim: claims.DecodeGap

    def begin(self) -> None:
        self._without: dict[int, int] = {}

    def see(self, turn: Turn, before: Before) -> Iterator[Finding]:
        state, batch = turn.engine.state, turn.record.batch
        told = {int(n) for one in turn.record.collected for n in one.batch.numbers[one.delivered.any(axis=0)].tolist()}
        decoding = {int(state.table.number[row]): row for row in state.active.tolist() if state.table.emitted[row]}
        self._without = {number: self._without.get(number, 0) for number in decoding if number not in told}
        for number, row in decoding.items() if batch is not None else ():
            if number not in batch.numbers:  # type: ignore[union-attr]
                self._without[number] = self._without.get(number, 0) + 1
                if self._without[number] > self.claim.steps:
                    seen = f"{self._without[number]} batches have run without it since its last token."
                    yield self.found(seen, f"at most {self.claim.steps}.", turn.record.step, self.name_of(turn, row))


class _DecodesFirst(ClaimCheck):
    def see(self, turn: Turn, before: Before) -> Iterator[Finding]:
        batch, draft = turn.record.batch, before.draft
        if batch is None or draft is None or not batch.is_prompt.any():
            return
        if draft.victims or draft.limits.parts or draft.limits.caps is not None or draft.limits.dropped is not None:
            return
        running = set(batch.rows.tolist())
        for row in before.ready:
            key = WorkKey(before.work[row])
            if row not in running and not IS_PROMPT[key] and OPERATION_OF[key] is batch.operation:
                seen = f"its {key.name} is ready, and {batch.prompt_tokens} prompt tokens run without it."
                yield self.found(seen, "it runs before them.", turn.record.step, self.name_of(turn, row))


class _BoundedPrompts(ClaimCheck):
    claim: claims.BoundedPrompts
    looped = True

    def begin(self) -> None:
        self._run = 0

    def see(self, turn: Turn, before: Before) -> Iterator[Finding]:
        batch = turn.record.batch
        if batch is None:
            return
        due = [row for row in before.ready if before.work[row] == WorkKey.DECODE_RECURRENT]
        if (batch.work == WorkKey.DECODE_RECURRENT).any() or not due:
            self._run = 0
        elif np.isin(batch.work, (WorkKey.PROMPT_ATOMIC, WorkKey.PROMPT_RECURRENT)).any():
            self._run += 1
            if self._run > self.claim.batches:
                seen = f"its loop is due, and {self._run} prompt batches have run in a row."
                yield self.found(seen, f"at most {self.claim.batches}.", turn.record.step, self.name_of(turn, due[0]))


class _Cohorts(ClaimCheck):
    looped = True

    def see(self, turn: Turn, before: Before) -> Iterator[Finding]:
        batch = turn.record.batch
        if batch is None or not (batch.work == WorkKey.DECODE_PRELUDE).any():
            return
        for row in before.ready:
            if before.work[row] in (WorkKey.DECODE_RECURRENT, WorkKey.DECODE_CODA):
                seen = f"its {WorkKey(before.work[row]).name} is ready, and others enter the loop."
                yield self.found(seen, "the loop is drained first.", turn.record.step, self.name_of(turn, row))


CHECK_OF: dict[type[claims.Claim], type[ClaimCheck]] = {
    claims.ArrivalOrder: _ArrivalOrder,
    claims.NoPriorityInversion: _NoPriorityInversion,
    claims.DisplacesOnlyLower: _DisplacesOnlyLower,
    claims.NeverPreempts: _NeverPreempts,
    claims.WorkConserving: _WorkConserving,
    claims.BoundedBypass: _BoundedBypass,
    claims.BoundedOvertaking: _BoundedOvertaking,
    claims.StarvationBound: _StarvationBound,
    claims.DecodeGap: _DecodeGap,
    claims.DecodesFirst: _DecodesFirst,
    claims.BoundedPrompts: _BoundedPrompts,
    claims.Cohorts: _Cohorts,
}
"""The check of each claim."""


class Unknown(ClaimCheck):
    """A claim of a stranger, of which nothing is known."""

    def skip(self, subject: Subject) -> str | None:
        """Always."""
        return "the suite has no check for this claim"


def claim_checks(subject: Subject) -> list[Check]:
    """The checks of all that the stack's policies claim, each claim once where several policies claim the same."""
    checks: dict[str, Check] = {}
    for place, policy, claim in subject.claims():
        check = CHECK_OF.get(type(claim), Unknown)(claim, place, policy)
        checks.setdefault(check.name, check)
    return list(checks.values())
