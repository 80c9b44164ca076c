"""Who gives way: to rows that must grow, and to candidates that stand above."""

from __future__ import annotations

import numpy as np

from interlock.core.draft import Draft, Victim
from interlock.core.fill import Room, Size, enter, settle
from interlock.core.proposals import Demand, DemandKind, Victims
from interlock.core.stack import Stack
from interlock.core.state import State
from interlock.core.view import View


class GivingWay:
    """Asks the policies for victims and takes the shortest prefix of their list that serves."""

    def __init__(self, state: State, stack: Stack, view: View) -> None:
        self.state, self.stack, self.view = state, stack, view

    def _ask(self, demand: Demand, active: np.ndarray, draft: Draft) -> Victims:
        """The victims' list for one requester: holders that yielded, then active rows, latest admitted first."""
        state = self.state
        gone = {victim.row for victim in draft.victims}
        yielded = np.array([row for row in state.resident if row not in gone and row != demand.row], np.intp)
        here = np.zeros(state.table.capacity, bool)
        here[active] = True
        victims = Victims(np.concatenate([yielded, state.active[here[state.active]][::-1]]), self.view)
        self.view._tokens_left = max(draft.limits.total - int(draft.walk.tokens.sum()), 0)
        self.stack.edit("preempt", victims, demand, self.view)
        self.view._tokens_left = None
        return victims

    def _give_back(self, row: int) -> int:
        """The row's blocks enter the queue, last block first. Returns how many became free."""
        pool = self.state.pool
        before = pool.available
        pool.give_back(self.state.held(row)[::-1])
        return pool.available - before

    # -- growth

    def to_growth(self, draft: Draft, active: np.ndarray) -> None:
        """Victims for the rows that the pool cannot let grow, row by row, until the walk of those that remain fits."""
        pool = self.state.pool
        while True:
            so_far = np.cumsum(draft.walk.blocks)
            short = np.flatnonzero(so_far > pool.available)
            if not len(short):
                return
            row, missing = int(draft.walk.rows[short[0]]), int(so_far[short[0]]) - pool.available
            gone = self._victims_of_growth(draft, active, row, missing)
            active = active[~np.isin(active, gone)]
            draft.walk = draft.take_walk(active, draft.limits.total)

    def _victims_of_growth(self, draft: Draft, active: np.ndarray, row: int, missing: int) -> list[int]:
        """Rows up to the one with which `missing` blocks are free; the list may reach the growing row itself."""
        victims = self._ask(Demand(row, DemandKind.GROWTH, missing), active, draft)
        goal = self.state.pool.available + missing
        gone: list[int] = []
        for victim in self._willing(victims, row):
            if victim != row and not self.state.blocks_only_of((victim,)):
                continue
            draft.victims.append(Victim(victim, victims.mode_of(victim), DemandKind.GROWTH))
            self._give_back(victim)
            gone.append(victim)
            if victim == row or self.state.pool.available >= goal:
                break
        return gone

    def _willing(self, victims: Victims, requester: int) -> list[int]:
        """Victims in order without the protected ones; a growing row may always give way itself."""
        rows = victims.rows
        spared = self.state.protected(rows)
        if victims.protected is not None:
            spared |= victims.protected[rows]
        return [int(row) for row in rows[~spared | (rows == requester)]]

    # -- displacement

    def to_candidates(self, draft: Draft, active: np.ndarray, offered: np.ndarray, room: Room) -> list[tuple[int, Size]]:
        """Candidates that fit, or would if others gave way, in offer order; the victims go into the draft.

        The first that cannot fit ends the pass and preempts nobody.
        """
        noted: list[tuple[int, Size]] = []
        for row in offered[: self.state.limits.scan_limit].tolist():
            if room.stopped(row) is not None:
                continue
            size = room.size(row)
            if not room.fits(size):
                enough_but_tokens = room.slots > 0 and size.blocks <= room.free_blocks
                if enough_but_tokens and room.budget.left > 0:
                    continue  # its own cap or part of the budget stops it
                if enough_but_tokens or not self._make_room(draft, active, room, row, size):
                    break
                size = room.size(row)
            room.take(row, size, int(size.runs))
            noted.append((row, size))
        return noted

    def _make_room(self, draft: Draft, active: np.ndarray, room: Room, row: int, size: Size) -> bool:
        """Release victims until the candidate fits; if all that may give way do not suffice, nobody does."""
        pool, mark, before = self.state.pool, self.state.pool.mark(), len(draft.victims)
        kind = DemandKind.SLOT if room.slots < 1 else DemandKind.ADMISSION
        missing = max(size.blocks - room.free_blocks, 0)
        kept = (room.slots, room.blocks, room.budget.left, dict(room.held_back))
        victims = self._ask(Demand(row, kind, missing), active[~np.isin(active, [v.row for v in draft.victims])], draft)
        tokens_of = dict(zip(draft.walk.rows.tolist(), draft.walk.tokens.tolist(), strict=True))
        for victim in self._standing_below(victims, row):
            if not self._adds(room, size, victim, tokens_of):
                continue
            holds_slot = bool(self.state.table.slot[victim] >= 0)
            draft.victims.append(Victim(victim, victims.mode_of(victim), kind))
            room.without(victim, self._give_back(victim), tokens_of.get(victim, 0), holds_slot)
            size = room.size(row)
            if room.fits(size):
                return True
        pool.undo(mark)
        del draft.victims[before:]
        room.slots, room.blocks, room.budget.left, room.held_back = kept
        return False

    def _standing_below(self, victims: Victims, requester: int) -> list[int]:
        """Yielded holders serve anybody; active rows only one whose key comes strictly after theirs."""
        above = victims.stands_above(requester)
        table = self.state.table
        return [row for row in self._willing(victims, -1) if table.slot[row] < 0 or (above is not None and above[row])]

    def _adds(self, room: Room, size: Size, victim: int, tokens_of: dict[int, int]) -> bool:
        """Whether this victim gives anything that is still missing."""
        if room.slots < 1 and self.state.table.slot[victim] >= 0:
            return True
        if size.blocks > room.free_blocks:
            return self.state.blocks_only_of((victim,)) + room.held_back.get(victim, 0) > 0
        return room.slots > 0 and room.budget.left < 1 and tokens_of.get(victim, 0) > 0

    def seat(self, draft: Draft, order: np.ndarray, noted: list[tuple[int, Size]]) -> None:
        """After a displacement: the noted rows enter with one token at least, the rest goes by the plan's order."""
        gone = {victim.row for victim in draft.victims}
        sizes = dict(noted)
        sequence = np.array([row for row in order.tolist() if row not in gone and (self._takes_part(row) or row in sizes)], np.intp)
        tokens = self._shared(draft, sequence, sizes)
        for row, size in noted:
            enter(draft, row, size, tokens[row])
        rows = np.array([row for row in sequence.tolist() if row not in sizes], np.intp)
        draft.walk = draft.walk_of(rows, np.array([tokens[row] for row in rows.tolist()], np.int64))
        draft.sequence = sequence.tolist()
        settle(draft)

    def _takes_part(self, row: int) -> bool:
        return bool(self.state.table.slot[row] >= 0)

    def _shared(self, draft: Draft, sequence: np.ndarray, sizes: dict[int, Size]) -> dict[int, int]:
        """Tokens of each row: one set aside for each that enters, the rest in this order, within the blocks there are."""
        limits, table = draft.limits, self.state.table
        inside = limits.group[table.work[sequence]]
        if limits.dropped is not None:
            inside &= ~limits.dropped[sequence]
        enters = np.array([row in sizes and sizes[row].runs for row in sequence.tolist()], bool)
        shared = np.array([len(sizes[row].hits) if row in sizes else 0 for row in sequence.tolist()], np.int64)
        pending = self.state.pending(sequence) - shared * self.state.pool.block_size
        wanted = np.where(inside, limits.wanted(sequence, pending), 0)
        aside = enters.astype(np.int64)
        tokens = aside + limits.share(sequence, np.maximum(wanted - aside, 0), limits.total - int(aside.sum()))
        before = dict(zip(draft.walk.rows.tolist(), draft.walk.tokens.tolist(), strict=True))
        safe = [sizes[row].tokens if row in sizes else before.get(row, 0) for row in sequence.tolist()]
        # Those who gave way leave tokens behind; nobody grows beyond what was sized, since blocks were counted for that.
        return dict(zip(sequence.tolist(), np.minimum(tokens, safe).tolist(), strict=True))
