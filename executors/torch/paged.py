"""How the tokens of a batch lie in a paged KV cache, and what a model asks of attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor


class Layer(NamedTuple):
    """The KV of one layer: keys and values, each of shape (blocks, block_size, kv_heads, head_dim)."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Paged:
    """A flattened batch of n rows with T tokens in all: row after row, each a run of positions, no padding.

    * `offsets` int32 (n + 1,): row i owns the tokens `offsets[i]` up to `offsets[i + 1]`, at least one
    * `context` int32 (n,): the tokens that row i has in the cache once the batch's own are written. Its tokens stand at
      the last positions of it, and a token at position p attends to positions 0 to p
    * `table` int32 (n, pages): the blocks of each row in order; entries past its context are undefined
    * `slots` int64 (T,): where each token's KV goes: block * block_size + offset in the block
    * `longest`: tokens of the longest run; 1 when every row decodes. `deepest`: the longest context
    * `prefix` int32 (n,) or None: a token at position p attends to positions below max(p + 1, prefix) (prefix LM)
    """

    offsets: Tensor
    context: Tensor
    table: Tensor
    slots: Tensor
    longest: int
    deepest: int
    prefix: Tensor | None = None


class Attention(Protocol):
    """Attention over a paged cache."""

    def write(self, layer: Layer, key: Tensor, value: Tensor, paged: Paged) -> None:
        """Store the batch's keys and values, (T, kv_heads, head_dim), at `paged.slots`."""
        ...

    def attend(self, query: Tensor, layer: Layer, paged: Paged, scale: float) -> Tensor:
        """Attention of each token over its own row's context. (T, heads, head_dim) to the same.

        Query head h reads KV head h // (heads // kv_heads). Blocks that a row does not own, and slots past its context,
        never change its result, whatever they hold.
        """
        ...
