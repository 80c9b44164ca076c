"""Language models and devices that the roofline knows by name: published numbers, fitted ones only where it says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from interlock.core.errors import nearest

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """A decoder-only transformer with gated feed-forward layers, as its public configuration states it.

    `prelude`, `recurrent` and `coda` are the distinct layers of each part; the recurrent part runs `loops` times. A
    dense model is all recurrent with one loop. `norms` counts the norm vectors of a layer. With `injection`, a linear
    map of 2 `hidden` to `hidden` joins the state and the prelude's output at the start of each loop.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    recurrent: int
    prelude: int = 0
    coda: int = 0
    loops: int = 1
    tied: bool = False
    qkv_bias: bool = False
    norms: int = 2
    injection: bool = False

    @property
    def layers(self) -> int:
        """Distinct layers."""
        return self.prelude + self.recurrent + self.coda

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, which is that of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def layer_matrices(self) -> int:
        """Parameters of a layer's matrices, each of which costs two FLOPs per token."""
        return self.hidden * (2 * self.q_size + 2 * self.kv_size + 3 * self.ffn)

    @property
    def layer_parameters(self) -> int:
        """All parameters of a layer: matrices, norms and the biases of the query, key and value projections."""
        bias = self.q_size + 2 * self.kv_size if self.qkv_bias else 0
        return self.layer_matrices + self.norms * self.hidden + bias

    @property
    def injection_parameters(self) -> int:
        """Parameters of the map at the start of each loop, 0 where there is none."""
        return 2 * self.hidden * self.hidden if self.injection else 0

    @property
    def head_parameters(self) -> int:
        """Parameters of the output head, tied or not."""
        return self.hidden * self.vocab

    @property
    def parameters(self) -> int:
        """All distinct parameters, the final norm included and a tied head counted once."""
        embeddings = self.head_parameters * (1 if self.tied else 2)
        return embeddings + self.layers * self.layer_parameters + self.injection_parameters + self.hidden

    def kv_bytes(self, value_bytes: int = 2) -> int:
        """KV bytes per token of context at one plane of every distinct layer."""
        return 2 * self.layers * self.kv_size * value_bytes

    def weight_bytes(self, value_bytes: int = 2) -> int:
        """Bytes of the weights that a step reads when every layer runs once: all but the embedding table."""
        inside = self.layers * self.layer_parameters + self.injection_parameters + self.hidden
        return (inside + self.head_parameters) * value_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator: vendor peaks, and how well its prompt attention is known to do.

    `flops` dense bf16 FLOP/s, `bandwidth` and `link` (to its peers, one direction) bytes/s, `memory` bytes. Prompt
    attention over n tokens reaches `attention_mfu` n / (n + `attention_n0`) of `flops`.
    """

    flops: float
    bandwidth: float
    memory: float
    link: float
    attention_mfu: float
    attention_n0: float


MODELS: Mapping[str, LanguageModel] = MappingProxyType(
    {
        # config.json of meta-llama/Meta-Llama-3-8B and -70B.
        "llama-3-8b": LanguageModel(
            hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256, recurrent=32
        ),
        "llama-3-70b": LanguageModel(
            hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28672, vocab=128256, recurrent=80
        ),
        # config.json of Qwen/Qwen2.5-7B.
        "qwen-2.5-7b": LanguageModel(
            hidden=3584, heads=28, kv_heads=4, head_dim=128, ffn=18944, vocab=152064, recurrent=28, qkv_bias=True
        ),
        # config.json of ByteDance/Ouro-1.4B: all layers inside the loop, four norms per layer.
        "ouro-1.4b": LanguageModel(
            hidden=2048, heads=16, kv_heads=16, head_dim=128, ffn=5632, vocab=49152, recurrent=24, loops=4, norms=4
        ),
        # config.json of tomg-group-umd/huginn-0125 (mean_recurrence 32), four norms per layer.
        "huginn-0125": LanguageModel(
            hidden=5280,
            heads=55,
            kv_heads=55,
            head_dim=96,
            ffn=17920,
            vocab=65536,
            prelude=2,
            recurrent=4,
            coda=2,
            loops=32,
            tied=True,
            norms=4,
            injection=True,
        ),
    }
)
"""Models by name."""

# Peaks: NVIDIA's data sheets, half of the figure with sparsity. Links: half of NVLink's (PCIe 4.0 x16's for the L4)
# total of both directions. Prompt attention: fitted to measured kernels of the A100 (0.17, 0.40, 0.57 of peak at 512,
# 2,048, 8,192 tokens, where the fit gives 0.28, 0.45, 0.54) and of the H100; the H200 has the H100's processor, and the
# L4 is given the A100's for want of measurements.
DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        "a100-80gb": Device(
            flops=312e12, bandwidth=2.039e12, memory=80e9, link=300e9, attention_mfu=0.58, attention_n0=566
        ),
        "h100-80gb": Device(
            flops=989e12, bandwidth=3.35e12, memory=80e9, link=450e9, attention_mfu=0.70, attention_n0=1132
        ),
        "h200": Device(flops=989e12, bandwidth=4.8e12, memory=141e9, link=450e9, attention_mfu=0.70, attention_n0=1132),
        "l4": Device(flops=121e12, bandwidth=0.3e12, memory=24e9, link=32e9, attention_mfu=0.58, attention_n0=566),
    }
)
"""Devices by name."""


def lookup(kind: str, name: str, entries: Mapping[str, _Entry]) -> _Entry:
    """The entry of this name; otherwise a ValueError of one line with what is allowed and the nearest match."""
    if name not in entries:
        raise ValueError(f"unknown {kind} {name!r}, allowed: {', '.join(sorted(entries))}{nearest(name, entries)}")
    return entries[name]
