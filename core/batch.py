"""Scheduled work, immutable once it is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from interlock.core.work import IS_PROMPT, Operation, WorkKey

if TYPE_CHECKING:
    from interlock.core.request import Request


@dataclass(frozen=True)
class Batch:
    """One model call for n rows, in batch order. All arrays are read-only and of length n unless said otherwise.

    * `rows` intp, `versions` int64, `numbers` int64 (the request's number in the run), `work` int8
    * `start` int64: the position of each row's first token (= computed before the batch)
    * `tokens` int64: tokens to run. `samples` bool: the row's last token yields a new one
    * `loop` int64: depth of each row on looped models, else zeros
    * `holders` intp: each row's line in `block_table` (2-D, int32; entries past the row's blocks are undefined)
    * `context` 2-D int32: token ids known so far, indexed by `holders`; a decode token's id is at its `start`
    * `new`: the requests whose rows the executor sees for the first time, by row
    * `repeat`: a decode batch may be run up to this many times in a row, each row advancing one token each time; the
      executor stops after the first run in which a row ends, or whose end reaches `until_ns`
    """

    step: int
    operation: Operation
    start_ns: int
    rows: np.ndarray
    versions: np.ndarray
    numbers: np.ndarray
    work: np.ndarray
    start: np.ndarray
    tokens: np.ndarray
    samples: np.ndarray
    loop: np.ndarray
    holders: np.ndarray
    block_table: np.ndarray
    context: np.ndarray
    new: Mapping[int, tuple[int, Request]]
    repeat: int = 1
    until_ns: int | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def is_prompt(self) -> np.ndarray:
        """Which rows run prompt work, bool."""
        return np.asarray(IS_PROMPT[self.work])

    @cached_property
    def prompt_tokens(self) -> int:
        """Tokens of prompt chunks."""
        return int(self.tokens[self.is_prompt].sum())

    @cached_property
    def decode_tokens(self) -> int:
        """Tokens of decode rows."""
        return int(self.tokens[~self.is_prompt].sum())

    @cached_property
    def context_tokens(self) -> int:
        """KV tokens that the decode rows read in the first run: each its whole context, the new token included."""
        decode = ~self.is_prompt
        return int(self.start[decode].sum() + self.tokens[decode].sum())

    @cached_property
    def prompt_attention(self) -> float:
        """Sum over prompt chunks of q k + q (q + 1) / 2: q new tokens over k tokens of context."""
        q = self.tokens[self.is_prompt].astype(np.float64)
        k = self.start[self.is_prompt].astype(np.float64)
        return float((q * k + q * (q + 1) / 2).sum())

    @property
    def decode_only(self) -> bool:
        """Whether every row runs one decode token of a dense model."""
        return bool((self.work == WorkKey.DECODE_ATOMIC).all())


@dataclass(frozen=True, slots=True)
class Ticket:
    """A submitted batch whose result has not been collected."""

    id: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of a ticket.

    * `ends_ns` int64, shape (runs,): the engine time at which each run ended; `runs` is at most `batch.repeat`
    * `tokens` int32, shape (runs, n): the token that each row sampled in each run, -1 where it sampled none
    * `exits` bool (n,) for RECURRENT batches: the row leaves the loop here; else None
    * `error`: the batch failed as a whole and none of it counts; the other fields are then empty but `ends_ns`
    """

    ticket: Ticket
    ends_ns: np.ndarray
    tokens: np.ndarray
    exits: np.ndarray | None = None
    error: Exception | None = None

    @property
    def runs(self) -> int:
        """How many times the batch ran."""
        return len(self.ends_ns)
