"""A request as its caller states it, and the life it may lead in the engine."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np

from interlock.core.hashing import splitmix64

VOCABULARY = 32_000
"""Synthetic prompts and the simulated model use the token ids 1 to VOCABULARY - 1; 0 is their end of sequence."""


class RequestStatus(IntEnum):
    """Where a request is in its life. Nothing else is encoded in it: owning a slot or blocks is a fact of its own."""

    WAITING = 0
    RECEIVING = 1
    TRANSFERRING = 2
    ACTIVE = 3
    FINISHED = 4


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    TIMEOUT = "timeout"
    ERROR = "error"
    EXPORTED = "exported"


class PreemptMode(StrEnum):
    """What a preempted request gives up: its slot; its slot and device KV (copied to the host); both, KV dropped."""

    YIELD = "yield"
    OFFLOAD = "offload"
    RECOMPUTE = "recompute"


_ENDS = frozenset(str(reason) for reason in FinishReason)
_S = RequestStatus
TRANSITIONS: Mapping[tuple[RequestStatus | None, RequestStatus], frozenset[str]] = MappingProxyType(
    {
        (None, _S.WAITING): frozenset({"arrived"}),
        (None, _S.FINISHED): frozenset({"rejected"}),
        (_S.WAITING, _S.ACTIVE): frozenset({"admitted", "resumed"}),
        (_S.ACTIVE, _S.WAITING): frozenset({"yielded", "offloaded", "recompute"}),
        # A yielded holder whose blocks are reclaimed changes its resources, not its status.
        (_S.WAITING, _S.WAITING): frozenset({"offloaded", "recompute"}),
        (_S.WAITING, _S.RECEIVING): frozenset({"reserved"}),
        (_S.RECEIVING, _S.ACTIVE): frozenset({"received"}),
        (_S.RECEIVING, _S.WAITING): frozenset({"transfer_failed"}),
        (_S.ACTIVE, _S.TRANSFERRING): frozenset({"exporting"}),
        (_S.WAITING, _S.FINISHED): _ENDS,
        (_S.RECEIVING, _S.FINISHED): _ENDS,
        (_S.TRANSFERRING, _S.FINISHED): _ENDS,
        (_S.ACTIVE, _S.FINISHED): _ENDS,
    }
)
"""Every legal transition with its reasons. From None: a request new to the engine."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The usual sampling parameters. `max_tokens` None means: as many as the context allows."""

    max_tokens: int | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    def problem(self) -> str | None:
        """The first parameter with which nothing can be sampled, and what is allowed; None when all is well."""
        rules = (
            ("temperature", 0 <= self.temperature < math.inf, "a finite number of at least 0"),
            ("top_p", 0 < self.top_p <= 1, "above 0 up to 1"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("min_tokens", self.min_tokens >= 0, "at least 0"),
        )
        broken = ((name, allowed) for name, holds, allowed in rules if not holds)
        return next((f"{name} is {getattr(self, name)}, allowed: {allowed}" for name, allowed in broken), None)


@dataclass(frozen=True, slots=True)
class SyntheticPrompt:
    """A prompt known by its length: token ids are a fixed function of each segment's seed and the offset in it.

    Two prompts that begin with equal segments begin with equal tokens, which is how recorded prefix ids become
    shared prefixes.
    """

    segments: tuple[tuple[int, int], ...]  # (seed, tokens)

    @classmethod
    def of(cls, request_id: str, tokens: int) -> SyntheticPrompt:
        """The prompt of `tokens` tokens that belongs to this id alone."""
        seed = int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest(), "little")
        return cls(((seed, tokens),))

    def __len__(self) -> int:
        return sum(tokens for _, tokens in self.segments)

    def token_ids(self) -> np.ndarray:
        """The token ids, int32, shape (len(self),)."""
        parts = [
            (
                splitmix64(np.uint64(seed & 0xFFFFFFFFFFFFFFFF) + np.arange(tokens, dtype=np.uint64))
                % np.uint64(VOCABULARY - 1)
                + np.uint64(1)
            )
            for seed, tokens in self.segments
        ]
        return np.concatenate(parts).astype(np.int32) if parts else np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller asks for. Immutable.

    `prompt` is a token count (the ids are then synthetic), the token ids themselves, or a `SyntheticPrompt`.
    `arrival` is in engine seconds, None for "when it is submitted". `deadline_s` and `timeout_s` are relative to the
    arrival; the first is an objective that policies may read, the second ends the request. `predicted` is a guess of
    the output tokens, -1 for none. `metadata` is the caller's own.
    """

    id: str
    prompt: int | Sequence[int] | np.ndarray | SyntheticPrompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    arrival: float | None = None
    priority: int = 0
    tenant: str = ""
    deadline_s: float | None = None
    timeout_s: float | None = None
    predicted: int = -1
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return int(self.prompt) if isinstance(self.prompt, int | np.integer) else len(self.prompt)

    def prompt_ids(self) -> np.ndarray:
        """The prompt's token ids, int32, shape (prompt_tokens,)."""
        if isinstance(self.prompt, int | np.integer):
            return SyntheticPrompt.of(self.id, int(self.prompt)).token_ids()
        if isinstance(self.prompt, SyntheticPrompt):
            return self.prompt.token_ids()
        return np.asarray(self.prompt, np.int32)
