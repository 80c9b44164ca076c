"""How a replay words what it compares: a transition, a batch, the times of one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from interlock.core.work import WorkKey
from interlock.plugins.run.recorded import Decision, Move

NOTHING = "nothing, the run is over"
NO_MOVE = "no such transition there"
SAME_BATCH = " The batch is the same."
_SHOWN = 6  # members of a batch that are told before the rest is counted

Name = Callable[[int], str]


def request(number: int, request_id: str | None) -> str:
    """A request by its id, or by its number where no file names it."""
    return f"request {number}" if request_id is None else repr(request_id)


def move(one: Move, name: Name) -> str:
    """A transition: who, from where to where, and why."""
    origin = "new" if one.origin is None else one.origin
    return f"{name(one.request)} from {origin} to {one.to}, {one.reason}, at step {one.step} ({one.time_s:g} s)"


def batch(one: Decision, name: Name) -> str:
    """A batch: its operation and its members in order."""
    members = zip(one.requests.tolist(), one.work.tolist(), one.tokens.tolist(), strict=True)
    told = [f"{name(number)} {WorkKey(work).name} {tokens}" for number, work, tokens in list(members)[:_SHOWN]]
    more = len(one.requests) - _SHOWN
    rest = f" and {more} more" if more > 0 else ""
    return f"{one.operation} of {int(one.tokens.sum())} tokens for {', '.join(told)}{rest}"


def place(was: Decision, now: Decision) -> str:
    """Where two batches part, if that is not at their first members."""
    size = min(len(was.requests), len(now.requests))
    pairs = ((was.requests, now.requests), (was.work, now.work), (was.tokens, now.tokens))
    other = np.zeros(size, bool)
    for one, two in pairs:
        other |= one[:size] != two[:size]
    at = int(np.argmax(other)) if other.any() else size
    sizes = f"{len(was.requests)} and {len(now.requests)} members" if len(was.requests) != len(now.requests) else ""
    where = f"the first {at} members are the same" if at else ""
    told = "; ".join(part for part in (sizes, where) if part)
    return f" ({told})" if told else ""


def times(start_s: float, ends_s: np.ndarray) -> str:
    """When batches began and ended."""
    ends = ", ".join(f"{end:.9g}" for end in ends_s[:3].tolist())
    return f"begun at {start_s:.9g} s, ended at {ends} s" + (" and so on" if len(ends_s) > 3 else "")
