"""The read-only face of the engine that policies see."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from interlock.core.errors import nearest
from interlock.core.request import Request
from interlock.core.table import COLUMNS as _COLUMNS
from interlock.core.table import CONSTANT, INTERNAL, SECONDS, read_only
from interlock.core.work import Operation, WorkKey

if TYPE_CHECKING:
    from interlock.core.state import State

_NANO = 1e-9
_PUBLIC = frozenset(_COLUMNS) - INTERNAL - frozenset(SECONDS.values())
COLUMN_NAMES: tuple[str, ...] = tuple(sorted(_PUBLIC | frozenset(SECONDS) | {"banked"}))
"""The core's columns as policies name them."""


class View:
    """Facts about the boundary at hand. Arrays are read-only and valid during the call; table-long ones have
    `capacity` entries, and entries of rows without an owner mean nothing.

    Every column is an attribute: status, work, ready, slot, version, arrival, priority, deadline, tenant,
    prompt_tokens, max_tokens, predicted, computed, banked, emitted, in_flight, loop, blocks, preemptions, bypasses,
    overtaken, admitted_s, first_token_s, last_token_s. Times are engine seconds; a deadline is inf and a time that has
    not come is NaN. The true output length is not here.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._table = state.table
        self._faces: dict[str, np.ndarray] = {}
        self._generation = -1
        self._tokens_left: int | None = None

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            raise AttributeError(f"views are read-only: {name!r} cannot be set")
        object.__setattr__(self, name, value)

    # -- scalars

    @property
    def now(self) -> float:
        """Engine seconds."""
        return self._state.now_ns * _NANO

    @property
    def step(self) -> int:
        """Number of the batch that this boundary may form."""
        return self._state.step

    @property
    def limits(self) -> Any:
        """The `engine` section of the configuration."""
        return self._state.limits

    @property
    def capacity(self) -> int:
        """Length of the table, and of every table-long array."""
        return self._table.capacity

    @property
    def free_slots(self) -> int:
        """Slots that nobody owns."""
        return self._state.free_slots

    @property
    def available_blocks(self) -> int:
        """KV blocks that are free, or cached without a holder."""
        return self._state.pool.available

    @property
    def tokens_left(self) -> int:
        """What is left of the token budget: all of it in `admit` and `select`, what growth leaves in `preempt`."""
        return self._state.limits.max_num_batched_tokens if self._tokens_left is None else self._tokens_left

    @property
    def rng(self) -> np.random.Generator:
        """Randomness seeded by `engine.seed`."""
        return self._state.rng

    @property
    def last_operation(self) -> Operation | None:
        """Of the batch before this boundary."""
        return self._state.last_operation

    @property
    def in_flight_work(self) -> frozenset[WorkKey]:
        """Work keys of the tickets that are out."""
        return frozenset(WorkKey(int(key)) for ticket in self._state.tickets for key in np.unique(ticket.batch.work))

    @property
    def tenants(self) -> tuple[str, ...]:
        """Names of the tenants, by their code in the column `tenant`."""
        return tuple(self._state.tenants)

    # -- rows

    @property
    def waiting(self) -> np.ndarray:
        """Waiting rows in arrival order."""
        return read_only(self._state.waiting.rows) if len(self._state.waiting) else np.empty(0, np.intp)

    @property
    def active(self) -> np.ndarray:
        """Active rows in the order of their admission."""
        return self._state.active

    def count(self, work: WorkKey) -> int:
        """Active rows with this work pending."""
        return int((self._table.work[self._state.active] == work).sum())

    def __getattr__(self, name: str) -> np.ndarray:
        column = self._column_named(name)
        if column is None:
            raise AttributeError(f"a view has no {name!r}{nearest(name, self._column_names())}")
        return column

    def of(self, policy: str) -> Any:
        """The columns of another policy, as attributes, read-only."""
        found = {
            name: read_only(array) for (owner, name), array in self._table.policy_columns.items() if owner == policy
        }
        if not found:
            raise AttributeError(
                f"no policy {policy!r} with columns"
                f"{nearest(policy, (owner for owner, _ in self._table.policy_columns))}"
            )
        return SimpleNamespace(**found)

    # -- queries

    def pending(self, rows: np.ndarray) -> np.ndarray:
        """Tokens that each row's pending work still has to run: the rest of the known context. int64, as rows."""
        return np.asarray(self._state.pending(rows))

    def remaining_prompt(self, rows: np.ndarray) -> np.ndarray:
        """Tokens of context to compute before each row's next token; 0 for rows that decode. int64, as rows."""
        pending = self.pending(rows)
        return np.where(self._table.work[rows] == WorkKey.DECODE_ATOMIC, 0, pending)

    def blocks_needed(self, rows: np.ndarray, tokens: np.ndarray | int) -> np.ndarray:
        """KV blocks that each row lacks to run so many tokens more. int64, as rows."""
        table, size = self._table, self._state.pool.block_size
        need = -(-(table.computed[rows] + tokens) // size) - table.blocks[rows]
        return np.asarray(np.maximum(need, 0))

    def freed_by(self, rows: np.ndarray) -> np.ndarray:
        """KV blocks that each row alone would give back. int64, as rows."""
        return np.array([self._state.blocks_only_of((int(row),)) for row in np.atleast_1d(rows)], np.int64)

    def fits(self, row: int, without: np.ndarray | tuple[int, ...] = ()) -> bool:
        """Whether the waiting row could enter if the rows `without` gave way (slot, blocks, a token), by the formula
        that admission itself uses."""
        return self._state.would_fit(int(row), tuple(int(other) for other in without))

    def cached_prefix(self, rows: np.ndarray) -> np.ndarray:
        """Tokens that each waiting row would find cached now. int64, as rows."""
        size = self._state.pool.block_size
        return np.array([len(self._state.hits(int(row))) * size for row in np.atleast_1d(rows)], np.int64)

    def step_s(self, prompt_tokens: int, decode_rows: int, context_tokens: int) -> float:
        """Estimated seconds of a step of so many prompt tokens and decode rows over so much KV (needs STEP_COST)."""
        return self._state.step_s(prompt_tokens, decode_rows, context_tokens)

    def request(self, row: int) -> Request:
        """The immutable request of a row, with its metadata."""
        return self._state.entry(int(row)).request

    # -- for the core

    def _column_names(self) -> list[str]:
        return [*COLUMN_NAMES, *(name for _, name in self._table.policy_columns)]

    def _column_named(self, name: str) -> np.ndarray | None:
        table = self._table
        if self._generation != table.generation:
            self._faces.clear()
            self._generation = table.generation
        face = self._faces.get(name)
        if face is not None:
            return face
        if name in _PUBLIC:
            face = self._faces[name] = read_only(getattr(table, name))
            return face
        return self._derived(name)

    def _derived(self, name: str) -> np.ndarray | None:
        """Columns made on demand, and policies' own."""
        table = self._table
        if name in SECONDS:
            nanos = getattr(table, SECONDS[name])
            seconds = nanos * _NANO
            if name != "arrival":
                seconds[nanos < 0] = np.nan
            return read_only(seconds)
        if name == "banked":
            return read_only(np.maximum(table.high_water, table.emitted + table.computed))
        owners = [owner for owner, column in table.policy_columns if column == name]
        return read_only(table.policy_columns[owners[-1], name]) if owners else None

    def _kept_order(self, spec: str, base: np.ndarray) -> np.ndarray | None:
        """The waiting queue by this column, kept up to date; None when `base` is not the whole queue."""
        name = spec.lstrip("-")
        queue = self._state.waiting
        if name not in CONSTANT or len(base) != len(queue) or base is not self._state.offered_base:
            return None
        return queue.by(spec, self._state.order_key(spec), self._table.number)
