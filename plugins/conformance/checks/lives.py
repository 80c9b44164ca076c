"""Checks of the lives of requests, from the transitions that the engine tells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from interlock.core import Outcome, RequestStatus
from interlock.core.request import TRANSITIONS
from interlock.plugins.conformance.checks.base import Check
from interlock.plugins.conformance.finding import Finding
from interlock.plugins.conformance.run import Run, Turn
from interlock.plugins.conformance.scenario import Scenario


class Lifecycle(Check):
    """Legal transitions."""

    name = "lifecycle"
    rule = "Every transition is legal for its reason, and begins where the request's last one ended."

    def __init__(self) -> None:
        self._status: dict[int, RequestStatus] = {}

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Move by move; the last one is what the column says."""
        for move in turn.record.transitions:
            last, words = self._status.get(move.request), f"{_name(move.from_status)} to {move.to_status.name}"
            if move.from_status is not last:
                seen = f"{words} as {move.reason!r}, but it was {_name(last)}."
                yield self.found(seen, f"from {_name(last)}.", move.step, move.request_id)
            if move.reason not in TRANSITIONS.get((move.from_status, move.to_status), ()):
                yield self.found(f"{words} as {move.reason!r}.", "no such transition.", move.step, move.request_id)
            self._status[move.request] = move.to_status
        table = turn.engine.state.table
        for row, entry in turn.engine.state.entries.items():
            if table.status[row] != self._status.get(entry.number):
                seen = f"its status is {RequestStatus(int(table.status[row])).name}, untold."
                yield self.found(seen, _name(self._status.get(entry.number)), turn.record.step, entry.request.id)


def _name(status: RequestStatus | None) -> str:
    return "nothing yet" if status is None else status.name


class Versions(Check):
    """What makes late results detectable."""

    name = "versions"
    rule = "Each transition raises its row's version, also when the row changes its owner."

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Move by move."""
        for move in turn.record.transitions:
            if move.row < 0:
                continue
            last = self._last.get(move.row, -1)
            if move.version <= last:
                seen = f"row {move.row} has version {move.version} as {move.reason!r}."
                yield self.found(seen, f"more than {last}, which it had before.", move.step, move.request_id)
            self._last[move.row] = move.version


class OneEnd(Check):
    """Terminal events."""

    name = "one end"
    rule = "Every request ends once, is told once, and nothing of it runs or is delivered afterwards."

    def __init__(self) -> None:
        self._ended: set[int] = set()

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Outcomes beside the transitions to FINISHED."""
        record = turn.record
        for collected in record.collected:
            for number in collected.batch.numbers[collected.delivered.any(axis=0)].tolist():
                if number in self._ended:
                    yield self.found("a token is delivered after its end.", "none.", record.step, turn.name(number))
        ends = sorted(move.request for move in record.transitions if move.to_status is RequestStatus.FINISHED)
        told = sorted(outcome.number for outcome in record.outcomes)
        for number in {n for n in (*ends, *told) if ends.count(n) != 1 or told.count(n) != 1 or n in self._ended}:
            seen = f"{ends.count(number)} ends and {told.count(number)} outcomes at one boundary"
            seen += ", after an earlier end." if number in self._ended else "."
            yield self.found(seen, "one end, one outcome.", record.step, turn.name(number))
        self._ended.update(told)
        if record.batch is not None:
            for number in sorted(self._ended & set(record.batch.numbers.tolist())):
                yield self.found("it runs after its end.", "it does not.", record.batch.step, turn.name(number))


class Cancels(Check):
    """Callers who lose interest."""

    name = "cancels"
    rule = "A cancellation ends a live request, whatever its status, at the first boundary that it is due at."
    family = "cancels"

    def __init__(self) -> None:
        self._alive: dict[str, int] = {}

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Who is alive although a cancellation was due."""
        record = turn.record
        for request in turn.run.scenario.requests:
            name, row = request["id"], turn.engine.state.rows.get(request["id"])
            if row is None or self._ambiguous(turn.run.scenario, name):
                continue
            by_time = "cancel_at" in request and round(request["cancel_at"] * 1e9) <= record.time_ns
            by_step = "cancel_at_step" in request and request["cancel_at_step"] <= record.step
            arrived = turn.engine.state.table.arrival_ns[row]
            late = by_step and arrived <= self._time_of(turn.run, request["cancel_at_step"])
            if (by_time and request["cancel_at"] >= request.get("arrival", 0.0)) or late:
                seen = f"its status is {RequestStatus(int(turn.engine.state.table.status[row])).name}."
                yield self.found(seen, "FINISHED, since its cancellation is due.", record.step, name)

    @staticmethod
    def _ambiguous(scenario: Scenario, name: str) -> bool:
        return sum(bool(request["id"] == name) for request in scenario.requests) > 1

    @staticmethod
    def _time_of(run: Run, step: int) -> int:
        """The time of the first boundary with at least this number."""
        return next((record.time_ns for record in run.records if record.step >= step), -1)


class Rejections(Check):
    """Who never can run."""

    name = "rejections"
    rule = "Exactly who can never run, or has the id of a live request, is rejected at the door, at once."

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Who came at this boundary. Which of two requests of one id came cannot be told, so they are left out."""
        rejected = {
            outcome.number: outcome.reject_reason for outcome in turn.record.outcomes if _at_door(turn, outcome)
        }
        for move in turn.record.transitions:
            own = [request for request in turn.run.scenario.requests if request["id"] == move.request_id]
            if move.from_status is not None or len(own) != 1:
                continue
            state, reason = turn.engine.state, rejected.get(move.request)
            why = never_runs(own[0], turn.run.scenario.longest, state.pool.block_size, state.pool.num_blocks)
            if reason is None and why is not None:
                yield self.found("it is accepted.", f"it is rejected, since {why}.", move.step, move.request_id)
            elif reason is not None and why is None and not reason.startswith("queue_full"):
                right = "it is accepted, since it fits alone."
                yield self.found(f"it is rejected: {reason}.", right, move.step, move.request_id)


def _at_door(turn: Turn, outcome: Outcome) -> bool:
    return any(move.request == outcome.number and move.row < 0 for move in turn.record.transitions)


def never_runs(request: Any, longest: int, block_size: int, num_blocks: int) -> str | None:
    """Why a request can never run: no prompt, too long a context, too many blocks; None where it can.

    The last token needs no KV, so prompt + output - 1 tokens need room, the output being cut by the context.
    """
    prompt = request["prompt"] if isinstance(request["prompt"], int) else len(request["prompt"])
    if prompt < 1:
        return "its prompt is empty"
    if prompt >= longest:
        return f"{prompt} tokens leave no room for one more in {longest}"
    output = min(request.get("max_tokens") or longest, longest - prompt)
    blocks = (prompt + output - 1 + block_size - 1) // block_size
    return f"it needs {blocks} blocks of {num_blocks}" if blocks > num_blocks else None


CHECKS: tuple[type[Check], ...] = (Lifecycle, Versions, OneEnd, Cancels, Rejections)
