"""What a check is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Self

from interlock.plugins.conformance.finding import Finding
from interlock.plugins.conformance.run import Run, Turn
from interlock.plugins.conformance.scenario import Scenario
from interlock.plugins.conformance.subject import Subject


class Check:
    """One property, under one name. A fresh one is made for each run, so it may remember what it saw of that run.

    * `rule`: the property in one sentence
    * `family`: the kind of scenario it is tested on: `load`, without faults; `faulty`, whose executor fails
    * `looks`: whether it needs `Turn.before`
    """

    name: str
    rule: str
    family: ClassVar[str] = "load"
    looks: ClassVar[bool] = False

    def skip(self, subject: Subject) -> str | None:
        """Why the property does not apply to this stack and executor; None where it does."""
        return None

    def applies(self, scenario: Scenario) -> bool:
        """Whether this scenario is an example of it."""
        return True

    def fresh(self) -> Self:
        """One for another run."""
        return type(self)()

    def at(self, turn: Turn) -> Iterable[Finding]:
        """What is wrong at this boundary."""
        return ()

    def end(self, run: Run) -> Iterable[Finding]:
        """What is wrong with the run as a whole, which may have ended by an error."""
        return ()

    def found(self, seen: str, right: str, step: int | None = None, request: str | None = None) -> Finding:
        """A finding of this check."""
        return Finding(self.rule, seen, right, step, request)
