"""The progress bar of a run: requests finished, engine time. Only on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from interlock.core.config import EngineConfig
    from interlock.core.record import BoundaryRecord

REFRESH_S = 0.1


class Bar:
    """An observer that moves a progress bar, a few times a second."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self.bar, self.task = bar, task
        self.finished, self.shown = 0, 0.0

    def on_boundary(self, record: BoundaryRecord) -> None:
        """Count what finished; repaint when it is time."""
        self.finished += len(record.outcomes)
        now = time.monotonic()
        if now - self.shown > REFRESH_S:
            self.shown = now
            self.bar.update(self.task, completed=self.finished, engine=f"{record.time_s:,.1f} s", refresh=True)


@contextmanager
def progress(config: EngineConfig, quiet: bool) -> Iterator[list[Bar]]:
    """While this is open a bar is on the terminal; yields its observers, none where there is nobody to look."""
    if quiet or not sys.stderr.isatty():
        yield []
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("requests"),
        BarColumn(None),
        MofNCompleteColumn(),
        TextColumn("engine time {task.fields[engine]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        yield [Bar(bar, bar.add_task("run", total=total_of(config), engine="0.0 s"))]


def total_of(config: EngineConfig) -> int | None:
    """How many requests the workload has, as far as the configuration says so."""
    workload = config.workload
    if workload is None:
        return None
    if workload.requests is not None:
        return len(workload.requests)
    if workload.generate is not None:
        return workload.generate.count
    return workload.trace.limit if workload.trace is not None else None
