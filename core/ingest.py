"""The ingest stage: what callers want. Arrivals, cancellations, time-outs."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from interlock.core.collector import stops_of
from interlock.core.executor import Executor
from interlock.core.feed import Arrival, Cancel, Feed
from interlock.core.handle import Handle
from interlock.core.lifecycle import Lifecycle, output_limit, validate
from interlock.core.request import FinishReason
from interlock.core.stack import Stack
from interlock.core.state import State
from interlock.core.view import View


class NoFeed:
    """A workload without requests: they come by `submit`."""

    def next_ns(self) -> int | None:
        """Nothing is known of the future."""
        return None

    def next_step(self) -> int | None:
        """Nothing is known of the future."""
        return None

    def due(self, now_ns: int, step: int, finished: Sequence[str]) -> Sequence[Arrival | Cancel]:
        """Nothing."""
        return ()


class Ingest:
    """Takes what is due from the feed and from other threads, in order, at each boundary."""

    def __init__(
        self, state: State, stack: Stack, view: View, lifecycle: Lifecycle, executor: Executor, feed: Feed
    ) -> None:
        self.state, self.stack, self.view, self.lifecycle = state, stack, view, lifecycle
        self.executor, self.feed = executor, feed
        self.news = threading.Condition()
        self._inbox: deque[tuple[Arrival, Handle] | tuple[str, Future[bool]]] = deque()
        self._later: list[tuple[int, int, Arrival, Handle]] = []  # submitted with an arrival that is still to come
        self._timers: list[tuple[int, int, int]] = []  # (time, request number, row)
        self._numbers = 0
        self._arrived: list[int] = []  # rows of this boundary that policies have not been told of
        self._sequence = itertools.count()
        self._refuses = getattr(executor, "refuses", None)

    # -- any thread

    def post(self, item: tuple[Arrival, Handle] | tuple[str, Future[bool]]) -> None:
        """Something to be ingested at the next boundary."""
        with self.news:
            self._inbox.append(item)
            self.news.notify_all()

    @property
    def posted(self) -> bool:
        """Whether something waits in the inbox."""
        return bool(self._inbox)

    def next_ns(self) -> int | None:
        """The next time at which something is due that is known already."""
        later = self._later[0][0] if self._later else None
        times = [time for time in (self.feed.next_ns(), self._next_timer(), later) if time is not None]
        return min(times) if times else None

    def _next_timer(self) -> int | None:
        while self._timers and not self._is_live(self._timers[0]):
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    @property
    def all_timed(self) -> bool:
        """Whether every live request ends by a timer at the latest."""
        return sum(self._is_live(timer) for timer in self._timers) >= len(self.state.rows)

    def _is_live(self, timer: tuple[int, int, int]) -> bool:
        entry = self.state.entries.get(timer[2])
        if entry is None or entry.number != timer[1]:
            return False
        return self.state.rows.get(entry.request.id) == timer[2]

    # -- the boundary

    def run(self) -> None:
        """Everything that is due now."""
        finished, self.lifecycle.finished_ids = self.lifecycle.finished_ids, []
        for event in self.feed.due(self.state.now_ns, self.state.step, finished):
            if isinstance(event, Arrival):
                self._arrive(event, None)
            else:
                self._cancel(event.request_id)
        while self._inbox:
            self._take()
        while self._later and self._later[0][0] <= self.state.now_ns:
            _, _, arrival, handle = heapq.heappop(self._later)
            self._arrive(arrival, handle)
        self._time_out()
        self._tell_arrivals()
        self.lifecycle.tell_finished()

    def _take(self) -> None:
        """One item of the inbox."""
        with self.news:
            item = self._inbox.popleft()
        if isinstance(item[0], Arrival):
            arrival, handle = item
            assert isinstance(handle, Handle)
            if arrival.request.arrival is None:
                at_ns = self.state.now_ns if arrival.at_ns < 0 else min(arrival.at_ns, self.state.now_ns)
                arrival = replace(arrival, at_ns=at_ns)
            if arrival.at_ns > self.state.now_ns:
                heapq.heappush(self._later, (arrival.at_ns, next(self._sequence), arrival, handle))
            else:
                self._arrive(arrival, handle)
        else:
            request_id, answer = item
            assert isinstance(answer, Future)
            answer.set_result(self._cancel(str(request_id)) or self._cancel_ahead(str(request_id)))

    def _arrive(self, arrival: Arrival, handle: Handle | None) -> None:
        number, request, state = self._numbers, arrival.request, self.state
        self._numbers += 1
        reason = validate(request, state) or (self._refuses(request) if self._refuses is not None else None)
        if reason is not None:
            self.lifecycle.reject(arrival, number, reason, handle, handle is None)
            return
        sampling, limit = request.sampling, output_limit(request, state)
        stops = stops_of(sampling.ignore_eos, sampling.min_tokens, sampling.stop_token_ids)
        row = self.lifecycle.arrive(arrival, number, limit, stops, handle, handle is None)
        self._arrived.append(row)
        if limit < 1:
            self._finish(row, FinishReason.LENGTH)
            return
        self.executor.expect(number, request, arrival.output)
        if request.timeout_s is not None:
            heapq.heappush(self._timers, (arrival.at_ns + round(request.timeout_s * 1e9), number, row))

    def _finish(self, row: int, reason: FinishReason) -> None:
        """End a row; policies hear of its arrival first, while it still waits."""
        self._tell_arrivals()
        self.lifecycle.finish(row, reason)

    def _tell_arrivals(self) -> None:
        rows, self._arrived = self._arrived, []
        if rows and self.stack.implements("on_arrival"):
            self.stack.tell("on_arrival", np.array(rows, np.intp), self.view)

    def _cancel(self, request_id: str) -> bool:
        """End a live request, whatever its status; False when there is nothing to cancel."""
        row = self.state.rows.get(request_id)
        if row is None:
            return False
        self._finish(row, FinishReason.CANCELLED)
        return True

    def _cancel_ahead(self, request_id: str) -> bool:
        """End a submitted request whose arrival is still to come: it arrives now and is gone."""
        for item in self._later:
            if item[2].request.id == request_id:
                self._later.remove(item)
                heapq.heapify(self._later)
                self._arrive(replace(item[2], at_ns=self.state.now_ns), item[3])
                return self._cancel(request_id)
        return False

    def _time_out(self) -> None:
        while self._timers and self._timers[0][0] <= self.state.now_ns:
            timer = heapq.heappop(self._timers)
            if self._is_live(timer):
                self._finish(timer[2], FinishReason.TIMEOUT)
