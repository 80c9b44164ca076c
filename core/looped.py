"""What a looped model's operations do to a row: prelude, loops, coda (docs/design.md, Work and operations)."""

from __future__ import annotations

import numpy as np

from interlock.core.batch import Batch, BatchResult
from interlock.core.errors import ExecutorError
from interlock.core.fill import publish_decodes
from interlock.core.state import State
from interlock.core.work import IS_PROMPT, Operation, WorkKey


def advance(state: State, batch: Batch, result: BatchResult, keep: slice | np.ndarray) -> np.ndarray:
    """Apply one result to the rows `keep` of its batch, all but sampled tokens. Returns tokens newly valid, per row."""
    rows = batch.rows[keep]
    before = state.table.computed[rows]
    if batch.operation is Operation.FORWARD:
        _prompt_done(state, rows, batch.tokens[keep])
    elif batch.operation is Operation.PRELUDE:
        _into_the_loop(state, rows, batch.tokens[keep])
    elif batch.operation is Operation.RECURRENT:
        if result.exits is None or len(result.exits) != len(batch):
            raise ExecutorError(f"batch {batch.step}: a RECURRENT result says for each row whether it leaves the loop")
        _one_loop(state, rows, result.exits[keep])
    return np.asarray(state.table.computed[rows] - before)


def _prompt_done(state: State, rows: np.ndarray, tokens: np.ndarray) -> None:
    """An atomic chunk went through the whole depth; after the last one the coda samples the first token."""
    table = state.table
    table.computed[rows] += tokens
    _after_chunk(state, rows, WorkKey.PROMPT_ATOMIC)


def _after_chunk(state: State, rows: np.ndarray, more: WorkKey) -> None:
    table = state.table
    done = table.computed[rows] == table.prompt_tokens[rows] + table.emitted[rows]
    table.work[rows] = np.where(done, WorkKey.DECODE_CODA, more)


def _into_the_loop(state: State, rows: np.ndarray, tokens: np.ndarray) -> None:
    """The prelude ran: the chunk's size is fixed, and its rows are at depth 0."""
    table = state.table
    table.chunk[rows], table.loop[rows] = tokens, 0
    table.work[rows] = np.where(IS_PROMPT[table.work[rows]], WorkKey.PROMPT_RECURRENT, WorkKey.DECODE_RECURRENT)


def _one_loop(state: State, rows: np.ndarray, exits: np.ndarray) -> None:
    """One loop deeper. A row that leaves has its tokens valid at every depth."""
    table = state.table
    prompt = IS_PROMPT[table.work[rows]]
    table.loop[rows] += 1
    leaving = rows[exits]
    start = table.computed[leaving].copy()
    table.computed[leaving] += table.chunk[leaving]
    table.chunk[leaving] = table.loop[leaving] = 0
    _after_chunk(state, rows[exits & prompt], WorkKey.PROMPT_PRELUDE)
    decoded = exits & ~prompt
    table.work[rows[decoded]] = WorkKey.DECODE_CODA
    if state.kv.enable_prefix_caching and state.model.shares_outputs:
        # A decode's last loop is known only now, so its block is published here; a prompt's was when it was planned.
        at = ~prompt[exits] & ((start + 1) % state.pool.block_size == 0)
        if at.any():
            holders, chain, _ = publish_decodes(state, leaving[at], start[at])
            state.chain[holders] = chain
