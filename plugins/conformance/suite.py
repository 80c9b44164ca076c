"""The suite: draws scenarios, plays each once, and holds every check to it; then shrinks what failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, Verbosity, assume, given, settings

from interlock.core import ConfigError
from interlock.plugins.conformance.checks import Check, universal
from interlock.plugins.conformance.claiming import ClaimCheck
from interlock.plugins.conformance.claims import claim_checks
from interlock.plugins.conformance.finding import Finding
from interlock.plugins.conformance.quiet import quiet
from interlock.plugins.conformance.run import Run
from interlock.plugins.conformance.scenario import Scenario
from interlock.plugins.conformance.shrink import shrunk
from interlock.plugins.conformance.strategies import scenarios
from interlock.plugins.conformance.subject import Subject

EXAMPLES = 200


class _Enough(Exception):
    """Every check has failed already."""


@dataclass
class Verdict:
    """What came of a check.

    `status`: `pass`, `fail`, `skip`, `expected` (a failure that a policy declares) or `lost` (a claim that a later
    policy of the stack undoes). `reason`: of a skip, an expectation or a loss.
    """

    check: Check
    status: str = "pass"
    examples: int = 0
    reason: str = ""
    finding: Finding | None = None
    scenario: Scenario | None = None
    file: str = ""

    @property
    def good(self) -> bool:
        """Whether the stack may be used all the same."""
        return self.status != "fail"


@dataclass
class Suite:
    """All checks of one subject. `verdicts` plays them and yields the verdicts family by family."""

    subject: Subject
    max_examples: int = EXAMPLES
    only: frozenset[str] | None = None  # names of checks, None for all
    shrinks: bool = True
    checks: list[Check] = field(default_factory=list)
    title: str = ""

    def __post_init__(self) -> None:
        self.title = self.title or self.subject.title
        every = self.checks or [*universal(), *claim_checks(self.subject)]
        self.checks = [check for check in every if self.only is None or check.name in self.only]

    def verdicts(self) -> Iterator[Verdict]:
        """One verdict per check, in the order of the report."""
        with quiet():
            for family in dict.fromkeys(check.family for check in self.checks):
                yield from self._family(family, [check for check in self.checks if check.family == family])

    def _family(self, family: str, checks: list[Check]) -> Iterator[Verdict]:
        verdicts = {check.name: Verdict(check) for check in checks}
        for verdict in verdicts.values():
            why = verdict.check.skip(self.subject)
            if why is not None:
                verdict.status, verdict.reason = "skip", why
        self._draw(family, [verdict for verdict in verdicts.values() if verdict.status == "pass"])
        for verdict in verdicts.values():
            self._judge(verdict)
            yield verdict

    def _draw(self, family: str, verdicts: list[Verdict]) -> None:
        """Play as many scenarios as are asked for, each check until it fails."""

        def play(scenario: Scenario) -> None:
            if all(verdict.finding is not None for verdict in verdicts):
                raise _Enough
            going = [verdict for verdict in verdicts if verdict.finding is None and verdict.check.applies(scenario)]
            found = findings(self.subject, scenario, [verdict.check for verdict in going])
            for verdict in going:
                verdict.examples += 1
                if verdict.check.name in found:
                    verdict.finding, verdict.scenario = found[verdict.check.name], scenario

        if verdicts:
            with suppress(_Enough):
                self._explore(family, play)

    def _judge(self, verdict: Verdict) -> None:
        """Skips, failures that are expected, claims that are lost, and what never had an example."""
        reason = self.subject.expected().get(verdict.check.name)
        if verdict.finding is not None and self.shrinks:
            self._shrink(verdict)
        if verdict.finding is not None:
            verdict.status, verdict.reason = ("expected", reason) if reason else ("fail", "")
        elif reason is not None and verdict.status == "pass":
            verdict.status, verdict.reason = "fail", f"it is expected to fail ({reason}), and passes"
        elif verdict.status == "pass" and not verdict.examples:
            verdict.status, verdict.reason = "skip", "no scenario was an example of it"
        if verdict.status == "fail" and isinstance(verdict.check, ClaimCheck) and verdict.scenario is not None:
            self._attribute(verdict, verdict.check)

    def _attribute(self, verdict: Verdict, check: ClaimCheck) -> None:
        """A claim that holds up to its claimant, and not with a later policy, is lost to that policy."""
        first, last = check.place + 1, len(self.subject.members)
        broken = next((length for length in range(first, last) if self._false_with(length, check)), last)
        if broken == first:
            return
        verdict.status = "lost"
        culprit = self.subject.members[broken - 1].name.rsplit("/", 1)[-1]
        verdict.reason = f"{check.policy.rsplit('/', 1)[-1]} claims it, and it is lost to {culprit}"

    def _false_with(self, length: int, check: ClaimCheck) -> bool:
        """Whether the claim fails with the first policies of the stack alone."""
        verdict = Verdict(check)
        Suite(self.subject.prefix(length), self.max_examples, checks=[check])._draw(check.family, [verdict])
        return verdict.finding is not None

    def _shrink(self, verdict: Verdict) -> None:
        """A smaller scenario that fails the check, and what the check finds in it."""
        assert verdict.scenario is not None
        check = verdict.check
        verdict.scenario = shrunk(verdict.scenario, lambda scenario: _fails(self.subject, scenario, check))
        verdict.finding = findings(self.subject, verdict.scenario, [check])[check.name]

    def _explore(self, family: str, play: Callable[[Scenario], None]) -> None:
        """Hypothesis draws, from a fixed seed; it does not shrink, since checks share what it draws."""

        @settings(
            max_examples=self.max_examples, derandomize=True, database=None, deadline=None, phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck), verbosity=Verbosity.quiet,
        )  # fmt: skip
        @given(scenarios(self.subject.shapes, family))
        def explore(scenario: Scenario) -> None:
            try:
                play(scenario)
            except ConfigError:
                assume(False)  # the stack refuses these settings

        explore()


def findings(subject: Subject, scenario: Scenario, checks: Iterable[Check]) -> dict[str, Finding]:
    """What these checks find in one run of a scenario, by name. Raises ConfigError where the stack refuses it."""
    fresh = [check.fresh() for check in checks]
    return Run(subject, scenario, fresh, looks=any(check.looks for check in fresh)).play().findings


def _fails(subject: Subject, scenario: Scenario, check: Check) -> bool:
    try:
        return check.applies(scenario) and bool(findings(subject, scenario, [check]))
    except ConfigError:
        return False
