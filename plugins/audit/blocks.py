"""Invariants of KV blocks: references, the four kinds of block, the prefix index."""

from __future__ import annotations

import numpy as np

from interlock.core.request import RequestStatus
from interlock.plugins.audit.books import Books, Findings, tally


def references(books: Books) -> Findings:
    """A block's reference count is the number of rows that hold it, recounted from the block table."""
    pool = books.pool
    owner, held = _held(books)
    outside = (held < 0) | (held >= pool.num_blocks)
    if outside.any():
        yield books.broken("a row's blocks are blocks of the pool", f"{held[outside][:4].tolist()}", owner[outside])
        return
    counts = np.bincount(held, minlength=pool.num_blocks)
    wrong = np.flatnonzero(counts != pool.references)
    if len(wrong):
        few = wrong[:4]
        told = f"blocks {few.tolist()} have {pool.references[few].tolist()} references, {counts[few].tolist()} holders"
        yield books.broken("references are the holders", told, owner[np.isin(held, wrong)])
    shared = counts[held] > 1
    pairs = owner[shared] * np.int64(pool.num_blocks) + held[shared]
    pairs, times = np.unique(pairs, return_counts=True)
    if (times > 1).any():
        rows, blocks = np.divmod(pairs[times > 1], pool.num_blocks)
        yield books.broken("a row holds a block once", f"it holds blocks {blocks[:4].tolist()} twice", rows)


def _held(books: Books) -> tuple[np.ndarray, np.ndarray]:
    """(row, block) for each block that a row holds, intp. Rows without a line of the block table hold none."""
    pool, some = books.pool, (books.blocks > 0) & (books.holder >= 0) & (books.holder < len(books.pool.table))
    counts = np.minimum(books.blocks[some], pool.table.shape[1])
    width = int(counts.max(initial=0))
    inside = np.arange(width) < counts[:, None]
    return np.repeat(books.rows[some], counts), pool.table[books.holder[some], :width][inside].astype(np.intp)


def kinds(books: Books) -> Findings:
    """Every block is free, cached, used or fenced, and the pool's gauges say so."""
    pool = books.pool
    queue, used = pool.queue(), pool.references > 0
    times = tally(queue, pool.num_blocks)
    queued = times[:-1] > 0
    if times.max() > 1 or times[-1] or len(queue) != pool.available:
        few = np.flatnonzero(times[:-1] > 1)[:4].tolist()
        detail = f"{len(queue)} entries, {pool.available} counted as available, blocks {few} stand in it twice"
        yield books.broken("the queue of free blocks is a set", detail)
    both = np.flatnonzero(queued & used)
    if len(both):
        detail = f"blocks {both[:4].tolist()} are in the queue"
        yield books.broken("a free block has no holder", detail, _holding(books, both))
    parts = int(queued.sum()), int((used & ~queued).sum()), pool.fenced
    if sum(parts) != pool.num_blocks or pool.fenced < 0:
        detail = "{} free or cached, {} used, {} fenced, of ".format(*parts) + str(pool.num_blocks)
        yield books.broken("free, cached, used and fenced blocks are the pool", detail)
    cached = int((pool._published & ~used).sum())
    if cached != pool.cached:
        yield books.broken("cached blocks are counted", f"{pool.cached} counted, {cached} published without a holder")


def room(books: Books) -> Findings:
    """Computed tokens are within the known context, and there are blocks for them on the device or the host."""
    table, rows = books.table, books.rows
    computed, context = table.computed[rows], table.prompt_tokens[rows] + table.emitted[rows]
    yield from books.unless(
        (computed >= 0) & (computed <= context),
        "computed tokens are within the context",
        "computed {} of {}",
        computed,
        context,
    )
    kept = np.maximum(books.blocks, books.host).astype(np.int64) * books.pool.block_size
    ended = books.having(RequestStatus.FINISHED)
    yield from books.unless(
        ended | (computed <= kept), "computed tokens have blocks", "computed {}, room for {}", computed, kept
    )


def index(books: Books) -> Findings:
    """The prefix index: every published block stands under its key, and nothing else does."""
    pool = books.pool
    keys, blocks = _entries(pool._index)
    inside = (blocks >= 0) & (blocks < pool.num_blocks)
    times = tally(blocks, pool.num_blocks)
    at = np.where(inside, blocks, 0)
    sound = inside & pool._published[at] & (pool._key[at] == keys) & (times[at] == 1)
    if not sound.all():
        detail = f"blocks {np.unique(blocks[~sound])[:4].tolist()} are indexed, not under the one key they carry"
        yield books.broken("indexed blocks are published under their key", detail, _holding(books, blocks[~sound]))
    missing = np.flatnonzero(pool._published & (times[:-1] == 0))
    if len(missing):
        detail = f"blocks {missing[:4].tolist()} are published and not in the index"
        yield books.broken("published blocks are in the prefix index", detail, _holding(books, missing))


def _holding(books: Books, blocks: np.ndarray) -> np.ndarray:
    """Rows that hold any of these blocks."""
    owner, held = _held(books)
    return owner[np.isin(held, blocks)]


def _entries(entries: dict[int, int | list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(key, block) of each carrier in the index: uint64 and int64."""
    try:
        keys = np.fromiter(entries, np.uint64, len(entries))
        return keys, np.fromiter(entries.values(), np.int64, len(entries))
    except (TypeError, ValueError):  # some key has several carriers
        lists = {key: carrier if isinstance(carrier, list) else [carrier] for key, carrier in entries.items()}
        flat = [(key, block) for key, carriers in lists.items() for block in carriers]
        return np.array([key for key, _ in flat], np.uint64), np.array([block for _, block in flat], np.int64)
