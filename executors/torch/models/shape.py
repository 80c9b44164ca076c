"""The sizes of a model that its cache and its executor ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """What a model writes into the KV cache, and what it reads and yields.

    * `vocab_size`: entries of a logits row. `max_model_len`: positions, from 0
    * `kv_heads`, `head_dim`, `heads`: of every attention; `heads` is a multiple of `kv_heads`
    * `prelude_layers`, `coda_layers`: KV layers that PRELUDE and CODA write, one plane each
    * `recurrent_layers`: KV layers of the recurrent part, each with `loops` planes. A dense model has all its layers
      here, and one loop
    * `carried`: width of the row that a token carries between operations; 0 for a dense model
    * `eos_token_ids`: tokens that end a request
    """

    vocab_size: int
    max_model_len: int
    kv_heads: int
    head_dim: int
    prelude_layers: int
    recurrent_layers: int
    coda_layers: int
    loops: int
    carried: int
    eos_token_ids: tuple[int, ...]
    heads: int

    @property
    def planes(self) -> int:
        """KV planes in all: key and value rows of one head_dim that a token holds, per KV head."""
        return self.prelude_layers + self.recurrent_layers * self.loops + self.coda_layers
