"""Checks that work goes on, ends in time, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from interlock.core import FinishReason, HookError, LivelockError, PolicyViolation
from interlock.core.proposals import DemandKind
from interlock.plugins.conformance.checks.base import Check
from interlock.plugins.conformance.checks.lives import never_runs
from interlock.plugins.conformance.finding import Finding
from interlock.plugins.conformance.run import Run, Turn
from interlock.plugins.conformance.scenario import Scenario


def _last_step(run: Run) -> int | None:
    return run.records[-1].step if run.records else None


class Drains(Check):
    """Without force."""

    name = "drains unaided"
    rule = "Requests that each fit alone drain without a rescue."

    def end(self, run: Run) -> Iterable[Finding]:
        """A livelock, or a rescue."""
        if isinstance(run.error, LivelockError):
            yield self.found(f"{run.error}.", "somebody runs and progress is banked.", _last_step(run))
        elif run.engine.stats.rescues["forced"]:
            seen = f"progress needed force {run.engine.stats.rescues['forced']} times."
            yield self.found(seen, "never.", _last_step(run))


class NothingLeft(Check):
    """At drain."""

    name = "nothing left"
    rule = "When everybody has ended, no slot, row, ticket, reference, holder or host copy is left."

    def end(self, run: Run) -> Iterable[Finding]:
        """Gauge by gauge."""
        if run.error is not None or run.endless:
            return
        engine, state = run.engine, run.engine.state
        left = {
            "slots": state.limits.max_num_seqs - state.free_slots,
            "table rows": len(state.table),
            "waiting requests": len(state.waiting),
            "active requests": len(state.active),
            "entries": len(state.entries) + len(state.rows) + len(state.resident),
            "tickets": len(state.tickets) + len(engine._tickets) + len(engine._published),
            "references": int(state.pool.references.sum()),
            "fenced blocks": state.pool.fenced,
            "holders": len(state.pool.table) - len(set(state.pool._free_holders)),
            "host copies": state.kv.host_blocks - state.host_free,
            "unretired requests": len(engine.lifecycle.leaving),
        }
        for what, count in left.items():
            if count:
                yield self.found(f"{count} {what} are left.", "none.", _last_step(run))
        for number in sorted(set(run.ids) - set(run.outcomes)):
            yield self.found("it never ended.", "one end.", _last_step(run), run.ids[number])


class EndsInTime(Check):
    """Liveness."""

    name = "ends in time"
    rule = "A request that fits alone and is not held ends within the scenario's bound of batches after its arrival."

    def __init__(self) -> None:
        self._batches: dict[int, int] = {}
        self._free: frozenset[int] = frozenset()

    looks = True

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Charge the batches since the last boundary to who was alive and not held."""
        runs, bound = sum(collected.result.runs for collected in turn.record.collected), turn.run.scenario.bound
        for number in self._free:
            self._batches[number] = self._batches.get(number, 0) + runs
            if self._batches[number] > bound:
                seen = f"{self._batches[number]} batches have run since it arrived."
                yield self.found(seen, f"at most {bound}.", turn.record.step, turn.name(number))
        barred = turn.before.barred if turn.before else frozenset()
        state = turn.engine.state
        self._free = frozenset(state.entries[row].number for row in state.rows.values() if row not in barred)

    def end(self, run: Run) -> Iterable[Finding]:
        """Boundaries without end."""
        if run.endless:
            alive = [run.ids[number] for number in sorted(set(run.ids) - set(run.outcomes))]
            seen = f"{len(run.records)} boundaries have passed, and {alive} have not ended."
            yield self.found(seen, f"at most {run.scenario.bound} batches.", _last_step(run))


class NoEmptySuspension(Check):
    """What a preemption is for."""

    name = "no empty suspension"
    rule = "Nobody gives way to a candidate unless that candidate enters at the same boundary."
    looks = True

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Who gave way to whom."""
        record = turn.record
        displaced = [victim for victim in record.preempted if victim.demand != DemandKind.GROWTH]
        if displaced and not record.admitted:
            seen = f"it gave way for {displaced[0].demand}, and nobody entered."
            yield self.found(seen, "nobody gives way.", record.step, turn.name(displaced[0].request))
        draft = turn.before.draft if turn.before else None
        entered = set() if draft is None else {entrant.row for entrant in draft.entrants}
        for victim in () if draft is None or record.batch is None else draft.victims:
            if victim.demand is not DemandKind.GROWTH and victim.requester not in entered:
                entry = turn.engine.state.entries.get(victim.row)
                seen = f"it gave way to row {victim.requester}, which did not enter."
                yield self.found(seen, "nobody gives way.", record.step, entry.request.id if entry else None)


class OneFormula(Check):
    """Validation and admission."""

    name = "one formula"
    rule = "Who passes validation is admitted at once by an idle engine, and runs, unless the policies hold it."

    def end(self, run: Run) -> Iterable[Finding]:
        """Each request alone, under the same settings and policies."""
        for request in run.scenario.requests:
            kv = run.engine.state.kv
            if never_runs(request, run.scenario.longest, kv.block_size, run.engine.state.pool.num_blocks):
                continue
            own = {key: value for key, value in request.items() if not key.startswith("cancel")}
            yield from self._idle(run, replace(run.scenario, requests=({**own, "arrival": 0.0},)))

    def _idle(self, run: Run, scenario: Scenario) -> Iterable[Finding]:
        single = Run(run.subject, scenario, looks=True)
        single.start()
        single.turn()
        record, before = single.records[-1], single.seen
        if record.batch is None and not (before and before.barred) and not record.outcomes:
            state = single.engine.state
            seen = f"{state.pool.available} blocks and {state.free_slots} slots are free, and it does not run."
            yield self.found(seen, "it runs.", record.step, str(scenario.requests[0]["id"]))


class Rules(Check):
    """The engine's own rules."""

    name = "rules"
    rule = "No proposal of the stack breaks a rule of the engine."

    def end(self, run: Run) -> Iterable[Finding]:
        """An error that names one."""
        if isinstance(run.error, PolicyViolation) and not isinstance(run.error, HookError):
            yield self.found(
                f"{run.error}.", "an edit that the rules allow.", _last_step(run), run.error.request or None
            )


class NoErrors(Check):
    """Hooks and the engine itself."""

    name = "no errors"
    rule = "No hook raises, and the engine does not fail."

    def end(self, run: Run) -> Iterable[Finding]:
        """Any other error."""
        foreign = run.error is not None and not isinstance(run.error, LivelockError)
        if foreign and (isinstance(run.error, HookError) or not isinstance(run.error, PolicyViolation)):
            seen = f"{type(run.error).__name__}: {run.error}."
            yield self.found(seen, "the run goes on.", _last_step(run))
        for outcome in run.outcomes.values():
            if outcome.finish_reason is FinishReason.ERROR and not run.scenario.faults.fails:
                yield self.found(f"it ended with {outcome.reject_reason}.", "an answer.", None, outcome.request_id)


CHECKS: tuple[type[Check], ...] = (Drains, NothingLeft, EndsInTime, NoEmptySuspension, OneFormula, Rules, NoErrors)
