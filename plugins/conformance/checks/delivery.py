"""Checks of what callers get: tokens, each once, those of the request served alone; and honest numbers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from interlock.core import FinishReason, Outcome, RequestStatus
from interlock.plugins.conformance.alone import alone
from interlock.plugins.conformance.checks.base import Check
from interlock.plugins.conformance.finding import Finding
from interlock.plugins.conformance.run import Run, Turn

_ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)


class TokensOnce(Check):
    """Delivery."""

    name = "tokens once"
    rule = "Every sampled token reaches its request exactly once, in order, and tokens only grow."

    def __init__(self) -> None:
        self._streams: dict[int, list[int]] = {}

    def at(self, turn: Turn) -> Iterable[Finding]:
        """What was delivered so far, beside the columns and the outcomes."""
        for collected in turn.record.collected:
            for run in range(collected.result.runs):
                for at in np.flatnonzero(collected.delivered[run]).tolist():
                    token = int(collected.result.tokens[run, at])
                    self._streams.setdefault(int(collected.batch.numbers[at]), []).append(token)
        table, step = turn.engine.state.table, turn.record.step
        for row, entry in turn.engine.state.entries.items():
            stream = self._streams.get(entry.number, [])
            if table.emitted[row] != len(stream):
                seen = f"{table.emitted[row]} tokens count as emitted."
                yield self.found(seen, f"{len(stream)}, which were delivered.", step, entry.request.id)
        for outcome in turn.record.outcomes:
            stream, said = self._streams.get(outcome.number, []), outcome.output_ids.tolist()
            if said != stream:
                yield self.found(f"its answer is {said}.", f"{stream}, as delivered.", step, outcome.request_id)


class ServedAlone(Check):
    """Outputs."""

    name = "served alone"
    rule = "A request says what it says when it is served alone; one that is cut off says the beginning of it."

    def end(self, run: Run) -> Iterable[Finding]:
        """Every outcome."""
        names = [request["id"] for request in run.scenario.requests]
        told = [
            outcome for outcome in run.outcomes.values() if names.count(outcome.request_id) == 1 and self.meant(outcome)
        ]
        requests = [run.scenario.requests[names.index(outcome.request_id)] for outcome in told]
        for outcome, own in zip(told, alone(run.subject, run.scenario, requests), strict=True):
            said, whole = outcome.output_ids.tolist(), outcome.finish_reason in _ANSWERED
            right = own if whole else own[: len(said)]
            if said != right:
                yield self.found(f"it said {said}.", f"{right}.", None, outcome.request_id)

    def meant(self, outcome: Outcome) -> bool:
        """Whose answer is looked at."""
        return outcome.finish_reason is not FinishReason.REJECTED


class Metrics(Check):
    """Times."""

    name = "metrics"
    rule = "Intervals are not negative and sum to the request's time; its times are in order, the first token's once."

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Times of delivery, then the outcomes."""
        for collected in turn.record.collected:
            for run in range(collected.result.runs):
                for number in collected.batch.numbers[collected.delivered[run]].tolist():
                    self._last[number] = int(collected.result.ends_ns[run])
                    self._first.setdefault(number, self._last[number])
        for outcome in turn.record.outcomes:
            for seen, right in self._wrong(outcome):
                yield self.found(seen, right, turn.record.step, outcome.request_id)

    def _wrong(self, one: Outcome) -> Iterable[tuple[str, str]]:
        parts = (one.queue_ns, one.prefill_ns, one.decode_ns, one.preempted_ns, one.transfer_ns)
        life = one.finished_ns - one.arrival_ns
        if min(parts) < 0 or sum(parts) != life:
            yield f"queue, prefill, decode, preempted, transfer are {parts} ns.", f"none negative, {life} in all."
        times = [one.arrival_ns, one.admitted_ns, one.first_token_ns, one.last_token_ns, one.finished_ns]
        known = [time for time in times if time is not None]
        if known != sorted(known):
            yield f"its times are {known} ns.", "arrival, admission, first token, last token, end in this order."
        told = (one.first_token_ns, one.last_token_ns)
        right = (self._first.get(one.number), self._last.get(one.number))
        if told != right:
            yield f"first and last token at {told} ns.", f"{right}, when they were delivered."
        if one.admitted_ns is not None and one.queue_ns != one.admitted_ns - one.arrival_ns:
            yield f"it queued {one.queue_ns} ns.", f"{one.admitted_ns - one.arrival_ns}, until its first admission."


class Tallies(Check):
    """Counts."""

    name = "tallies"
    rule = "Preemptions, bypasses and overtakings are counted as they happen, once each."

    def __init__(self) -> None:
        self._gave_way: dict[int, int] = {}
        self._overtaken: dict[int, int] = {}

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Recounted from the transitions."""
        self._count(turn)
        limit = turn.engine.state.limits.bypass_limit
        for outcome in turn.record.outcomes:
            number = outcome.number
            right = (self._gave_way.get(number, 0), self._overtaken.get(number, 0))
            told = (outcome.preemptions, outcome.overtaken)
            if told != right:
                seen = f"(preemptions, overtaken) are {told}."
                yield self.found(seen, f"{right}.", turn.record.step, outcome.request_id)
            if outcome.bypasses > limit:
                seen = f"it was passed over {outcome.bypasses} times."
                yield self.found(seen, f"at most bypass_limit, {limit}.", turn.record.step, outcome.request_id)
        listed = [victim.request for victim in turn.record.preempted]
        moved = [move.request for move in turn.record.transitions if _gives_way(move)]
        if sorted(listed) != sorted(moved):
            seen = f"{[turn.name(number) for number in listed]} are told as preempted."
            yield self.found(seen, f"{[turn.name(number) for number in moved]}.", turn.record.step)

    def _count(self, turn: Turn) -> None:
        moves, table = turn.record.transitions, turn.engine.state.table
        for move in moves:
            if _gives_way(move):
                self._gave_way[move.request] = self._gave_way.get(move.request, 0) + 1
        ended = [
            move.request for move in moves if (move.from_status, move.reason) == (RequestStatus.WAITING, "rejected")
        ]
        waiting = [*table.number[turn.engine.state.waiting.rows].tolist(), *ended]
        for move in moves:
            if move.reason == "admitted":
                for number in waiting:
                    if number < move.request:
                        self._overtaken[number] = self._overtaken.get(number, 0) + 1


def _gives_way(move: object) -> bool:
    statuses = (getattr(move, "from_status", None), getattr(move, "to_status", None))
    return statuses == (RequestStatus.ACTIVE, RequestStatus.WAITING)


CHECKS: tuple[type[Check], ...] = (TokensOnce, ServedAlone, Metrics, Tallies)
