"""The steady path: the same rows decode again, and the decision of the last boundary still holds.

The facts of the decoding rows are kept as dense arrays in batch order and written through to the columns, so that a
steady boundary gathers nothing and looks at no request one by one.
"""

from __future__ import annotations

import numpy as np

from interlock.core.batch import Batch
from interlock.core.draft import Draft, Walk
from interlock.core.fill import publish_decodes
from interlock.core.state import State


class Settled:
    """A decision that holds until somebody comes, goes or ends, or blocks run short."""

    def __init__(self, state: State, draft: Draft, batch: Batch) -> None:
        self.state, self.batch = state, batch
        self.reasons, self.rest = draft.reasons, draft.rest
        self._plan, self._group, self._limits = draft.plan, draft.group, draft.limits
        self._waiting, self._active = state.waiting.version, state.active_version
        self.rows, self.holders, self.versions = batch.rows, batch.holders, batch.versions
        self.dense = False
        self._quiet = np.zeros(len(self.rows), np.int64)
        for array in (batch.rows, batch.holders, batch.versions, batch.tokens, batch.samples):
            array.flags.writeable = False

    def _load(self) -> None:
        """Dense copies, as of a moment at which nothing is in flight."""
        state, table, rows = self.state, self.state.table, self.rows
        self.computed = table.computed[rows]
        self.left = table.limit[rows] - table.emitted[rows]
        self.emitted = table.emitted[rows]
        self.slack = table.blocks[rows].astype(np.int64) * state.pool.block_size - self.computed
        self.one_by_one = np.flatnonzero(table.stops[rows] == 2)
        self.heeds_eos = table.stops[rows] == 1
        self.dense = True

    def again(self) -> Draft | None:
        """The draft of this boundary, its blocks taken; None when the decision has to be made anew."""
        state = self.state
        if self._waiting != state.waiting.version or self._active != state.active_version:
            return None
        if not self.dense:
            self._load()
        draft = Draft(state, self._plan, self._group, self._limits)
        draft.reasons, draft.rest, draft.settled = self.reasons, self.rest, self
        growing = np.flatnonzero(self.slack == 0)
        if len(growing) > state.pool.available:
            return None
        draft.walk = Walk(self.rows, self.batch.tokens, self._quiet)
        if len(growing):
            self._grow(draft, growing)
        if state.kv.enable_prefix_caching:
            filled = np.flatnonzero(self.slack == 1)
            if len(filled):
                holders, chain, blocks = publish_decodes(state, self.rows[filled], self.computed[filled])
                draft.chains.append((holders, chain))
                draft.published.append(blocks)
        return draft

    def _grow(self, draft: Draft, growing: np.ndarray) -> None:
        rows = self.rows[growing]
        draft.growing = rows
        self.state.pool.table[self.holders[growing], self.state.table.blocks[rows]] = self.state.pool.take(len(rows))
        self.slack[growing] = self.state.pool.block_size

    def advance(self, runs: int) -> None:
        """So many runs were applied."""
        self.computed += runs
        self.emitted += runs
        self.left -= runs
        if runs == 1:
            self.slack -= 1
        else:
            blocks = self.state.table.blocks[self.rows].astype(np.int64)
            self.slack = blocks * self.state.pool.block_size - self.computed
