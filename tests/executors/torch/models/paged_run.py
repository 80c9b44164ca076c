"""Runs a looped model as an executor would: many sequences over one paged cache, at different depths in one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from interlock.executors.torch.attention.reference import Reference
from interlock.executors.torch.models import looped_class
from interlock.executors.torch.models.kv import KV
from interlock.executors.torch.models.looped import LoopedModel
from interlock.executors.torch.models.tiny import init_weights, tiny_config
from interlock.executors.torch.paged import Layer, Paged


def tiny_model(name: str, dtype: torch.dtype = torch.float64, seed: int = 1, **changes: object) -> LoopedModel:
    """A tiny random model, its configuration changed by `changes`."""
    config = tiny_config(name) | changes
    model = looped_class(config["model_type"]).build(config)
    init_weights(model, seed)
    return model.to(dtype)


@dataclass
class Row:
    """One sequence and where it stands: `count` tokens from `start` are to run `stage`, at `depth`."""

    ids: list[int]
    chunks: list[int]  # of the prompt, the last one first
    seed: int
    depth_of: Callable[[int], int]  # loops of the token at an output position
    blocks: list[int]
    prompt: int = 0
    start: int = 0
    count: int = 0
    depth: int = 0
    stage: str = "prelude"
    hidden: Tensor = field(default_factory=lambda: torch.zeros(0))
    logits: list[Tensor] = field(default_factory=list)
    gates: list[float | None] = field(default_factory=list)  # of its last token, loop by loop

    def __post_init__(self) -> None:
        self.prompt = len(self.ids)
        self.count = self.chunks.pop()

    @property
    def loops(self) -> int | None:
        """Loops of its tokens where that is less than the model's."""
        return None if self.start < self.prompt else self.depth_of(len(self.ids) - self.prompt)


class PagedRun:
    """A model and a cache whose every slot is NaN until it is written."""

    def __init__(self, model: LoopedModel, num_blocks: int, block_size: int) -> None:
        self.model, self.size, self.num_blocks = model, block_size, num_blocks
        self.free = np.random.default_rng(0).permutation(num_blocks).tolist()
        shape, dtype = model.shape, next(model.parameters()).dtype

        def layers(count: int, planes: int = 1) -> list[Layer]:
            page = (planes * num_blocks, block_size, shape.kv_heads, shape.head_dim)
            return [Layer(*(torch.full(page, torch.nan, dtype=dtype) for _ in range(2))) for _ in range(count)]

        self.kv = KV(
            Reference(),
            layers(shape.prelude_layers),
            layers(shape.recurrent_layers, shape.loops),
            layers(shape.coda_layers),
        )

    def admit(
        self,
        prompt: Sequence[int],
        chunks: Sequence[int],
        outputs: int,
        seed: int = 0,
        depth_of: Callable[[int], int] | None = None,
    ) -> Row:
        """A sequence with blocks for `outputs` tokens, of which the last is not fed back."""
        blocks = [self.free.pop() for _ in range(-(-(len(prompt) + outputs - 1) // self.size))]
        return Row(list(prompt), list(chunks)[::-1], seed, depth_of or (lambda _: self.model.shape.loops), blocks)

    @torch.no_grad()
    def step(self, rows: Sequence[Row]) -> None:
        """One batch of rows that all stand before the same stage."""
        positions = torch.cat([torch.arange(row.start, row.start + row.count) for row in rows])
        (stage,) = {row.stage for row in rows}
        if stage == "prelude":
            self._prelude(rows, positions)
        elif stage == "recurrent":
            self._recurrent(rows, positions)
        else:
            self._coda(rows, positions)

    def _prelude(self, rows: Sequence[Row], positions: Tensor) -> None:
        ids = torch.tensor([token for row in rows for token in row.ids[row.start : row.start + row.count]])
        seeds = torch.tensor([row.seed for row in rows for _ in range(row.count)])
        self._keep(rows, self.model.prelude(ids, positions, seeds, self.kv, self._paged(rows)), "recurrent")

    def _recurrent(self, rows: Sequence[Row], positions: Tensor) -> None:
        depth = torch.tensor([row.depth for row in rows for _ in range(row.count)])
        paged = self._paged(rows, [row.depth * self.num_blocks for row in rows])
        hidden, gate = self.model.recurrent(torch.cat([row.hidden for row in rows]), depth, positions, self.kv, paged)
        self._keep(rows, hidden, "recurrent")
        last = np.cumsum([row.count for row in rows]) - 1
        for row, at in zip(rows, last.tolist(), strict=True):
            row.depth += 1
            row.gates.append(None if gate is None else float(gate[at]))
            if row.depth == min(row.loops or self.model.shape.loops, self.model.shape.loops):
                self._copy_deeper(row)
                row.stage = "coda"

    def _coda(self, rows: Sequence[Row], positions: Tensor) -> None:
        states = self.model.coda(torch.cat([row.hidden for row in rows]), positions, self.kv, self._paged(rows))
        self._keep(rows, states, "prelude")
        for row in rows:
            row.start, row.depth = row.start + row.count, 0
            row.count = row.chunks.pop() if row.chunks else 1
            if row.start >= row.prompt:
                row.logits.append(self.model.logits(row.hidden[-1:])[0])
                row.ids.append(int(row.logits[-1].argmax()))

    def _keep(self, rows: Sequence[Row], hidden: Tensor, stage: str) -> None:
        for row, part in zip(rows, hidden.split([row.count for row in rows]), strict=True):
            row.hidden, row.stage = part, stage

    def _paged(self, rows: Sequence[Row], planes: Sequence[int] | None = None) -> Paged:
        counts = [row.count for row in rows]
        contexts = [row.start + row.count for row in rows]
        offsets = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
        table = torch.full((len(rows), max(len(row.blocks) for row in rows)), -1, dtype=torch.int32)
        slots = []
        for at, (row, plane) in enumerate(zip(rows, planes or [0] * len(rows), strict=True)):
            blocks = [block + plane for block in row.blocks]
            table[at, : len(blocks)] = torch.tensor(blocks)
            slots += [blocks[p // self.size] * self.size + p % self.size for p in range(row.start, contexts[at])]
        prefix = torch.tensor([row.prompt for row in rows], dtype=torch.int32) if self.model.prefix_lm else None
        context = torch.tensor(contexts, dtype=torch.int32)
        return Paged(offsets, context, table, torch.tensor(slots), max(counts), max(contexts), prefix)

    def _copy_deeper(self, row: Row) -> None:
        """What a token left at its exit depth stands for all deeper planes."""
        block, at = row.blocks[row.start // self.size], row.start % self.size
        for layer in self.kv.recurrent:
            for depth in range(row.depth, self.model.shape.loops):
                for cache in layer:
                    here = (row.depth - 1) * self.num_blocks + block
                    cache[depth * self.num_blocks + block, at] = cache[here, at]
