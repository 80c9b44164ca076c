"""Where the requests of a run come from. A workload implements `Feed`; the engine asks it at each boundary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from interlock.core.request import Request


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that arrives at `at_ns` on the engine's clock.

    `output` is where a simulated model ends by itself, None for never. Only the executor learns it: policies see the
    request alone.
    """

    request: Request
    at_ns: int
    output: int | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """The caller of `request_id` has lost interest."""

    request_id: str


class Feed(Protocol):
    """A source of arrivals and cancellations. Both methods are cheap when nothing is due."""

    def next_ns(self) -> int | None:
        """Engine time of the next event that is already known, None when there is none."""
        ...

    def next_step(self) -> int | None:
        """Number of the next boundary at which something is due whatever the time, None when there is none."""
        ...

    def due(self, now_ns: int, step: int, finished: Sequence[str]) -> Sequence[Arrival | Cancel]:
        """Events due at this boundary, in order. Mutates the feed: each event is handed out once.

        `finished` are the ids of the feed's requests that reached FINISHED since the last call (a closed loop answers
        them with new arrivals). An event at t is due at the first boundary whose time is at least t.
        """
        ...
