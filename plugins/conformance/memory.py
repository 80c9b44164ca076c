"""Paged memory behind an executor: every batch must find the KV of all that came before it, and nothing else's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from interlock.core import Batch, BatchResult, Copy, Executor, ExecutorConfig, Operation, PreemptMode, Ticket
from interlock.core.hashing import splitmix64
from interlock.plugins.conformance.finding import Finding

RULE = "A batch reads only KV that was computed for its own context."
_POISON = np.uint64(0xDEAD)


class _Lines(NamedTuple):
    """What a batch was given when it was submitted: block lines, and the token ids that each row knows."""

    blocks: np.ndarray
    known: list[np.ndarray]


class Memory:
    """An executor whose memory is checked.

    A token's KV is a fingerprint of the whole context up to it, written where the block table says, at each depth that
    the batch runs. A row also must find its hidden state between two operations as it left it. So a wrong block, a
    stale hit, a skipped token or a lost depth does not go unnoticed.
    """

    def __init__(self, inner: Executor | Any) -> None:
        self.inner = inner
        self.findings: list[Finding] = []
        self._lines: dict[int, _Lines] = {}
        self._host: dict[int, np.ndarray] = {}
        self._hidden: dict[int, tuple[int, int, list[int]]] = {}  # by row: depth, first position, states

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def start(self, config: ExecutorConfig) -> None:
        """Empty memory, a plane for each depth."""
        self.loops = int(self.inner.capabilities.loops)
        self.cells = np.zeros((config.num_blocks, config.block_size, self.loops), np.uint64)
        self.inner.start(config)

    def submit(self, batch: Batch) -> Ticket:
        """Note what the batch was given."""
        ticket: Ticket = self.inner.submit(batch)
        ends = (batch.start + batch.tokens).tolist()
        known = [batch.context[holder, :end].copy() for holder, end in zip(batch.holders.tolist(), ends, strict=True)]
        self._lines[ticket.id] = _Lines(batch.block_table[batch.holders].copy(), known)
        return ticket

    def collect(self, block: bool) -> Sequence[BatchResult]:
        """Run what was submitted on the memory."""
        results: Sequence[BatchResult] = self.inner.collect(block)
        for result in results:
            lines = self._lines.pop(result.ticket.id, None)
            if lines is not None:
                self._run(result, lines)
        return results

    def suspend(self, rows: np.ndarray, modes: Sequence[PreemptMode], copies: Sequence[Copy]) -> None:
        """Copies go to the host; who drops its KV drops its hidden state, too."""
        for row, mode in zip(rows.tolist(), modes, strict=True):
            if mode is PreemptMode.RECOMPUTE:
                self._hidden.pop(row, None)
        for device, host in _pairs(copies):
            self._host[host] = self.cells[device].copy()
        self.inner.suspend(rows, modes, copies)

    def resume(self, rows: np.ndarray, copies: Sequence[Copy]) -> None:
        """Copies come back."""
        for device, host in _pairs(copies):
            if host in self._host:
                self.cells[device] = self._host[host]
        self.inner.resume(rows, copies)

    def forget(self, rows: np.ndarray) -> None:
        """Nothing is kept of these rows."""
        for row in rows.tolist():
            self._hidden.pop(row, None)
        self.inner.forget(rows)

    def _run(self, result: BatchResult, lines: _Lines) -> None:
        batch, known, failed = result.ticket.batch, lines.known, result.error is not None
        for run in range(result.runs):
            if run:
                known = [np.append(ids, said) for ids, said in zip(known, result.tokens[run - 1], strict=True)]
            marks = [_fingerprints(ids) for ids in known]
            for at, mark in enumerate(marks):
                self._write(batch, at, int(batch.start[at]) + run, lines.blocks[at], mark, failed)
            for at, mark in enumerate(() if failed else marks):
                leaves = bool(result.exits[at]) if result.exits is not None else False
                self._check(batch, at, int(batch.start[at]) + run, lines.blocks[at], mark, leaves)

    def _planes(self, batch: Batch, at: int) -> slice:
        """The depths that a row of this batch writes, and attends at."""
        depth = int(batch.loop[at])
        one = {Operation.FORWARD: slice(0, self.loops), Operation.RECURRENT: slice(depth, depth + 1)}
        return one.get(batch.operation, slice(0, 0))

    def _where(self, line: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = self.cells.shape[1]
        return line[positions // size], positions % size

    def _write(self, batch: Batch, at: int, start: int, line: np.ndarray, mark: np.ndarray, failed: bool) -> None:
        blocks, offsets = self._where(line, np.arange(start, len(mark)))
        self.cells[blocks, offsets, self._planes(batch, at)] = _POISON if failed else mark[start:][:, None]

    def _check(self, batch: Batch, at: int, start: int, line: np.ndarray, mark: np.ndarray, leaves: bool) -> None:
        blocks, offsets = self._where(line, np.arange(len(mark)))
        found = self.cells[blocks, offsets, self._planes(batch, at)]
        wrong = np.flatnonzero((found != mark[:, None]).any(axis=1))
        if len(wrong):
            self._tell(batch, at, f"position {wrong[0]} of {len(mark)} holds another context's KV, or none")
        if self.loops > 1:
            self._carry(batch, at, start, line, mark, leaves)

    def _carry(self, batch: Batch, at: int, start: int, line: np.ndarray, mark: np.ndarray, leaves: bool) -> None:
        """The hidden rows that a looped model's work carries from operation to operation."""
        row, depth, states = int(batch.rows[at]), int(batch.loop[at]), mark[start:].tolist()
        hidden = self._hidden.get(row)
        if batch.operation is Operation.PRELUDE:
            self._hidden[row] = 0, start, states
        elif batch.operation is Operation.FORWARD:
            self._hidden[row] = self.loops, start, states
        elif batch.operation is Operation.RECURRENT:
            if hidden != (depth, start, states):
                self._tell(batch, at, f"at depth {depth} it has lost its hidden rows or their depth")
            self._hidden[row] = self.loops if leaves else depth + 1, start, states
            if leaves:
                blocks, offsets = self._where(line, np.arange(start, len(mark)))
                self.cells[blocks, offsets, depth + 1 :] = mark[start:][:, None]
        elif hidden is None or hidden[0] != self.loops or hidden[2][-1:] != states[-1:]:
            self._tell(batch, at, "the coda has no hidden row of its own to say a token from")

    def _tell(self, batch: Batch, at: int, seen: str) -> None:
        right = "its block table names blocks that hold the KV of exactly its own context."
        self.findings.append(Finding(RULE, f"{seen}.", right, batch.step, f"number {batch.numbers[at]}"))


def _pairs(copies: Sequence[Copy]) -> list[tuple[int, int]]:
    """Device and host blocks of all copies."""
    return [pair for copy in copies for pair in zip(copy.device.tolist(), copy.host.tolist(), strict=True)]


def _fingerprints(ids: np.ndarray) -> np.ndarray:
    places = np.arange(len(ids), dtype=np.uint64) << np.uint64(32)
    return np.cumsum(splitmix64(places + ids.astype(np.uint64)), dtype=np.uint64)
