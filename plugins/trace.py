"""The trace: an observer that writes a line of JSON for each boundary, for `jq`, `tail -f` and eyes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TextIO

from pydantic import BaseModel, ConfigDict

from interlock.core.batch import Batch
from interlock.core.errors import ConfigError, InterlockError
from interlock.core.record import BoundaryRecord, Collected, Transition
from interlock.core.request import RequestStatus
from interlock.core.view import View
from interlock.core.work import Operation, WorkKey
from interlock.plugins.run.place import run_folder

NAME = "trace.jsonl"


class Trace:
    """Writes what each boundary collected, changed and submitted, one JSON object a line, in the order of boundaries.

    Keys: `step`, `time_s`; `collected` (tickets: step, runs, end_s, the requests that were given tokens); `transitions`
    (request, request_id, from, to, reason); `waits`; `batch` (operation, repeat, members), null where none was formed;
    and the gauges of steps.parquet. There are no host times in it: equal runs write equal files.

    A line is flushed when it is written. It costs about 25 microseconds and 2 more for each row of the batch.
    """

    class Options(BaseModel):
        """`path`: the file, relative to the configuration; by default `trace.jsonl` in the run folder.

        Outside of `interlock run` the default is in the current folder. A file that is there is replaced.
        """

        model_config = ConfigDict(extra="forbid", frozen=True)

        path: Path | None = None

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or self.Options()
        self._file: TextIO | None = None
        self._ids: dict[int, str] = {}  # of live requests, by number

    def on_start(self, view: View) -> None:
        """Open the file. Raises ConfigError, one line, when it cannot be written."""
        path = self.options.path or run_folder() / NAME
        try:
            self._file = path.open("w", buffering=1, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"plugins.trace.path: {path}: cannot be written: {error.strerror or error}") from None

    def on_boundary(self, record: BoundaryRecord) -> None:
        """Write the line of this boundary. Raises InterlockError when the disk does not take it."""
        if self._file is None:
            return
        for one in record.transitions:
            self._ids[one.request] = one.request_id
        line = json.dumps(self._line(record), separators=(",", ":"), ensure_ascii=False)
        try:
            self._file.write(line + "\n")
        except OSError as error:
            raise InterlockError(f"{self._file.name}: the trace cannot be written: {error.strerror or error}") from None
        for one in record.transitions:
            if one.to_status is RequestStatus.FINISHED:
                self._ids.pop(one.request, None)

    def on_stop(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _line(self, record: BoundaryRecord) -> dict[str, Any]:
        return {
            "step": record.step,
            "time_s": record.time_s,
            "collected": [self._collected(one) for one in record.collected],
            "transitions": [_transition(one) for one in record.transitions],
            "waits": [{"request_id": self._ids.get(one.request), **one._asdict()} for one in record.waits],
            "batch": None if record.batch is None else self._batch(record.batch),
            **_gauges(record),
        }

    def _collected(self, one: Collected) -> dict[str, Any]:
        ends = one.result.ends_ns
        told = {
            "step": one.batch.step,
            "runs": one.result.runs,
            "end_s": int(ends[-1]) / 1e9 if len(ends) else None,
            "delivered_to": one.batch.numbers[one.delivered.any(axis=0)].tolist(),
        }
        return told if one.result.error is None else {**told, "error": str(one.result.error)}

    def _batch(self, batch: Batch) -> dict[str, Any]:
        columns = (batch.numbers, batch.work, batch.start, batch.tokens, batch.loop)
        members = zip(*(column.tolist() for column in columns), strict=True)
        return {
            "operation": Operation(batch.operation).name,
            "repeat": batch.repeat,
            "members": [
                {
                    "request": number,
                    "request_id": self._ids.get(number),
                    "work": WorkKey(work).name,
                    "start": start,
                    "tokens": tokens,
                    "loop": loop,
                }
                for number, work, start, tokens, loop in members
            ],
        }


def _transition(one: Transition) -> dict[str, Any]:
    return {
        "request": one.request,
        "request_id": one.request_id,
        "from": None if one.from_status is None else one.from_status.name,
        "to": one.to_status.name,
        "reason": one.reason,
    }


def _gauges(record: BoundaryRecord) -> dict[str, int]:
    counts = record.counts
    if counts is None:
        return {}
    names = ("running", "waiting", "free_blocks", "cached_blocks", "used_blocks", "fenced_blocks")
    return {name: getattr(counts, name) for name in names}
