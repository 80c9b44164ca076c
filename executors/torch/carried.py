"""The rows that a looped model carries from one operation to the next."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from interlock.core.batch import Batch


class Carried:
    """Carried rows by table row: one for a decode token or a prompt's last token, some for a chunk between its loops.

    A row is kept at two depths, the one it was last read at and the next, so that a batch whose result is lost can run
    again. All of it outlives suspension.
    """

    def __init__(self, width: int, like: Tensor) -> None:
        """`width` of a row; `like`: a tensor of the dtype and on the device that they have."""
        self._slab = like.new_zeros((2, 0, width))  # by the parity of the depth
        self._chunks: tuple[dict[int, Tensor], dict[int, Tensor]] = ({}, {})
        self._out_at = np.zeros(0, np.int64)  # the depth at which each row left the loop

    def load(self, batch: Batch, depth: np.ndarray) -> Tensor:
        """The batch's tokens, (T, width), each row of it at its depth."""
        sides, prompt = depth % 2, batch.is_prompt
        if not prompt.any():
            return self._slab[self._move(sides), self._move(batch.rows)]
        rows = zip(batch.rows.tolist(), sides.tolist(), prompt.tolist(), strict=True)
        return torch.cat([self._chunks[side][row] if many else self._slab[side, row, None] for row, side, many in rows])

    def store(self, batch: Batch, hidden: Tensor, depth: np.ndarray) -> None:
        """Keep the batch's tokens, which are at these depths now."""
        ends, sides, prompt = np.cumsum(batch.tokens), depth % 2, batch.is_prompt
        single = np.flatnonzero(~prompt)
        if len(single):
            self._put(batch.rows[single], sides[single], hidden[self._move(ends[single] - 1)])
        for at in np.flatnonzero(prompt).tolist():
            self._chunks[sides[at]][int(batch.rows[at])] = hidden[int(ends[at] - batch.tokens[at]) : int(ends[at])]

    def out(self, rows: np.ndarray, depth: np.ndarray) -> None:
        """These rows left the loop at these depths."""
        self._grow(int(rows.max()) + 1)
        self._out_at[rows] = depth

    def load_out(self, rows: np.ndarray) -> Tensor:
        """The rows with which these left the loop, (n, width). Their chunks are over."""
        for chunks in self._chunks:
            for row in rows.tolist() if chunks else ():
                chunks.pop(row, None)
        return self._slab[self._move(self._out_at[rows] % 2), self._move(rows)]

    def keep_last(self, rows: np.ndarray, last: Tensor, depth: int) -> None:
        """Prompts left the loop at this depth, and only their last tokens, (n, width), are carried on."""
        self._put(rows, np.full(len(rows), depth % 2), last)
        self.out(rows, np.full(len(rows), depth))

    def drop(self, row: int) -> None:
        """The row's chunk is not needed any more. Idempotent."""
        for chunks in self._chunks:
            chunks.pop(row, None)

    def _put(self, rows: np.ndarray, sides: np.ndarray, hidden: Tensor) -> None:
        self._grow(int(rows.max()) + 1)
        self._slab[self._move(sides), self._move(rows)] = hidden

    def _move(self, places: np.ndarray) -> Tensor:
        return torch.from_numpy(places.astype(np.int64)).to(self._slab.device)

    def _grow(self, rows: int) -> None:
        have = self._slab.shape[1]
        if rows > have:
            grown = self._slab.new_zeros((2, 2 * rows, self._slab.shape[2]))
            grown[:, :have] = self._slab
            self._slab = grown
            self._out_at = np.concatenate([self._out_at, np.zeros(2 * rows - have, np.int64)])
