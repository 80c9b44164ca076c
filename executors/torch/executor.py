"""The torch backend: the engine's batches run on a real model with paged KV."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from interlock.core.batch import Batch, BatchResult, Ticket
from interlock.core.config_sections import EngineSection
from interlock.core.errors import ConfigError, ExecutorError
from interlock.core.executor import Capabilities, Capability, Copy, ExecutorConfig
from interlock.core.request import PreemptMode, Request
from interlock.core.text import Tokenizer
from interlock.core.work import WorkKey
from interlock.executors.costs.cost import forward
from interlock.executors.torch.attention import attention_for
from interlock.executors.torch.cache import PagedCache, block_bytes
from interlock.executors.torch.checkpoint import open_checkpoint
from interlock.executors.torch.exits import Exits, exit_settings
from interlock.executors.torch.graphs import CudaRecorder
from interlock.executors.torch.inputs import InputMaker
from interlock.executors.torch.loading import Loaded, load
from interlock.executors.torch.looped_runner import LoopedRunner
from interlock.executors.torch.memory import Beside, num_blocks
from interlock.executors.torch.models.dense import DenseModel
from interlock.executors.torch.models.looped import LoopedModel
from interlock.executors.torch.options import ExitRuleOptions, TorchOptions
from interlock.executors.torch.rehearsal import prompts
from interlock.executors.torch.rows import Rows
from interlock.executors.torch.runner import DenseRunner, Runner
from interlock.executors.torch.timing import Costed, Wall
from interlock.executors.torch.tokenizer import HFTokenizer

_LOGIT_BYTES = 40  # of one logit while tokens are chosen: its own, in double precision, sorted, and its place
_TINY_LOOPED = "tiny-ouro"
_LOOPED_MIXES = (
    frozenset({WorkKey.PROMPT_PRELUDE, WorkKey.DECODE_PRELUDE}),
    frozenset({WorkKey.PROMPT_RECURRENT, WorkKey.DECODE_RECURRENT}),
)


class Torch:
    """Implements `interlock.core.executor.Executor` on a PyTorch model.

    A batch runs when its result is collected. Time is the host's, or that of a cost model (`cost`).
    """

    Options: ClassVar[type[TorchOptions]] = TorchOptions

    def __init__(self, options: TorchOptions | Mapping[str, Any] | None = None, base: Path = Path(".")) -> None:
        """`options` as in the configuration; relative paths in them are relative to `base`. Loads the model.

        Raises ConfigError where the model cannot be loaded or the device is not there.
        """
        if not isinstance(options, TorchOptions):
            options = TorchOptions.model_validate(dict(options or {}))
        self._options = options
        self._cost = None if options.cost is None else options.cost.build(base, None)
        self._model: Loaded = load(options, base)
        self._checkpoint, self._on_cuda = self._model.checkpoint, self._model.device.type == "cuda"
        self._capabilities = _capabilities(self._model, options)
        _check_exits(options.exit, self._capabilities.loops)
        self._tickets = 0
        self._queue: list[Ticket] = []
        self._known: dict[int, int] = {}  # by request number: an output length that is known beforehand

    @classmethod
    def conformance(cls, options: Mapping[str, Any], loops: int, exits: Sequence[int]) -> dict[str, Any] | None:
        """The options with which the conformance suite runs a model of this depth, exits going through `exits`.

        A tiny model unless another is named, in an arithmetic so fine that no rounding changes what is said, and in
        virtual time. None for a depth that there is no model of.
        """
        plain = {"dtype": "float64", "cost": {"constant": {"step_s": 1.0}}, **options}
        if options.get("model", _TINY_LOOPED) != _TINY_LOOPED:
            return plain if loops == 1 else None
        own = {name: value for name, value in plain.items() if name not in ("model", "exit")}
        if loops == 1:
            return own
        if loops != open_checkpoint(_TINY_LOOPED, Path(".")).config["total_ut_steps"]:
            return None
        return {**own, "model": _TINY_LOOPED, "exit": {"trace": list(exits) or [loops]}}

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do. Constant."""
        return self._capabilities

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None where the checkpoint has none."""
        own = self._checkpoint.tokenizer()
        return None if own is None else HFTokenizer(own, chat=self._options.chat)

    def auto_blocks(self, block_size: int, limits: EngineSection) -> int:
        """The blocks that the memory holds. ConfigError when they are too few for one request."""
        model, given = self._model, self._options.kv_memory_gib
        beside = Beside(0, 0)
        if self._on_cuda and given is None:
            beside = Beside(model.weight_bytes, self._rehearse(block_size, limits))
        size = block_bytes(model.shape, block_size, model.dtype)
        return num_blocks(given, model.device, size, -(-limits.max_model_len // block_size), beside)

    def _rehearse(self, block_size: int, limits: EngineSection) -> int:
        """Bytes that the largest batch takes while it runs."""
        batch, blocks = prompts(limits.max_num_batched_tokens, limits.max_model_len, block_size)
        seqs, tokens = limits.max_num_seqs, limits.max_num_batched_tokens
        own = ExecutorConfig(seqs, tokens, limits.max_model_len, blocks, block_size, limits.prompt, 0, lambda: 0)
        self._take_memory(own)
        self.submit(batch)
        before = torch.cuda.memory_allocated(self._model.device)
        torch.cuda.reset_peak_memory_stats(self._model.device)
        (result,) = self.collect(block=True)
        if result.error is not None:
            raise ExecutorError(f"a batch of {tokens} tokens does not run on {self._model.device}: {result.error}")
        peak = torch.cuda.max_memory_allocated(self._model.device) - before
        self._give_back_memory()
        return peak + seqs * self._model.shape.vocab_size * _LOGIT_BYTES

    def start(self, config: ExecutorConfig) -> None:
        """Take the memory of the pool. ExecutorError when there is not enough."""
        if self._options.cpu_threads is not None:
            torch.set_num_threads(self._options.cpu_threads)
        self._take_memory(config)

    def _take_memory(self, config: ExecutorConfig) -> None:
        model, device = self._model, self._model.device
        if self._on_cuda:
            torch.cuda.set_device(device)  # where kernels are launched
        try:
            cache = PagedCache(
                model.shape, config.num_blocks, config.block_size, model.dtype, attention_for(device), device
            )
        except (RuntimeError, MemoryError) as error:
            wanted = f"{config.num_blocks} KV blocks of {config.block_size} tokens"
            raise ExecutorError(f"no memory for {wanted} on {device}: {str(error).splitlines()[0]}") from error
        self._rows = Rows(self._capabilities.eos_token_ids, config.seed)
        self._cache = cache
        self._runner = self._runner_of(cache, config)
        self._time = Wall(config.now_ns) if self._cost is None else Costed(self._cost)
        self._queue, self._known = [], {}

    def submit(self, batch: Batch) -> Ticket:
        """Take the batch in; it runs when it is collected, so that its time is not the scheduler's."""
        if not hasattr(self, "_runner"):
            raise ExecutorError("the executor is stopped, and its memory given back")
        for row, (number, request) in batch.new.items():
            self._rows.add(row, number, request, self._known.pop(number, None))
            self._runner.welcome(row, request)
        ticket = Ticket(self._tickets, batch)
        self._tickets += 1
        self._queue.append(ticket)
        return ticket

    def collect(self, block: bool) -> Sequence[BatchResult]:
        """Run what was submitted, in this order."""
        tickets, self._queue = self._queue, []
        return [self._result(ticket) for ticket in tickets]

    def suspend(self, rows: np.ndarray, modes: Sequence[PreemptMode], copies: Sequence[Copy]) -> None:
        """Copy to the host what is offloaded, and drop the carried rows of those who compute again."""
        for copy in copies:
            self._cache.offload(copy.device, copy.host)
        for row, mode in zip(rows.tolist(), modes, strict=True):
            if mode is PreemptMode.RECOMPUTE:
                self._runner.drop(row)

    def resume(self, rows: np.ndarray, copies: Sequence[Copy]) -> None:
        """Copy back."""
        for copy in copies:
            self._cache.restore(copy.device, copy.host)

    def forget(self, rows: np.ndarray) -> None:
        """These rows are retired. Idempotent."""
        for row in rows.tolist():
            self._rows.forget(row)
            self._runner.drop(row)

    def expect(self, number: int, request: Request, output: int | None) -> None:
        """A workload may know where an answer ends (a trace does): the model's end tokens wait until then."""
        if output is not None:
            self._known[number] = output

    def refuses(self, request: Request) -> str | None:
        """Why this model can never run the request; None when it can."""
        if self._capabilities.loops > 1:
            try:
                exit_settings(request.metadata)
            except ValueError as error:
                return f"bad_metadata: {error}"
        return None

    def step_s(self, prompt_tokens: int, decode_rows: int, context_tokens: int) -> float:
        """Seconds of a FORWARD of this size by the cost model; ExecutorError without one."""
        if self._cost is None:
            raise ExecutorError("executor 'torch' knows what a step costs only with the option cost")
        return self._cost.step_s(forward(prompt_tokens, decode_rows, context_tokens))

    def stop(self) -> None:
        """Give the memory back, that of the model, too. Idempotent."""
        if self._on_cuda:
            self.__dict__.pop("_model", None)
        self._give_back_memory()

    def _give_back_memory(self) -> None:
        for name in ("_cache", "_runner"):
            self.__dict__.pop(name, None)
        if self._on_cuda:
            gc.collect()  # models of `transformers` refer to themselves
            torch.cuda.empty_cache()

    def _result(self, ticket: Ticket) -> BatchResult:
        """Run a batch; a failure of the backend fails the batch and not the engine."""
        batch = ticket.batch
        runs = self._runner.runs(batch)
        watch = self._time.begin(batch, runs)
        try:
            with torch.inference_mode():
                tokens, exits = self._runner.run(batch, runs, watch)
        except Exception as error:  # whatever a model raises
            return BatchResult(ticket, watch.ends()[:1], np.empty((0, len(batch)), np.int32), error=error)
        return BatchResult(ticket, watch.ends(), tokens, exits)

    def _runner_of(self, cache: PagedCache, config: ExecutorConfig) -> Runner:
        model, shape = self._model.model, self._model.shape
        maker = InputMaker(config.num_blocks, config.block_size, shape.vocab_size, self._model.device)
        if isinstance(model, DenseModel):
            runner = DenseRunner(model, cache, self._rows, maker)
            if self._on_cuda:
                runner.use_graphs(CudaRecorder(), config.max_num_seqs, config.max_model_len, config.block_size)
            return runner
        return LoopedRunner(model, cache, self._rows, maker, Exits(self._options.exit, shape.loops))


def _check_exits(exits: ExitRuleOptions, loops: int) -> None:
    if loops == 1:
        if exits == ExitRuleOptions():
            return
        raise ConfigError("executor.torch.exit: found exits, allowed: none, because the model is not looped")
    if exits.deepest > loops:
        raise ConfigError(
            f"executor.torch.exit: found depth {exits.deepest}, allowed: at most {loops}, the model's own"
        )


def _capabilities(model: Loaded, options: TorchOptions) -> Capabilities:
    shape = model.shape
    features = {Capability.STRETCH} if shape.loops == 1 else {Capability.LOOPED}
    features |= {Capability.STEP_COST, Capability.VIRTUAL_TIME} if options.cost is not None else set()
    looped = model.model if isinstance(model.model, LoopedModel) else None
    whole, seeded = (False, False) if looped is None else (looped.prefix_lm, looped.seeded)
    mixes = Capabilities().mixes + (_LOOPED_MIXES if shape.loops > 1 else ())
    return Capabilities(
        frozenset(features), shape.loops, shape.eos_token_ids, shape.max_model_len, mixes, shape.vocab_size,
        whole_prompts=whole, shares_prefixes=not (whole or seeded), shares_outputs=shape.loops == 1,
    )  # fmt: skip
