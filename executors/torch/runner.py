"""Runs batches on a dense model."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from interlock.core.batch import Batch
from interlock.core.request import Request
from interlock.executors.torch.cache import PagedCache
from interlock.executors.torch.graphs import DecodeGraphs, Recorder
from interlock.executors.torch.inputs import InputMaker, Inputs
from interlock.executors.torch.models.dense import DenseModel
from interlock.executors.torch.rows import Rows
from interlock.executors.torch.sampling import choose
from interlock.executors.torch.timing import Watch

LONGEST_STRETCH = 16
"""Decode runs in a row before the engine is asked again, so that those who arrive meanwhile do not wait long."""


class Runner(Protocol):
    """A model's side of a batch."""

    def runs(self, batch: Batch) -> int:
        """How many runs of this batch there may be at most."""
        ...

    def run(self, batch: Batch, runs: int, watch: Watch) -> tuple[np.ndarray, np.ndarray | None]:
        """Run it, `runs` times at most. Returns `tokens` and `exits` as in `BatchResult`."""
        ...

    def welcome(self, row: int, request: Request) -> None:
        """The row belongs to this request now."""
        ...

    def drop(self, row: int) -> None:
        """What is carried for the row between batches is not needed any more. Idempotent."""
        ...


class DenseRunner:
    """Prompt chunks and decode tokens in one forward; decode batches several times in a row."""

    def __init__(self, model: DenseModel, cache: PagedCache, rows: Rows, maker: InputMaker) -> None:
        self._model, self._kv, self._rows, self._maker = model, cache.kv, rows, maker
        self._graphs: DecodeGraphs | None = None

    def use_graphs(self, recorder: Recorder, max_rows: int, max_model_len: int, block_size: int) -> None:
        """Decode batches run recorded from now on."""
        pages = -(-max_model_len // block_size)
        self._graphs = DecodeGraphs(self._logits, recorder, max_rows, pages, max_model_len)

    def runs(self, batch: Batch) -> int:
        """Up to and with the first in which an end is known to fall."""
        if batch.repeat == 1:
            return 1
        return min(batch.repeat, LONGEST_STRETCH, self._rows.runs_left(batch.rows, batch.start + 1))

    def run(self, batch: Batch, runs: int, watch: Watch) -> tuple[np.ndarray, np.ndarray | None]:
        """Up to and with the first run in which a row ends or time is up."""
        said: list[np.ndarray] = []
        inputs, positions = self._maker.make(batch), batch.start + batch.tokens
        while True:
            tokens = self._step(inputs, batch, positions + len(said))
            said.append(np.full(len(batch), -1, np.int32) if tokens is None else _on_host(tokens, batch))
            if not watch.ran() or len(said) == runs or tokens is None or self._rows.stopped(batch.rows, said[-1]):
                return np.stack(said), None
            inputs = self._maker.following(inputs, tokens)

    def welcome(self, row: int, request: Request) -> None:
        """Nothing is carried between batches."""

    def drop(self, row: int) -> None:
        """Nothing is carried between batches."""

    def _step(self, inputs: Inputs, batch: Batch, positions: np.ndarray) -> Tensor | None:
        """One run: the tokens of the rows that sample, int64; None where nobody does."""
        if inputs.paged.longest == 1 and batch.samples.all():
            return choose((self._graphs or self._logits)(inputs), batch.rows, positions, self._rows)
        states = self._model.states(inputs.ids, inputs.positions, self._kv, inputs.paged)
        at = np.flatnonzero(batch.samples)
        if not len(at):
            _wait_for(states.device)
            return None
        states = states[inputs.last[self._maker.move(at)]]
        return choose(self._model.logits(states), batch.rows[at], positions[at], self._rows)

    def _logits(self, inputs: Inputs) -> Tensor:
        """Logits of a batch in which every token is its row's last."""
        return self._model.logits(self._model.states(inputs.ids, inputs.positions, self._kv, inputs.paged))


def _on_host(tokens: Tensor, batch: Batch) -> np.ndarray:
    """int32 (n,), -1 for rows that do not sample."""
    chosen = tokens.to("cpu", torch.int32).numpy()
    if len(chosen) == len(batch):
        return np.asarray(chosen)
    said = np.full(len(batch), -1, np.int32)
    said[batch.samples] = chosen
    return said


def _wait_for(device: torch.device) -> None:
    """A batch is over when its device is through with it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
