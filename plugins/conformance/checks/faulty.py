"""Checks under faults: batches that fail, results that come twice, an allocator that refuses, a neighbour that raises.

Under each of them the checks of batches, resources, lives and delivery must hold as they do without.
"""

from __future__ import annotations

from collections.abc import Iterable

from interlock.core import FinishReason
from interlock.plugins.conformance.checks import batches, delivery, lives, progress, resources
from interlock.plugins.conformance.checks.base import Check
from interlock.plugins.conformance.finding import Finding
from interlock.plugins.conformance.run import Run, Turn

_STILL: tuple[type[Check], ...] = (
    batches.Members, batches.Budget, batches.Operations, batches.Samples, batches.OwnMemory, *resources.CHECKS,
    lives.Lifecycle, lives.Versions, lives.OneEnd, delivery.TokensOnce, delivery.ServedAlone, delivery.Metrics,
    progress.NothingLeft, progress.NoErrors, progress.Rules,
)  # fmt: skip


class _UnderFaults(Check):
    """All that must hold whatever goes wrong."""

    def __init__(self) -> None:
        self._still = [check() for check in _STILL]

    def at(self, turn: Turn) -> Iterable[Finding]:
        """What must hold all the same."""
        for check in self._still:
            for finding in check.at(turn):
                yield self._own(check, finding)

    def end(self, run: Run) -> Iterable[Finding]:
        """As `at`; then what is this fault's own."""
        for check in self._still:
            for finding in check.end(run):
                yield self._own(check, finding)
        if run.error is None and not run.endless:
            yield from self.own(run)

    def own(self, run: Run) -> Iterable[Finding]:
        """What must hold under this fault besides."""
        return ()

    def _own(self, check: Check, finding: Finding) -> Finding:
        return Finding(f"{self.rule} {check.rule}", finding.seen, finding.right, finding.step, finding.request)


class FailedBatches(_UnderFaults):
    """A batch that fails."""

    name = "failed batches"
    rule = "When a batch fails its rows are as they were, and run once more before they end with `error`."
    family = "fails"

    def __init__(self) -> None:
        super().__init__()
        self._in_a_row: dict[int, int] = {}

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Failures in a row, request by request."""
        for collected in turn.record.collected:
            failed = collected.result.error is not None
            for number in collected.batch.numbers.tolist():
                self._in_a_row[number] = self._in_a_row.get(number, 0) + 1 if failed else 0
        for outcome in turn.record.outcomes:
            ended, times = outcome.finish_reason is FinishReason.ERROR, self._in_a_row.get(outcome.number, 0)
            if ended and times < 2:
                seen = f"it ended with an error after {times} failed batches in a row."
                yield self.found(seen, "it runs once more.", turn.record.step, outcome.request_id)
        yield from super().at(turn)


class StaleResults(_UnderFaults):
    """A result that comes a second time."""

    name = "stale results"
    rule = "A second result of one ticket is refused and counted, and reaches nobody."
    family = "again"

    def own(self, run: Run) -> Iterable[Finding]:
        """As many as came."""
        submitted = sum(record.batch is not None for record in run.records)
        came = sum(number < submitted - 1 for number in run.scenario.faults.again)
        last = submitted - 1 in run.scenario.faults.again  # may come when nobody collects any more
        refused = run.engine.stats.refused_results
        if not came <= refused <= came + last:
            yield self.found(f"{refused} results were refused.", f"{came}, which came a second time.")


class Refused(_UnderFaults):
    """An allocator that refuses once."""

    name = "refused blocks"
    rule = "When taking blocks fails in the middle of a plan, the state is as it was, and the next plan is whole."
    family = "refuses"

    def own(self, run: Run) -> Iterable[Finding]:
        """Everybody who ends otherwise ends the same."""
        for outcome in run.outcomes.values():
            if outcome.finish_reason is FinishReason.ERROR:
                yield self.found("it ended with an error.", "an answer.", None, outcome.request_id)


class RaisingNeighbour(_UnderFaults):
    """A policy beside the stack that raises."""

    name = "raising neighbour"
    rule = "Under `repair` a raising hook's edits are undone and counted, and nobody else notices."
    family = "raises"

    def own(self, run: Run) -> Iterable[Finding]:
        """As many violations as were raised."""
        raised = sum(number <= run.engine.stack.policies[-1]._calls for number in run.scenario.faults.raises)  # type: ignore[attr-defined]
        if run.engine.stats.violations != raised:
            yield self.found(f"{run.engine.stats.violations} violations are counted.", f"{raised}.")


CHECKS: tuple[type[Check], ...] = (FailedBatches, StaleResults, Refused, RaisingNeighbour)
