"""What a step costs in seconds: the interface of cost models, and the linear one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from interlock.core.batch import Batch
from interlock.core.work import Operation


class Load(NamedTuple):
    """What one model call has to do.

    * `prompt_tokens`: tokens of prompt chunks, `prompt_rows` of them
    * `decode_tokens`: tokens of decode rows, one per row but for drafts
    * `context_tokens`: KV tokens that the decode rows read, the new ones included
    * `prompt_attention`: sum over chunks of q k + q (q + 1) / 2, q new tokens over k tokens of context
    * `sampled`: rows that go through the head
    """

    operation: Operation = Operation.FORWARD
    prompt_tokens: int = 0
    decode_tokens: int = 0
    context_tokens: int = 0
    prompt_attention: float = 0.0
    prompt_rows: int = 0
    sampled: int = 0

    @classmethod
    def of(cls, batch: Batch) -> Load:
        """The load of a batch's first run."""
        prompt_rows = int(np.count_nonzero(batch.is_prompt))
        sampled = int(np.count_nonzero(batch.samples))
        if not prompt_rows:
            # Most batches: sums over whole columns cost a fraction of masked ones.
            tokens = int(np.add.reduce(batch.tokens))
            return cls(batch.operation, 0, tokens, int(np.add.reduce(batch.start)) + tokens, 0.0, 0, sampled)
        prompt, decode, context = batch.prompt_tokens, batch.decode_tokens, batch.context_tokens
        return cls(batch.operation, prompt, decode, context, batch.prompt_attention, prompt_rows, sampled)

    def advanced(self, runs: int) -> Load:
        """The load after this many decode runs: each row's context is that much longer."""
        return self._replace(context_tokens=self.context_tokens + runs * self.decode_tokens)


def forward(prompt_tokens: int, decode_rows: int, context_tokens: int) -> Load:
    """The load of a FORWARD of this size, the prompt taken as one whole prompt."""
    attention = prompt_tokens * (prompt_tokens + 1) / 2
    prompts = 1 if prompt_tokens else 0
    sampled = decode_rows + prompts
    return Load(Operation.FORWARD, prompt_tokens, decode_rows, context_tokens, attention, prompts, sampled)


class CostModel(Protocol):
    """Seconds of model calls. A pure function of the load."""

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of keys and values of one token, all layers and depths; 0 where the model is not known."""
        ...

    def step_s(self, load: Load) -> float:
        """Seconds of one call."""
        ...

    def stretch_s(self, load: Load, runs: int) -> np.ndarray:
        """Seconds of `runs` decode calls in a row, float64 (runs,); the i-th is step_s(load.advanced(i)) exactly."""
        ...


class Affine:
    """A cost that is affine in the decode rows' context: `split` says how, and step and stretch follow.

    Both use one multiplication and one addition of doubles, so that a stretch equals its single steps bit for bit.
    """

    kv_bytes_per_token: float = 0.0

    def split(self, load: Load) -> tuple[float, float]:
        """(seconds that do not depend on the decode context, seconds per token of it)."""
        raise NotImplementedError

    def step_s(self, load: Load) -> float:
        """Seconds of one call."""
        fixed, per_token = self.split(load)
        return fixed + load.context_tokens * per_token

    def stretch_s(self, load: Load, runs: int) -> np.ndarray:
        """Seconds of `runs` decode calls in a row, float64 (runs,)."""
        fixed, per_token = self.split(load)
        contexts = load.context_tokens + load.decode_tokens * np.arange(runs, dtype=np.int64)
        return np.asarray(fixed + contexts * per_token)


class Coefficients(NamedTuple):
    """Seconds per call, prompt token, decode token, token of decode context and unit of prompt attention."""

    base_s: float = 0.0
    prefill_token_s: float = 0.0
    decode_token_s: float = 0.0
    context_token_s: float = 0.0
    prompt_attention_s: float = 0.0


class Linear(Affine):
    """Seconds as a sum of coefficients times what a call has to do; a constant cost is its base alone."""

    def __init__(self, default: Coefficients, operations: Mapping[Operation, Coefficients] | None = None) -> None:
        """`operations` replace the default's coefficients for calls of a looped model."""
        self._table = {operation: (operations or {}).get(operation, default) for operation in Operation}

    def split(self, load: Load) -> tuple[float, float]:
        """(base, tokens and prompt attention; seconds per token of decode context)."""
        c = self._table[load.operation]
        fixed = c.base_s + c.prefill_token_s * load.prompt_tokens + c.decode_token_s * load.decode_tokens
        return fixed + c.prompt_attention_s * load.prompt_attention, c.context_token_s
