"""A batch as tensors: token ids, positions, and how they lie in the paged cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from interlock.core.batch import Batch
from interlock.executors.torch.paged import Paged


@dataclass(frozen=True, slots=True)
class Inputs:
    """The T tokens of a batch, row after row.

    * `ids`, `positions` int64 (T,); `last` int64 (n,): the place of each row's last token
    * `owner` intp (T,), on the host: which row of the batch each token belongs to
    """

    ids: Tensor
    positions: Tensor
    last: Tensor
    owner: np.ndarray
    paged: Paged


class InputMaker:
    """Turns batches into tensors on one device. Nothing here looks at a row one by one."""

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int, device: torch.device) -> None:
        """A plane of the cache has `num_blocks` blocks and a spare one, for what nobody reads."""
        self._num_blocks, self._block_size = num_blocks, block_size
        self._vocab_size, self._device = vocab_size, device

    def make(self, batch: Batch, prefix: np.ndarray | None = None) -> Inputs:
        """All of the batch's tokens; `prefix` as in `Paged`.

        Synthetic prompts may hold ids past a small vocabulary; they are folded into it.
        """
        size, tokens = self._block_size, batch.tokens
        offsets = np.zeros(len(batch) + 1, np.int32)
        np.cumsum(tokens, out=offsets[1:])
        owner = np.repeat(np.arange(len(batch)), tokens)
        positions = np.arange(offsets[-1]) + (batch.start - offsets[:-1])[owner]
        ids = batch.context[batch.holders[owner], positions] % self._vocab_size
        context = batch.start + tokens
        table = batch.block_table[batch.holders, : -(-int(context.max() + batch.repeat - 1) // size)]
        blocks = table[owner, positions // size].astype(np.int64)
        paged = Paged(
            self.move(offsets),
            self.move(context.astype(np.int32)),
            self.move(np.ascontiguousarray(table)),
            self.move(blocks * size + positions % size),
            int(tokens.max()),
            int(context.max()),
            None if prefix is None else self.move(prefix.astype(np.int32)),
        )
        last = self.move(offsets[1:].astype(np.int64) - 1)
        return Inputs(self.move(ids.astype(np.int64)), self.move(positions), last, owner, paged)

    def fold(self, inputs: Inputs, depth: np.ndarray, still: np.ndarray | None = None) -> Paged:
        """The same in the KV plane of each row's depth (n,). Tokens that are `still` (T,) write to the spare block."""
        paged = inputs.paged
        first = depth.astype(np.int64) * (self._num_blocks + 1)
        slots = paged.slots + self.move(first[inputs.owner] * self._block_size)
        if still is not None:
            spare = (first[inputs.owner] + self._num_blocks) * self._block_size
            slots = torch.where(self.move(still), self.move(spare), slots)
        return replace(paged, table=paged.table + self.move(first.astype(np.int32))[:, None], slots=slots)

    def following(self, before: Inputs, tokens: Tensor) -> Inputs:
        """The inputs of the next run of a stretch: each row decodes the token (n,) that it has just sampled."""
        paged, positions, size = before.paged, before.positions + 1, self._block_size
        blocks = paged.table.gather(1, (positions // size)[:, None]).squeeze(1).long()
        slots = blocks * size + positions % size
        moved = replace(paged, context=paged.context + 1, slots=slots, deepest=paged.deepest + 1)
        return Inputs(tokens, positions, before.last, before.owner, moved)

    def move(self, array: np.ndarray) -> Tensor:
        """The array on the device."""
        tensor = torch.from_numpy(array)
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)
