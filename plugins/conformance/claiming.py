"""What all checks of claims share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, Self

from interlock.core import claims
from interlock.plugins.conformance.checks.base import Check
from interlock.plugins.conformance.finding import Finding
from interlock.plugins.conformance.run import Before, Turn
from interlock.plugins.conformance.subject import Subject


class ClaimCheck(Check):
    """A claim of one policy of the stack.

    `place`: of the policy in the stack, from 0; `policy`: its name.
    """

    family = "claims"
    looks = True
    looped: ClassVar[bool | None] = None  # whether only looped models are meant

    def __init__(self, claim: claims.Claim, place: int, policy: str) -> None:
        self.claim, self.place, self.policy = claim, place, policy
        self.name = f"{claim!r} of {policy.rsplit('/', 1)[-1]}"
        text = " ".join(str(type(claim).__doc__).split("\n\n")[0].split())
        self.rule = f"{policy.rsplit('/', 1)[-1]} claims {claim!r}: {text}"
        self.begin()

    def begin(self) -> None:
        """What is remembered of a run."""

    def fresh(self) -> Self:
        """One for another run."""
        return type(self)(self.claim, self.place, self.policy)

    def skip(self, subject: Subject) -> str | None:
        """Where the claim is about models that the stack does not serve."""
        if self.looped and all(loops == 1 for loops, _ in subject.shapes):
            return "it is about looped models, and the stack serves dense ones only"
        return None

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Boundaries at which a rescue rules are excepted."""
        if turn.before is not None and turn.engine.state.rescued is None:
            yield from self.see(turn, turn.before)

    def see(self, turn: Turn, before: Before) -> Iterator[Finding]:
        """What breaks the claim at this boundary."""
        raise NotImplementedError

    def name_of(self, turn: Turn, row: int) -> str:
        """The id of the request in a row."""
        entry = turn.engine.state.entries.get(row)
        return f"row {row}" if entry is None else entry.request.id


def first_admitted(turn: Turn) -> list[tuple[int, int]]:
    """(row, number) of the requests first admitted at this boundary, in order."""
    return [(move.row, move.request) for move in turn.record.transitions if move.reason == "admitted"]


def still_waiting(turn: Turn, before: Before, *, never_admitted: bool = False) -> list[int]:
    """Rows that waited before the plan and wait after it, without those that were barred."""
    table, waiting = turn.engine.state.table, set(turn.engine.state.waiting.rows.tolist())
    rows = [row for row in before.waiting if row in waiting and row not in before.barred]
    return [row for row in rows if table.admitted_ns[row] < 0] if never_admitted else rows
