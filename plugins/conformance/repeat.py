"""One check on one scenario."""

from __future__ import annotations

from typing import Any

from interlock.core import ConfigError
from interlock.core.errors import nearest
from interlock.plugins.conformance.checks import universal
from interlock.plugins.conformance.claims import claim_checks
from interlock.plugins.conformance.executor import executor_checks
from interlock.plugins.conformance.finding import Finding
from interlock.plugins.conformance.quiet import quiet
from interlock.plugins.conformance.scenario import Scenario
from interlock.plugins.conformance.subject import Subject
from interlock.plugins.conformance.suite import findings


def repeat(stack: list[dict[str, Any]], executor: dict[str, Any], scenario: Scenario, name: str) -> Finding | None:
    """What the check of this name finds. Raises ConfigError where there is no such check."""
    subject = Subject.named(stack, executor)
    checks = {check.name: check for check in (*universal(), *claim_checks(subject), *executor_checks())}
    if name not in checks:
        raise ConfigError(f"check: found {name!r}, allowed: {', '.join(checks)}{nearest(name, checks)}")
    with quiet():
        return findings(subject, scenario, [checks[name]]).get(name)
