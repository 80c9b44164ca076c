"""What the engine tells observers of each boundary, after it is applied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from interlock.core.batch import Batch, BatchResult
from interlock.core.request import FinishReason, PreemptMode, RequestStatus


class Transition(NamedTuple):
    """A change of status (or, with from and to equal, of resources). `from_status` is None for a new request."""

    step: int
    time_ns: int
    request: int  # the request's number in the run
    request_id: str
    row: int  # -1 for one that was rejected at the door
    version: int
    from_status: RequestStatus | None
    to_status: RequestStatus
    reason: str
    work: int
    computed: int
    emitted: int
    blocks: int
    slot: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request that reached FINISHED, with all that is known of it.

    Times in engine nanoseconds; None where it never came to that.
    """

    number: int
    request_id: str
    tenant: str
    priority: int
    arrival_ns: int
    admitted_ns: int | None
    first_token_ns: int | None
    last_token_ns: int | None
    finished_ns: int
    queue_ns: int
    prefill_ns: int
    decode_ns: int
    preempted_ns: int
    transfer_ns: int
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int
    recomputed_tokens: int
    output_ids: np.ndarray  # int32
    finish_reason: FinishReason
    reject_reason: str | None
    preemptions: int
    bypasses: int
    overtaken: int
    deadline_ns: int | None


class Preempted(NamedTuple):
    """A request that gave way. `demand` is slot, admission or growth."""

    request: int
    mode: PreemptMode
    demand: str


class Wait(NamedTuple):
    """From this boundary on, `reason` (slot, blocks, tokens, held, limit, order) keeps a request from running."""

    request: int
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class Collected:
    """A ticket's result as the engine applied it.

    `delivered` bool (runs, n): the tokens that reached their request. `finished` are the numbers of the requests that
    ended with it.
    """

    batch: Batch
    result: BatchResult
    delivered: np.ndarray
    finished: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Counts:
    """Gauges after commit. `reserved` counts blocks held or promised to active requests, used ones included."""

    running: int
    waiting: int
    free_blocks: int
    cached_blocks: int
    used_blocks: int
    fenced_blocks: int
    reserved_blocks: int
    budget: int


@dataclass(slots=True)
class BoundaryRecord:
    """One boundary: what was collected, what changed, what was submitted."""

    step: int  # the number of the batch submitted here, or that would have been
    time_ns: int
    collected: list[Collected] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    cached: dict[int, int] = field(default_factory=dict)  # request admitted here -> prefix tokens it found cached
    preempted: list[Preempted] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    batch: Batch | None = None
    counts: Counts | None = None
    host_ns: int = 0

    @property
    def time_s(self) -> float:
        """Engine time of the boundary in seconds."""
        return self.time_ns / 1e9
