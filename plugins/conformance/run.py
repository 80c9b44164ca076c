"""One scenario played to its end, with everything that checks want to know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from interlock.core import BoundaryRecord, Engine, Outcome, Policy, RequestStatus, WorkKey
from interlock.core.draft import Draft
from interlock.plugins.conformance.faults import Refused, refuse_once
from interlock.plugins.conformance.finding import Finding
from interlock.plugins.conformance.scenario import Scenario
from interlock.plugins.conformance.subject import Subject

if TYPE_CHECKING:
    from interlock.plugins.conformance.checks.base import Check

Prepare = Callable[[Engine], None]


@dataclass(frozen=True)
class Before:
    """Who waits and who could run when a plan is made, and what came of the plan.

    `fits`: waiting rows that could enter beside the active ones, a token each at least. `ready`: active rows with
    pending work and nothing in flight. `order`: the offered rows in offer order. `barred`: rows that were held, or
    stopped by a drop, a cap, a limit or a part of the budget.
    """

    waiting: tuple[int, ...]
    fits: frozenset[int]
    ready: tuple[int, ...]
    work: dict[int, int]
    order: tuple[int, ...] = ()
    barred: frozenset[int] = frozenset()
    short: frozenset[int] = frozenset()  # rows that lacked blocks
    draft: Draft | None = None


@dataclass(frozen=True)
class Turn:
    """One boundary, after it is applied."""

    run: Run
    record: BoundaryRecord
    before: Before | None

    @property
    def engine(self) -> Engine:
        """The engine as it is now."""
        return self.run.engine

    def name(self, number: int) -> str:
        """The id of a request, by its number in the run."""
        return self.run.ids.get(number, f"number {number}")


@dataclass
class Run:
    """A scenario under a stack. `play` runs it; what it found of each check is in `findings`, the first of each.

    `prepare` may patch the engine before it starts. `stack` stands in for the subject's policies. An allocator that
    refuses, as the scenario's faults may say, does not end the run.
    """

    subject: Subject
    scenario: Scenario
    checks: Sequence[Check] = ()
    prepare: Prepare | None = None
    stack: Sequence[Policy] | None = None
    looks: bool = False  # whether plans are looked at before they are committed
    records: list[BoundaryRecord] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)
    error: Exception | None = None
    endless: bool = False
    seen: Before | None = None  # of the last boundary
    _before: Before | None = None

    def play(self) -> Run:
        """To the end, an error, or twice the bound."""
        self.start()
        while self.turn():
            pass
        self.close()
        return self

    def start(self) -> None:
        """Make the engine. Raises ConfigError where the stack refuses the scenario's settings."""
        self.engine = self.subject.engine(self.scenario, [self], self.stack)
        if self.prepare is not None:
            self.prepare(self.engine)
        if self.scenario.faults.refuses is not None:
            refuse_once(self.engine, self.scenario.faults.refuses)
        if self.looks:
            _look(self.engine, self._note)
        self._most = 2 * self.scenario.bound + 256

    def turn(self) -> bool:
        """One boundary; whether there is another."""
        try:
            more = self.engine.step() is not None
        except Exception as error:
            more = isinstance(error, Refused)
            self.error = None if more else error
        self.endless = len(self.records) > self._most
        return more and not self.endless

    def close(self) -> None:
        """The run is over: what can only be told at its end."""
        self.engine.stop()
        for check in self.checks:
            self._keep(check, check.end(self))

    def on_boundary(self, record: BoundaryRecord) -> None:
        """As an observer of the engine."""
        self.records.append(record)
        for move in record.transitions:
            self.ids[move.request] = move.request_id
        turn = Turn(self, record, self._before)
        for check in self.checks:
            self._keep(check, check.at(turn))
        for outcome in record.outcomes:
            self.outcomes.setdefault(outcome.number, outcome)
        self.seen, self._before = self._before, None

    def again(self, scenario: Scenario | None = None, **changes: Any) -> Run:
        """Another run of the same, or with changes, that nobody checks."""
        return Run(self.subject, scenario or self.scenario, **changes).play()

    def _keep(self, check: Check, findings: Iterable[Finding]) -> None:
        if check.name not in self.findings:
            for finding in findings:
                self.findings[check.name] = finding
                return

    def _note(self, before: Before) -> None:
        self._before = before


def _look(engine: Engine, note: Callable[[Before], None]) -> None:
    """Look at the state before each plan, and at the plan before it is committed."""
    planner, plan, offer = engine.planner, engine.planner.plan, engine.planner._offer
    offered: list[tuple[int, ...]] = [()]

    def watched_offer(excluded: frozenset[int]) -> np.ndarray:
        rows = offer(excluded)
        offered[0] = tuple(rows.tolist())
        return rows

    def watched_plan(excluded: frozenset[int] = frozenset()) -> Draft | None:
        offered[0] = ()
        facts = _facts(engine)
        draft = plan(excluded)
        reasons = planner.reasons if draft is None else draft.reasons
        short = frozenset(row for row, reason in reasons.items() if reason.what == "blocks")
        note(Before(*facts, offered[0], _barred(engine, draft, reasons, facts[0]), short, draft))
        return draft

    planner.plan, planner._offer = watched_plan, watched_offer  # type: ignore[method-assign]


def _facts(engine: Engine) -> tuple[tuple[int, ...], frozenset[int], tuple[int, ...], dict[int, int]]:
    state, table = engine.state, engine.state.table
    waiting = tuple(state.waiting.rows.tolist())
    fits = frozenset(row for row in waiting if state.would_fit(row, ()))
    ready = tuple(row for row in state.active.tolist() if table.work[row] != WorkKey.NONE and not table.in_flight[row])
    return waiting, fits, ready, {row: int(table.work[row]) for row in (*waiting, *ready)}


def _barred(engine: Engine, draft: Draft | None, reasons: Any, waiting: tuple[int, ...]) -> frozenset[int]:
    barred = {row for row, reason in reasons.items() if reason.what in ("held", "limit")}
    if engine.planner._limits or engine.state.rescued is not None:
        return frozenset(waiting)
    if draft is not None:
        limits = draft.limits
        if limits.parts:
            return frozenset(waiting)
        dropped, caps = limits.dropped, limits.caps
        barred |= {row for row in waiting if dropped is not None and dropped[row]}
        barred |= {row for row in waiting if caps is not None and caps[row] < 1}
    return frozenset(barred)


Log = list[tuple[Any, ...]]


def log_of(run: Run) -> Log:
    """What a run decided and emitted, batches that were submitted as a stretch told one by one."""
    log: Log = []
    for record in run.records:
        for collected in record.collected:
            batch, result = collected.batch, collected.result
            members = tuple(zip(batch.numbers.tolist(), batch.versions.tolist(), batch.work.tolist(), strict=True))
            for at in range(result.runs):
                start = tuple((batch.start + at).tolist())
                said = tuple(result.tokens[at].tolist()) if result.error is None else ()
                log.append(("batch", batch.step + at, members, start, tuple(batch.tokens.tolist()), said))
                log.append(("end", batch.step + at, int(result.ends_ns[at])))
        log += [("move", move.step, *_plain(move)) for move in record.transitions]
    return log


def _plain(move: Any) -> tuple[Any, ...]:
    return tuple(int(value) if isinstance(value, np.integer | RequestStatus) else value for value in move)


def difference(mine: Log, other: Log) -> tuple[int, str] | None:
    """The step and the words of the first difference of two logs; None when they are equal."""
    for one, two in zip(mine, other, strict=False):
        if one != two:
            return one[1], f"{_told(one)} in one run, {_told(two)} in the other"
    if len(mine) != len(other):
        longer = max(mine, other, key=len)[min(len(mine), len(other))]
        return longer[1], f"{_told(longer)} in one run, and nothing any more in the other"
    return None


def _told(entry: tuple[Any, ...]) -> str:
    if entry[0] == "batch":
        members = ", ".join(f"{number}: {tokens}" for (number, _, _), tokens in zip(entry[2], entry[4], strict=True))
        return f"batch {entry[1]} of requests with tokens {{{members}}} saying {list(entry[5])}"
    if entry[0] == "end":
        return f"batch {entry[1]} ending at {entry[2]} ns"
    return f"request {entry[5]!r} {entry[10]} in step {entry[1]}"
