"""Queues of rows, held against sorted lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from interlock.core.queues import OrderedRows, WaitingQueue

SPECS = ("priority", "-priority", "deadline")


class Ordered(RuleBasedStateMachine):
    """`OrderedRows` is a list of (key, tie, row), sorted."""

    @initialize(keys=st.lists(st.integers(-3, 3)))
    def start(self, keys: list[int]) -> None:
        self.next = len(keys)
        rows = np.arange(len(keys), dtype=np.intp)
        self.queue = OrderedRows(rows, np.array(keys, np.float64), rows.astype(np.int64))
        self.model = sorted((float(key), row, row) for row, key in enumerate(keys))

    @rule(key=st.one_of(st.integers(-3, 3), st.just(np.inf), st.just(-np.inf)), early=st.booleans())
    def add(self, key: float, early: bool) -> None:
        """Mostly the latest of its key; a request that was preempted comes back to its early place."""
        row, self.next = self.next, self.next + 1
        tie = -row if early else row
        self.queue.add(row, float(key), tie)
        self.model = sorted([*self.model, (float(key), tie, row)])

    @rule(at=st.integers(0, 1000))
    def remove(self, at: int) -> None:
        if self.model:
            key, tie, row = self.model.pop(at % len(self.model))
            self.queue.remove(row, key, tie)

    @rule()
    def remove_first(self) -> None:
        if self.model:
            key, tie, row = self.model.pop(0)
            self.queue.remove(row, key, tie)

    @invariant()
    def same(self) -> None:
        assert self.queue.rows.tolist() == [row for _, _, row in self.model]
        assert len(self.queue) == len(self.model)
        for key, tie, _ in self.model[::3]:
            assert self.queue.before(key, tie).tolist() == [row for k, t, row in self.model if (k, t) < (key, tie)]


Ordered.TestCase.settings = settings(max_examples=100, stateful_step_count=60, derandomize=True, deadline=None)
TestOrdered = Ordered.TestCase


def test_a_row_that_is_not_there_cannot_be_removed() -> None:
    queue = OrderedRows()
    queue.add(4, 1.0, 1)
    with pytest.raises(AssertionError, match="row 5 is not in the queue"):
        queue.remove(5, 1.0, 1)
    with pytest.raises(AssertionError, match="row 4 is not in the queue"):
        queue.remove(4, 1.0, 2)
    assert queue.rows.tolist() == [4]


def test_a_long_queue_moves_on_without_end() -> None:
    """Appending and removing in front, ten thousand times, in an array of a few hundred."""
    queue = OrderedRows()
    for row in range(10_000):
        queue.add(row, 0.0, row)
        if row >= 100:
            queue.remove(row - 100, 0.0, row - 100)
    assert queue.rows.tolist() == list(range(9_900, 10_000))
    assert len(queue._rows) < 1000


class Waiting(RuleBasedStateMachine):
    """`WaitingQueue` is a list by number, and the same list stably sorted by any key."""

    @initialize()
    def start(self) -> None:
        self.queue, self.keys, self.waiting, self.left = (
            WaitingQueue(),
            {spec: np.zeros(512) for spec in SPECS},
            set[int](),
            set[int](),
        )
        self.numbers = np.arange(512)
        self.asked: set[str] = set()

    def _keys(self, row: int) -> dict[str, float]:
        return {spec: float(self.keys[spec][row]) for spec in SPECS}

    @rule(key=st.integers(-2, 2), deadline=st.one_of(st.integers(0, 2), st.just(np.inf)))
    def arrive(self, key: int, deadline: float) -> None:
        row = len(self.waiting | self.left)
        self.keys["priority"][row], self.keys["-priority"][row], self.keys["deadline"][row] = key, -key, deadline
        self.queue.add(row, row, self._keys(row))
        self.waiting.add(row)

    @rule(at=st.integers(0, 1000))
    def enter(self, at: int) -> None:
        if self.waiting:
            row = sorted(self.waiting)[at % len(self.waiting)]
            self.queue.remove(row, row, self._keys(row))
            self.waiting.remove(row)
            self.left.add(row)

    @rule(at=st.integers(0, 1000))
    def come_back(self, at: int) -> None:
        """To its place by arrival."""
        if self.left:
            row = sorted(self.left)[at % len(self.left)]
            self.queue.add(row, row, self._keys(row))
            self.left.remove(row)
            self.waiting.add(row)

    @rule(spec=st.sampled_from(SPECS))
    def ask(self, spec: str) -> None:
        """From the first time on, the order is kept."""
        self.asked.add(spec)
        expected = sorted(self.waiting, key=lambda row: (self.keys[spec][row], row))
        assert self.queue.by(spec, self.keys[spec], self.numbers).tolist() == expected
        assert set(self.queue.specs) == self.asked

    @invariant()
    def arrival_order(self) -> None:
        assert self.queue.rows.tolist() == sorted(self.waiting)
        for row in sorted(self.waiting)[::4]:
            assert self.queue.earlier(row).tolist() == [other for other in sorted(self.waiting) if other < row]

    @invariant()
    def kept_orders(self) -> None:
        for spec in self.asked:
            expected = sorted(self.waiting, key=lambda row: (self.keys[spec][row], row))
            assert self.queue.by(spec, self.keys[spec], self.numbers).tolist() == expected


Waiting.TestCase.settings = settings(max_examples=100, stateful_step_count=50, derandomize=True, deadline=None)
TestWaiting = Waiting.TestCase


def test_every_change_raises_the_version() -> None:
    queue = WaitingQueue()
    seen = [queue.version]
    queue.add(0, 0, {})
    seen.append(queue.version)
    queue.remove(0, 0, {})
    seen.append(queue.version)
    assert len(set(seen)) == 3


@given(st.lists(st.integers(2**53 - 2, 2**53 + 4), max_size=8))
def test_kept_orders_are_exact_for_large_whole_numbers(keys: list[int]) -> None:
    """A kept order is the stable sort by the column, which holds 64-bit numbers."""
    queue, rows = WaitingQueue(), range(len(keys))
    for row in rows:
        queue.add(row, row, {})
    kept = queue.by("priority", np.array(keys, np.int64), np.arange(len(keys)))
    assert kept.tolist() == sorted(rows, key=lambda row: (keys[row], row))
