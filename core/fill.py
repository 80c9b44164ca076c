"""The fill: candidates enter while slots, tokens and blocks last, and blocks are taken for all that runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from interlock.core.draft import Budget, Draft, Entrant, Reason
from interlock.core.proposals import Limit
from interlock.core.state import State
from interlock.core.work import IS_PROMPT


class Size(NamedTuple):
    """What a candidate would share, run and need."""

    hits: np.ndarray
    tokens: int  # 0 for a row whose work is not in the chosen group
    blocks: int  # that the pool must have for it
    runs: bool  # whether its work is in the chosen group


class Room:
    """What is left for candidates beside the growth and the promises of the active rows."""

    def __init__(self, draft: Draft, active: np.ndarray, limits: tuple[Limit, ...]) -> None:
        state = draft.state
        self.draft, self.state = draft, state
        self.slots = state.free_slots
        self.anything_active = len(state.active) > 0
        self.held_back = dict(zip(active.tolist(), draft.held_back(active).tolist(), strict=True)) if len(active) else {}
        self.blocks = state.pool.available - sum(self.held_back.values())
        self.budget = Budget(draft.limits, draft.walk.rows, draft.walk.tokens)
        self.limits = limits
        self._counts: list[dict[int, int]] = [{} for _ in limits]
        self._tokens: list[dict[int, int]] = [{} for _ in limits]

    @property
    def free_blocks(self) -> int:
        """Blocks that a candidate may use: the watermark stays free while anything is active."""
        return self.blocks - (self.state.watermark if self.anything_active else 0)

    def stopped(self, row: int) -> Reason | None:
        """Why this candidate is passed over whatever room there is: dropped, or at a limit of the offer."""
        if self.draft.limits.dropped is not None and self.draft.limits.dropped[row]:
            return Reason("held")
        pending = int(self.state.pending(row))
        for limit, counts, tokens in zip(self.limits, self._counts, self._tokens, strict=True):
            code = 0 if limit.codes is None else int(limit.codes[row])
            if limit.count is not None and counts.get(code, 0) >= _allowed(limit.count, code):
                return Reason("limit")
            if limit.tokens is not None and tokens.get(code, 0) + pending > limit.tokens:
                return Reason("limit")
        return None

    def size(self, row: int) -> Size:
        """What the candidate would run with the tokens that are left, and the blocks it needs for that."""
        table, state = self.state.table, self.state
        hits = state.hits(row)
        runs = self.would_run(row)
        pending = int(state.pending(row)) - len(hits) * state.pool.block_size
        tokens = self.budget.offer(row, self._wanted(row, pending)) if runs else 0
        return Size(hits, tokens, state.admission_need(row, hits, tokens), runs)

    def would_run(self, row: int) -> bool:
        """Whether the candidate's work is in the chosen group."""
        return bool(self.draft.limits.group[self.state.table.work[row]])

    def _wanted(self, row: int, pending: int) -> int:
        limits = self.draft.limits
        cap = pending if limits.caps is None else int(limits.caps[row])
        return min(pending, limits.threshold, cap)

    def fits(self, size: Size) -> bool:
        """Whether slot, tokens and blocks are all there."""
        return self.slots > 0 and (size.tokens > 0 or not size.runs) and size.blocks <= self.free_blocks

    def take(self, row: int, size: Size, tokens: int) -> None:
        """The candidate enters and runs `tokens` tokens."""
        self.slots -= 1
        self.blocks -= size.blocks
        self.budget.spend(row, tokens)
        self.anything_active = True
        pending = int(self.state.pending(row))
        for limit, counts, spent in zip(self.limits, self._counts, self._tokens, strict=True):
            code = 0 if limit.codes is None else int(limit.codes[row])
            counts[code] = counts.get(code, 0) + 1
            spent[code] = spent.get(code, 0) + pending

    def without(self, row: int, freed: int, tokens: int, slot: bool) -> None:
        """A row gives way."""
        self.slots += slot
        self.blocks += freed + self.held_back.pop(row, 0)
        self.budget.spend(row, -tokens)


def _allowed(count: int | np.ndarray, code: int) -> int:
    if isinstance(count, int):
        return count
    return int(count[code]) if code < len(count) else 0


def settle(draft: Draft) -> None:
    """Take the blocks that the walk needs and publish those that it fills."""
    state, walk = draft.state, draft.walk
    table, pool = state.table, state.pool
    total = int(walk.blocks.sum())
    if total:
        growing = walk.blocks > 0
        rows, counts = walk.rows[growing], walk.blocks[growing]
        taken = pool.take(total)
        if total == len(rows):
            pool.table[table.holder[rows], table.blocks[rows]] = taken
        else:
            first = np.repeat(table.blocks[rows] - np.cumsum(counts) + counts, counts)
            pool.table[np.repeat(table.holder[rows], counts), first + np.arange(total)] = taken
    if state.kv.enable_prefix_caching:
        _publish_walk(draft)


def _publish_walk(draft: Draft) -> None:
    state, walk = draft.state, draft.walk
    table, size = state.table, state.pool.block_size
    start = table.computed[walk.rows]
    filled = (start + walk.tokens) // size - start // size
    if not filled.any():
        return
    some = np.flatnonzero(filled)
    prompt = IS_PROMPT[table.work[walk.rows[some]]]
    for at in some[prompt].tolist():
        row, first = int(walk.rows[at]), int(start[at]) // size
        _publish_prompt(draft, row, int(table.holder[row]), first, first + int(filled[at]))
    decode = walk.rows[some[~prompt]]
    if len(decode):
        holders, chain, blocks = publish_decodes(state, decode, start[some[~prompt]])
        draft.chains.append((holders, chain))
        draft.published.append(blocks)


def publish_decodes(state: State, rows: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Publish the block that each of these rows fills with its token at position `start`. Returns what `chained` does."""
    holders, chain, blocks = chained(state, rows, start)
    state.pool.publish(blocks, state.hash.keys(chain))
    return holders, chain, blocks


def chained(state: State, rows: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For rows whose token at `start` fills a block: their holders, the chains that end in these blocks, the blocks."""
    size = state.pool.block_size
    holders = state.table.holder[rows]
    tokens = state.context[holders[:, None], (start + 1 - size)[:, None] + np.arange(size)]
    chain = state.hash.extend(state.chain[holders], tokens)
    return holders, chain, state.pool.table[holders, start // size]


def _publish_prompt(draft: Draft, row: int, holder: int, first: int, end: int) -> None:
    """Publish blocks `first` to `end` of a row's known context."""
    state = draft.state
    keys, chain = state.keys_of(row), state.entries[row].chain
    assert chain is not None
    draft.chains.append((holder, chain[end - 1]))
    blocks = state.pool.table[holder, first:end].copy()
    draft.published.append(blocks)
    state.pool.publish(blocks, np.array(keys[first:end], np.uint64))


def enter(draft: Draft, row: int, size: Size, tokens: int) -> None:
    """Take what the candidate needs: a holder, its shared blocks, new ones for its tokens."""
    state = draft.state
    pool, table = state.pool, state.table
    holder = int(table.holder[row])
    if holder < 0:
        holder = pool.holder()
        state.room_for_holder(holder)
    shared = len(size.hits)
    held = int(table.blocks[row]) or shared
    start = int(table.computed[row]) if table.blocks[row] else shared * pool.block_size
    fresh = max(-(-(start + tokens) // pool.block_size) - held, 0)
    if shared:
        pool.share(size.hits)
        pool.table[holder, :shared] = size.hits
    if fresh:
        pool.table[holder, held : held + fresh] = pool.take(fresh)
    draft.entrants.append(Entrant(row, holder, size.hits, fresh, tokens))
    if not state.kv.enable_prefix_caching:
        return
    first, end = start // pool.block_size, (start + tokens) // pool.block_size
    if shared and not tokens:
        chain = state.entries[row].chain
        assert chain is not None
        draft.chains.append((holder, chain[shared - 1]))
    elif end > first and IS_PROMPT[table.work[row]]:
        _publish_prompt(draft, row, holder, first, end)
    elif shared:
        _resume_chain(draft, row, holder, shared)
    elif IS_PROMPT[table.work[row]] and not table.blocks[row]:
        draft.chains.append((holder, np.uint64(state.salt(row))))


def _resume_chain(draft: Draft, row: int, holder: int, blocks: int) -> None:
    chain = draft.state.entries[row].chain
    assert chain is not None
    draft.chains.append((holder, chain[blocks - 1]))


class Fill:
    """Walks the plan: active rows take what they need, candidates enter in their turn until one ends admission."""

    def __init__(self, draft: Draft, room: Room) -> None:
        self.draft, self.room, self.state = draft, room, draft.state
        self.open = True  # whether candidates may still enter

    def in_order(self, offered: np.ndarray) -> None:
        """Active rows first, as they were walked, then these candidates."""
        settle(self.draft)
        for row in offered.tolist():
            if not self.open:
                return
            self.consider(row)

    def interleaved(self, order: np.ndarray) -> None:
        """Active rows and candidates in one order, each served from what those before it leave."""
        draft, table = self.draft, self.state.table
        self.room.budget = Budget(draft.limits)
        wanted = dict(zip(draft.walk.rows.tolist(), draft.walk.tokens.tolist(), strict=True))
        served: dict[int, int] = {}
        for row in order.tolist():
            if row in wanted:
                served[row] = self.room.budget.offer(row, wanted[row])
                self.room.budget.spend(row, served[row])
            elif self.open and table.slot[row] < 0:
                self.consider(row)
        rows = draft.walk.rows
        draft.walk = draft.walk_of(rows, np.array([served[row] for row in rows.tolist()], np.int64))
        draft.sequence = order.tolist()
        settle(draft)

    def consider(self, row: int) -> None:
        """Let one candidate enter, pass it over, or end admission with it."""
        room, reasons = self.room, self.draft.reasons
        stopped = room.stopped(row)
        if stopped is not None:
            reasons[row] = stopped
        elif room.slots < 1:
            self._end(Reason("slot"))
        elif room.budget.left < 1 and room.would_run(row):
            self._end(Reason("tokens"))  # before anything is looked up for it
        else:
            size = room.size(row)
            if size.runs and size.tokens < 1:
                reasons[row] = Reason("limit")
            elif size.blocks > room.free_blocks:
                self._blocked(row)
            elif self._may_pass():
                self._enter(row, size)

    def _end(self, reason: Reason) -> None:
        self.open = False
        self.draft.rest = reason

    def _blocked(self, row: int) -> None:
        """First come, first served waits behind it; with a bypass limit it is passed over so many times."""
        self.draft.reasons[row] = Reason("blocks")
        if self.state.table.bypasses[row] >= self.state.limits.bypass_limit:
            self._end(Reason("order"))
        else:
            self.draft.passed[row] = 0

    def _may_pass(self) -> bool:
        """Whether everybody who was passed over may be passed once more."""
        bypasses, limit = self.state.table.bypasses, self.state.limits.bypass_limit
        if all(bypasses[row] + times < limit for row, times in self.draft.passed.items()):
            return True
        self._end(Reason("order"))
        return False

    def _enter(self, row: int, size: Size) -> None:
        self.room.take(row, size, size.tokens)
        enter(self.draft, row, size, size.tokens)
        for passed in self.draft.passed:
            self.draft.passed[passed] += 1
