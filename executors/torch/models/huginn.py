"""Huginn (`model_type` huginn_raven): prelude, a core that joins its state with the prelude's output, and a coda.

Names and arithmetic follow the modelling file of tomg-group-umd/huginn-0125 (Geiping et al. 2025, "Scaling up Test-Time
Compute with Latent Reasoning").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from interlock.executors.torch.models.fields import Fields
from interlock.executors.torch.models.kv import KV
from interlock.executors.torch.models.layers import Angles, Norm, Rope, rotate_neighbours
from interlock.executors.torch.models.looped import LoopedModel
from interlock.executors.torch.models.noise import truncated_normal
from interlock.executors.torch.models.shape import Shape
from interlock.executors.torch.paged import Layer, Paged


@dataclass(frozen=True)
class _Sizes:
    width: int
    inner: int
    heads: int
    eps: float
    prelude: int
    core: int
    coda: int
    qk_bias: bool
    bias: bool


class _Attention(nn.Module):
    def __init__(self, sizes: _Sizes) -> None:
        super().__init__()
        self._heads = (3, sizes.heads, sizes.width // sizes.heads)
        self.Wqkv = nn.Linear(sizes.width, 3 * sizes.width, bias=False)
        self.proj = nn.Linear(sizes.width, sizes.width, bias=False)
        self.qk_bias = nn.Parameter(torch.zeros(2, 1, *self._heads[1:])) if sizes.qk_bias else None

    def forward(self, x: Tensor, angles: Angles, kv: KV, layer: Layer, paged: Paged) -> Tensor:
        query, key, value = self.Wqkv(x).unflatten(-1, self._heads).unbind(-3)
        if self.qk_bias is not None:
            query, key = query + self.qk_bias[0], key + self.qk_bias[1]
        query, key = rotate_neighbours(query, angles), rotate_neighbours(key, angles)
        out: Tensor = self.proj(kv.attend(query, key, value, layer, paged))
        return out


class _Mlp(nn.Module):
    def __init__(self, sizes: _Sizes) -> None:
        super().__init__()
        self.fc = nn.Linear(sizes.width, 2 * sizes.inner, bias=False)
        self.proj = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.fc(x).chunk(2, dim=-1)
        out: Tensor = self.proj(functional.silu(gate) * up)
        return out


class _Block(nn.Module):
    """A norm before each half, and one over each sum with the residual."""

    def __init__(self, sizes: _Sizes) -> None:
        super().__init__()
        self.norm_1 = Norm(sizes.width, sizes.eps)
        self.attn = _Attention(sizes)
        self.norm_2 = Norm(sizes.width, sizes.eps)
        self.mlp = _Mlp(sizes)
        self.norm_3 = Norm(sizes.width, sizes.eps)
        self.norm_4 = Norm(sizes.width, sizes.eps)

    def forward(self, x: Tensor, angles: Angles, kv: KV, layer: Layer, paged: Paged) -> Tensor:
        x = self.norm_2(x + self.attn(self.norm_1(x), angles, kv, layer, paged))
        out: Tensor = self.norm_4(x + self.mlp(self.norm_3(x)))
        return out


class _Transformer(nn.Module):
    def __init__(self, sizes: _Sizes, vocab_size: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab_size, sizes.width)
        self.prelude = nn.ModuleList(_Block(sizes) for _ in range(sizes.prelude))
        self.adapter = nn.Linear(2 * sizes.width, sizes.width, bias=sizes.bias)
        self.core_block = nn.ModuleList(_Block(sizes) for _ in range(sizes.core))
        self.coda = nn.ModuleList(_Block(sizes) for _ in range(sizes.coda))
        self.ln_f = Norm(sizes.width, sizes.eps)


class Huginn(LoopedModel):
    """Carries state and injection (2 E). The state starts random, the injection is the prelude's output and stays."""

    seeded = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        fields = Fields(config, "huginn_raven")
        sizes = _sizes(fields)
        self.config = dict(config)
        self.shape = _shape(fields, sizes)
        self._width = sizes.width
        # The original multiplies draws of this deviation by the embedding's scale.
        self._initial = _initial_std(config, sizes.width) * math.sqrt(sizes.width)
        self.transformer = _Transformer(sizes, self.shape.vocab_size)
        self.redundant = frozenset({"freqs_cis"})  # a table of the rotary embedding
        self.lm_head: nn.Linear | None = None
        if fields.flag("tie_embeddings", "tie_word_embeddings", default=True):
            self.redundant |= {"lm_head.weight"}
        else:
            self.lm_head = nn.Linear(sizes.width, self.shape.vocab_size, bias=False)
        self._rope = Rope(fields.real("rope_base", default=50_000.0), self.shape.head_dim, self.shape.max_model_len)

    def prelude(self, ids: Tensor, positions: Tensor, seeds: Tensor, kv: KV, paged: Paged) -> Tensor:
        """The scaled embedding through the prelude's blocks, beside a fresh state."""
        injection = self.transformer.wte(ids) * math.sqrt(self._width)
        injection = self._through(self.transformer.prelude, injection, positions, kv, kv.prelude, paged)
        state = self._initial * truncated_normal(seeds, positions, self._width)
        return torch.cat((state.to(injection.dtype), injection), dim=-1)

    def recurrent(
        self, hidden: Tensor, depth: Tensor, positions: Tensor, kv: KV, paged: Paged
    ) -> tuple[Tensor, Tensor | None]:
        """State and injection joined by the adapter, then the core's blocks. No gate."""
        state = self._through(
            self.transformer.core_block, self.transformer.adapter(hidden), positions, kv, kv.recurrent, paged
        )
        return torch.cat((state, hidden[:, self._width :]), dim=-1), None

    def coda(self, hidden: Tensor, positions: Tensor, kv: KV, paged: Paged) -> Tensor:
        """The normed state through the coda's blocks, and the same norm again."""
        state = self.transformer.ln_f(hidden[:, : self._width])
        state = self._through(self.transformer.coda, state, positions, kv, kv.coda, paged)
        out: Tensor = self.transformer.ln_f(state)
        return out

    def logits(self, states: Tensor) -> Tensor:
        """The head, which is the embedding where they are tied."""
        head = self.transformer.wte if self.lm_head is None else self.lm_head
        return functional.linear(states, head.weight)

    def _through(
        self, blocks: Iterable[nn.Module], x: Tensor, positions: Tensor, kv: KV, layers: list[Layer], paged: Paged
    ) -> Tensor:
        angles = self._rope.at(positions, x.dtype)
        for block, layer in zip(blocks, layers, strict=True):
            x = block(x, angles, kv, layer, paged)
        return x


def _sizes(fields: Fields) -> _Sizes:
    for name, value in (("state_init", "like-init"), ("injection_type", "linear"), ("nonlin_name", "SiLU")):
        fields.only(name, value, default=value)
    fields.only("test_time_noise", 0, default=0)
    width = fields.even("n_embd")
    heads = fields.divisor("n_heads", "num_attention_heads", of=width // 2, called="half of n_embd")
    fields.only("num_key_value_heads", heads, default=heads)
    return _Sizes(
        width=width,
        inner=fields.whole("intermediate_size"),
        heads=heads,
        eps=fields.real("norm_eps"),
        prelude=fields.whole("n_layers_in_prelude"),
        core=fields.whole("n_layers_in_recurrent_block"),
        coda=fields.whole("n_layers_in_coda"),
        qk_bias=fields.flag("qk_bias", default=True),
        bias=fields.flag("bias", default=False),
    )


def _shape(fields: Fields, sizes: _Sizes) -> Shape:
    vocab_size = fields.whole("vocab_size")
    fields.only("padded_vocab_size", vocab_size, default=vocab_size)
    return Shape(
        vocab_size=vocab_size,
        max_model_len=fields.whole("block_size"),
        kv_heads=sizes.heads,
        head_dim=sizes.width // sizes.heads,
        prelude_layers=sizes.prelude,
        recurrent_layers=sizes.core,
        coda_layers=sizes.coda,
        loops=fields.whole("mean_recurrence"),
        carried=2 * sizes.width,
        eos_token_ids=fields.eos(),
        heads=sizes.heads,
    )


def _initial_std(config: Mapping[str, Any], width: int) -> float:
    """The deviation of the initial state as configured; sqrt(2 / (5 E)) otherwise (Takase et al. 2023)."""
    return float((config.get("init_values") or {}).get("std", math.sqrt(2 / (5 * width))))
