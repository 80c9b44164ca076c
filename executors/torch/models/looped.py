"""What an executor asks of a looped model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from interlock.executors.torch.models.kv import KV
from interlock.executors.torch.models.shape import Shape
from interlock.executors.torch.paged import Paged


class LoopedModel(nn.Module, ABC):
    """A model in three parts: a prelude, a block that is applied again and again, and a coda.

    All three take a flattened batch of T tokens, rows one after the other, and write the KV of their own layers. A
    token's result does not depend on the other rows of the batch, nor on how its row was cut into chunks. Arithmetic is
    in the parameters' type; norms, rotations and exit probabilities are computed in at least float32.

    `config` is the raw configuration. `prefix_lm`: a prompt attends to all of itself, so it must run whole.
    `seeded`: what a token becomes depends on its request's seed, too, so no other request may share its KV.
    `redundant`: tensors that a checkpoint may hold beside the parameters; they repeat one, or can be computed.
    """

    shape: Shape
    config: Mapping[str, Any]
    prefix_lm: bool = False
    seeded: bool = False
    redundant: frozenset[str] = frozenset()

    @abstractmethod
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()

    @classmethod
    def build(cls, config: Mapping[str, Any]) -> Self:
        """A module whose weights are not initialised, on torch's default device and in its default type.

        Raises ValueError, in one line, for a field of `config` that is missing or not supported.
        """
        with torch.device("meta"):  # torch would draw weights, which takes minutes for billions of them
            model = cls(config)
        return model.to_empty(device=torch.get_default_device()).eval().requires_grad_(False)

    def rename(self, name: str) -> str | None:
        """The parameter that a checkpoint's tensor of this name fills, None for a redundant one."""
        return None if name in self.redundant else name

    @abstractmethod
    def prelude(self, ids: Tensor, positions: Tensor, seeds: Tensor, kv: KV, paged: Paged) -> Tensor:
        """Token ids to carried rows, (T,) to (T, carried); `paged` without depth.

        `positions` and `seeds` are int64 (T,). A random initial state is a function of the token's seed and position.
        """

    @abstractmethod
    def recurrent(
        self, hidden: Tensor, depth: Tensor, positions: Tensor, kv: KV, paged: Paged
    ) -> tuple[Tensor, Tensor | None]:
        """One loop, (T, carried) to the same, and the probability to exit after it, float32 (T,), None without a gate.

        `depth` int64 (T,): the loops each token has behind it; it is folded into `paged` already.
        """

    @abstractmethod
    def coda(self, hidden: Tensor, positions: Tensor, kv: KV, paged: Paged) -> Tensor:
        """Carried rows to the states for the head, (T, carried) to (T, E); `paged` without depth.

        With coda layers every token of a prompt passes here, since later tokens attend to it.
        """

    @abstractmethod
    def logits(self, states: Tensor) -> Tensor:
        """States of those tokens that need them, (n, E) to (n, vocab_size)."""
