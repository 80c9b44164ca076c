"""Ouro (`model_type` ouro): every layer and the final norm inside the loop, a learned exit gate on the normed state.

Names and arithmetic follow the modelling file of ByteDance/Ouro-1.4B (Zhu et al. 2025, "Scaling Latent Reasoning via
Looped Language Models").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from interlock.executors.torch.models.fields import Fields
from interlock.executors.torch.models.kv import KV
from interlock.executors.torch.models.layers import Angles, Norm, Rope, rotate_halves
from interlock.executors.torch.models.looped import LoopedModel
from interlock.executors.torch.models.shape import Shape
from interlock.executors.torch.paged import Layer, Paged


@dataclass(frozen=True)
class _Sizes:
    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float


class _Attention(nn.Module):
    def __init__(self, sizes: _Sizes) -> None:
        super().__init__()
        self._head_dim = sizes.head_dim
        queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(sizes.width, queries, bias=False)
        self.k_proj = nn.Linear(sizes.width, keys, bias=False)
        self.v_proj = nn.Linear(sizes.width, keys, bias=False)
        self.o_proj = nn.Linear(queries, sizes.width, bias=False)

    def forward(self, x: Tensor, angles: Angles, kv: KV, layer: Layer, paged: Paged) -> Tensor:
        heads = (-1, self._head_dim)
        query = rotate_halves(self.q_proj(x).unflatten(-1, heads), angles)
        key = rotate_halves(self.k_proj(x).unflatten(-1, heads), angles)
        value = self.v_proj(x).unflatten(-1, heads)
        out: Tensor = self.o_proj(kv.attend(query, key, value, layer, paged))
        return out


class _Mlp(nn.Module):
    def __init__(self, sizes: _Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.up_proj = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.down_proj = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Block(nn.Module):
    """Norms before and after each half, both inside the residual branch."""

    def __init__(self, sizes: _Sizes) -> None:
        super().__init__()
        self.self_attn = _Attention(sizes)
        self.mlp = _Mlp(sizes)
        self.input_layernorm = Norm(sizes.width, sizes.eps)
        self.input_layernorm_2 = Norm(sizes.width, sizes.eps)
        self.post_attention_layernorm = Norm(sizes.width, sizes.eps)
        self.post_attention_layernorm_2 = Norm(sizes.width, sizes.eps)

    def forward(self, x: Tensor, angles: Angles, kv: KV, layer: Layer, paged: Paged) -> Tensor:
        x = x + self.input_layernorm_2(self.self_attn(self.input_layernorm(x), angles, kv, layer, paged))
        out: Tensor = x + self.post_attention_layernorm_2(self.mlp(self.post_attention_layernorm(x)))
        return out


class _Stack(nn.Module):
    def __init__(self, sizes: _Sizes, vocab_size: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, sizes.width)
        self.layers = nn.ModuleList(_Block(sizes) for _ in range(sizes.layers))
        self.norm = Norm(sizes.width, sizes.eps)
        self.early_exit_gate = nn.Linear(sizes.width, 1)


class Ouro(LoopedModel):
    """Carries the normed state (E). The prelude is the embedding, the coda nothing but the head."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        fields = Fields(config, "ouro")
        sizes = _sizes(fields)
        self.config = dict(config)
        self.shape = _shape(fields, sizes)
        self.model = _Stack(sizes, self.shape.vocab_size)
        self.lm_head: nn.Linear | None = None
        if fields.flag("tie_word_embeddings", default=False):
            self.redundant = frozenset({"lm_head.weight"})
        else:
            self.lm_head = nn.Linear(sizes.width, self.shape.vocab_size, bias=False)
        self._rope = Rope(fields.rope_base(10_000.0), sizes.head_dim, self.shape.max_model_len)

    def prelude(self, ids: Tensor, positions: Tensor, seeds: Tensor, kv: KV, paged: Paged) -> Tensor:
        """The embedding; no KV."""
        out: Tensor = self.model.embed_tokens(ids)
        return out

    def recurrent(
        self, hidden: Tensor, depth: Tensor, positions: Tensor, kv: KV, paged: Paged
    ) -> tuple[Tensor, Tensor | None]:
        """All layers, the final norm, and the gate on what it gives."""
        angles = self._rope.at(positions, hidden.dtype)
        for block, layer in zip(self.model.layers, kv.recurrent, strict=True):
            hidden = block(hidden, angles, kv, layer, paged)
        hidden = self.model.norm(hidden)
        score = self.model.early_exit_gate(hidden).squeeze(-1)
        return hidden, torch.sigmoid(score.to(torch.promote_types(score.dtype, torch.float32))).float()

    def coda(self, hidden: Tensor, positions: Tensor, kv: KV, paged: Paged) -> Tensor:
        """The carried row, which is normed already."""
        return hidden

    def logits(self, states: Tensor) -> Tensor:
        """The head, or the embedding where they are tied."""
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return functional.linear(states, head.weight)


def _sizes(fields: Fields) -> _Sizes:
    fields.only("hidden_act", "silu", default="silu")
    fields.only("use_sliding_window", False, default=False)
    fields.only_in("layer_types", "full_attention")
    heads, width = fields.whole("num_attention_heads"), fields.whole("hidden_size")
    return _Sizes(
        width=width,
        inner=fields.whole("intermediate_size"),
        layers=fields.whole("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.divisor("num_key_value_heads", of=heads, called="num_attention_heads", default=heads),
        head_dim=fields.even("head_dim", default=width // heads),
        eps=fields.real("rms_norm_eps"),
    )


def _shape(fields: Fields, sizes: _Sizes) -> Shape:
    return Shape(
        vocab_size=fields.whole("vocab_size"),
        max_model_len=fields.whole("max_position_embeddings"),
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        prelude_layers=0,
        recurrent_layers=sizes.layers,
        coda_layers=0,
        loops=fields.whole("total_ut_steps"),
        carried=sizes.width,
        eos_token_ids=fields.eos(),
        heads=sizes.heads,
    )
