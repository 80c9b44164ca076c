"""The report: a line per check, a paragraph per failure, a file that shows it, and all of it as JSON."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from interlock.core.registry import find
from interlock.core.yamlfile import dumps
from interlock.plugins.conformance.subject import Subject
from interlock.plugins.conformance.suite import Verdict

FOLDER = Path("check-failures")


def line(verdict: Verdict) -> str:
    """Status, name, and the number of examples or the reason."""
    many = f"{verdict.examples} example{'' if verdict.examples == 1 else 's'}"
    told = verdict.reason if verdict.status == "skip" else many + (f"; {verdict.reason}" if verdict.reason else "")
    return f"{verdict.status:<8}  {verdict.check.name:<32}  {told}"


def paragraph(verdict: Verdict) -> str:
    """What is wrong, where, what is right, and the file that shows it. Empty for a good verdict without a finding."""
    if verdict.finding is None:
        return "" if verdict.good else f"{verdict.check.name}: {verdict.check.rule} {verdict.reason}."
    reason = f" ({verdict.reason})" if verdict.reason else ""
    shown = f" Shown by: interlock run {verdict.file}" if verdict.file else ""
    return f"{verdict.check.name}{reason}: {verdict.finding}{shown}"


def write_scenario(verdict: Verdict, subject: Subject, folder: Path) -> None:
    """The scenario of a failure as a configuration that `interlock run` accepts; its path goes into the verdict."""
    if verdict.scenario is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9]+", "-", f"{subject.title}-{verdict.check.name}").strip("-").lower()
    path = folder / f"{stem}.yaml"
    shown = verdict.scenario.shown(subject.stack, subject.section(verdict.scenario), verdict.check.name, path.name)
    told = "".join(f"# {part}\n" for part in _wrapped(str(verdict.finding)))
    path.write_text(told + dumps(_plain(shown)), "utf-8")
    verdict.file = str(path)


def as_json(verdicts: Sequence[Verdict], subject: Subject, max_examples: int) -> dict[str, Any]:
    """The report as plain values, dated, with versions."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "stack": _plain(subject.stack),
        "executor": {subject.executor_name: _plain(subject.executor_options)},
        "max_examples": max_examples,
        "passed": all(verdict.good for verdict in verdicts),
        "versions": _versions(subject),
        "checks": [_check(verdict) for verdict in verdicts],
    }


def write_json(path: Path, report: dict[str, Any]) -> None:
    """The report in a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


def counted(verdicts: Iterable[Verdict]) -> str:
    """How many of each status."""
    statuses = [verdict.status for verdict in verdicts]
    return ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))


def _check(verdict: Verdict) -> dict[str, Any]:
    finding = verdict.finding
    found = {name: getattr(finding, name) for name in ("rule", "step", "request", "seen", "right")} if finding else None
    return {
        "name": verdict.check.name,
        "rule": verdict.check.rule,
        "status": verdict.status,
        "examples": verdict.examples,
        "reason": verdict.reason,
        "finding": found,
        "file": verdict.file,
    }


def _versions(subject: Subject) -> dict[str, Any]:
    names = ("interlock", "hypothesis", "pytest")
    policies = []
    for member in subject.members:
        found = find("policies", member.name)
        told = {"name": member.name, "distribution": found.distribution, "version": found.version}
        policies.append({**told, "source_hash": found.source_hash})
    own = {"python": platform.python_version(), "numpy": np.__version__, "platform": platform.platform()}
    return {**{name: version(name) for name in names}, **own, "policies": policies}


def _plain(value: Any) -> Any:
    """Lists for tuples, as files have them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _wrapped(text: str, width: int = 110) -> list[str]:
    lines, now = [], ""
    for word in text.split():
        if now and len(now) + len(word) >= width:
            lines.append(now)
            now = ""
        now = f"{now} {word}".strip()
    return [*lines, now]
