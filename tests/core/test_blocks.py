"""The pool of KV blocks, held against a model of dictionaries and lists; and the hashes of the prefix index."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from interlock.core.blocks import BlockPool, PrefixHash

KEYS = st.integers(1, 4)  # few, so that several blocks carry one


def blocks_of(*blocks: int) -> np.ndarray:
    return np.array(blocks, np.int32)


@dataclass
class Model:
    """What a pool is, told in plain Python."""

    size: int
    queue: list[int] = field(default_factory=list)
    references: dict[int, int] = field(default_factory=dict)
    key_of: dict[int, int] = field(default_factory=dict)
    carriers: dict[int, list[int]] = field(default_factory=dict)

    def take(self, count: int) -> list[int]:
        taken, self.queue = self.queue[:count], self.queue[count:]
        for block in taken:
            self.references[block] = 1
        self.forget(taken)
        return taken

    def share(self, blocks: list[int]) -> None:
        for block in blocks:
            self.references[block] += 1
            if block in self.queue:
                self.queue.remove(block)

    def give_back(self, blocks: list[int]) -> None:
        for block in blocks:
            self.references[block] -= 1
        self.queue += [block for block in blocks if not self.references[block]]

    def publish(self, blocks: list[int], keys: list[int]) -> None:
        for block, key in zip(blocks, keys, strict=True):
            if block not in self.key_of:
                self.key_of[block] = key
                self.carriers.setdefault(key, []).append(block)

    def forget(self, blocks: list[int]) -> None:
        for block in blocks:
            if block in self.key_of:
                key = self.key_of.pop(block)
                self.carriers[key].remove(block)
                if not self.carriers[key]:
                    del self.carriers[key]

    def match(self, keys: list[int]) -> list[int]:
        found: list[int] = []
        for key in keys:
            if key not in self.carriers:
                break
            found.append(self.carriers[key][0])
        return found


class Pool(RuleBasedStateMachine):
    """Every change, alone and undone to any mark."""

    @initialize(size=st.integers(1, 12))
    def start(self, size: int) -> None:
        self.pool = BlockPool(size, 4, 8)
        self.model = Model(size, list(range(size)), dict.fromkeys(range(size), 0))
        self.marks: list[tuple[int, Model]] = []
        self.pool.begin()

    def _some(self, data: st.DataObject, among: list[int], least: int = 0) -> list[int]:
        return data.draw(st.lists(st.sampled_from(among), min_size=least, unique=True)) if among else []

    @rule(share=st.floats(0, 1))
    def take(self, share: float) -> None:
        count = int(share * len(self.model.queue))
        assert self.pool.next_free(count).tolist() == self.model.queue[:count]
        assert self.pool.take(count).tolist() == self.model.take(count)

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        """Of used blocks and of cached ones."""
        chosen = self._some(data, [b for b, n in self.model.references.items() if n or b in self.model.key_of])
        self.pool.share(blocks_of(*chosen))
        self.model.share(chosen)

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        chosen = self._some(data, [b for b, n in self.model.references.items() if n])
        self.pool.give_back(blocks_of(*chosen))
        self.model.give_back(chosen)

    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        chosen = self._some(data, [b for b, n in self.model.references.items() if n])
        keys = data.draw(st.lists(KEYS, min_size=len(chosen), max_size=len(chosen)))
        self.pool.publish(blocks_of(*chosen), np.array(keys, np.uint64))
        self.model.publish(chosen, keys)

    @rule()
    def mark(self) -> None:
        self.marks.append((self.pool.mark(), copy.deepcopy(self.model)))

    @precondition(lambda self: self.marks)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.marks) - 1))
        mark, self.model = self.marks[at]
        del self.marks[at:]
        self.pool.undo(mark)

    @rule()
    def begin(self) -> None:
        """A new plan: what was done is done."""
        self.pool.begin()
        self.marks.clear()

    @rule(data=st.data())
    def unpublish(self, data: st.DataObject) -> None:
        """Not part of a plan: no mark outlives it."""
        chosen = self._some(data, list(range(self.model.size)))
        self.pool.begin()
        self.marks.clear()
        self.pool.unpublish(blocks_of(*chosen))
        self.model.forget(chosen)

    @invariant()
    def same_state(self) -> None:
        model, pool = self.model, self.pool
        assert pool.queue().tolist() == model.queue
        assert pool.references.tolist() == list(model.references.values())
        assert [b for b in range(model.size) if pool.is_published(blocks_of(b))[0]] == sorted(model.key_of)
        for key in range(1, 5):
            assert pool.match([key]).tolist() == model.match([key])
        assert pool.match([1, 2, 3, 4]).tolist() == model.match([1, 2, 3, 4])

    @invariant()
    def same_gauges(self) -> None:
        """free + cached + used + fenced = pool."""
        model, pool = self.model, self.pool
        assert pool.available == len(model.queue)
        assert pool.cached == len([block for block in model.queue if block in model.key_of])
        assert pool.used == len([block for block, count in model.references.items() if count])
        assert pool.available + pool.used + pool.fenced == pool.num_blocks


Pool.TestCase.settings = settings(max_examples=150, stateful_step_count=40, derandomize=True, deadline=None)
TestPool = Pool.TestCase


def test_the_oldest_freed_block_is_taken_first() -> None:
    pool = BlockPool(5, 4, 8)
    assert pool.take(4).tolist() == [0, 1, 2, 3]
    pool.give_back(blocks_of(2, 0))
    pool.give_back(blocks_of(3))
    assert pool.queue().tolist() == [4, 2, 0, 3]
    assert pool.take(4).tolist() == [4, 2, 0, 3]


def test_of_several_blocks_with_one_hash_the_oldest_is_hit() -> None:
    pool = BlockPool(5, 4, 8)
    pool.take(3)
    pool.publish(blocks_of(2), np.array([9], np.uint64))
    pool.publish(blocks_of(0, 1), np.array([9, 9], np.uint64))
    assert pool.match([9]).tolist() == [2]
    pool.unpublish(blocks_of(2))
    assert pool.match([9]).tolist() == [0]


def test_a_published_block_keeps_its_key() -> None:
    pool = BlockPool(2, 4, 8)
    block = pool.take(1)
    pool.publish(block, np.array([5], np.uint64))
    pool.publish(block, np.array([6], np.uint64))
    assert pool.match([5]).tolist() == [0] and pool.match([6]).tolist() == []


def test_a_cached_block_leaves_the_queue_when_it_is_hit_and_is_forgotten_when_it_is_taken() -> None:
    pool = BlockPool(2, 4, 8)
    pool.publish(pool.take(1), np.array([5], np.uint64))
    pool.give_back(blocks_of(0))
    assert pool.queue().tolist() == [1, 0] and pool.cached == 1
    pool.share(blocks_of(0))
    assert pool.queue().tolist() == [1] and pool.cached == 0
    pool.give_back(blocks_of(0))
    pool.take(2)
    assert pool.match([5]).tolist() == []


def test_a_match_is_a_prefix() -> None:
    pool = BlockPool(4, 4, 8)
    pool.publish(pool.take(3), np.array([1, 2, 4], np.uint64))
    assert pool.match([1, 2, 3, 4]).tolist() == [0, 1]
    assert pool.match([3, 1]).tolist() == []


def test_more_blocks_than_there_are_and_blocks_nobody_holds_are_refused_before_anything_changes() -> None:
    pool = BlockPool(2, 4, 8)
    with pytest.raises(AssertionError, match="3 blocks asked of 2"):
        pool.take(3)
    pool.take(1)
    with pytest.raises(AssertionError, match="nobody holds"):
        pool.give_back(blocks_of(0, 1))
    assert pool.references.tolist() == [1, 0] and pool.queue().tolist() == [1]


@given(st.integers(1, 6), st.integers(20, 200))
def test_the_queue_never_fills_up(size: int, plans: int) -> None:
    """Its array is squeezed at the begin of a plan, however many blocks have passed through it."""
    pool = BlockPool(size, 4, 8)
    for _ in range(plans):
        pool.begin()
        pool.give_back(pool.take(size))
    assert sorted(pool.queue().tolist()) == list(range(size))


def test_holders_are_lines_of_a_table_that_grows() -> None:
    pool = BlockPool(4, 4, 8)
    pool.begin()
    first = [pool.holder() for _ in range(40)]
    assert len(set(first)) == 40 and len(pool.table) >= 40
    pool.table[first[3]] = 7
    pool.return_holder(first[3])
    assert pool.holder() == first[3]


def test_undo_returns_holders() -> None:
    pool = BlockPool(4, 4, 8)
    pool.begin()
    kept = pool.holder()
    mark = pool.mark()
    undone = {pool.holder() for _ in range(30)}
    pool.undo(mark)
    again = {pool.holder() for _ in range(30)}
    assert kept not in undone | again and len(again) == 30


# -- hashes


def tokens_of(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 2**31 - 1), min_size=count, max_size=count)


@given(st.integers(1, 8), st.integers(0, 6), st.integers(0, 7), st.integers(0, 2**40), st.data())
def test_a_chain_equals_its_extension_one_by_one(size: int, count: int, rest: int, salt: int, data: Any) -> None:
    """Only full blocks count, and the salt is where the chain starts."""
    tokens = np.array(data.draw(tokens_of(count * size + rest % size)), np.int32)
    hashes = PrefixHash(size)
    chain = hashes.chain(tokens, salt)
    assert chain.shape == (count,) and chain.dtype == np.uint64
    at = np.array([salt], np.uint64)
    for block in range(count):
        at = hashes.extend(at, tokens[None, block * size : (block + 1) * size])
        assert at[0] == chain[block]


def test_many_chains_are_extended_at_once() -> None:
    hashes, random = PrefixHash(4), np.random.default_rng(1)
    chain, blocks = random.integers(0, 2**63, 50).astype(np.uint64), random.integers(0, 1000, (50, 4))
    together = hashes.extend(chain, blocks)
    assert together.tolist() == [hashes.extend(chain[i : i + 1], blocks[i : i + 1])[0] for i in range(50)]


def test_no_two_of_a_million_random_blocks_share_a_key() -> None:
    hashes, random = PrefixHash(16), np.random.default_rng(2)
    keys = hashes.keys(hashes.extend(np.zeros(500_000, np.uint64), random.integers(0, 32_000, (500_000, 16), np.int32)))
    small = np.array(np.meshgrid(*[np.arange(26)] * 4)).reshape(4, -1).T  # near ones: all blocks of four small ids
    near = PrefixHash(4).keys(PrefixHash(4).extend(np.zeros(len(small), np.uint64), small))
    assert len(np.unique(keys)) == len(keys) and len(np.unique(near)) == len(near)


@given(st.permutations(range(1, 9)), st.sampled_from([2, 4, 8]))
def test_a_permutation_and_its_inverse_have_different_keys(order: list[int], size: int) -> None:
    """Places and token ids are mixed by different streams; else sum f(token) f(place) is symmetric in the two."""
    block = [token for token in order if token <= size]
    inverse = [block.index(token) + 1 for token in range(1, size + 1)]
    hashes = PrefixHash(size)
    one, other = hashes.digests(np.array([block, inverse]))
    assert (one == other) == (block == inverse)


def test_a_key_tells_the_prefix_the_place_and_the_salt() -> None:
    hashes = PrefixHash(2)

    def last(*tokens: int, salt: int = 0) -> int:
        return int(hashes.keys(hashes.chain(np.array(tokens), salt))[-1])

    different = [
        last(1, 2),
        last(2, 1),
        last(1, 2, 1, 2),
        last(1, 2, 2, 1),
        last(2, 1, 1, 2),
        last(1, 2, salt=1),
        last(0, 0),
        last(0, 0, 0, 0),
    ]
    assert len(set(different)) == len(different)
