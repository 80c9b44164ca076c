"""KV blocks: reference counts, block tables, the prefix index and the queue of free blocks.

Changes made between `begin` and `keep` are journalled, so that a plan which cannot be completed leaves the pool as it
was: `undo` takes back everything since a mark, in reverse order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from interlock.core.hashing import splitmix64
from interlock.core.kept import Keeping, Kept

_K = np.uint64(0x9E3779B97F4A7C15 | 1)  # odd, hence invertible modulo 2**64
_HOLDERS = 16
_COMPACT_AT = 3  # the queue's array is this many pools long before its dead entries are squeezed out


class PrefixHash:
    """Chained hashes of full blocks, vectorised.

    The digest D of a block mixes its token ids with a coefficient for each place; the chain is P_i = P_(i-1) K + D_i
    modulo 2**64, and the key of block i is the mixed P_i. 64 bits: two different prefixes among a million collide
    with a probability of about 3e-8.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        # From another stream than token ids are mixed with: else a permutation and its inverse would collide.
        self._place = splitmix64(splitmix64(np.arange(block_size, dtype=np.uint64) + np.uint64(1 << 40))) | np.uint64(1)

    def digests(self, blocks: np.ndarray) -> np.ndarray:
        """Digest of each block of token ids. blocks: int, shape (n, block_size). Returns uint64, shape (n,)."""
        return np.asarray((splitmix64(blocks.astype(np.uint64)) * self._place).sum(axis=1, dtype=np.uint64))

    def extend(self, chain: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """The chain of n prefixes, each one block longer. chain: uint64 (n,), blocks: (n, block_size)."""
        return np.asarray(chain * _K + self.digests(blocks))

    def chain(self, tokens: np.ndarray, salt: int = 0) -> np.ndarray:
        """The chain over the full blocks of one token sequence. Returns uint64, shape (len(tokens) // block_size,)."""
        count = len(tokens) // self.block_size
        if not count:
            return np.empty(0, np.uint64)
        digests = self.digests(tokens[: count * self.block_size].reshape(count, self.block_size))
        powers = np.empty(count, np.uint64)
        powers[0] = _K
        powers[1:] = _K
        powers = np.multiply.accumulate(powers)  # K, K**2, ...
        inverse = np.multiply.accumulate(np.full(count, _K_INVERSE, np.uint64))
        return np.asarray((np.cumsum(digests * inverse, dtype=np.uint64) + np.uint64(salt)) * powers)

    @staticmethod
    def keys(chain: np.ndarray) -> np.ndarray:
        """Index keys of a chain, uint64."""
        return splitmix64(chain)


_K_INVERSE = np.uint64(pow(int(_K), -1, 1 << 64))


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens.

    A block is free (in the queue, without a key), cached (in the queue, with a key that a candidate may hit), used (a
    reference count above 0) or fenced (given back, but work in flight may still touch it). The block table is indexed
    by holder, so a request that holds nothing costs nothing.
    """

    def __init__(self, num_blocks: int, block_size: int, width: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.references = np.zeros(num_blocks, np.int32)
        self.table = np.zeros((_HOLDERS, width), np.int32)
        self._free_holders = list(range(_HOLDERS - 1, -1, -1))
        self._key = np.zeros(num_blocks, np.uint64)
        self._published = np.zeros(num_blocks, bool)
        self._index: dict[int, int | list[int]] = {}  # key -> the block that carries it, or several, oldest first
        self._queue = np.empty(_COMPACT_AT * num_blocks + 64, np.int32)
        self._queue[:num_blocks] = np.arange(num_blocks, dtype=np.int32)
        self._place = np.arange(num_blocks, dtype=np.int64)  # of a block in the queue, -1 when it is not there
        self._head, self._tail, self._count = 0, num_blocks, num_blocks
        self.fenced = 0
        self.cached = 0  # blocks without a holder that a candidate may hit
        self.kept = Kept()  # cached blocks that are taken last
        self._journal: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    # -- gauges

    @property
    def available(self) -> int:
        """Blocks that can be taken: free, or cached without a holder."""
        return self._count + len(self.kept)

    @property
    def used(self) -> int:
        """Blocks with a holder."""
        return self.num_blocks - self.available - self.fenced

    # -- journal

    def begin(self) -> None:
        """Start a plan. Nothing before this point can be undone."""
        self._journal.clear()
        if self._tail > (_COMPACT_AT - 1) * self.num_blocks:
            self._compact()

    def mark(self) -> int:
        """A point to which `undo` can return."""
        return len(self._journal)

    def undo(self, mark: int = 0) -> None:
        """Take back every change since the mark."""
        while len(self._journal) > mark:
            back, arguments = self._journal.pop()
            back(*arguments)

    def _compact(self) -> None:
        live = self._live()
        self._queue[: len(live)] = live
        self._place[live] = np.arange(len(live))
        self._head, self._tail = 0, len(live)

    def queue(self) -> np.ndarray:
        """The free blocks in the order in which they will be taken."""
        live = self._live()
        return np.concatenate([live, np.array(self.kept.blocks(), np.int32)]) if len(self.kept) else live

    def _live(self) -> np.ndarray:
        span = self._queue[self._head : self._tail]
        alive = self._place[span] == np.arange(self._head, self._tail)
        return np.asarray(span[alive])

    # -- holders

    def holder(self) -> int:
        """A line of the block table for a request that is about to hold blocks."""
        if not self._free_holders:
            old = len(self.table)
            self.table = np.concatenate([self.table, np.zeros_like(self.table)])
            self._free_holders = list(range(2 * old - 1, old - 1, -1))
        holder = self._free_holders.pop()
        self._journal.append((self.return_holder, (holder,)))
        return holder

    def return_holder(self, holder: int) -> None:
        """The line is free for another request."""
        self._free_holders.append(holder)

    # -- taking and giving back

    def take(self, count: int) -> np.ndarray:
        """The `count` oldest free blocks, now with one reference each; what was cached in them is forgotten.

        The caller has checked `available`. Returns int32, shape (count,).
        """
        if count > self.available:
            raise AssertionError(f"{count} blocks asked of {self.available}")
        if count > self._count:
            self._spill(self.kept.blocks()[: count - self._count])
        head, end = self._head, self._head + count
        blocks = self._queue[head:end]
        places = self._place[blocks]
        if not (places == np.arange(head, end)).all():
            end = self._end_of(count)
            span = self._queue[head:end]
            blocks = span[self._place[span] == np.arange(head, end)]
            places = self._place[blocks]
        blocks = blocks.copy()
        self._place[blocks] = -1
        self._head, self._count = end, self._count - count
        self._journal.append((self._untake, (blocks, places, head)))
        self._withdraw(blocks)
        self.references[blocks] = 1
        return blocks

    def next_free(self, count: int) -> np.ndarray:
        """The blocks that `take` would give. Changes nothing. Returns int32, shape (count,)."""
        if count > self._count:
            return self.queue()[:count]
        head, end = self._head, self._head + count
        if (self._place[self._queue[head:end]] == np.arange(head, end)).all():
            return self._queue[head:end]
        span = self._queue[head : self._end_of(count)]
        return np.asarray(span[self._place[span] == np.arange(head, head + len(span))])

    def _end_of(self, count: int) -> int:
        """Where in the queue its first `count` live entries end."""
        size = count
        while True:  # dead entries are few: look twice as far each time instead of at the whole queue
            size = min(2 * size + 16, self._tail - self._head)
            span = self._queue[self._head : self._head + size]
            live = np.flatnonzero(self._place[span] == np.arange(self._head, self._head + size))
            if len(live) >= count:
                return self._head + int(live[count - 1]) + 1

    def _untake(self, blocks: np.ndarray, places: np.ndarray, head: int) -> None:
        self._place[blocks] = places
        self._head, self._count = head, self._count + len(blocks)
        self.references[blocks] = 0

    def share(self, blocks: np.ndarray) -> None:
        """One more reference on each of these distinct cached or used blocks."""
        fresh = blocks[self.references[blocks] == 0]
        kept = [self.kept.remove(block) for block in fresh.tolist() if block in self.kept] if len(self.kept) else []
        places = self._place[fresh]
        self._place[fresh] = -1
        self._count -= len(fresh) - len(kept)
        self.cached -= len(fresh)  # only published blocks can be shared
        self.references[blocks] += 1
        self._journal.append((self._unshare, (blocks, fresh, places, kept)))

    def _unshare(self, blocks: np.ndarray, fresh: np.ndarray, places: np.ndarray, kept: list[Keeping]) -> None:
        self.references[blocks] -= 1
        self._place[fresh] = places
        self._count += len(fresh) - len(kept)
        self.cached += len(fresh)
        for keeping in kept:
            self.kept.restore(keeping)

    def give_back(self, blocks: np.ndarray) -> None:
        """One reference less on each of these distinct blocks; those without any enter the queue in this order."""
        if (self.references[blocks] <= 0).any() or len(set(blocks.tolist())) < len(blocks):
            raise AssertionError("a block is given back that nobody holds, or twice")
        self.references[blocks] -= 1
        freed = blocks[self.references[blocks] == 0]
        self.cached += int(self._published[freed].sum())
        tail = self._append(freed)
        self._journal.append((self._ungive, (blocks, freed, tail)))

    def _append(self, freed: np.ndarray) -> int:
        """These blocks enter the queue; where it ended before."""
        tail = self._tail
        if tail + len(freed) > len(self._queue):
            raise AssertionError("the queue of free blocks is full")
        self._queue[tail : tail + len(freed)] = freed
        self._place[freed] = np.arange(tail, tail + len(freed))
        self._tail += len(freed)
        self._count += len(freed)
        return tail

    def _ungive(self, blocks: np.ndarray, freed: np.ndarray, tail: int) -> None:
        self._place[freed] = -1
        self._tail, self._count = tail, self._count - len(freed)
        self.cached -= int(self._published[freed].sum())
        self.references[blocks] += 1

    def keep(self, blocks: np.ndarray, weight: float, until_ns: float) -> None:
        """Of these blocks, those that are cached without a holder leave the queue and are taken last.

        Among the kept ones the smallest weight goes first. Not journalled: it belongs to the retire stage.
        """
        for block in blocks[self._published[blocks] & (self._place[blocks] >= 0)].tolist():
            self._place[block] = -1
            self._count -= 1
            self.kept.add(block, weight, until_ns)

    def expire(self, now_ns: int) -> None:
        """Blocks that are not to be kept any longer enter the queue."""
        over = self.kept.expired(now_ns)
        if over:
            self._spill(over)

    def _spill(self, blocks: list[int]) -> None:
        """These kept blocks enter the queue."""
        keepings = [self.kept.remove(block) for block in blocks]
        tail = self._append(np.array(blocks, np.int32))
        self._journal.append((self._unspill, (keepings, tail)))

    def _unspill(self, keepings: list[Keeping], tail: int) -> None:
        self._place[[keeping.block for keeping in keepings]] = -1
        self._tail, self._count = tail, self._count - len(keepings)
        for keeping in keepings:
            self.kept.restore(keeping)

    # -- prefix index

    def match(self, keys: Sequence[int]) -> np.ndarray:
        """The blocks that hold the longest cached prefix of these block keys. Changes nothing. Returns int32."""
        index = self._index
        found: list[int] = []
        for key in keys:
            carrier = index.get(key)
            if carrier is None:
                break
            found.append(carrier if isinstance(carrier, int) else carrier[0])
        return np.array(found, np.int32)

    def publish(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        """These blocks, full once the plan has run, may be hit under these keys. A published block keeps its key."""
        already = self._published[blocks]
        if already.any():
            blocks, keys = blocks[~already], keys[~already]
        self._published[blocks] = True
        self._key[blocks] = keys
        index = self._index
        for block, key in zip(blocks.tolist(), keys.tolist(), strict=True):
            if index.setdefault(key, block) != block:
                index[key] = [*self._carriers(key), block]
        self._journal.append((self.unpublish, (blocks,)))

    def unpublish(self, blocks: np.ndarray) -> None:
        """Nobody may hit these blocks any more. Not journalled."""
        blocks = blocks[self._published[blocks]]
        self._published[blocks] = False
        self.cached -= int((self.references[blocks] == 0).sum())
        for block, key in zip(blocks.tolist(), self._key[blocks].tolist(), strict=True):
            self._drop(key, block)

    def _carriers(self, key: int) -> list[int]:
        """The blocks that carry a key, oldest first. A copy."""
        carrier = self._index[key]
        return [carrier] if isinstance(carrier, int) else list(carrier)

    def _drop(self, key: int, block: int) -> None:
        carriers = self._carriers(key)
        carriers.remove(block)
        if carriers:
            self._index[key] = carriers[0] if len(carriers) == 1 else carriers
        else:
            del self._index[key]

    def _withdraw(self, blocks: np.ndarray) -> None:
        """What was cached in these blocks, which have just left the queue, is overwritten."""
        published = self._published[blocks]
        if not published.any():
            return
        cached = blocks if published.all() else blocks[published]
        keys = self._key[cached].tolist()
        index = self._index
        before = [(key, index[key]) for key in keys]
        self._published[cached] = False
        self.cached -= len(cached)
        for (key, carrier), block in zip(before, cached.tolist(), strict=True):
            if carrier == block:
                del index[key]
            else:
                self._drop(key, block)
        self._journal.append((self._restore, (cached, before)))

    def _restore(self, blocks: np.ndarray, before: list[tuple[int, int | list[int]]]) -> None:
        self._published[blocks] = True
        self._key[blocks] = np.array([key for key, _ in before], np.uint64)
        self._index.update(reversed(before))
        self.cached += len(blocks)

    def is_published(self, blocks: np.ndarray) -> np.ndarray:
        """Which of these blocks carry a key, bool."""
        return np.asarray(self._published[blocks])
