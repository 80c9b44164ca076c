"""The KV cache as a model sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from interlock.executors.torch.paged import Attention, Layer, Paged


@dataclass
class KV:
    """The layers each part of a model writes and reads, and the attention that does it.

    A recurrent layer holds loops * num_blocks blocks, plane after plane. Whoever calls the recurrent part has folded
    each row's depth into the batch: its blocks and slots are those of the plane, block + depth * num_blocks.
    """

    attention: Attention
    prelude: list[Layer] = field(default_factory=list)
    recurrent: list[Layer] = field(default_factory=list)
    coda: list[Layer] = field(default_factory=list)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layer: Layer, paged: Paged) -> Tensor:
        """Write a layer's keys and values, then attend: (T, heads, head_dim) to (T, heads * head_dim).

        Scores are divided by the root of head_dim.
        """
        self.attention.write(layer, key, value, paged)
        return self.attention.attend(query, layer, paged, query.shape[-1] ** -0.5).flatten(1)
