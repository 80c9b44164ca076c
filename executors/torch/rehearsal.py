"""The largest batch that an engine may form, made up: run before the pool is sized, to see what memory it takes."""

from __future__ import annotations

import numpy as np

from interlock.core.batch import Batch
from interlock.core.request import Request
from interlock.core.work import Operation, WorkKey


def prompts(budget: int, max_model_len: int, block_size: int) -> tuple[Batch, int]:
    """A FORWARD of prompts with `budget` tokens in all, and the blocks that it needs."""
    rows, longest = -(-budget // max_model_len), min(budget, max_model_len)
    tokens = np.full(rows, longest, np.int64)
    tokens[-1] = budget - longest * (rows - 1)
    pages = -(-longest // block_size)
    at, zeros = np.arange(rows), np.zeros(rows, np.int64)
    batch = Batch(
        step=0,
        operation=Operation.FORWARD,
        start_ns=0,
        rows=at,
        versions=zeros,
        numbers=zeros,
        work=np.full(rows, WorkKey.PROMPT_ATOMIC, np.int8),
        start=zeros,
        tokens=tokens,
        samples=np.ones(rows, bool),
        loop=zeros,
        holders=at,
        block_table=np.arange(rows * pages, dtype=np.int32).reshape(rows, pages),
        context=np.zeros((rows, longest), np.int32),
        new={row: (row, Request(f"rehearsal {row}", int(tokens[row]))) for row in range(rows)},
    )
    return batch, rows * pages
