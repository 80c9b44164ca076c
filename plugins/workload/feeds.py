"""Feeds over columns. A `Request` is made when it is due, so that a long trace costs arrays and not objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from interlock.core.feed import Arrival, Cancel
from interlock.core.request import Request, SamplingParams, SyntheticPrompt
from interlock.plugins.workload.prefixes import Prefixes


@dataclass(frozen=True, slots=True)
class Source:
    """A workload's requests as columns, one item per request, in the order of arrival. Request i has the id `r{i}`.

    `max_tokens` is -1 for none, `predicted` -1 for unknown, `deadline_s` NaN for none.
    """

    arrival_s: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    max_tokens: np.ndarray
    predicted: np.ndarray
    priority: np.ndarray | None = None
    deadline_s: np.ndarray | None = None
    tenant: Sequence[str] | None = None
    prefixes: Prefixes | None = None
    metadata: dict[str, Sequence[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.prompt)

    def request(self, i: int, arrival_s: float) -> Request:
        """Request i, arriving then."""
        name, limit = f"r{i}", int(self.max_tokens[i])
        tokens = int(self.prompt[i])
        prompt: int | SyntheticPrompt = tokens if self.prefixes is None else self.prefixes.prompt(i, name, tokens)
        deadline = None if self.deadline_s is None or np.isnan(self.deadline_s[i]) else float(self.deadline_s[i])
        return Request(
            name,
            prompt,
            SamplingParams(max_tokens=None if limit < 0 else limit),
            arrival_s,
            priority=0 if self.priority is None else int(self.priority[i]),
            tenant="" if self.tenant is None else self.tenant[i],
            deadline_s=deadline,
            predicted=int(self.predicted[i]),
            metadata={key: column[i] for key, column in self.metadata.items()},
        )


class ArrivalFeed:
    """Requests at known times (an open loop)."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at_ns: list[int] = np.rint(source.arrival_s * 1e9).astype(np.int64).tolist()
        self._next = 0

    def next_ns(self) -> int | None:
        """Time of the next arrival."""
        return self._at_ns[self._next] if self._next < len(self._at_ns) else None

    def next_step(self) -> int | None:
        """Nothing here is due by the number of a boundary."""
        return None

    def due(self, now_ns: int, step: int, finished: Sequence[str]) -> Sequence[Arrival | Cancel]:
        """The requests that have arrived since the last call."""
        first = self._next
        while self._next < len(self._at_ns) and self._at_ns[self._next] <= now_ns:
            self._next += 1
        return [self._arrival(i) for i in range(first, self._next)]

    def _arrival(self, i: int) -> Arrival:
        request = self._source.request(i, float(self._source.arrival_s[i]))
        return Arrival(request, self._at_ns[i], int(self._source.output[i]))


class ClosedFeed:
    """So many requests at any time (a closed loop): the first at time 0, then one for each that finishes."""

    def __init__(self, source: Source, concurrency: int) -> None:
        self._source = source
        self._next, self._owed = 0, min(concurrency, len(source))

    def next_ns(self) -> int | None:
        """Time 0 until the first are handed out; what follows is known only when a request finishes."""
        return 0 if self._owed else None

    def next_step(self) -> int | None:
        """Nothing here is due by the number of a boundary."""
        return None

    def due(self, now_ns: int, step: int, finished: Sequence[str]) -> Sequence[Arrival | Cancel]:
        """One new request, arriving now, for each that finished."""
        first = self._next
        at_ns = 0 if first == 0 else now_ns
        self._next = min(first + self._owed + len(finished), len(self._source))
        self._owed = 0
        return [
            Arrival(self._source.request(i, at_ns / 1e9), at_ns, int(self._source.output[i]))
            for i in range(first, self._next)
        ]
