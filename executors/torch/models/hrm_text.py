"""HRM-Text (`model_type` hrm_text): a slow and a fast stack that iterate over one embedding.

Configuration and arithmetic follow `transformers`' model of that name; weights have the names of the published
checkpoints, in which the projections of gate, query, key and value lie in one matrix.
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
    head_dim: int
    eps: float


class _Attention(nn.Module):
    """Attention whose result is gated, element by element, before the output projection."""

    def __init__(self, sizes: _Sizes) -> None:
        super().__init__()
        self._heads = (4, sizes.heads, sizes.head_dim)
        self.gqkv_proj = nn.Linear(sizes.width, 4 * sizes.heads * sizes.head_dim, bias=False)
        self.o_proj = nn.Linear(sizes.heads * sizes.head_dim, sizes.width, bias=False)

    def forward(self, x: Tensor, angles: Angles, kv: KV, layer: Layer, paged: Paged) -> Tensor:
        gate, query, key, value = self.gqkv_proj(x).unflatten(-1, self._heads).unbind(-3)
        query, key = rotate_halves(query, angles), rotate_halves(key, angles)
        attended = kv.attend(query, key, value, layer, paged)
        out: Tensor = self.o_proj(torch.sigmoid(gate).flatten(1) * attended)
        return out


class _Mlp(nn.Module):
    def __init__(self, sizes: _Sizes) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(sizes.width, 2 * sizes.inner, bias=False)
        self.down_proj = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        out: Tensor = self.down_proj(functional.silu(gate) * up)
        return out


class _Block(nn.Module):
    """Norms without weights before each half."""

    def __init__(self, sizes: _Sizes) -> None:
        super().__init__()
        self.attn = _Attention(sizes)
        self.mlp = _Mlp(sizes)
        self.norm = Norm(sizes.width, sizes.eps, weighted=False)

    def forward(self, x: Tensor, angles: Angles, kv: KV, layer: Layer, paged: Paged) -> Tensor:
        x = x + self.attn(self.norm(x), angles, kv, layer, paged)
        out: Tensor = x + self.mlp(self.norm(x))
        return out


class _Stack(nn.Module):
    def __init__(self, sizes: _Sizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Block(sizes) for _ in range(sizes.layers))
        self.norm = Norm(sizes.width, sizes.eps, weighted=False)

    def forward(self, x: Tensor, angles: Angles, kv: KV, layers: list[Layer], paged: Paged) -> Tensor:
        for block, layer in zip(self.layers, layers, strict=True):
            x = block(x, angles, kv, layer, paged)
        out: Tensor = self.norm(x)
        return out


class _Model(nn.Module):
    def __init__(self, sizes: _Sizes, vocab_size: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, sizes.width)
        self.L_module = _Stack(sizes)
        self.H_module = _Stack(sizes)
        self.z_L_init = nn.Parameter(torch.zeros(sizes.width))


class HrmText(LoopedModel):
    """Carries the slow and the fast state (2 E). A loop is `L_cycles` passes of the fast stack and one of the slow.

    Each pass has KV layers of its own: those of the fast passes first, in order, then those of the slow one.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        fields = Fields(config, "hrm_text")
        sizes, self._cycles = _sizes(fields), fields.whole("L_cycles")
        self.config = dict(config)
        self.shape = _shape(fields, sizes, self._cycles)
        self.prefix_lm = fields.flag("prefix_lm", default=True)
        self._scale = _embedding_scale(fields, config)
        self.model = _Model(sizes, self.shape.vocab_size)
        self.lm_head: nn.Linear | None = None
        if fields.flag("tie_word_embeddings", default=False):
            self.redundant = frozenset({"lm_head.weight"})
        else:
            self.lm_head = nn.Linear(sizes.width, self.shape.vocab_size, bias=False)
        self._rope = Rope(fields.rope_base(10_000.0), sizes.head_dim, self.shape.max_model_len)

    def prelude(self, ids: Tensor, positions: Tensor, seeds: Tensor, kv: KV, paged: Paged) -> Tensor:
        """The scaled embedding as the slow state, the learned one as the fast state; no KV."""
        slow = self.model.embed_tokens(ids) * self._scale
        return torch.cat((slow, self.model.z_L_init.expand_as(slow)), dim=-1)

    def recurrent(
        self, hidden: Tensor, depth: Tensor, positions: Tensor, kv: KV, paged: Paged
    ) -> tuple[Tensor, Tensor | None]:
        """The fast stack takes in the slow state on each of its passes, then the slow one the fast. No gate."""
        angles = self._rope.at(positions, hidden.dtype)
        slow, fast = hidden.chunk(2, dim=-1)
        per_pass = len(self.model.L_module.layers)
        passes = [kv.recurrent[at : at + per_pass] for at in range(0, len(kv.recurrent), per_pass)]
        for layers in passes[: self._cycles]:
            fast = self.model.L_module(fast + slow, angles, kv, layers, paged)
        slow = self.model.H_module(slow + fast, angles, kv, passes[self._cycles], paged)
        return torch.cat((slow, fast), dim=-1), None

    def coda(self, hidden: Tensor, positions: Tensor, kv: KV, paged: Paged) -> Tensor:
        """The slow state, which is normed already."""
        return hidden.chunk(2, dim=-1)[0]

    def logits(self, states: Tensor) -> Tensor:
        """The head, or the embedding where they are tied."""
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return functional.linear(states, head.weight)


def _sizes(fields: Fields) -> _Sizes:
    fields.only("hidden_act", "silu", default="silu")
    fields.only("attention_bias", False, default=False)
    fields.only("mlp_bias", False, default=False)
    heads, width = fields.whole("num_attention_heads"), fields.whole("hidden_size")
    return _Sizes(
        width=width,
        inner=fields.whole("intermediate_size"),
        # `transformers` keeps the count of a stack apart and multiplies `num_hidden_layers` by the passes.
        layers=fields.whole("num_layers_per_stack", "num_hidden_layers"),
        heads=heads,
        head_dim=fields.even("head_dim", default=width // heads),
        eps=fields.real("rms_norm_eps"),
    )


def _shape(fields: Fields, sizes: _Sizes, cycles: int) -> Shape:
    return Shape(
        vocab_size=fields.whole("vocab_size"),
        max_model_len=fields.whole("max_position_embeddings"),
        kv_heads=sizes.heads,
        head_dim=sizes.head_dim,
        prelude_layers=0,
        recurrent_layers=(cycles + 1) * sizes.layers,
        coda_layers=0,
        loops=fields.whole("H_cycles"),
        carried=2 * sizes.width,
        eos_token_ids=fields.eos(),
        heads=sizes.heads,
    )


def _embedding_scale(fields: Fields, config: Mapping[str, Any]) -> float:
    given = config.get("embedding_scale") is not None
    return fields.real("embedding_scale") if given else 1.0 / fields.real("initializer_range")
