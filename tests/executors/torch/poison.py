"""An executor whose memory is NaN wherever nothing lies that somebody may read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from interlock.core import BatchResult, Engine, WorkKey
from interlock.core.state import State
from interlock.executors.torch.executor import Torch

_IN_THE_LOOP = (WorkKey.PROMPT_RECURRENT, WorkKey.DECODE_RECURRENT)


class Poisoned:
    """The torch executor; before each batch runs, all KV is poisoned but what a live row has computed.

    The unused tails of owned blocks, the spare block, the depths that a token in the loop has not reached, the coda's
    layers of a token before its coda, and host copies without an owner are poisoned, too.
    """

    engine: Engine

    def __init__(self, inner: Torch, active: bool = True) -> None:
        self.inner, self.active = inner, active

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def collect(self, block: bool) -> Sequence[BatchResult]:
        """Poison, then run."""
        state = self.engine.state
        if self.active and state.tickets:
            self._poison(state)
        return self.inner.collect(block)

    def _poison(self, state: State) -> None:
        cache = self.inner._cache
        for part, good in zip(cache._parts, readable(state, cache.loops), strict=True):
            part.masked_fill_(torch.from_numpy(~good)[:, :, :, None, None], torch.nan)
        free = np.array(state._host, np.int64)
        for host in cache._host:
            if host.numel():
                host[torch.from_numpy(free[free < len(host)])] = torch.nan


def readable(state: State, loops: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where KV is valid in the layers of prelude, loop and coda, bool (planes, blocks + 1, block_size)."""
    pool, table = state.pool, state.table
    page = (pool.num_blocks + 1, pool.block_size)
    prelude, loop, coda = np.zeros((1, *page), bool), np.zeros((loops, *page), bool), np.zeros((1, *page), bool)
    cached = np.flatnonzero(pool._published)
    for part in (prelude, loop, coda):
        part[:, cached] = True
    for row in state.entries:
        if not table.blocks[row]:
            continue
        computed, depth = int(table.computed[row]), int(table.loop[row])
        inside = _pending(state, row) if table.work[row] in _IN_THE_LOOP else 0
        places = _places(state, row, computed + inside)
        for part in (prelude, loop[:depth] if inside else loop):
            part[:, places[0], places[1]] = True
        if inside:
            loop[:, places[0][:computed], places[1][:computed]] = True
            again = int(table.prompt_tokens[row])  # what is decoded already, and may have left before, is ready early
            loop[:, places[0][again:], places[1][again:]] |= table.work[row] == WorkKey.PROMPT_RECURRENT
        coded = computed - (table.work[row] == WorkKey.DECODE_CODA)
        coda[:, places[0][:coded], places[1][:coded]] = True
    return prelude, loop, coda


def _pending(state: State, row: int) -> int:
    """Tokens that a row has in the loop."""
    return int(state.table.chunk[row]) if state.table.work[row] == WorkKey.PROMPT_RECURRENT else 1


def _places(state: State, row: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Block and offset of a row's first tokens."""
    positions, size = np.arange(count), state.pool.block_size
    return state.held(row)[positions // size], positions % size
