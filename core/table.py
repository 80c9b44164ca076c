"""The state of all live requests: one column per fact, one row per request."""

from __future__ import annotations

from typing import Any

import numpy as np

from interlock.core.request import RequestStatus
from interlock.core.work import WorkKey

_NEVER = -1

COLUMNS: dict[str, tuple[Any, Any]] = {
    # name: (dtype, value in a row without an owner)
    "status": (np.int8, int(RequestStatus.FINISHED)),
    "work": (np.int8, int(WorkKey.NONE)),
    "ready": (np.int64, 0),  # sequence number stamped when the work became pending
    "slot": (np.int32, -1),
    "version": (np.int64, 0),  # never reset
    "arrival_ns": (np.int64, 0),
    "priority": (np.int64, 0),
    "deadline": (np.float64, np.inf),
    "tenant": (np.int32, 0),
    "prompt_tokens": (np.int64, 0),
    "max_tokens": (np.int64, 0),
    "predicted": (np.int64, -1),
    "computed": (np.int64, 0),
    "high_water": (np.int64, 0),  # of emitted + computed, as of the last preemption
    "high_loop": (np.int32, 0),  # depth that goes with it
    "emitted": (np.int64, 0),
    "in_flight": (np.int32, 0),
    "loop": (np.int32, 0),
    "chunk": (np.int32, 0),  # tokens of a split prompt's chunk under way
    "blocks": (np.int32, 0),
    "preemptions": (np.int32, 0),
    "bypasses": (np.int32, 0),
    "overtaken": (np.int32, 0),
    "admitted_ns": (np.int64, _NEVER),
    "first_token_ns": (np.int64, _NEVER),
    "last_token_ns": (np.int64, _NEVER),
    "number": (np.int64, -1),  # of the request in the run
    "limit": (np.int64, 0),  # output tokens at which the length ends it
    "holder": (np.intp, -1),  # line of the block table and of the context, from first admission to retirement
    "host": (np.int32, 0),  # KV blocks on the host, of a row that was offloaded
    "peak": (np.int64, 0),  # most tokens that were ever computed, as of the last preemption
    "strikes": (np.int32, 0),  # preemptions in a row without banking
    "stops": (np.int8, 0),  # how its tokens are examined for an end: 0 never, 1 end of sequence, 2 one by one
}

INTERNAL = frozenset(
    {"high_water", "high_loop", "chunk", "number", "limit", "holder", "host", "peak", "strikes", "stops"}
)
"""Columns that policies do not see."""

SECONDS = {
    "arrival": "arrival_ns",
    "admitted_s": "admitted_ns",
    "first_token_s": "first_token_ns",
    "last_token_s": "last_token_ns",
}
"""Columns that policies see in seconds, by the integer column they come from."""

CONSTANT = frozenset({"arrival", "priority", "deadline", "tenant", "prompt_tokens", "max_tokens", "predicted"})
"""Columns that do not change while a request lives: orders by them can be kept instead of sorted."""


class RequestTable:
    """Columns as attributes; every array is `capacity` long and grows by doubling.

    At least one row is always free, so an array over the table is never as long as an array over some of its rows.
    """

    status: np.ndarray
    work: np.ndarray
    ready: np.ndarray
    slot: np.ndarray
    version: np.ndarray
    arrival_ns: np.ndarray
    priority: np.ndarray
    deadline: np.ndarray
    tenant: np.ndarray
    prompt_tokens: np.ndarray
    max_tokens: np.ndarray
    predicted: np.ndarray
    computed: np.ndarray
    high_water: np.ndarray
    high_loop: np.ndarray
    emitted: np.ndarray
    in_flight: np.ndarray
    loop: np.ndarray
    chunk: np.ndarray
    blocks: np.ndarray
    preemptions: np.ndarray
    bypasses: np.ndarray
    overtaken: np.ndarray
    admitted_ns: np.ndarray
    first_token_ns: np.ndarray
    last_token_ns: np.ndarray
    number: np.ndarray
    limit: np.ndarray
    holder: np.ndarray
    host: np.ndarray
    peak: np.ndarray
    strikes: np.ndarray
    stops: np.ndarray

    def __init__(self, capacity: int = 64) -> None:
        self.capacity = capacity
        self._columns = dict(COLUMNS)
        for name, (dtype, initial) in COLUMNS.items():
            setattr(self, name, np.full(capacity, initial, dtype))
        self.policy_columns: dict[tuple[str, str], np.ndarray] = {}
        self._initial: dict[tuple[str, str], Any] = {}
        self._free = list(range(capacity - 1, -1, -1))
        self.generation = 0  # raised when arrays are replaced

    def __len__(self) -> int:
        return self.capacity - len(self._free)

    def add_policy_column(self, policy: str, name: str, dtype: Any, initial: Any) -> None:
        """A column that belongs to a policy; it lives and dies with the row."""
        self._initial[policy, name] = initial
        self.policy_columns[policy, name] = np.full(self.capacity, initial, dtype)
        self.generation += 1

    def new_row(self) -> int:
        """A row without an owner; its version goes on from its last owner's."""
        if len(self._free) <= 1:
            self._grow()
        return self._free.pop()

    def free_rows(self, rows: np.ndarray) -> None:
        """These rows have no owner any more. Their versions rise, so nothing late can reach the next owner."""
        self.version[rows] += 1
        for name, (_, initial) in self._columns.items():
            if name != "version":
                getattr(self, name)[rows] = initial
        for key, array in self.policy_columns.items():
            array[rows] = self._initial[key]
        self._free.extend(rows.tolist())

    def _grow(self) -> None:
        old, self.capacity = self.capacity, 2 * self.capacity
        for name, (dtype, initial) in self._columns.items():
            setattr(self, name, _longer(getattr(self, name), self.capacity, initial, dtype))
        for key, array in self.policy_columns.items():
            self.policy_columns[key] = _longer(array, self.capacity, self._initial[key], array.dtype)
        self._free[:0] = range(self.capacity - 1, old - 1, -1)
        self.generation += 1


def _longer(array: np.ndarray, size: int, initial: Any, dtype: Any) -> np.ndarray:
    longer = np.full(size, initial, dtype)
    longer[: len(array)] = array
    return longer


def read_only(array: np.ndarray) -> np.ndarray:
    """A face of an array through which its memory cannot be written, nor be made writable."""
    return np.asarray(memoryview(array).toreadonly())  # type: ignore[arg-type]
