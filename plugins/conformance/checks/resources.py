"""Checks of who owns slots, blocks and queue places, recomputed from the columns at each boundary."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from interlock.core import RequestStatus
from interlock.plugins.conformance.checks.base import Check
from interlock.plugins.conformance.finding import Finding
from interlock.plugins.conformance.run import Turn


class Slots(Check):
    """Slots."""

    name = "slots"
    rule = "Every active request owns one slot, who waits owns none, and slots owned and free are max_num_seqs."

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Row by row, then the sum."""
        state, table = turn.engine.state, turn.engine.state.table
        owners: dict[int, str] = {}
        for row, entry in state.entries.items():
            slot, status = int(table.slot[row]), RequestStatus(int(table.status[row]))
            owns = slot >= 0
            if owns and slot in owners:
                seen = f"it owns slot {slot}, as {owners[slot]!r} does."
                yield self.found(seen, "one owner.", turn.record.step, entry.request.id)
            if owns:
                owners[slot] = entry.request.id
            if (status is RequestStatus.ACTIVE and not owns) or (status is RequestStatus.WAITING and owns):
                seen = f"it is {status.name} and its slot is {slot}."
                yield self.found(seen, "a slot exactly while it is active.", turn.record.step, entry.request.id)
        if len(owners) + state.free_slots != state.limits.max_num_seqs:
            seen = f"{len(owners)} slots are owned and {state.free_slots} free."
            yield self.found(seen, f"{state.limits.max_num_seqs} together.", turn.record.step)


class Queue(Check):
    """Who waits, who is active."""

    name = "queue"
    rule = "The queue holds exactly who waits, in arrival order, and the active list exactly who is active."

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Both lists."""
        state, table = turn.engine.state, turn.engine.state.table
        for status, listed in ((RequestStatus.WAITING, state.waiting.rows), (RequestStatus.ACTIVE, state.active)):
            right = {row for row in state.entries if table.status[row] == status}
            rows = listed.tolist()
            for row in [*(set(rows) ^ right), *(row for row in set(rows) if rows.count(row) > 1)]:
                entry = state.entries.get(row)
                seen = f"row {row} stands in the list of {status.name} {rows.count(row)} times."
                name = entry.request.id if entry else None
                yield self.found(seen, "once exactly while that is its status.", turn.record.step, name)
        numbers = table.number[state.waiting.rows]
        if len(numbers) > 1 and not (np.diff(numbers) > 0).all():
            seen = f"the queue is {[turn.name(int(number)) for number in numbers]}."
            yield self.found(seen, "the order of arrival.", turn.record.step)


class References(Check):
    """Who holds blocks."""

    name = "references"
    rule = "A block's reference count is the number of rows that hold it, and a row holds no block twice."

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Counted anew."""
        state, pool = turn.engine.state, turn.engine.state.pool
        holders = np.zeros(pool.num_blocks, np.int64)
        for row, entry in state.entries.items():
            held = state.held(row)
            if len(set(held.tolist())) < len(held):
                yield self.found(f"it holds {held.tolist()}.", "each once.", turn.record.step, entry.request.id)
            np.add.at(holders, held, 1)
            if table_waits(turn, row) and len(held) and row not in state.resident:
                seen = f"it waits and holds {len(held)} blocks without having yielded."
                yield self.found(seen, "no blocks.", turn.record.step, entry.request.id)
        for block in np.flatnonzero(holders != pool.references).tolist():
            seen = f"block {block} has {pool.references[block]} references."
            yield self.found(seen, f"{holders[block]}, its holders.", turn.record.step)


def table_waits(turn: Turn, row: int) -> bool:
    """Whether a row waits."""
    return bool(turn.engine.state.table.status[row] == RequestStatus.WAITING)


class Pool(Check):
    """Where blocks are."""

    name = "pool"
    rule = "Every block is free, cached, used or fenced, and the four are the pool; what is told of them is so."

    def at(self, turn: Turn) -> Iterable[Finding]:
        """The free queue and the gauges."""
        pool, counts, step = turn.engine.state.pool, turn.record.counts, turn.record.step
        queue = pool.queue()
        if len(set(queue.tolist())) != len(queue) or len(queue) != pool.available:
            yield self.found(f"the free queue is {queue.tolist()}.", f"{pool.available} blocks, each once.", step)
        if pool.references[queue].any():
            block = queue[pool.references[queue] > 0][0]
            yield self.found(f"block {block} is in the free queue and held.", "one of the two.", step)
        assert counts is not None
        used = int((pool.references > 0).sum())
        cached = int(pool.is_published(queue).sum())
        right = (len(queue) - cached, cached, used, pool.fenced)
        told = (counts.free_blocks, counts.cached_blocks, counts.used_blocks, counts.fenced_blocks)
        if told != right or sum(right) != pool.num_blocks:
            words = f"{right} of {pool.num_blocks}."
            yield self.found(f"(free, cached, used, fenced) is told as {told}.", words, step)


class Host(Check):
    """Copies on the host."""

    name = "host copies"
    rule = "A host block has one owner, which waits; whose KV is on the host holds none on the device."

    def at(self, turn: Turn) -> Iterable[Finding]:
        """Owner by owner."""
        state, table = turn.engine.state, turn.engine.state.table
        owned = list(state._host)
        for row, entry in state.entries.items():
            copies = [] if entry.host_blocks is None else entry.host_blocks.tolist()
            owned += copies
            wrong = copies and (not table_waits(turn, row) or table.blocks[row])
            if wrong or len(copies) != table.host[row]:
                seen = f"{len(copies)} host blocks, {table.blocks[row]} device blocks, status {table.status[row]}."
                yield self.found(seen, "host blocks only while it waits.", turn.record.step, entry.request.id)
        if sorted(owned) != list(range(state.kv.host_blocks)):
            lost = state.kv.host_blocks - len(set(owned))
            yield self.found(
                f"{lost} host blocks are lost or have two owners.", "each is free or owned.", turn.record.step
            )


CHECKS: tuple[type[Check], ...] = (Slots, Queue, References, Pool, Host)
