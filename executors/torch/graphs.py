"""Decode steps of a dense model as CUDA graphs: one launch instead of some hundred."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from interlock.executors.torch.inputs import Inputs
from interlock.executors.torch.paged import Paged

Forward = Callable[[Inputs], Tensor]

_SHALLOWEST = 1024  # graphs for shorter contexts would differ in nothing but how the context is split


class Recorder(Protocol):
    """Records what a function does on the device."""

    def record(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """A function that does it again, and the tensor that its result is in after each time."""
        ...


class CudaRecorder:
    """Records CUDA graphs that share one memory pool, since never two of them run at once."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Run it once outside, since kernels are compiled and workspaces taken at first, then capture it."""
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = run()
        return graph.replay, result


class DecodeGraphs:
    """Runs `forward` on batches in which each row decodes one token, padded to sizes that are recorded when first met.

    A padded row has context 0 and slot -1: attention writes nothing for it, and what it yields is cut off.
    """

    def __init__(self, forward: Forward, recorder: Recorder, max_rows: int, pages: int, max_model_len: int) -> None:
        """`pages`: blocks of a row of `max_model_len` tokens."""
        self._forward, self._recorder = forward, recorder
        self._max_rows, self._pages, self._max_model_len = max_rows, pages, max_model_len
        self._graphs: dict[tuple[int, int], _Graph] = {}

    def __call__(self, inputs: Inputs) -> Tensor:
        """What `forward` gives for these rows: (n, ...), valid until the next call."""
        rows = len(inputs.ids)
        key = min(_padded(rows), self._max_rows), min(_depth(inputs.paged.deepest), self._max_model_len)
        if key not in self._graphs:
            self._graphs[key] = _Graph(self._forward, self._recorder, *key, self._pages, inputs)
        return self._graphs[key].run(inputs, rows)


class _Graph:
    """One recorded size, and the tensors that it reads."""

    def __init__(self, forward: Forward, recorder: Recorder, rows: int, deepest: int, pages: int, like: Inputs) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=like.ids.device)

        steps = torch.arange(rows + 1, dtype=torch.int32, device=like.ids.device)
        context, table = zeros(rows, dtype=torch.int32), zeros(rows, pages, dtype=torch.int32)
        paged = Paged(steps, context, table, zeros(rows) - 1, 1, deepest)
        self._inputs = Inputs(zeros(rows), zeros(rows), steps[:-1].long(), np.arange(rows), paged)
        self._replay, self._result = recorder.record(lambda: forward(self._inputs))

    def run(self, inputs: Inputs, rows: int) -> Tensor:
        own, paged, given = self._inputs, self._inputs.paged, inputs.paged
        own.ids[:rows], own.positions[:rows] = inputs.ids, inputs.positions
        paged.context[:rows], paged.slots[:rows] = given.context, given.slots
        paged.context[rows:], paged.slots[rows:] = 0, -1
        paged.table[:rows, : given.table.shape[1]] = given.table
        self._replay()
        return self._result[:rows]


def _padded(rows: int) -> int:
    """The size of the graph for so many rows: powers of two, then steps of 8, then an eighth more at most."""
    if rows <= 8:
        return 1 << (rows - 1).bit_length()
    step = max(8, 1 << ((rows - 1).bit_length() - 4))
    return -(-rows // step) * step


def _depth(deepest: int) -> int:
    return max(_SHALLOWEST, 1 << (deepest - 1).bit_length())
