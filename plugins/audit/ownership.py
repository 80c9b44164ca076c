"""Invariants of rows: status against slot, work, tickets, lines of the block table, host copies."""

from __future__ import annotations

import numpy as np

from interlock.core.request import RequestStatus
from interlock.core.work import WorkKey
from interlock.plugins.audit.books import Books, Findings, tally

_S = RequestStatus
_IN_LOOP = (WorkKey.PROMPT_RECURRENT, WorkKey.DECODE_RECURRENT)


def owners(books: Books) -> Findings:
    """Who has a row: each row's number, entry and live id agree, and a row without an owner has nothing."""
    table, state = books.table, books.state
    idle = books.free & (
        (table.slot >= 0) | (table.blocks != 0) | (table.holder >= 0) | (table.in_flight != 0) | (table.host != 0)
    )
    idle |= books.free & ((table.status != _S.FINISHED) | (table.work != WorkKey.NONE))
    if idle.any():
        yield books.broken("a row without an owner holds nothing", "its columns are not empty", np.flatnonzero(idle))
    entries = np.fromiter(state.entries, np.intp, len(state.entries))
    strays = books.unlike(entries, books.rows)
    if len(strays):
        yield books.broken("rows with an owner are the rows with an entry", "one without the other", strays)
    live = books.rows[~books.having(_S.FINISHED)]
    named = np.fromiter(state.rows.values(), np.intp, len(state.rows))
    strays = books.unlike(named, live)
    if len(strays) or len(named) != len(live):
        yield books.broken("live ids are the live rows", f"{len(named)} ids, {len(live)} live rows", strays)


def slots(books: Books) -> Findings:
    """Who owns slots: every ACTIVE row one, no WAITING row any, each slot one owner or none."""
    holds = books.slot >= 0
    yield from books.unless(
        holds | ~books.having(_S.ACTIVE, _S.TRANSFERRING), "an active request holds a slot", "it has none"
    )
    yield from books.unless(
        ~holds | ~books.having(_S.WAITING, _S.RECEIVING),
        "a waiting request holds no slot",
        "it has slot {}",
        books.slot,
    )
    seats = books.state.limits.max_num_seqs
    owned, free = tally(books.slot[holds], seats), tally(np.array(books.state._slots, np.int64), seats)
    shared = holds & (owned[books.slot] > 1)
    yield from books.unless(~shared, "a slot has one owner", "slots {}", books.slot)
    wrong = np.flatnonzero((owned > 0).astype(np.int64) + free != np.append(np.ones(seats, np.int64), 0))
    if len(wrong):
        few = wrong[:4]
        detail = f"slots {few.tolist()} have {owned[few].tolist()} owners and are free {free[few].tolist()} times"
        yield books.broken("owned and free slots are all slots", detail, books.rows[np.isin(books.slot, wrong)])


def work(books: Books) -> Findings:
    """What is pending: work exactly while a request lives; depth and chunk only inside a loop."""
    table, rows = books.table, books.rows
    ended = books.having(_S.FINISHED)
    none = books.work == WorkKey.NONE
    yield from books.unless(none == ended, "work is pending exactly while a request lives", "work {}", books.work)
    loop, chunk = table.loop[rows], table.chunk[rows]
    inside = np.isin(books.work, _IN_LOOP)
    sound = ended | ((inside == (chunk > 0)) & (loop >= 0) & (loop < books.state.loops) & (inside | (loop == 0)))
    yield from books.unless(
        sound, "a chunk is under way exactly inside the loop", "work {}, chunk {}, depth {}", books.work, chunk, loop
    )


def flight(books: Books) -> Findings:
    """What is in flight: exactly the rows of tickets that are out, and nobody who waits."""
    table, tickets = books.table, books.state.tickets
    counts = np.zeros(table.capacity, np.int64)
    for ticket in tickets:
        counts += np.bincount(ticket.batch.rows, minlength=table.capacity)
    wrong = np.flatnonzero(counts != table.in_flight)
    if len(wrong):
        detail = f"in_flight {table.in_flight[wrong[:4]].tolist()}, on tickets {counts[wrong[:4]].tolist()}"
        yield books.broken("in flight are the rows of tickets that are out", detail, wrong)
    still = (table.in_flight[books.rows] == 0) | ~books.having(_S.WAITING, _S.RECEIVING)
    yield from books.unless(still, "a waiting request is not in flight", "a ticket of it is out")


def lines(books: Books) -> Findings:
    """Lines of the block table: one owner each, held from first admission to retirement."""
    has, pool = books.holder >= 0, books.pool
    needs = (books.blocks > 0) | books.having(_S.ACTIVE, _S.TRANSFERRING)
    yield from books.unless(has | ~needs, "who runs or holds blocks has a line of the block table", "it has none")
    count = len(pool.table)
    owned, free = tally(books.holder[has], count), tally(np.array(pool._free_holders, np.int64), count)
    wrong = np.flatnonzero(owned + free != np.append(np.ones(count, np.int64), 0))
    if len(wrong):
        few = wrong[:4]
        detail = f"lines {few.tolist()} have {owned[few].tolist()} owners and are free {free[few].tolist()} times"
        yield books.broken("a line of the block table has one owner", detail, books.rows[np.isin(books.holder, wrong)])


def residents(books: Books) -> Findings:
    """Who waits with blocks has yielded, and is known to be reclaimable."""
    known = np.fromiter(books.state.resident, np.intp, len(books.state.resident))
    holding = books.rows[books.having(_S.WAITING) & (books.blocks > 0)]
    strays = books.unlike(known, holding)
    if len(strays):
        detail = f"{len(known)} are known, {len(holding)} hold blocks"
        yield books.broken("residents are the waiting rows that hold blocks", detail, strays)


def host(books: Books) -> Findings:
    """Copies on the host: of waiting rows without blocks only, each host block with one owner."""
    state, away = books.state, books.host > 0
    yield from books.unless(
        ~away | (books.having(_S.WAITING) & (books.blocks == 0)),
        "host copies belong to waiting rows without blocks",
        "{} blocks on the host",
        books.host,
    )
    copied = _copied(books)
    sizes = {row: len(blocks) for row, blocks in copied.items()}
    wrong = [row for row in {*sizes, *books.rows[away].tolist()} if sizes.get(row, 0) != books.table.host[row]]
    if wrong:
        yield books.broken("the column `host` counts a row's host copies", "it does not", np.array(wrong, np.intp))
    taken = np.concatenate([np.array(state._host, np.int64), *copied.values()])
    if (tally(taken, state.kv.host_blocks) != np.append(np.ones(state.kv.host_blocks, np.int64), 0)).any():
        detail = f"{state.kv.host_blocks} host blocks, {len(state._host)} free, {sum(sizes.values())} hold copies"
        yield books.broken("a host block has one owner or is free", detail, np.array(list(copied), np.intp))


def _copied(books: Books) -> dict[int, np.ndarray]:
    """The host blocks of each row that has some."""
    entries = books.state.entries.items()
    return {row: entry.host_blocks for row, entry in entries if entry.host_blocks is not None}
