"""Who gives way: to rows that must grow, and to candidates that stand above."""

from __future__ import annotations

from typing import cast

import numpy as np

from interlock.core.draft import Draft, Reason, Victim
from interlock.core.fill import Room, Size, enter, settle
from interlock.core.proposals import Demand, DemandKind, Victims
from interlock.core.request import PreemptMode
from interlock.core.stack import Stack
from interlock.core.state import State
from interlock.core.view import View


class GivingWay:
    """Asks the policies for victims and takes the shortest prefix of their list that serves."""

    def __init__(self, state: State, stack: Stack, view: View) -> None:
        self.state, self.stack, self.view = state, stack, view
        self._is_holder = np.zeros(0, bool)  # over the table: who holds blocks without a slot, at the last question
        self._is_candidate = np.zeros(0, bool)
        self._requester = -1
        self.unprotected = False  # the last resort: nobody is protected, and who grows gives way last
        self._answers: dict[tuple[int, DemandKind], Victims] = {}  # of this boundary: nobody is asked twice

    def begin(self) -> None:
        """A new boundary."""
        self._answers.clear()
        self.unprotected = False

    # -- growth

    def to_growth(self, draft: Draft, active: np.ndarray) -> None:
        """Victims for the rows that the pool cannot let grow, row by row, until the walk of those who remain fits."""
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
        order = self._willing(victims, row).tolist()
        place = order.index(row)
        # Who has yielded needs nothing that it holds now, so it gives way before the row that grows, wherever it is.
        before = order[:place] + [other for other in order[place:] if self._is_holder[other]]
        gone = self._enough(before, missing)
        if gone is None:
            gone = [victim for victim in before if self.state.blocks_only_of((victim,))] + [row]
            draft.gave_up = True
        for victim in gone:
            self._reclaim(draft, victim, victims, DemandKind.GROWTH)
        return gone

    def _enough(self, order: list[int], missing: int) -> list[int] | None:
        """The shortest prefix that frees so many blocks, without those who add nothing; None if all do not suffice."""
        chosen: list[int] = []
        for victim in order:
            if self._freed([*chosen, victim]) > self._freed(chosen):
                chosen.append(victim)
                if self._freed(chosen) >= missing:
                    return chosen
        holders = [victim for victim in order if self.state.table.blocks[victim]]
        if self._freed(holders) < missing:
            return None
        for victim in reversed(holders):  # blocks that only several of them together would free
            rest = [other for other in holders if other != victim]
            holders = rest if self._freed(rest) >= missing else holders
        return holders

    def _freed(self, rows: list[int]) -> int:
        return self.state.blocks_only_of(tuple(rows))

    # -- displacement

    def to_candidates(
        self, draft: Draft, active: np.ndarray, offered: np.ndarray, room: Room
    ) -> list[tuple[int, Size]]:
        """Candidates that fit, or would if others gave way, in offer order; the victims go into the draft.

        The first that cannot fit ends the pass and preempts nobody.
        """
        noted: list[tuple[int, Size]] = []
        mark = self.state.pool.mark()
        limit = self.state.limits.scan_limit
        for row in offered[: limit if self.state.rescued is None else max(limit, 1)].tolist():
            if room.stopped(row) is not None or any(victim.row == row for victim in draft.victims):
                continue
            size = room.size(row)
            if not room.fits(size):
                enough_but_tokens = room.slots > 0 and size.blocks <= room.free_blocks
                if enough_but_tokens and room.budget.left > 0:
                    continue  # its own cap or part of the budget stops it
                spared = frozenset(other for other, _ in noted)
                if enough_but_tokens or not self._make_room(draft, active, room, row, size, spared):
                    break
                size = room.size(row)
            room.take(row, size, int(size.runs))
            # Held from here on: what it hits may have other holders who give way, or be what another would take.
            self.state.pool.share(size.hits)
            noted.append((row, size))
        if all(victim.resident for victim in draft.victims):
            self.state.pool.undo(mark)  # nobody is seated: the fill looks at everybody anew
            for victim in draft.victims:
                self._give_back(victim.row)
        return noted

    def _make_room(
        self, draft: Draft, active: np.ndarray, room: Room, row: int, size: Size, spared: frozenset[int]
    ) -> bool:
        """Take victims until the candidate fits; if all that may give way do not suffice, nobody does."""
        mark, before = self.state.pool.mark(), (list(draft.victims), draft.host_left)
        kept = (room.slots, room.blocks, room.budget.left, dict(room.held_back))
        kind = DemandKind.SLOT if room.slots < 1 else DemandKind.ADMISSION
        demand = Demand(row, kind, max(size.blocks - room.free_blocks, 0))
        victims = self._ask(demand, active, draft, spared)
        tokens_of = dict(zip(draft.walk.rows.tolist(), draft.walk.tokens.tolist(), strict=True))
        order = self._standing_below(draft, victims, row)
        for together in (False, True) if order else ():
            for victim in order:
                self._take(draft, room, size, victim, victims, kind, tokens_of.get(victim, 0), together=together)
                size = room.size(row)
                if room.fits(size):
                    return True
            self.state.pool.undo(mark)
            draft.victims, draft.host_left = list(before[0]), before[1]
            room.slots, room.blocks, room.budget.left, room.held_back = *kept[:3], dict(kept[3])
            size = room.size(row)
        return False

    def _take(
        self,
        draft: Draft,
        room: Room,
        size: Size,
        victim: int,
        victims: Victims,
        kind: DemandKind,
        tokens: int,
        *,
        together: bool,
    ) -> None:
        """What this victim gives of what is still missing: its slot, its blocks, or nothing.

        With `together`, also blocks that only several victims free together.
        """
        holds_slot = bool(self.state.table.slot[victim] >= 0) and all(v.row != victim for v in draft.victims)
        lacks_tokens = size.runs and room.budget.left < 1 and tokens > 0
        if holds_slot and (room.slots < 1 or (lacks_tokens and size.blocks <= room.free_blocks)):
            if victims.mode_of(victim) is PreemptMode.YIELD:
                draft.victims.append(Victim(victim, PreemptMode.YIELD, kind, requester=self._requester))
                room.without(victim, 0, tokens, slot=True)
                holds_slot, tokens = False, 0  # if blocks are missing all the same, it turns into an offload below
            else:
                room.without(victim, self._reclaim(draft, victim, victims, kind), tokens, slot=True)
                return
        gives = self._would_free(victim, room) or (together and self.state.table.blocks[victim] > 0)
        if size.blocks > room.free_blocks and gives:
            room.without(victim, self._reclaim(draft, victim, victims, kind), tokens, slot=holds_slot)

    def _would_free(self, victim: int, room: Room) -> bool:
        return bool(self.state.blocks_only_of((victim,)) + room.held_back.get(victim, 0) > 0)

    def _standing_below(self, draft: Draft, victims: Victims, requester: int) -> list[int]:
        """Yielded holders serve anybody; active rows only a requester whose key comes strictly after theirs."""
        willing = self._willing(victims, requester)
        if requester == self.state.rescued:
            return cast("list[int]", willing.tolist())
        above = victims.stands_above(requester)
        serves = self._is_holder[willing]
        if above is not None:
            draft.standing[requester] = above
            serves |= above[willing]
        return cast("list[int]", willing[serves].tolist())

    # -- both

    def _ask(self, demand: Demand, active: np.ndarray, draft: Draft, spared: frozenset[int] = frozenset()) -> Victims:
        """The victims' list for one requester: holders that yielded, then active rows, latest admitted first."""
        state = self.state
        gone = {victim.row for victim in draft.victims if victim.mode is not PreemptMode.YIELD} | spared | {demand.row}
        fresh = [victim.row for victim in draft.victims if victim.mode is PreemptMode.YIELD]
        yielded = np.array([row for row in [*state.resident, *fresh] if row not in gone], np.intp)
        self._is_holder = np.zeros(state.table.capacity, bool)
        self._is_holder[yielded] = True
        here = np.zeros(state.table.capacity, bool)
        here[active] = True
        here[[victim.row for victim in draft.victims]] = False
        latest_first = state.active[here[state.active]][::-1]
        self._requester = demand.row
        candidates = np.concatenate([yielded, latest_first])
        self._is_candidate = here | self._is_holder
        answer = self._answers.get((demand.row, demand.kind))
        if answer is not None and np.isin(candidates, answer.rows).all():
            return answer  # another group is being tried; the order of those who are left is the same
        victims = self._answers[demand.row, demand.kind] = Victims(candidates, self.view)
        if not len(candidates):
            return victims
        if demand.row == state.rescued:
            victims.reorder(self._fewest(victims.rows))
            return victims
        self.view._tokens_left = max(draft.limits.total - int(draft.walk.tokens.sum()), 0)
        self.stack.edit("preempt", victims, demand, self.view)
        self.view._tokens_left = None
        return victims

    def _fewest(self, rows: np.ndarray) -> np.ndarray:
        """Those who would free most first, so that a rescue takes the fewest."""
        freed = np.array([self.state.blocks_only_of((row,)) for row in rows.tolist()], np.int64)
        return rows[np.argsort(-freed, kind="stable")]

    def _willing(self, victims: Victims, requester: int) -> np.ndarray:
        """Victims in order without the protected ones.

        A growing row may always give way itself; if it is being rescued, nobody is spared before it does.
        """
        rows = victims.rows[self._is_candidate[victims.rows]]
        if requester == self.state.rescued:
            return _last(rows, requester)
        spared = np.zeros(len(rows), bool)
        if not self.unprotected:  # protection spares who is active, not the blocks of a holder that yielded
            spared = self.state.protected(rows) & (self.state.table.slot[rows] >= 0)
        if victims.protected is not None:
            spared |= victims.protected[rows]
        if self.state.rescued is not None:
            spared |= rows == self.state.rescued
        willing = rows[~spared | (rows == requester)]
        return _last(willing, requester) if self.unprotected else np.asarray(willing)

    def _reclaim(self, draft: Draft, row: int, victims: Victims, kind: DemandKind) -> int:
        """The row gives its blocks: offloaded if its mode keeps them and the host has room, else dropped.

        One that has yielded, before or at this boundary, turns; that counts as no second preemption. Returns how many
        blocks became free.
        """
        count = int(self.state.table.blocks[row])
        turns = self._is_holder[row] or any(victim.row == row for victim in draft.victims)
        mode = victims.mode_of(row)
        if turns or mode is PreemptMode.YIELD:
            mode = PreemptMode.OFFLOAD
        if mode is PreemptMode.OFFLOAD and not count <= draft.host_left:
            mode = PreemptMode.RECOMPUTE
        if mode is PreemptMode.OFFLOAD:
            draft.host_left -= count
        freed = self._give_back(row)
        fresh = next((victim for victim in draft.victims if victim.row == row), None)
        if fresh is not None:  # it gave way to somebody else at this boundary, and now its blocks serve, too
            draft.victims[draft.victims.index(fresh)] = fresh._replace(mode=mode)
            return freed
        resident = row in self.state.resident
        draft.victims.append(Victim(row, mode, kind, resident, self._requester))
        return freed

    def _give_back(self, row: int) -> int:
        """The row's blocks enter the queue, last block first. Returns how many are free now."""
        pool = self.state.pool
        before = pool.available
        pool.give_back(self.state.held(row)[::-1])
        return pool.available - before

    # -- after a displacement

    def seat(self, draft: Draft, order: np.ndarray, noted: list[tuple[int, Size]]) -> None:
        """The noted rows enter with one token at least, the rest goes by the plan's order, and no other row enters."""
        gone = {victim.row for victim in draft.victims}
        sizes = dict(noted)
        takes_part = self.state.table.slot >= 0
        takes_part[list(gone)] = False
        takes_part[list(sizes)] = True
        rows = order[takes_part[order]]
        tokens, sequence = self._shared(draft, rows, sizes), rows.tolist()
        for row, size in noted:
            enter(draft, row, size, tokens[row], shares=False)
        rows = np.array([row for row in sequence if row not in sizes], np.intp)
        draft.walk = draft.walk_of(rows, np.array([tokens[row] for row in rows.tolist()], np.int64))
        draft.sequence = sequence
        draft.reasons.update(
            (v.row, Reason("slot" if v.demand is DemandKind.SLOT else "blocks")) for v in draft.victims
        )
        settle(draft)

    def _shared(self, draft: Draft, sequence: np.ndarray, sizes: dict[int, Size]) -> dict[int, int]:
        """Tokens of each row: one set aside for each that enters and runs, the rest in the plan's order.

        Nobody runs more than was sized before, since blocks were counted for that, or than the blocks it has hold.
        """
        limits, table = draft.limits, self.state.table
        inside = limits.group[table.work[sequence]]
        if limits.dropped is not None:
            inside &= ~limits.dropped[sequence]
        before = dict(zip(draft.walk.rows.tolist(), draft.walk.tokens.tolist(), strict=True))
        sized = np.array(
            [sizes[row].tokens if row in sizes else before.get(row, 0) for row in sequence.tolist()], np.int64
        )
        held = table.blocks[sequence].astype(np.int64) * self.state.pool.block_size - table.computed[sequence]
        room = np.minimum(limits.wanted(sequence, self.state.pending(sequence)), np.maximum(held, 0))
        wanted = np.where(inside, np.where(table.slot[sequence] >= 0, np.maximum(sized, room), sized), 0)
        aside = np.array([row in sizes and sizes[row].runs for row in sequence.tolist()], np.int64)
        least = limits.least(sequence, self.state.pending(sequence))
        if least is not None:
            tokens = limits.share(sequence, wanted, limits.total, least=least)
        else:
            tokens = aside + limits.share(sequence, np.maximum(wanted - aside, 0), limits.total, aside=aside)
        return dict(zip(sequence.tolist(), tokens.tolist(), strict=True))


def _last(rows: np.ndarray, row: int) -> np.ndarray:
    return np.concatenate([rows[rows != row], rows[rows == row]])
