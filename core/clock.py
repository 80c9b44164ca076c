"""Integer nanoseconds: virtual, moved by the executor's results, or the host's."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """The engine's clock. It never goes back."""

    def begin(self) -> None:
        """The run begins: the executor is ready. Time is 0 until then."""
        ...

    def now_ns(self) -> int:
        """Nanoseconds since the run began."""
        ...

    def stamp_ns(self) -> int | None:
        """When a request that is submitted now arrives; None for: at the boundary that takes it in."""
        ...

    def advance_to(self, time_ns: int) -> None:
        """A result ended at this time."""
        ...

    def wait_until(self, time_ns: int, news: threading.Condition) -> None:
        """Nothing to do before this time, unless `news` is notified."""
        ...


class VirtualClock:
    """Time passes when the simulated executor says so, and idle time is skipped."""

    def __init__(self) -> None:
        self._now = 0

    def begin(self) -> None:
        """Virtual time waits for nobody to get ready."""

    def now_ns(self) -> int:
        """Nanoseconds since the run began."""
        return self._now

    def stamp_ns(self) -> int | None:
        """Virtual time stands still between boundaries."""
        return None

    def advance_to(self, time_ns: int) -> None:
        """Go there, if it is ahead."""
        self._now = max(self._now, time_ns)

    def wait_until(self, time_ns: int, news: threading.Condition) -> None:
        """Skip the idle time."""
        self.advance_to(time_ns)


class WallClock:
    """The host's monotonic clock, from 0 when the run begins."""

    def __init__(self) -> None:
        self._start: int | None = None

    def begin(self) -> None:
        """Now is 0."""
        self._start = time.monotonic_ns()

    def now_ns(self) -> int:
        """Nanoseconds since the run began."""
        return 0 if self._start is None else time.monotonic_ns() - self._start

    def stamp_ns(self) -> int | None:
        """Now: a request waits from when it was submitted, whenever the engine comes to it."""
        return self.now_ns()

    def advance_to(self, time_ns: int) -> None:
        """The host's time passes by itself."""

    def wait_until(self, time_ns: int, news: threading.Condition) -> None:
        """Sleep, or wake for news."""
        with news:
            news.wait(max(time_ns - self.now_ns(), 0) / 1e9)
