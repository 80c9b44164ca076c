"""Runs a recorded run again and compares what is decided, decision by decision, until the first difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from interlock.core.executor import Capability
from interlock.core.record import BoundaryRecord, Collected, Transition
from interlock.core.work import Operation
from interlock.plugins.run import differences as say
from interlock.plugins.run.recorded import Decision, Move, Recorded
from interlock.plugins.run.versions import versions

if TYPE_CHECKING:
    from interlock.core.config import EngineConfig
    from interlock.core.engine import Engine


class Verdict(NamedTuple):
    """Whether a replay decided as the recorded run did, and a paragraph that says so. None: it was interrupted."""

    same: bool | None
    text: str


class Comparison:
    """An observer that holds each decision beside the recorded one. `difference` tells the first that is another.

    Batches are compared one by one, so a stretch may be recorded or replayed as one submission or as many. `timed`:
    the times of batches and transitions have to be the same, too.
    """

    def __init__(self, recorded: Recorded, timed: bool = False) -> None:
        self.recorded, self.timed = recorded, timed
        self.difference: str | None = None
        self.names: dict[int, str] = {}
        self.batches = self.moves = 0  # found equal so far
        self._row = self._used = 0  # the line of the steps that is due, and how many of its batches are through

    @property
    def through(self) -> bool:
        """Whether all that was recorded has been compared."""
        return self._row >= len(self.recorded.rows) and self.moves >= len(self.recorded.moves)

    def on_boundary(self, record: BoundaryRecord) -> None:
        """Compare what this boundary collected and changed; an interrupted recording only as far as it goes."""
        for collected in record.collected:
            self._batch(collected, record.time_ns)
        for one in record.transitions:
            self._move(one)

    def end(self) -> None:
        """The replay is over: nothing recorded may be left."""
        if self.difference is not None or self.through:
            return
        if (move := self._due()) is not None and move.step <= self._step():
            self._differ(move.step, move.time_s, say.move(move, self._name), say.NOTHING)
        else:
            row = self.recorded.rows[self._row]
            self._differ(self._step(), row.start_s, say.batch(row.decision, self._name), say.NOTHING)

    # -- transitions

    def _move(self, one: Transition) -> None:
        self.names[one.request] = one.request_id
        if self.difference is not None or (self.recorded.partial and self.through):
            return
        origin = None if one.from_status is None else one.from_status.name
        now = Move(one.step, one.time_ns / 1e9, one.request, origin, one.to_status.name, one.reason)
        was = self._due()
        if was is not None and was._replace(time_s=now.time_s) == now and (not self.timed or was.time_s == now.time_s):
            self.moves += 1
            return
        new = say.move(now, self._now_name)
        if was is None or was.step > now.step:
            self._differ(now.step, now.time_s, say.NO_MOVE, new)
        else:
            self._differ(was.step, was.time_s, say.move(was, self._name), new)

    def _due(self) -> Move | None:
        """The recorded transition that comes next."""
        return self.recorded.moves[self.moves] if self.moves < len(self.recorded.moves) else None

    # -- batches

    def _batch(self, collected: Collected, now_ns: int) -> None:
        """Compare each run of a submission with the recorded batches that are due."""
        batch, result = collected.batch, collected.result
        ends = (result.ends_ns if len(result.ends_ns) else np.array([now_ns])) / 1e9
        now = Decision(batch.step, Operation(batch.operation).name, batch.numbers, batch.work, batch.tokens)
        done, start_s = 0, batch.start_ns / 1e9
        while done < len(ends) and self.difference is None and not (self.recorded.partial and self.through):
            start_s = start_s if done == 0 else float(ends[done - 1])
            done += self._runs(now._replace(step=batch.step + done), start_s, ends[done:])

    def _runs(self, now: Decision, start_s: float, ends_s: np.ndarray) -> int:
        """Compare a decision with the line that is due; how many runs of it that line covers."""
        was = self._due()
        if was is not None and was.step <= now.step:
            self._differ(was.step, was.time_s, say.move(was, self._name), say.NO_MOVE)
            return 0
        row = self.recorded.rows[self._row] if self._row < len(self.recorded.rows) else None
        if row is None or not row.decision.same_as(now):
            old = say.NOTHING if row is None else say.batch(row.decision, self._name)
            more = "" if row is None else say.place(row.decision, now)
            self._differ(now.step, start_s, old, say.batch(now, self._now_name), more)
            return 0
        count = min(len(row.ends_s) - self._used, len(ends_s))
        due = row.ends_s[self._used : self._used + count]
        began = row.ends_s[self._used - 1] if self._used else row.start_s
        if self.timed and (began != start_s or not np.array_equal(due, ends_s[:count])):
            self._differ(now.step, start_s, say.times(began, due), say.times(start_s, ends_s[:count]), say.SAME_BATCH)
            return 0
        self._advance(count)
        return count

    def _advance(self, count: int) -> None:
        self.batches += count
        self._used += count
        if self._used == len(self.recorded.rows[self._row].ends_s):
            self._row, self._used = self._row + 1, 0

    def _step(self) -> int:
        """The number of the recorded batch that is due."""
        rows = self.recorded.rows
        return rows[self._row].decision.step + self._used if self._row < len(rows) else 2**62

    # -- words

    def _name(self, request: int) -> str:
        """A request of the recorded run."""
        return say.request(request, self.recorded.names.get(request) or self.names.get(request))

    def _now_name(self, request: int) -> str:
        """A request of the replay."""
        return say.request(request, self.names.get(request))

    def _differ(self, step: int, time_s: float, was: str, now: str, more: str = "") -> None:
        self.difference = (
            f"first differs at step {step} ({time_s:g} s). Recorded: {was}. Now: {now}.{more} "
            f"Before that, {self.batches} batches and {self.moves} transitions are the same."
        )


def replay(recorded: Recorded, config: EngineConfig, same_executor: bool, stopped: Callable[[], bool]) -> Verdict:
    """Run `config` beside what was recorded. Errors while the engine is built are raised.

    Times are compared with the same executor on a virtual clock, an interrupted recording as far as it goes.
    """
    from interlock.core.engine import Engine

    comparison = Comparison(recorded)
    engine = Engine.from_config(config, observers=[comparison])
    virtual = Capability.VIRTUAL_TIME in engine.executor.capabilities.features
    comparison.timed = same_executor and virtual
    error = _drain(engine, comparison, stopped)
    if stopped() and comparison.difference is None:
        return Verdict(None, f"interrupted after {comparison.batches} equal batches")
    return _judge(comparison, error, config)


def _drain(engine: Engine, comparison: Comparison, stopped: Callable[[], bool]) -> Exception | None:
    partial = comparison.recorded.partial
    try:
        for _ in engine.run():
            if stopped() or comparison.difference is not None or (partial and comparison.through):
                return None
        comparison.end()
    except Exception as error:
        if not comparison.batches + comparison.moves:
            raise
        return error
    finally:
        engine.stop()
    return None


def _judge(comparison: Comparison, error: Exception | None, config: EngineConfig) -> Verdict:
    recorded = comparison.recorded
    where = f"{recorded.folder}: the replay"
    if comparison.difference is not None:
        return Verdict(False, f"{where} {comparison.difference}{_changed(recorded, config)}")
    told = f"{comparison.batches} batches and {comparison.moves} transitions"
    ended = None if error is None else f"{type(error).__name__}: {error}"
    if ended is not None and ended != recorded.error:
        before = "the recorded run did not" if recorded.error is None else f"the recorded run with {recorded.error}"
        return Verdict(
            False, f"{where} is equal for {told}, then ends with {ended}; {before}.{_changed(recorded, config)}"
        )
    times = "" if comparison.timed else "; times are not compared, the executor is another"
    return Verdict(True, f"{where} decides the same: {told}{times}{_end(recorded, ended)}")


def _end(recorded: Recorded, ended: str | None) -> str:
    if ended is not None:
        return f"; both end with {ended}"
    if recorded.error is not None:
        return f"; there the recorded run ended with {recorded.error}, and the replay did not"
    return "; there the recorded run was interrupted" if recorded.partial else ""


def _changed(recorded: Recorded, config: EngineConfig) -> str:
    """What is not as it was when the run was recorded, of all that a run's versions tell."""
    was, now = recorded.summary.get("versions", {}), versions(config)
    names = [name for name in ("interlock", "numpy", "python", "trace") if was.get(name) != now[name]]
    sources = {one["name"]: one["source_hash"] for one in was.get("policies", ())}
    names += [f"policy {name}" for name in _edited(sources, now["policies"])]
    return f" Not as recorded: {', '.join(names)}." if names else ""


def _edited(was: dict[str, str], policies: Sequence[dict[str, str]]) -> list[str]:
    return [one["name"] for one in policies if was.get(one["name"], one["source_hash"]) != one["source_hash"]]
