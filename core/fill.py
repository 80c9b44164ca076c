"""The fill: candidates enter while slots, tokens and blocks last, and blocks are taken for all that runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from interlock.core.draft import Budget, Draft, Entrant, Reason
from interlock.core.proposals import Limit
from interlock.core.state import State
from interlock.core.work import IS_PROMPT, WorkKey

_LOOK_AHEAD = 64


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
        self._held = (active, draft.held_back(active)) if len(active) else None
        self._held_back: dict[int, int] | None = None
        self.blocks = state.pool.available - (0 if self._held is None else int(self._held[1].sum()))
        self.budget = Budget(draft.limits, draft.walk.rows, draft.walk.tokens)
        self.limits = limits
        self._counts: list[dict[int, int]] = [{} for _ in limits]
        self._tokens: list[dict[int, int]] = [{} for _ in limits]

    @property
    def held_back(self) -> dict[int, int]:
        """Blocks held back for each active row that has not given way. Made when somebody is asked to."""
        if self._held_back is None:
            pairs = () if self._held is None else zip(self._held[0].tolist(), self._held[1].tolist(), strict=True)
            self._held_back = dict(pairs)
        return self._held_back

    @held_back.setter
    def held_back(self, held_back: dict[int, int]) -> None:
        self._held_back = held_back

    @property
    def free_blocks(self) -> int:
        """Blocks that a candidate may use: the watermark stays free while anything is active."""
        return self.blocks - (self.state.watermark if self.anything_active else 0)

    @property
    def closed(self) -> bool:
        """Whether a limit on all candidates is used up."""
        return any(
            limit.codes is None and limit.rows is not None and counts.get(0, 0) >= _allowed(limit.rows, 0)
            for limit, counts in zip(self.limits, self._counts, strict=True)
        )

    def stopped(self, row: int) -> Reason | None:
        """Why this candidate is passed over whatever room there is: dropped, or at a limit of the offer."""
        if row == self.state.rescued:
            return None
        if self.draft.limits.dropped is not None and self.draft.limits.dropped[row]:
            return Reason("held")
        pending = int(self.state.pending(row))
        for limit, counts, tokens in zip(self.limits, self._counts, self._tokens, strict=True):
            code = 0 if limit.codes is None else int(limit.codes[row])
            if limit.rows is not None and counts.get(code, 0) >= _allowed(limit.rows, code):
                return Reason("limit")
            if limit.tokens is not None and tokens.get(code, 0) + pending > limit.tokens:
                return Reason("limit")
        return None

    def size(self, row: int) -> Size:
        """What the candidate would run with the tokens that are left, and the blocks it needs for that."""
        state = self.state
        hits = state.hits(row)
        runs = self.would_run(row)
        tokens = self._would_run_now(row, state.left_to_run(row, hits)) if runs else 0
        return Size(hits, tokens, state.admission_need(row, hits, tokens), runs)

    def would_run(self, row: int) -> bool:
        """Whether the candidate's work is in the chosen group."""
        return bool(self.draft.limits.group[self.state.table.work[row]])

    def _would_run_now(self, row: int, pending: int) -> int:
        """What the row would run now; less than it has to run at once is nothing."""
        limits, rows = self.draft.limits, np.array([row])
        if not limits.has_least:
            cap = pending if limits.caps is None else int(limits.caps[row])
            return self.budget.offer(row, min(pending, limits.threshold, cap))
        wanted = np.array([pending])
        least = limits.least(rows, wanted)
        tokens = self.budget.offer(row, int(limits.wanted(rows, wanted)[0]))
        return 0 if least is not None and tokens < least[0] else tokens

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
    return int(count[code]) if 0 <= code < len(count) else 0


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
        if state.loops > 1:
            _publish_looped(draft)
        else:
            _publish_walk(draft)


def _publish_looped(draft: Draft) -> None:
    """On looped models a prompt's blocks are published when the last loop of their tokens is planned."""
    state, walk = draft.state, draft.walk
    table, size = state.table, state.pool.block_size
    work = table.work[walk.rows]
    last = (work == WorkKey.PROMPT_RECURRENT) & (table.loop[walk.rows] == state.loops - 1)
    for at in np.flatnonzero(last | (work == WorkKey.PROMPT_ATOMIC)).tolist():
        row, start = int(walk.rows[at]), int(table.computed[walk.rows[at]])
        first, end = start // size, (start + int(walk.tokens[at])) // size
        if end > first:
            _publish_prompt(draft, row, int(table.holder[row]), first, end)


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
    """Publish the block that each row fills with its token at position `start`. Returns what `chained` does."""
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
    """Publish blocks `first` to `end` of a row's known context; of its prompt, where outputs are not shared."""
    state = draft.state
    if not state.model.shares_outputs:
        end = min(end, int(state.table.prompt_tokens[row]) // state.pool.block_size)
        if end <= first:
            return
    keys, chain = state.keys_of(row), state.entries[row].chain
    assert chain is not None
    draft.chains.append((holder, chain[end - 1]))
    blocks = state.pool.table[holder, first:end].copy()
    draft.published.append(blocks)
    state.pool.publish(blocks, np.array(keys[first:end], np.uint64))


def enter(draft: Draft, row: int, size: Size, tokens: int, *, shares: bool = True) -> None:
    """Take what the candidate needs: a holder, its shared blocks unless it has them, new ones for its tokens."""
    state = draft.state
    pool, table = state.pool, state.table
    holder = int(table.holder[row])
    if holder < 0:
        holder = pool.holder()
        state.room_for_holder(holder)
    shared, kept = len(size.hits), int(table.blocks[row]) or int(table.host[row])
    held = int(table.blocks[row]) or shared
    start = int(table.computed[row]) if kept else shared * pool.block_size
    after = int(state.slots_for(row, tokens)) if kept else start + tokens
    fresh = max(-(-after // pool.block_size), kept) - held
    if shared and shares:
        pool.share(size.hits)
    if shared:
        pool.table[holder, :shared] = size.hits
    if fresh:
        pool.table[holder, held : held + fresh] = pool.take(fresh)
    draft.entrants.append(Entrant(row, holder, size.hits, fresh, tokens))
    if state.kv.enable_prefix_caching:
        _publish_entrant(draft, row, holder, start, tokens, fresh_start=not kept)


def _publish_entrant(draft: Draft, row: int, holder: int, start: int, tokens: int, *, fresh_start: bool) -> None:
    """Set the chain where the row begins, and publish what an atomic chunk of prompt fills."""
    state = draft.state
    size, work = state.pool.block_size, state.table.work[row]
    first, end = start // size, (start + tokens) // size
    if fresh_start:
        chain = state.entries[row].chain
        draft.chains.append((holder, chain[first - 1] if first and chain is not None else np.uint64(state.salt(row))))
    last_loop = work == WorkKey.PROMPT_RECURRENT and state.table.loop[row] == state.loops - 1
    if end > first and (work == WorkKey.PROMPT_ATOMIC or last_loop):
        _publish_prompt(draft, row, holder, first, end)
    elif end > first and work == WorkKey.DECODE_ATOMIC:
        holders, chains, blocks = publish_decodes(state, np.array([row]), np.array([start]))
        draft.chains.append((holders, chains))
        draft.published.append(blocks)


class Fill:
    """Walks the plan: active rows take what they need, candidates enter in their turn until one ends admission."""

    def __init__(self, draft: Draft, room: Room) -> None:
        self.draft, self.room, self.state = draft, room, draft.state
        self.open = True  # whether candidates may still enter
        self._reclaimed = {victim.row for victim in draft.victims}

    def in_order(self, offered: np.ndarray) -> None:
        """Active rows first, as they were walked, then these candidates."""
        settle(self.draft)
        for first in range(0, len(offered), _LOOK_AHEAD):  # most of a long queue is never looked at
            for row in offered[first : first + _LOOK_AHEAD].tolist():
                if not self.open:
                    return
                self.consider(row)

    def interleaved(self, order: np.ndarray) -> None:
        """Active rows and candidates in one order, each served from what those before it leave."""
        draft, table = self.draft, self.state.table
        self.room.budget = Budget(draft.limits)
        wanted = dict(zip(draft.walk.rows.tolist(), draft.walk.tokens.tolist(), strict=True))
        least = draft.limits.least(draft.walk.rows, self.state.pending(draft.walk.rows))
        needed = {} if least is None else dict(zip(draft.walk.rows.tolist(), least.tolist(), strict=True))
        served: dict[int, int] = {}
        for row in order.tolist():
            if row in wanted:
                tokens = self.room.budget.offer(row, wanted[row])
                served[row] = 0 if tokens < needed.get(row, 0) else tokens
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
        if row in self._reclaimed:
            return  # its blocks were taken at this boundary
        if room.closed and row != self.state.rescued:
            self._end(Reason("limit"))
            return
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
