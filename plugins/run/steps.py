"""Batches in canonical form, in which equal decode batches look the same submitted one by one and as a stretch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from interlock.core.batch import Batch
from interlock.core.record import BoundaryRecord, Collected, Counts
from interlock.core.work import Operation


@dataclass(slots=True)
class Submission:
    """A batch on its way, with what its boundary said. `quiet`: nothing happened since the batch before it."""

    batch: Batch
    quiet: bool
    counts: Counts | None
    admitted: tuple[int, ...]
    preempted: tuple[int, ...]
    host_ns: int

    @classmethod
    def of(cls, record: BoundaryRecord, batch: Batch, quiet: bool) -> Submission:
        """What the boundary that submitted `batch` has to say about it."""
        preempted = tuple(one.request for one in record.preempted)
        return cls(batch, quiet, record.counts, tuple(record.admitted), preempted, record.host_ns)


@dataclass(slots=True)
class Step:
    """One batch, or equal decode batches in a row.

    Arrays are those of the first of `repeat` batches, in batch order; counts, too. `delivered` bool says which rows got
    a token from each batch, None for all of them. `ends` and `sampled` hold a piece per submission: int64 (runs,) and
    int32 (runs, n).
    """

    step: int
    operation: Operation
    start_ns: int
    decode_only: bool
    rows: np.ndarray
    versions: np.ndarray
    numbers: np.ndarray
    work: np.ndarray
    start: np.ndarray
    tokens: np.ndarray
    delivered: np.ndarray | None
    counts: Counts | None
    admitted: tuple[int, ...]
    preempted: tuple[int, ...]
    host_ns: int
    finished: tuple[int, ...] = ()
    repeat: int = 0
    ends: list[np.ndarray] = field(default_factory=list)
    sampled: list[np.ndarray] = field(default_factory=list)

    def goes_on_in(self, other: Submission, delivered: np.ndarray | None) -> bool:
        """Whether the batch of `other`, which delivered to these rows, is this batch once more."""
        batch = other.batch
        return (
            other.quiet
            and self.decode_only
            and batch.step == self.step + self.repeat
            and _equal(self.rows, batch.rows)
            and _equal(self.versions, batch.versions)
            and _equal(self.tokens, batch.tokens)
            and _equal(self.work, batch.work)
            and _equal(self.delivered, delivered)
        )

    def take(self, piece: Piece) -> None:
        """Add these runs."""
        self.repeat += len(piece.ends)
        self.ends.append(piece.ends)
        self.sampled.append(piece.sampled)


@dataclass(slots=True)
class Piece:
    """Consecutive runs of one submission that delivered to the same rows."""

    first: int
    delivered: np.ndarray | None
    ends: np.ndarray
    sampled: np.ndarray


def pieces(collected: Collected, now_ns: int) -> Iterator[Piece]:
    """Cut a result where its runs delivered to different rows. A batch that failed delivered to nobody."""
    n, result = len(collected.batch), collected.result
    ends = result.ends_ns if len(result.ends_ns) else np.array([now_ns], np.int64)
    if result.error is not None:
        yield Piece(0, np.zeros(n, bool), ends, np.full((len(ends), n), -1, np.int32))
        return
    delivered = collected.delivered
    if delivered.all():
        yield Piece(0, None, ends, result.tokens)
        return
    cuts = [0, *(np.flatnonzero((delivered[1:] != delivered[:-1]).any(axis=1)) + 1).tolist(), len(ends)]
    for first, last in pairwise(cuts):
        whole = bool(delivered[first].all())
        yield Piece(first, None if whole else delivered[first], ends[first:last], result.tokens[first:last])


def begin(submission: Submission, piece: Piece, before: Piece | None) -> Step:
    """The step that starts with `piece`; `before` is the piece of the same submission that it follows, if any."""
    batch = submission.batch
    later = before is not None
    return Step(
        step=batch.step + piece.first,
        operation=batch.operation,
        start_ns=int(before.ends[-1]) if before is not None else batch.start_ns,
        decode_only=batch.decode_only,
        rows=batch.rows,
        versions=batch.versions,
        numbers=batch.numbers,
        work=batch.work,
        start=batch.start + piece.first if later else batch.start,
        tokens=batch.tokens,
        delivered=piece.delivered,
        counts=submission.counts,
        admitted=() if later else submission.admitted,
        preempted=() if later else submission.preempted,
        host_ns=0 if later else submission.host_ns,
    )


def add(steps: list[Step], submission: Submission, collected: Collected, now_ns: int) -> None:
    """Append a collected batch to `steps`, or to the last of them where it is the same batch again."""
    before: Piece | None = None
    for piece in pieces(collected, now_ns):
        if before is None and steps and steps[-1].goes_on_in(submission, piece.delivered):
            steps[-1].host_ns += submission.host_ns
        else:
            steps.append(begin(submission, piece, before))
        steps[-1].take(piece)
        before = piece
    steps[-1].finished = tuple(collected.finished)


def count(steps: Sequence[Step]) -> int:
    """Batches in all, each repetition counted."""
    return sum(step.repeat for step in steps)


def _equal(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    # Comparing bytes takes a fifth of the time of np.array_equal, and this runs at every boundary.
    return a is b or (a is not None and b is not None and a.tobytes() == b.tobytes())
