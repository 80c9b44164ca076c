"""Checks of an executor: driven by an engine under a stack that preempts, with a witness at its protocol."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from interlock.core import (
    Batch,
    BatchResult,
    Capability,
    Copy,
    Engine,
    ExecutorError,
    Outcome,
    PreemptMode,
    Request,
    Ticket,
)
from interlock.plugins.conformance.checks import delivery, progress, twins
from interlock.plugins.conformance.checks.base import Check
from interlock.plugins.conformance.finding import Finding
from interlock.plugins.conformance.run import Run, Turn
from interlock.plugins.conformance.subject import Subject

STACK = "fcfs+priority"
"""The stack under which executors are tested: it admits, displaces and, with a mode, preempts in every way."""


class Witness:
    """Stands between the engine and an executor and notes every call with its answer, in order."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, batch: Batch) -> Ticket:
        """Note the ticket."""
        ticket: Ticket = self.inner.submit(batch)
        self.calls.append(("submit", (ticket, batch)))
        return ticket

    def collect(self, block: bool) -> Sequence[BatchResult]:
        """Note the results."""
        results: Sequence[BatchResult] = self.inner.collect(block)
        self.calls.append(("collect", (block, list(results))))
        return results

    def suspend(self, rows: np.ndarray, modes: Sequence[PreemptMode], copies: Sequence[Copy]) -> None:
        """Note nothing: the memory behind the witness looks at the copies."""
        self.inner.suspend(rows, modes, copies)

    def forget(self, rows: np.ndarray) -> None:
        """Twice, which must do no harm."""
        self.inner.forget(rows)
        self.inner.forget(rows)

    def expect(self, number: int, request: Request, output: int | None) -> None:
        """As the engine says."""
        self.inner.expect(number, request, output)


def witnessed(run: Run) -> tuple[Run, Witness]:
    """The same once more, with a witness."""
    witnesses: list[Witness] = []

    def put(engine: Engine) -> None:
        witnesses.append(Witness(engine.executor))
        engine.executor = engine.ingest.executor = witnesses[0]

    return run.again(prepare=put), witnesses[0]


class _Protocol(Check):
    """A check of the calls that a witness noted."""

    def end(self, run: Run) -> Iterable[Finding]:
        """The run once more, under a witness."""
        again, witness = witnessed(run)
        yield from self.calls(again, witness)

    def calls(self, run: Run, witness: Witness) -> Iterable[Finding]:
        """What is wrong with these calls."""
        raise NotImplementedError


class TicketOrder(_Protocol):
    """Tickets."""

    name = "ticket order"
    rule = "Every submission gets a ticket of its own for its batch, and results come once, in the order of submission."

    def calls(self, run: Run, witness: Witness) -> Iterable[Finding]:
        """Submissions beside results."""
        out: list[Ticket] = []
        used: set[int] = set()
        for kind, told in witness.calls:
            if kind == "submit":
                ticket, batch = told
                if ticket.batch is not batch or ticket.id in used:
                    seen = f"ticket {ticket.id} stands for another batch, or came before."
                    yield self.found(seen, "a ticket of its own.", batch.step)
                out.append(ticket)
                used.add(ticket.id)
                continue
            block, results = told
            tickets = [result.ticket for result in results]
            if tickets != out[: len(tickets)] or (block and out and not tickets):
                seen = (
                    f"tickets {[ticket.id for ticket in tickets]} come back, {[ticket.id for ticket in out]} are out."
                )
                yield self.found(seen, "the oldest first, each once, and one at least where it is waited for.")
            out = [ticket for ticket in out if ticket not in tickets]
        if out and run.error is None:
            yield self.found(f"tickets {[ticket.id for ticket in out]} never come back.", "each once.")


class Shapes(_Protocol):
    """Results."""

    name = "result shapes"
    rule = "A result has one end for each run, in time order, a token for each row that samples, an exit in the loop."

    def calls(self, run: Run, witness: Witness) -> Iterable[Finding]:
        """Result by result."""
        last = 0
        for result in [result for kind, told in witness.calls if kind == "collect" for result in told[1]]:
            for seen, right in _misshapen(result, last):
                yield self.found(seen, right, result.ticket.batch.step)
            last = int(result.ends_ns[-1])
        if isinstance(run.error, ExecutorError):
            yield self.found(f"{run.error}.", "a result that the engine can use.")


def _misshapen(result: BatchResult, last: int) -> Iterable[tuple[str, str]]:
    batch, runs = result.ticket.batch, result.runs
    ends = result.ends_ns.tolist()
    if not 1 <= runs <= batch.repeat:
        yield f"{runs} runs of {batch.repeat}.", "1 to as many as the batch may be repeated."
    if ends != sorted(ends) or ends[0] < max(batch.start_ns, last):
        yield f"it ends at {ends} ns, begun at {batch.start_ns}, the last one ended at {last}.", "in time order."
    if result.tokens.shape != (runs, len(batch)):
        yield f"tokens have the shape {result.tokens.shape}.", f"{(runs, len(batch))}."
    elif ((result.tokens >= 0) != batch.samples).any():
        yield f"tokens are {result.tokens.tolist()}, rows sample {batch.samples.tolist()}.", "-1 where none is sampled."
    if (result.exits is not None) != (batch.operation.name == "RECURRENT"):
        yield f"exits are {result.exits} after {batch.operation.name}.", "told after RECURRENT, and only then."


class IdleCollect(Check):
    """Nothing to collect."""

    name = "idle collect"
    rule = "Collecting where no ticket is out gives nothing, and stopping twice does no harm."

    def end(self, run: Run) -> Iterable[Finding]:
        """After the run."""
        executor = run.engine.executor
        left = list(executor.collect(block=False))
        executor.stop()
        if left:
            yield self.found(f"{len(left)} results come after the end.", "none.")


class Cost(Check):
    """Step cost."""

    name = "step cost"
    rule = "With the capability STEP_COST, `step_s` is a duration that does not fall when more runs."

    def skip(self, subject: Subject) -> str | None:
        """Where it is not offered."""
        return twins.lacks(subject, Capability.STEP_COST)

    def at(self, turn: Turn) -> Iterable[Finding]:
        """For each batch, and for one of a token more."""
        batch, executor = turn.record.batch, turn.engine.executor
        if batch is None:
            return
        rows = int((~batch.is_prompt).sum())
        small = executor.step_s(batch.prompt_tokens, rows, batch.context_tokens)
        large = executor.step_s(batch.prompt_tokens + 1, rows + 1, batch.context_tokens + 1)
        if not 0 < small <= large < float("inf"):
            yield self.found(f"{small} s, and {large} s for a token more.", "positive, and not falling.", batch.step)


class Positions(delivery.ServedAlone):
    """Tokens."""

    name = "token positions"
    rule = "What a row says depends on its context alone: not on chunks, neighbours, or who had its row before."

    def meant(self, outcome: Outcome) -> bool:
        """Who never gave way."""
        return outcome.preemptions == 0


class Resumes(delivery.ServedAlone):
    """Those who gave way."""

    name = "suspend and resume"
    rule = "After suspend and resume, in every mode, a row goes on as if nothing had been."

    def meant(self, outcome: Outcome) -> bool:
        """Who gave way."""
        return outcome.preemptions > 0


def executor_checks() -> list[Check]:
    """One of each, in the order of the report."""
    own: list[Check] = [TicketOrder(), Shapes(), IdleCollect(), Cost(), Positions(), Resumes()]
    return [*own, twins.Deterministic(), twins.Independent(), twins.Stretches(), progress.NoErrors()]
