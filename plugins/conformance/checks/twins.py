"""Checks that compare two runs of one scenario."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from interlock.core import Capability, Engine
from interlock.plugins.conformance.checks.base import Check
from interlock.plugins.conformance.finding import Finding
from interlock.plugins.conformance.run import Run, difference, log_of
from interlock.plugins.conformance.scenario import Scenario
from interlock.plugins.conformance.subject import Subject


class _Twin(Check):
    """The run beside another, which is to be equal."""

    right = "the same in both."

    def other(self, run: Run) -> Run:
        """The other run."""
        raise NotImplementedError

    def end(self, run: Run) -> Iterable[Finding]:
        """The first difference."""
        if not run.endless:
            yield from self.compare(run, self.other(run))

    def compare(self, run: Run, other: Run) -> Iterable[Finding]:
        """The first difference of two runs."""
        differs = difference(log_of(run), log_of(other))
        if differs is not None:
            step, words = differs
            yield self.found(f"{words}.", self.right, step)
        elif repr(run.error) != repr(other.error):
            yield self.found(f"one run ended by {run.error!r}, the other by {other.error!r}.", self.right)


class Deterministic(_Twin):
    """Twice the same."""

    name = "deterministic"
    rule = "Two runs of one configuration decide and say the same."

    def skip(self, subject: Subject) -> str | None:
        """Where time is not the executor's."""
        return _virtual(subject)

    def other(self, run: Run) -> Run:
        """Once more."""
        return run.again()


class Independent(_Twin):
    """Two engines in one process."""

    name = "independent engines"
    rule = "Two engines that take turns in one process do as each does alone."

    def skip(self, subject: Subject) -> str | None:
        """Where time is not the executor's."""
        return _virtual(subject)

    def other(self, run: Run) -> Run:
        """The same beside one whose requests come in another order."""
        mine = Run(run.subject, run.scenario)
        beside = Run(run.subject, replace(run.scenario, requests=run.scenario.requests[::-1]))
        mine.start()
        beside.start()
        going = [mine, beside]
        while going:
            going = [each for each in going if each.turn()]
        mine.close()
        beside.close()
        return mine


class Stretches(_Twin):
    """Several steps at once."""

    name = "stretches"
    rule = "A stretch of decode steps gives what single steps give."
    family = "dense"

    def skip(self, subject: Subject) -> str | None:
        """Where no stretch is possible."""
        if (1, "atomic") not in subject.shapes:
            return "the stack serves looped models only, which have no stretches"
        return lacks(subject, Capability.STRETCH) or _virtual(subject)

    def other(self, run: Run) -> Run:
        """Single steps where there were stretches, and the other way round."""
        single = run.scenario.engine.get("max_repeat") == 1
        return run.again(run.scenario.with_engine(max_repeat=None if single else 1))


class Settled(_Twin):
    """Decisions that are kept."""

    name = "kept decisions"
    rule = "A decision that is kept because nothing that the stack reads has changed is what it would decide again."
    family = "dense"

    def skip(self, subject: Subject) -> str | None:
        """Where decisions are never kept."""
        if (1, "atomic") not in subject.shapes:
            return "the stack serves looped models only, whose decisions are made anew at each boundary"
        return _virtual(subject)

    def other(self, run: Run) -> Run:
        """The stack is asked at every boundary."""
        return run.again(prepare=_ask_always)


def _ask_always(engine: Engine) -> None:
    engine.stretches.known_reads = False


class Repair(_Twin):
    """Serving."""

    name = "repair"
    rule = "Under `on_violation: repair` a run that breaks no rule is the same, and nothing is repaired."

    def skip(self, subject: Subject) -> str | None:
        """Where time is not the executor's."""
        return _virtual(subject)

    def other(self, run: Run) -> Run:
        """The other mode."""
        return run.again(run.scenario.with_engine(on_violation="repair"))

    def end(self, run: Run) -> Iterable[Finding]:
        """The first difference, and what was counted. A run that broke a rule is for other checks."""
        if run.error is not None or run.endless:
            return
        other = self.other(run)
        yield from self.compare(run, other)
        stats = other.engine.stats
        if stats.violations or any(stats.rescues.values()):
            yield self.found(f"{stats.violations} violations, {dict(stats.rescues)}.", "none.")


def lacks(subject: Subject, capability: Capability) -> str | None:
    """That the executor has not this capability; None where it has."""
    has = capability in _features(subject)
    return None if has else f"executor {subject.executor_name!r} lacks {capability}"


def _virtual(subject: Subject) -> str | None:
    if Capability.VIRTUAL_TIME in _features(subject):
        return None
    return f"the time of executor {subject.executor_name!r} is the wall clock's, so that runs differ"


def _features(subject: Subject) -> frozenset[Capability]:
    loops, prompt = subject.shapes[0]
    engine = subject.engine(
        Scenario(({"prompt": 1, "max_tokens": 1},), {"max_model_len": 8, "prompt": prompt}, {}, loops)
    )
    return engine.executor.capabilities.features


CHECKS: tuple[type[Check], ...] = (Deterministic, Independent, Stretches, Settled, Repair)
