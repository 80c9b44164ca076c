"""Runs an engine to its end, an error or an interruption, and writes what it left behind."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from interlock.core.request import FinishReason
from interlock.core.text import Tokenizer, tokenizer_of
from interlock.plugins.run.recorder import Recorder
from interlock.plugins.run.summary import Ran, summary
from interlock.plugins.run.versions import versions

if TYPE_CHECKING:
    from interlock.core.config import EngineConfig
    from interlock.core.engine import Engine
    from interlock.plugins.run.folder import RunFolder


class Answer(NamedTuple):
    """What a request asked in text, and what came of it."""

    request_id: str
    prompt: str
    text: str
    finish_reason: FinishReason


@dataclass
class Session:
    """A run that is over. `error` is what ended it before it was drained, if anything did.

    `tokenizer` is the executor's, where it has one.
    """

    config: EngineConfig
    recorder: Recorder
    ran: Ran
    interrupted: bool = False
    error: Exception | None = None
    tokenizer: Tokenizer | None = None

    def summary(self) -> dict[str, Any]:
        """summary.json. `interrupted` and `error` are in it only when the run was not drained."""
        numbers = summary(self.recorder, self.config, self.ran, versions(self.config))
        if self.interrupted or self.error is not None:
            numbers["interrupted"] = True
        if self.error is not None:
            numbers["error"] = f"{type(self.error).__name__}: {self.error}"
        return numbers

    def write(self, folder: RunFolder, numbers: dict[str, Any]) -> Path:
        """Write the run folder with this summary; its path."""
        from interlock.plugins.run.tables import tables

        made = tables(self.recorder, self.config.records.tokens, self.tokenizer)
        return folder.write(self.config.resolved(), numbers, made)

    def answers(self) -> list[Answer]:
        """What became of requests whose prompts were text, in the order of their arrival."""
        entries = () if self.config.workload is None else self.config.workload.requests or ()
        if self.tokenizer is None:
            return []
        # The feed is the only source of requests, so their numbers count its arrivals.
        arrived = enumerate(sorted(entries, key=lambda entry: round(entry.arrival * 1e9)))
        found = {outcome.number: outcome for outcome in self.recorder.finished}
        return [
            Answer(found[n].request_id, entry.text, self.tokenizer.decode(found[n].output_ids), found[n].finish_reason)
            for n, entry in arrived
            if entry.text is not None and n in found
        ]


def execute(
    config: EngineConfig,
    observers: Sequence[object] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> Session:
    """Run the configuration's workload until it is drained, `stopped` answers true at a boundary, or an error ends it.

    Errors while the engine is built are raised; later ones are in the session, beside what ran until then.
    """
    from interlock.core.engine import Engine

    recorder = Recorder()
    engine = Engine.from_config(config, observers=[recorder, *observers])
    started = time.perf_counter()
    interrupted, error = _drain(engine, stopped)
    ran = _ran(engine, time.perf_counter() - started)
    return Session(engine.config, recorder, ran, interrupted, error, tokenizer_of(engine.executor))


def _drain(engine: Engine, stopped: Callable[[], bool]) -> tuple[bool, Exception | None]:
    try:
        for _ in engine.run():
            if stopped():
                return True, None
    except KeyboardInterrupt:
        return True, None
    except Exception as error:  # what ran until here is worth keeping; the caller reports the error
        return False, error
    finally:
        engine.stop()
    return False, None


def _ran(engine: Engine, wall_s: float) -> Ran:
    stats = engine.stats
    return Ran(
        wall_s=wall_s,
        scheduler_ns=stats.scheduler_ns,
        violations=stats.violations,
        protections=stats.protections,
        forced=stats.rescues["forced"],
        repaired=stats.rescues["repaired"],
    )


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """While this is open, the first Ctrl-C or termination only makes the yielded function true; a second Ctrl-C raises.

    So a run ends between two boundaries, and its folder is written in peace.
    """
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if seen and number == signal.SIGINT:
            raise KeyboardInterrupt
        seen.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
