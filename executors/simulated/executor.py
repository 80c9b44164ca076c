"""The simulated backend: no model, no GPU. Time is virtual, tokens are a fixed function of prompt and position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from interlock.core.batch import Batch, BatchResult, Ticket
from interlock.core.errors import ExecutorError
from interlock.core.executor import Capabilities, Capability, Copy, ExecutorConfig
from interlock.core.request import PreemptMode, Request
from interlock.core.work import Operation, WorkKey
from interlock.executors.costs.cost import Load, forward
from interlock.executors.costs.timing import VirtualTime
from interlock.executors.simulated.options import SimulatedOptions
from interlock.executors.simulated.rows import EOS, Rows

_LOOPED_MIXES = (
    frozenset({WorkKey.PROMPT_PRELUDE, WorkKey.DECODE_PRELUDE}),
    frozenset({WorkKey.PROMPT_RECURRENT, WorkKey.DECODE_RECURRENT}),
)


class Simulated:
    """Implements `interlock.core.executor.Executor` in virtual time.

    A batch starts at its `start_ns` or at the end of the one before, whichever is later, and takes what the cost model
    says, rounded to whole nanoseconds. The executor reads no clock: equal batches give equal results. KV copies between
    host and device take no time of their own.
    """

    Options: ClassVar[type[SimulatedOptions]] = SimulatedOptions

    def __init__(self, options: SimulatedOptions | Mapping[str, Any] | None = None, base: Path = Path(".")) -> None:
        """`options` as in the configuration, None for the defaults; relative paths in them are relative to `base`."""
        if not isinstance(options, SimulatedOptions):
            options = SimulatedOptions.model_validate(dict(options or {}))
        self._options = options
        self._cost = options.cost.build(base, options.model.loops)
        self._exits = options.exits()
        self._capabilities = _capabilities(options)
        self._seed, self._block_size = 0, 16
        self._out: list[BatchResult] = []
        self._reset()

    @classmethod
    def conformance(cls, options: Mapping[str, Any], loops: int, exits: Sequence[int]) -> dict[str, Any]:
        """The options with which the conformance suite runs a model of this depth, exits going through `exits`."""
        model = {"model": {"loops": loops, "exit": {"trace": list(exits) or [loops]}}} if loops > 1 else {}
        own = {name: value for name, value in options.items() if name != "model"}
        return {"cost": {"constant": {"step_s": 1.0}}, **own, **model}

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do. Constant."""
        return self._capabilities

    def start(self, config: ExecutorConfig) -> None:
        """Forget everything; exits are drawn with the configuration's seed."""
        self._seed = config.seed
        self._block_size = config.block_size
        self._reset()

    def submit(self, batch: Batch) -> Ticket:
        """Compute the batch's result at once; `collect` hands it out."""
        self._check(batch)
        for row, (number, request) in batch.new.items():
            self._rows.add(row, number, request, self._outputs.get(number))
        ticket = Ticket(self._tickets, batch)
        self._out.append(self._result(ticket))
        self._tickets += 1
        return ticket

    def collect(self, block: bool) -> Sequence[BatchResult]:
        """All results not yet handed out, in the order of submission. Virtual time never makes one wait."""
        finished = self._out
        self._out = []
        return finished

    def suspend(self, rows: np.ndarray, modes: Sequence[PreemptMode], copies: Sequence[Copy]) -> None:
        """Copies to the host delay the next batch. Tokens depend on the position alone, so nothing else is kept."""
        self._copy(copies)

    def resume(self, rows: np.ndarray, copies: Sequence[Copy]) -> None:
        """Copies back delay the next batch."""
        self._copy(copies)

    def _copy(self, copies: Sequence[Copy]) -> None:
        tokens = sum(len(copy.device) for copy in copies) * self._block_size
        self._time.copy(tokens, self._options.copy_gbps)

    def forget(self, rows: np.ndarray) -> None:
        """These rows are retired; what was expected of their requests is dropped. Idempotent."""
        for row in rows.tolist():
            number = self._rows.forget(row)
            if number is not None:
                self._outputs.pop(number, None)

    def expect(self, number: int, request: Request, output: int | None) -> None:
        """Request `number` ends by itself after `output` tokens; None for never. Said before its first batch."""
        if output is not None:
            self._outputs[number] = output

    def step_s(self, prompt_tokens: int, decode_rows: int, context_tokens: int) -> float:
        """Seconds of a FORWARD of this size, the prompt taken as one whole prompt."""
        return self._cost.step_s(forward(prompt_tokens, decode_rows, context_tokens))

    def stop(self) -> None:
        """Release everything. Idempotent."""
        self._reset()

    def _reset(self) -> None:
        self._rows = Rows()
        self._outputs: dict[int, int] = {}
        self._out = []
        self._tickets = 0
        self._time = VirtualTime(self._cost)

    def _check(self, batch: Batch) -> None:
        if batch.repeat != 1 and not (batch.decode_only and batch.samples.all()):
            raise ExecutorError("only a batch of dense decode rows that all sample can be repeated")
        if batch.operation is not Operation.FORWARD and self._capabilities.loops == 1:
            raise ExecutorError(f"{batch.operation.name} needs a looped model, and this one is dense: set model.loops")

    def _result(self, ticket: Ticket) -> BatchResult:
        batch = ticket.batch
        load, positions = Load.of(batch), batch.start + batch.tokens
        if load.decode_tokens != len(batch) - load.prompt_rows:
            raise ExecutorError("a decode row runs one token here: the results carry one token per row, and no drafts")
        if batch.repeat > 1:
            ends, tokens = self._stretch(batch, load, positions)
        else:
            ends, tokens = self._time.ends(batch, load, 1), self._sampled(batch, load, positions)
        self._time.passed(int(ends[-1]))
        return BatchResult(ticket, ends, tokens, self._leaving(batch, positions))

    def _sampled(self, batch: Batch, load: Load, positions: np.ndarray) -> np.ndarray:
        """Tokens of a single run, int32 (1, n), -1 for rows that sample none."""
        if not load.sampled or batch.operation in (Operation.PRELUDE, Operation.RECURRENT):
            return np.full((1, len(batch)), -1, np.int32)
        said = self._rows.tokens(batch.rows, positions, 1)
        if load.sampled < len(batch):
            said[0, ~batch.samples] = -1
        return said

    def _stretch(self, batch: Batch, load: Load, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ends (runs,) and tokens (runs, n) up to the first run in which a row ends or the time is reached."""
        ends = self._time.ends(batch, load, min(batch.repeat, self._rows.runs_left(batch.rows, positions)))
        said = self._rows.tokens(batch.rows, positions, len(ends))
        runs = self._rows.stopped(batch.rows, said)
        return ends[:runs], said[:runs]

    def _leaving(self, batch: Batch, positions: np.ndarray) -> np.ndarray | None:
        """Which rows leave the loop after this batch, bool (n,), for RECURRENT batches. Prompts run at full depth."""
        if batch.operation is not Operation.RECURRENT:
            return None
        depths = self._exits.depths(*self._rows.answer(batch.rows, positions), self._seed)
        return np.asarray(batch.loop + 1 >= np.where(batch.is_prompt, self._capabilities.loops, depths))


def _capabilities(options: SimulatedOptions) -> Capabilities:
    features = {Capability.STEP_COST, Capability.VIRTUAL_TIME, Capability.STRETCH}
    features |= {Capability.LOOPED} if options.loops > 1 else set()
    features |= {Capability.SPECULATION} if options.speculation else set()
    mixes = Capabilities().mixes + (_LOOPED_MIXES if options.loops > 1 else ())
    return Capabilities(frozenset(features), options.loops, (EOS,), mixes=mixes, shares_outputs=options.loops == 1)
