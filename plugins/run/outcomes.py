"""The finished requests as arrays, with the latencies that are defined on them. Times are integer nanoseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from operator import attrgetter

import numpy as np

from interlock.core.errors import InterlockError
from interlock.core.record import Outcome
from interlock.core.request import FinishReason
from interlock.plugins.run.flat import Deliveries

NEVER = -1
"""Stands for a time that never came. Engine times are not negative."""

COMPLETED = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.EXPORTED)
"""Ends with an answer. Latencies are summarised over these; the others end at a moment that says nothing of service."""

INTERVALS = ("queue", "prefill", "decode", "preempted", "transfer")
"""The parts of a request's life, in the order in which files show them."""


class Outcomes:
    """Columns over the finished requests, in the order of their numbers. Raises if a life is no sum of its parts."""

    def __init__(self, finished: Iterable[Outcome]) -> None:
        self.all = sorted(finished, key=lambda outcome: outcome.number)
        self._check()

    def __len__(self) -> int:
        return len(self.all)

    def ints(self, value: Callable[[Outcome], int | None]) -> np.ndarray:
        """One int64 per request; NEVER for None."""
        return np.array([NEVER if (x := value(one)) is None else x for one in self.all], np.int64)

    @cached_property
    def numbers(self) -> np.ndarray:
        """The requests' numbers in the run, ascending."""
        return self.ints(lambda one: one.number)

    @cached_property
    def arrival(self) -> np.ndarray:
        """Arrival times."""
        return self.ints(lambda one: one.arrival_ns)

    @cached_property
    def admitted(self) -> np.ndarray:
        """Times of the first activation."""
        return self.ints(lambda one: one.admitted_ns)

    @cached_property
    def first(self) -> np.ndarray:
        """Times of the first delivery."""
        return self.ints(lambda one: one.first_token_ns)

    @cached_property
    def last(self) -> np.ndarray:
        """Times of the last delivery."""
        return self.ints(lambda one: one.last_token_ns)

    @cached_property
    def ended(self) -> np.ndarray:
        """Times of the end."""
        return self.ints(lambda one: one.finished_ns)

    @cached_property
    def deadline(self) -> np.ndarray:
        """Deadlines on the engine's clock."""
        return self.ints(lambda one: one.deadline_ns)

    @cached_property
    def output_tokens(self) -> np.ndarray:
        """Tokens delivered."""
        return self.ints(lambda one: len(one.output_ids))

    @cached_property
    def intervals(self) -> dict[str, np.ndarray]:
        """The parts of each life, by name."""
        return {name: self.ints(attrgetter(f"{name}_ns")) for name in INTERVALS}

    def ended_with(self, *reasons: FinishReason) -> np.ndarray:
        """Which requests ended for one of these reasons, bool."""
        return np.array([one.finish_reason in reasons for one in self.all], bool)

    @cached_property
    def completed(self) -> np.ndarray:
        """Which requests ended with an answer, bool."""
        return self.ended_with(*COMPLETED)

    @cached_property
    def ttft_s(self) -> np.ndarray:
        """First delivery minus arrival; NaN without one."""
        return np.where(self.first == NEVER, np.nan, (self.first - self.arrival) / 1e9)

    @cached_property
    def tpot_s(self) -> np.ndarray:
        """(last - first delivery) / (output tokens - 1); NaN below two tokens."""
        many = self.output_tokens > 1
        return np.where(many, (self.last - self.first) / 1e9 / np.maximum(self.output_tokens - 1, 1), np.nan)

    @cached_property
    def e2e_s(self) -> np.ndarray:
        """End minus arrival."""
        return np.asarray((self.ended - self.arrival) / 1e9)

    @cached_property
    def deadline_met(self) -> np.ndarray:
        """Whether each request ended with an answer by its deadline, bool. Without a deadline: meaningless."""
        return self.completed & (self.ended <= self.deadline)

    def index_of(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(index among the finished, whether it is there) of request numbers; the index is valid where it is there."""
        if not len(self):
            return np.zeros(len(numbers), np.int64), np.zeros(len(numbers), bool)
        at = np.minimum(np.searchsorted(self.numbers, numbers), len(self) - 1)
        return at, self.numbers[at] == numbers

    def times_of(self, deliveries: Deliveries) -> np.ndarray:
        """Delivery times of the finished requests' tokens, request by request; as many as there are output tokens."""
        at, there = self.index_of(deliveries.numbers)
        counts = np.bincount(at[there], minlength=len(self))
        if (wrong := np.flatnonzero(counts != self.output_tokens)).size:
            one = self.all[wrong[0]]
            raise InterlockError(
                f"request {one.request_id!r} has {len(one.output_ids)} output tokens, but {counts[wrong[0]]} deliveries"
            )
        return np.asarray(deliveries.times_ns[there])

    def _check(self) -> None:
        life = self.ended - self.arrival
        total = sum(self.intervals.values(), np.zeros(len(self), np.int64))
        if (wrong := np.flatnonzero(life != total)).size:
            one = self.all[wrong[0]]
            raise InterlockError(
                f"request {one.request_id!r} lived {life[wrong[0]]} ns, but its intervals sum to {total[wrong[0]]} ns"
            )
