"""The observer: which boundaries are audited, and what happens when an invariant does not hold."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import structlog
from pydantic import BaseModel, ConfigDict, Field

from interlock.core.errors import InterlockError
from interlock.core.record import BoundaryRecord
from interlock.core.view import View
from interlock.plugins.audit import blocks, order, ownership
from interlock.plugins.audit.books import Books, Finding, Findings

log = structlog.get_logger("interlock")
_LOG_EVERY = 10.0  # seconds between two log lines about one invariant
_KEPT = 100  # findings that are remembered; all are counted

CHECKS: tuple[Callable[[Books], Findings], ...] = (
    ownership.owners,
    ownership.slots,
    ownership.work,
    ownership.flight,
    ownership.lines,
    ownership.residents,
    ownership.host,
    blocks.references,
    blocks.kinds,
    blocks.room,
    blocks.index,
    order.queue,
)
"""What is verified from the columns alone. Beside it `order.History` compares with the last audit."""


class AuditError(InterlockError):
    """The state between two boundaries breaks an invariant. `findings` has them all."""

    exit_code = 1

    def __init__(self, step: int, time_s: float, findings: list[Finding]) -> None:
        self.findings = findings
        told = "; ".join(str(finding) for finding in findings)
        super().__init__(f"audit at step {step}, {time_s:g} s: {told}")


class Audit:
    """Verifies the ownership invariants of docs/design.md from the columns, after each boundary is applied.

    The state is recounted, not believed: block references from the block table, tickets from what is out, kinds of
    block from the queue. Nothing is changed. The last boundary of a run, when nobody is left, is always audited.

    An audit costs about 2 ms with 1,024 decoding rows in 81,920 blocks, 0.1 ms more for each 1,000 blocks in the prefix
    index, and 5 ms more for 16,384 waiting rows (benchmarks/audit.py). In serving set `every` to what you can afford
    (`every: 100` adds a hundredth of that to each boundary) and `stop: false`: then a finding is logged, and counted,
    and the engine goes on.
    """

    class Options(BaseModel):
        """`every`: boundaries from one audit to the next. `stop`: end the run with an error, or log and go on."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        every: int = Field(default=1, ge=1)
        stop: bool = True

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or self.Options()
        self.audits = 0
        self.counts: Counter[str] = Counter()  # findings by invariant
        self.findings: list[Finding] = []  # the first of them
        self._view: View | None = None
        self._history = order.History()
        self._admitted: list[int] = []  # since the last audit
        self._boundaries = 0
        self._logged: dict[str, float] = {}

    def on_start(self, view: View) -> None:
        """Keep the view: it shows each boundary's state."""
        self._view = view

    def on_boundary(self, record: BoundaryRecord) -> None:
        """Audit, if it is this boundary's turn. Raises AuditError with `stop`."""
        self._admitted += record.admitted
        self._boundaries += 1
        if self._view is None or not (self._boundaries % self.options.every == 0 or self._nobody_is_left(self._view)):
            return
        findings = self.audit(self._view)
        if findings and self.options.stop:
            raise AuditError(record.step, record.time_s, findings)
        for finding in findings:
            self._note(record, finding)

    def on_stop(self) -> None:
        """Say how often something was found, if it was."""
        if self.counts and not self.options.stop:
            log.error("audit", audits=self.audits, findings=dict(self.counts))

    def audit(self, view: View) -> list[Finding]:
        """Everything that does not hold now."""
        self.audits += 1
        books = Books(view)
        admitted, self._admitted = self._admitted, []
        found = [finding for check in CHECKS for finding in check(books)]
        return [*found, *self._history.check(books, admitted)]

    @staticmethod
    def _nobody_is_left(view: View) -> bool:
        return not len(view.active) and not len(view.waiting)

    def _note(self, record: BoundaryRecord, finding: Finding) -> None:
        """Count a finding, and log it at a limited rate."""
        self.counts[finding.invariant] += 1
        if len(self.findings) < _KEPT:
            self.findings.append(finding)
        now = time.monotonic()
        if now - self._logged.get(finding.invariant, -_LOG_EVERY) >= _LOG_EVERY:
            self._logged[finding.invariant] = now
            log.error("audit", step=record.step, time_s=record.time_s, finding=str(finding))
