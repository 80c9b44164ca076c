"""What a check found wrong."""

from __future__ import annotations

from dataclasses import dataclass

from interlock.core import InterlockError


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule: where, whom it hit, what was seen and what is right."""

    rule: str
    seen: str
    right: str
    step: int | None = None
    request: str | None = None

    def __str__(self) -> str:
        at = "" if self.step is None else f"At the boundary of step {self.step}"
        whom = "" if self.request is None else f"{', ' if at else ''}request {self.request!r}"
        where = f"{at}{whom}: " if at or whom else ""
        return f"{self.rule} {where}{self.seen} Right: {self.right}"


class CheckFailed(InterlockError):
    """A configuration that shows a failure of the suite has shown it."""

    exit_code = 1
