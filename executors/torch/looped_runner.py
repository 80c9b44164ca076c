"""Runs the operations of a looped model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from interlock.core.batch import Batch
from interlock.core.request import Request
from interlock.core.work import Operation
from interlock.executors.torch.cache import PagedCache
from interlock.executors.torch.carried import Carried
from interlock.executors.torch.exits import Exits
from interlock.executors.torch.inputs import InputMaker, Inputs
from interlock.executors.torch.models.looped import LoopedModel
from interlock.executors.torch.rows import Rows
from interlock.executors.torch.sampling import choose
from interlock.executors.torch.timing import Watch


class LoopedRunner:
    """PRELUDE, RECURRENT and CODA as separate calls, and FORWARD for atomic prompts: all of them in one.

    Running a batch again, because its result was lost, gives the same.
    """

    def __init__(self, model: LoopedModel, cache: PagedCache, rows: Rows, maker: InputMaker, exits: Exits) -> None:
        self._model, self._cache, self._rows, self._maker, self._exits = model, cache, rows, maker, exits
        self._carried = Carried(model.shape.carried, cache.recurrent)

    def runs(self, batch: Batch) -> int:
        """Each operation of a looped model comes back to the engine."""
        return 1

    def run(self, batch: Batch, runs: int, watch: Watch) -> tuple[np.ndarray, np.ndarray | None]:
        """One operation."""
        tokens, exits = np.full((1, len(batch)), -1, np.int32), None
        if batch.operation is Operation.CODA:
            tokens[0] = self._coda(batch)
        elif batch.operation is Operation.RECURRENT:
            exits = self._recurrent(batch)
        elif batch.operation is Operation.PRELUDE:
            self._prelude(batch)
        else:
            self._forward(batch)
        if self._cache.recurrent.is_cuda:
            torch.cuda.synchronize(self._cache.recurrent.device)
        watch.ran()
        return tokens, exits

    def welcome(self, row: int, request: Request) -> None:
        """The row belongs to this request now."""
        self._exits.welcome(row, request)

    def drop(self, row: int) -> None:
        """The chunk between its loops, if there is one."""
        self._carried.drop(row)

    # -- the operations

    def _prelude(self, batch: Batch) -> None:
        inputs = self._inputs(batch)
        self._exits.begin(batch.rows)
        self._carried.store(batch, self._enter(batch, inputs), np.zeros(len(batch), np.int64))

    def _recurrent(self, batch: Batch) -> np.ndarray:
        """One loop for each row at its own depth. Returns who leaves."""
        inputs = self._inputs(batch)
        hidden, gate = self._loop(batch, inputs, self._carried.load(batch, batch.loop), batch.loop)
        done = batch.loop + 1
        self._carried.store(batch, hidden, done)
        left = done >= self._model.shape.loops
        decode = np.flatnonzero(~batch.is_prompt)
        if len(decode):
            left[decode] = self._leave(batch, inputs, decode, gate)
            gone = decode[left[decode]]
            if len(gone):
                self._carried.out(batch.rows[gone], done[gone])
        whole = np.flatnonzero(left & batch.is_prompt)
        if len(whole):
            self._end_chunks(_part(batch, whole), done[whole])
        return np.asarray(left)

    def _coda(self, batch: Batch) -> np.ndarray:
        inputs = self._inputs(batch)
        hidden = self._carried.load_out(batch.rows)
        states = self._model.coda(hidden, inputs.positions, self._cache.kv, inputs.paged)
        chosen = choose(self._model.logits(states), batch.rows, batch.start + 1, self._rows)
        return np.asarray(chosen.to("cpu", torch.int32).numpy())

    def _forward(self, batch: Batch) -> None:
        """A chunk of an atomic prompt through the whole depth; its first output passes the coda on its own."""
        inputs = self._inputs(batch)
        self._exits.begin(batch.rows)
        hidden = self._enter(batch, inputs)
        for depth in range(self._model.shape.loops):
            hidden, _ = self._loop(batch, inputs, hidden, np.full(len(batch), depth))
        self._leave_prompts(batch, inputs, hidden)

    # -- their parts

    def _inputs(self, batch: Batch) -> Inputs:
        prefix = self._rows.prompt[batch.rows] if self._model.prefix_lm else None
        return self._maker.make(batch, prefix=prefix)

    def _enter(self, batch: Batch, inputs: Inputs) -> Tensor:
        seeds = self._maker.move(self._rows.seed[batch.rows][inputs.owner].view(np.int64))
        return self._model.prelude(inputs.ids, inputs.positions, seeds, self._cache.kv, inputs.paged)

    def _loop(self, batch: Batch, inputs: Inputs, hidden: Tensor, depth: np.ndarray) -> tuple[Tensor, Tensor | None]:
        """One loop over all tokens. Context that left the loop earlier, when it was decoded, stands still."""
        limits = self._limits(batch, inputs)
        still = None if limits is None else limits <= depth[inputs.owner]
        depths = self._maker.move(depth[inputs.owner].astype(np.int64))
        folded = self._maker.fold(inputs, depth, still)
        after, gate = self._model.recurrent(hidden, depths, inputs.positions, self._cache.kv, folded)
        if still is None or limits is None:
            return after, gate
        after = torch.where(self._maker.move(still)[:, None], hidden, after)
        self._settle(batch, inputs, limits, depth, gate)
        return after, gate

    def _limits(self, batch: Batch, inputs: Inputs) -> np.ndarray | None:
        """The depth of each token where a chunk holds tokens that were decoded once, int64 (T,); else None."""
        past = (batch.start + batch.tokens > self._rows.prompt[batch.rows]) & batch.is_prompt
        if not self._exits.early or not past.any():
            return None
        limits = np.full(len(inputs.owner), self._model.shape.loops, np.int64)
        offsets = np.cumsum(batch.tokens) - batch.tokens
        for at in np.flatnonzero(past).tolist():
            row, count = int(batch.rows[at]), int(batch.tokens[at])
            first = int(batch.start[at]) - int(self._rows.prompt[row])
            limits[offsets[at] : offsets[at] + count] = self._exits.depth_of(row, first, count)
        return limits

    def _settle(self, batch: Batch, inputs: Inputs, limits: np.ndarray, depth: np.ndarray, gate: Tensor | None) -> None:
        """After a loop over context: spread the tokens that stand still from now on, the one that was never decoded
        leaving by the rule."""
        last = batch.start + batch.tokens - 1 - self._rows.prompt[batch.rows]
        rows = zip(batch.rows.tolist(), last.tolist(), batch.is_prompt.tolist(), strict=True)
        fresh = np.array([at for at, (row, out, p) in enumerate(rows) if p and self._exits.undecided(row, out)], int)
        if len(fresh):
            ends = np.cumsum(batch.tokens)[fresh] - 1
            left = self._exits.leave(batch.rows[fresh], last[fresh] + 1, depth[fresh], _host(gate, ends))
            limits[ends[left]] = depth[fresh][left] + 1
        now = np.flatnonzero(limits == depth[inputs.owner] + 1)
        self._spread(inputs, now, limits[now])

    def _leave(self, batch: Batch, inputs: Inputs, decode: np.ndarray, gate: Tensor | None) -> np.ndarray:
        """Which of the decode rows at these places leave; what they wrote stands for the deeper planes."""
        rows, ends = batch.rows[decode], np.cumsum(batch.tokens)[decode] - 1
        outputs = batch.start[decode] + 1 - self._rows.prompt[rows]
        left = self._exits.leave(rows, outputs, batch.loop[decode], _host(gate, ends))
        self._spread(inputs, ends[left], batch.loop[decode][left] + 1)
        return left

    def _spread(self, inputs: Inputs, places: np.ndarray, depths: np.ndarray) -> None:
        early = depths < self._model.shape.loops
        if early.any():
            at = self._maker.move(places[early])
            self._cache.spread(inputs.paged.slots[at], self._maker.move(depths[early]))

    def _end_chunks(self, chunks: Batch, depth: np.ndarray) -> None:
        """These chunks ran their last loop."""
        self._leave_prompts(chunks, self._inputs(chunks), self._carried.load(chunks, depth))

    def _leave_prompts(self, batch: Batch, inputs: Inputs, hidden: Tensor) -> None:
        """Later tokens attend to a prompt in the coda's layers, too; only its last token is carried on."""
        if self._model.shape.coda_layers:
            self._model.coda(hidden, inputs.positions, self._cache.kv, inputs.paged)
        self._carried.keep_last(batch.rows, hidden[inputs.last], self._model.shape.loops)


def _part(batch: Batch, places: np.ndarray) -> Batch:
    """The rows at these places alone."""
    names = ("rows", "versions", "numbers", "work", "start", "tokens", "samples", "loop", "holders")
    return replace(batch, **{name: getattr(batch, name)[places] for name in names})


def _host(gate: Tensor | None, places: np.ndarray) -> np.ndarray | None:
    """The exit probabilities at these places, float64 on the host."""
    return None if gate is None else gate.to("cpu", torch.float64).numpy()[places]
