"""Where observers put files of their own: into the folder of the run that is going on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_folder: ContextVar[Path | None] = ContextVar("interlock_run_folder", default=None)


def run_folder() -> Path:
    """What becomes the run folder of the `interlock run` that is going on; the current folder outside of one.

    For an observer's `on_start`. What is written there by `on_stop` moves to its place with the rest of the run.
    """
    return _folder.get() or Path.cwd()


@contextmanager
def running_in(folder: Path) -> Iterator[None]:
    """While this is open, `run_folder` is `folder`."""
    before = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(before)
