"""A boundary's plan under construction: who gives way, who enters, what runs. The pool journals what it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from interlock.core.proposals import DemandKind, Plan
from interlock.core.request import PreemptMode
from interlock.core.state import State
from interlock.core.work import WorkKey

if TYPE_CHECKING:
    from interlock.core.settled import Settled

_LARGE = np.iinfo(np.int64).max
_NO_ROWS = np.empty(0, np.intp)
_NO_COUNTS = np.empty(0, np.int64)


class Victim(NamedTuple):
    """A row that gives way. One that has yielded before is `resident`: it gives only its blocks."""

    row: int
    mode: PreemptMode
    demand: DemandKind
    resident: bool = False
    requester: int = -1


class Entrant(NamedTuple):
    """A row that enters: what it shares, how many new blocks it takes, what it runs."""

    row: int
    holder: int
    hits: np.ndarray
    blocks: int
    tokens: int


class Walk(NamedTuple):
    """What active rows of a group take, in order: tokens, and blocks beyond those they hold."""

    rows: np.ndarray
    tokens: np.ndarray
    blocks: np.ndarray


class Reason(NamedTuple):
    """Why a waiting row did not enter."""

    what: str  # slot, blocks, tokens, held, limit or order
    by: str = ""


class Limits:
    """What the plan and the engine allow: caps per row, parts of the budget, the budget itself."""

    def __init__(self, state: State, plan: Plan, group: tuple[WorkKey, ...]) -> None:
        limits = state.limits
        self.total = (
            limits.max_num_batched_tokens if plan.total is None else min(limits.max_num_batched_tokens, plan.total)
        )
        self.threshold = limits.long_prefill_token_threshold or _LARGE
        self.caps, self.dropped, self.parts = plan.caps, plan.dropped, plan.parts
        self._capacity = state.table.capacity
        self.group = np.zeros(len(WorkKey), bool)  # by work key; NONE is the last
        self.group[list(group)] = True
        if state.rescued is not None:
            self._free(state.rescued, limits.max_num_batched_tokens)
        self._state, self._in_loop = state, WorkKey.PROMPT_RECURRENT in group

    def _free(self, row: int, budget: int) -> None:
        """No restriction holds for the row that is being rescued; a budget of the plan's is for the others."""
        if self.total < budget:
            self.parts = (*self.parts, (np.ones(self._capacity, bool), self.total))
            self.total = budget
        if self.caps is not None:
            self.caps = self.caps.copy()
            self.caps[row] = _LARGE
        if self.dropped is not None:
            self.dropped = self.dropped.copy()
            self.dropped[row] = False
        self.parts = tuple((mask & (np.arange(len(mask)) != row), limit) for mask, limit in self.parts)

    def tokens(self, rows: np.ndarray, pending: np.ndarray, total: int) -> np.ndarray:
        """What each row runs when they are served in this order out of `total`."""
        return self.share(rows, self.wanted(rows, pending), total, least=self.least(rows, pending))

    @property
    def has_least(self) -> bool:
        """Whether some rows may have to run more than one token at once."""
        return self._in_loop or self._state.model.whole_prompts

    def least(self, rows: np.ndarray, pending: np.ndarray) -> np.ndarray | None:
        """The fewest tokens that each row may run, or none at all; None where one will do for everybody.

        A chunk between its loops runs whole, and so does the prompt of a model that reads it in both directions.
        """
        if self._in_loop:
            return pending
        return self._state.whole_prompts(rows) if self._state.model.whole_prompts else None

    def wanted(self, rows: np.ndarray, pending: np.ndarray) -> np.ndarray:
        """What each row may run, the budget apart."""
        tokens = np.minimum(pending, self.threshold) if self.threshold != _LARGE else pending
        least = self.least(rows, pending)
        if least is not None:
            tokens = np.maximum(tokens, least)
        if self.caps is not None:
            tokens = np.minimum(tokens, self.caps[rows])
        return tokens if least is None else np.where(tokens < least, 0, tokens)

    def share(
        self,
        rows: np.ndarray,
        tokens: np.ndarray,
        total: int,
        *,
        aside: np.ndarray | None = None,
        least: np.ndarray | None = None,
    ) -> np.ndarray:
        """What each row runs when they are served in this order out of `total` and the parts.

        `aside`: tokens that are set aside for rows already. `least`: rows run so much or nothing.
        """
        parts = self.parts
        if aside is not None:
            total -= int(aside.sum())
            parts = tuple((mask, limit - int(aside[mask[rows]].sum())) for mask, limit in parts)
        if len(parts) > 1 or least is not None:
            return _one_by_one(rows, tokens, total, parts, least)
        for mask, limit in parts:
            inside = mask[rows]
            tokens = tokens.copy()
            tokens[inside] = _within(tokens[inside], limit)
        return _within(tokens, total)


def _one_by_one(
    rows: np.ndarray,
    tokens: np.ndarray,
    total: int,
    parts: tuple[tuple[np.ndarray, int], ...],
    least: np.ndarray | None,
) -> np.ndarray:
    """Where parts overlap or rows must run so much at once, each row is served in turn."""
    left = [limit for _, limit in parts]
    shared = np.zeros_like(tokens)
    for at, row in enumerate(rows.tolist()):
        mine = [number for number, (mask, _) in enumerate(parts) if mask[row]]
        given = max(min([int(tokens[at]), total, *(left[number] for number in mine)]), 0)
        if least is not None and given < least[at]:
            continue
        shared[at] = given
        total -= given
        for number in mine:
            left[number] -= given
    return shared


class Budget:
    """What is left of the budget and its parts while rows are served one by one."""

    def __init__(self, limits: Limits, rows: np.ndarray = _NO_ROWS, tokens: np.ndarray = _NO_COUNTS) -> None:
        """What `rows`, which run `tokens`, leave."""
        self.left = limits.total - int(tokens.sum())
        self._masks = [mask for mask, _ in limits.parts]
        self._parts = [limit - int(tokens[mask[rows]].sum()) for mask, limit in limits.parts]

    def offer(self, row: int, wanted: int) -> int:
        """What the row could run."""
        mine = [left for mask, left in zip(self._masks, self._parts, strict=True) if mask[row]]
        return max(min([wanted, self.left, *mine]), 0)

    def spend(self, row: int, tokens: int) -> None:
        """The row runs so many tokens."""
        self.left -= tokens
        for number, mask in enumerate(self._masks):
            if mask[row]:
                self._parts[number] -= tokens


def _within(tokens: np.ndarray, limit: int) -> np.ndarray:
    """The longest prefix that sums to `limit`, the row at the edge cut, zeros after it."""
    so_far = np.cumsum(tokens)
    if not len(so_far) or so_far[-1] <= limit:
        return tokens
    return np.asarray(np.clip(tokens - (so_far - limit), 0, tokens))


class Draft:
    """The proposal for one group of work keys. Nothing here has changed the table."""

    def __init__(self, state: State, plan: Plan, group: tuple[WorkKey, ...], limits: Limits | None = None) -> None:
        self.state, self.plan, self.group = state, plan, group
        self.limits = limits or Limits(state, plan, group)
        self.walk = Walk(_NO_ROWS, _NO_COUNTS, _NO_COUNTS)  # what the active rows of the batch take
        self.victims: list[Victim] = []
        self.gave_up = False  # a growing row had to give way itself
        self.standing: dict[int, np.ndarray] = {}  # by requester: over the table, the rows that it stands above
        self.entrants: list[Entrant] = []
        self.sequence: list[int] | None = None  # order of the batch where it is not the walk, then the entrants
        self.chains: list[tuple[np.ndarray | int, np.ndarray | np.uint64]] = []  # (holders, chain after this batch)
        self.published: list[np.ndarray] = []  # blocks that this batch fills
        self.host_left = state.host_free
        self.passed: dict[int, int] = {}  # rows passed over for want of blocks -> later candidates that entered
        self.reasons: dict[int, Reason] = {}  # of candidates that were looked at and did not enter
        self.rest = Reason("order")  # of the others
        self.settled: Settled | None = None  # the decision that this one repeats
        self.growing = _NO_ROWS  # rows of a repeated decision that take one block each

    @property
    def forms_batch(self) -> bool:
        """Whether anything would run."""
        return len(self.walk.rows) > 0 or any(entrant.tokens for entrant in self.entrants)

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and tokens in batch order."""
        running = [entrant for entrant in self.entrants if entrant.tokens]
        if not running:
            return self.walk.rows, self.walk.tokens
        rows = np.concatenate([self.walk.rows, np.array([entrant.row for entrant in running], np.intp)])
        tokens = np.concatenate([self.walk.tokens, np.array([entrant.tokens for entrant in running], np.int64)])
        if self.sequence is not None:
            place = {row: at for at, row in enumerate(self.sequence)}
            order = np.argsort([place[row] for row in rows.tolist()], kind="stable")
            rows, tokens = rows[order], tokens[order]
        return rows, tokens

    def take_walk(self, rows: np.ndarray, budget: int) -> Walk:
        """What these active rows take when walked in this order under `budget`."""
        table, limits = self.state.table, self.limits
        inside = limits.group[table.work[rows]]
        if limits.dropped is not None:
            inside &= ~limits.dropped[rows]
        if not inside.all():
            rows = rows[inside]
        return self.walk_of(rows, limits.tokens(rows, self.state.pending(rows), budget))

    def walk_of(self, rows: np.ndarray, tokens: np.ndarray) -> Walk:
        """The walk in which these rows run these tokens; rows without tokens fall out."""
        table, size = self.state.table, self.state.pool.block_size
        if len(tokens) and not tokens.all():
            some = tokens > 0
            rows, tokens = rows[some], tokens[some]
        blocks = (self.state.slots_for(rows, tokens) + (size - 1)) // size - table.blocks[rows]
        return Walk(rows, tokens, np.maximum(blocks, 0, out=blocks))

    def held_back(self, active: np.ndarray) -> np.ndarray:
        """Blocks that each of these active rows is to have before any candidate: its growth here, or its promise."""
        promised = self.state.promised(active)
        if self.walk.rows is active:
            return np.asarray(np.maximum(promised, self.walk.blocks))
        growth = np.zeros(self.state.table.capacity, np.int64)
        growth[self.walk.rows] = self.walk.blocks
        return np.asarray(np.maximum(promised, growth[active]))
