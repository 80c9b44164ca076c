"""What both fronts share: a suite for what was named, and its report on the way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interlock.core import ConfigError
from interlock.core.yamlfile import read_inline
from interlock.plugins.conformance.executor import STACK, executor_checks
from interlock.plugins.conformance.subject import Subject
from interlock.plugins.conformance.suite import EXAMPLES, Suite

EXECUTOR = "executor:"


def suite_of(what: str, executor: str | None = None, max_examples: int = EXAMPLES, base: Path | None = None) -> Suite:
    """The suite of a STACK, or of `executor:NAME`. Raises ConfigError, one line."""
    if max_examples < 1:
        raise ConfigError(f"--max-examples: found {max_examples}, allowed: at least 1")
    if what.startswith(EXECUTOR):
        if executor is not None:
            raise ConfigError(f"--executor: found {executor!r} beside {what!r}, allowed: one of the two")
        subject = Subject.named(STACK, _executor(what.removeprefix(EXECUTOR)), base)
        return Suite(subject, max_examples, checks=executor_checks(), title=what)
    return Suite(Subject.named(what, _executor(executor or "simulated"), base), max_examples)


def _executor(text: str) -> str | Mapping[str, Any]:
    """A name, or inline YAML of one name and its options."""
    value = read_inline(text, "--executor") if text.strip().startswith("{") else text
    if isinstance(value, dict) and len(value) != 1:
        raise ConfigError(f"--executor: found {text!r}, allowed: a name, or a mapping of one name to its options")
    return value
