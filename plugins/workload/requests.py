"""Requests written out one by one, with the cancellations of their callers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from interlock.core.config_errors import Invalid
from interlock.core.config_workload import RequestEntry, WorkloadSection
from interlock.core.feed import Arrival, Cancel
from interlock.core.request import Request, SamplingParams
from interlock.core.text import Tokenizer
from interlock.plugins.workload.truth import seen_prediction

_COPIED = ("min_tokens", "stop_token_ids", "ignore_eos", "temperature", "top_p", "top_k", "seed")


class ListFeed:
    """Arrivals and cancellations at known times; cancellations also at known boundaries.

    At one time an arrival comes before a cancellation, and each kind in the order of the list. The cancellation of a
    request that has finished is forgotten, so that nobody waits for its time.
    """

    def __init__(
        self, entries: Sequence[RequestEntry], workload: WorkloadSection, seed: int, tokenizer: Tokenizer | None = None
    ) -> None:
        self._entries = entries
        self._arrivals = _arrivals(entries, workload, seed, tokenizer)
        self._over: set[int] = set()
        self._numbers: dict[str, int] = {}
        timed = [(arrival.at_ns, 0, i) for i, arrival in enumerate(self._arrivals)]
        timed += [(_ns(e.cancel_at), 1, i) for i, e in enumerate(entries) if e.cancel_at is not None]
        stepped = [(e.cancel_at_step, i) for i, e in enumerate(entries) if e.cancel_at_step is not None]
        self._timed, self._stepped = deque(sorted(timed)), deque(sorted(stepped))

    def next_ns(self) -> int | None:
        """Time of the next arrival or cancellation."""
        while self._timed and self._timed[0][1] and self._timed[0][2] in self._over:
            self._timed.popleft()
        return self._timed[0][0] if self._timed else None

    def next_step(self) -> int | None:
        """The next boundary with a cancellation."""
        while self._stepped and self._stepped[0][1] in self._over:
            self._stepped.popleft()
        return self._stepped[0][0] if self._stepped else None

    def due(self, now_ns: int, step: int, finished: Sequence[str]) -> Sequence[Arrival | Cancel]:
        """What is due by time, then what is due by the number of the boundary."""
        self._over.update(self._numbers.pop(name) for name in finished if name in self._numbers)
        events: list[Arrival | Cancel] = []
        while (at_ns := self.next_ns()) is not None and at_ns <= now_ns:
            events.append(self._event(*self._timed.popleft()[1:]))
        while (at_step := self.next_step()) is not None and at_step <= step:
            events.append(self._event(1, self._stepped.popleft()[1]))
        return events

    def _event(self, cancels: int, i: int) -> Arrival | Cancel:
        arrival = self._arrivals[i]
        if cancels:
            return Cancel(arrival.request.id)
        self._numbers[arrival.request.id] = i
        return arrival


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _arrivals(
    entries: Sequence[RequestEntry], workload: WorkloadSection, seed: int, tokenizer: Tokenizer | None
) -> list[Arrival]:
    output = np.array([-1 if entry.output is None else entry.output for entry in entries], np.int64)
    predicted = seen_prediction(workload, output, seed)
    prompts = [_prompt(i, entry, tokenizer) for i, entry in enumerate(entries)]
    return [
        Arrival(_request(i, entry, prompts[i], workload, int(predicted[i])), _ns(entry.arrival), entry.output)
        for i, entry in enumerate(entries)
    ]


def _prompt(i: int, entry: RequestEntry, tokenizer: Tokenizer | None) -> int | np.ndarray:
    """A request's prompt: a number of tokens, or token ids, those of its text included."""
    if isinstance(entry.prompt, int):
        return entry.prompt
    if entry.text is None:
        return np.array(entry.prompt, np.int32)
    if tokenizer is None:
        where = ("workload", "requests", i, "text")
        raise Invalid(where, "found text, allowed: prompt, because the executor has no tokenizer")
    return tokenizer.encode(entry.text)


def _request(
    i: int, entry: RequestEntry, prompt: int | np.ndarray, workload: WorkloadSection, predicted: int
) -> Request:
    return Request(
        f"r{i}" if entry.id is None else entry.id,
        prompt,
        SamplingParams(max_tokens=_max_tokens(entry, workload), **{name: getattr(entry, name) for name in _COPIED}),
        entry.arrival,
        priority=entry.priority,
        tenant=entry.tenant,
        deadline_s=entry.deadline_s,
        timeout_s=entry.timeout_s,
        predicted=predicted if entry.predicted is None else entry.predicted,
    )


def _max_tokens(entry: RequestEntry, workload: WorkloadSection) -> int | None:
    """A request's own limit, or what the workload shows of its output; None for as many as the context allows."""
    if entry.max_tokens is not None or workload.max_tokens == "context":
        return entry.max_tokens
    return entry.output if workload.max_tokens == "output" else workload.max_tokens
