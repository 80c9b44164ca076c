"""Looped models one sequence at a time, written from their descriptions: what every batched path is held to.

Weights are read by name from a module or a folder; no module is called. Keys and values are plain lists per plane.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import linear, silu

_WORD = 2**64 - 1


@dataclass(frozen=True)
class Exits:
    """When decode tokens leave the loop. `trace` gives depths by output position, again and again."""

    mode: Literal["fixed", "immediate", "delayed", "trace"] = "fixed"
    threshold: float = 1.0
    min_loops: int = 2
    max_loops: int | None = None
    trace: Sequence[int] = ()


FULL = Exits()


class Serial:
    """One sequence of one model. State rows are (T, E); `start` is the position of the first of them."""

    def __init__(self, config: dict[str, Any], weights: dict[str, Tensor], seed: int) -> None:
        self.config, self.weights, self.seed = config, weights, seed
        self.loops: int = config.get("total_ut_steps") or config.get("mean_recurrence") or config["H_cycles"]
        self.cache: dict[tuple[str, int], tuple[list[Tensor], list[Tensor]]] = {}  # by layer and depth

    def prelude(self, ids: list[int], start: int) -> Tensor:
        raise NotImplementedError

    def loop(self, state: Tensor, depth: int, start: int) -> tuple[Tensor, float | None]:
        """The state after one loop at `depth`, and the exit probability of the last token."""
        raise NotImplementedError

    def logits(self, state: Tensor, start: int) -> Tensor:
        raise NotImplementedError

    def copy_deeper(self, depth: int) -> None:
        """The last token ran `depth` loops; what it left at the last of them stands for the deeper ones."""
        for layer, plane in list(self.cache):
            if plane == depth - 1:
                for deeper in range(depth, self.loops):
                    there = self.cache.setdefault((layer, deeper), ([], []))
                    for kept, copied in zip(self.cache[layer, plane], there, strict=True):
                        copied.append(kept[-1])

    def linear(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, x: Tensor, name: str | None, eps: float) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        unit = wide / torch.sqrt((wide * wide).mean(dim=-1, keepdim=True) + eps)
        return (unit if name is None else unit * self.weights[f"{name}.weight"]).to(x.dtype)

    def attend(
        self, layer: str, depth: int, query: Tensor, key: Tensor, value: Tensor, start: int, prefix: int = 0
    ) -> Tensor:
        """Append to the cache, then softmax attention, (T, heads, head_dim) to (T, heads * head_dim)."""
        keys, values = self.cache.setdefault((layer, depth), ([], []))
        keys.extend(key)
        values.extend(value)
        group = query.shape[1] // key.shape[1]
        k, v = (torch.stack(x).repeat_interleave(group, dim=1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query, k) / math.sqrt(query.shape[-1])
        at = torch.arange(start, start + len(query))[:, None]
        seen = torch.arange(len(k))[None] < torch.clamp(at + 1, min=prefix)
        weights = torch.softmax(scores.masked_fill(~seen, -math.inf), dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)


def turned(x: Tensor, start: int, base: float, *, neighbours: bool) -> Tensor:
    """Rotary embedding as complex numbers, (T, heads, head_dim)."""
    half = x.shape[-1] // 2
    parts = (x[..., 0::2], x[..., 1::2]) if neighbours else (x[..., :half], x[..., half:])
    wide = torch.promote_types(x.dtype, torch.float32)
    frequency = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(start, start + len(x), dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos().to(wide)[:, None], angle.sin().to(wide)[:, None]
    z = torch.complex(*(part.to(wide) for part in parts)) * torch.complex(cos, sin)
    pairs = torch.stack((z.real, z.imag), dim=-1 if neighbours else -2)
    return pairs.flatten(-2).to(x.dtype)


class SerialOuro(Serial):
    def prelude(self, ids: list[int], start: int) -> Tensor:
        return self.weights["model.embed_tokens.weight"][ids]

    def loop(self, state: Tensor, depth: int, start: int) -> tuple[Tensor, float | None]:
        eps = self.config["rms_norm_eps"]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            x = self._attention(self.norm(state, f"{name}.input_layernorm", eps), f"{name}.self_attn", depth, start)
            state = state + self.norm(x, f"{name}.input_layernorm_2", eps)
            x = self._mlp(self.norm(state, f"{name}.post_attention_layernorm", eps), f"{name}.mlp")
            state = state + self.norm(x, f"{name}.post_attention_layernorm_2", eps)
        state = self.norm(state, "model.norm", eps)
        gate = torch.sigmoid(self.linear(state[-1], "model.early_exit_gate"))
        return state, float(gate.float())

    def logits(self, state: Tensor, start: int) -> Tensor:
        return self.linear(state, "lm_head")

    def _attention(self, x: Tensor, name: str, depth: int, start: int) -> Tensor:
        width, base = self.config["head_dim"], self.config["rope_theta"]
        q, k, v = (self.linear(x, f"{name}.{part}_proj").unflatten(-1, (-1, width)) for part in "qkv")
        q, k = turned(q, start, base, neighbours=False), turned(k, start, base, neighbours=False)
        return self.linear(self.attend(name, depth, q, k, v, start), f"{name}.o_proj")

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        return self.linear(
            silu(self.linear(x, f"{name}.gate_proj")) * self.linear(x, f"{name}.up_proj"), f"{name}.down_proj"
        )


class SerialHuginn(Serial):
    def prelude(self, ids: list[int], start: int) -> Tensor:
        width = self.config["n_embd"]
        self.injection = self.weights["transformer.wte.weight"][ids] * math.sqrt(width)
        for layer in range(self.config["n_layers_in_prelude"]):
            self.injection = self._block(self.injection, f"transformer.prelude.{layer}", 0, start)
        rows = [initial_state(self.seed, start + i, width) for i in range(len(ids))]
        return torch.tensor(rows, dtype=torch.float64).to(self.injection.dtype)

    def loop(self, state: Tensor, depth: int, start: int) -> tuple[Tensor, float | None]:
        state = self.linear(torch.cat((state, self.injection), dim=-1), "transformer.adapter")
        for layer in range(self.config["n_layers_in_recurrent_block"]):
            state = self._block(state, f"transformer.core_block.{layer}", depth, start)
        return state, None

    def logits(self, state: Tensor, start: int) -> Tensor:
        state = self.norm(state, "transformer.ln_f", self.config["norm_eps"])
        for layer in range(self.config["n_layers_in_coda"]):
            state = self._block(state, f"transformer.coda.{layer}", 0, start)
        return self.linear(self.norm(state, "transformer.ln_f", self.config["norm_eps"]), "transformer.wte")

    def copy_deeper(self, depth: int) -> None:
        outside = {key: self.cache.pop(key) for key in list(self.cache) if ".core_block." not in key[0]}
        super().copy_deeper(depth)
        self.cache |= outside

    def _block(self, x: Tensor, name: str, depth: int, start: int) -> Tensor:
        eps = self.config["norm_eps"]
        x = self.norm(
            x + self._attention(self.norm(x, f"{name}.norm_1", eps), f"{name}.attn", depth, start),
            f"{name}.norm_2",
            eps,
        )
        up = self.linear(self.norm(x, f"{name}.norm_3", eps), f"{name}.mlp.fc")
        half = up.shape[-1] // 2
        return self.norm(x + self.linear(silu(up[:, :half]) * up[:, half:], f"{name}.mlp.proj"), f"{name}.norm_4", eps)

    def _attention(self, x: Tensor, name: str, depth: int, start: int) -> Tensor:
        heads, base = self.config["n_heads"], self.config["rope_base"]
        q, k, v = (
            part.unflatten(-1, (heads, -1)) for part in self.linear(x, f"{name}.Wqkv").split(x.shape[-1], dim=-1)
        )
        bias = self.weights[f"{name}.qk_bias"]
        q, k = (
            turned(q + bias[0, 0], start, base, neighbours=True),
            turned(k + bias[1, 0], start, base, neighbours=True),
        )
        return self.linear(self.attend(name, depth, q, k, v, start), f"{name}.proj")


class SerialHrm(Serial):
    prefix = 0

    def prelude(self, ids: list[int], start: int) -> Tensor:
        if start == 0 and self.config["prefix_lm"]:
            self.prefix = len(ids)
        self.low = self.weights["model.z_L_init"].repeat(len(ids), 1)
        scale = self.config.get("embedding_scale") or 1 / self.config["initializer_range"]
        return self.weights["model.embed_tokens.weight"][ids] * scale

    def loop(self, state: Tensor, depth: int, start: int) -> tuple[Tensor, float | None]:
        for cycle in range(self.config["L_cycles"]):
            self.low = self._stack(self.low + state, "model.L_module", str(cycle), depth, start)
        return self._stack(state + self.low, "model.H_module", "", depth, start), None

    def logits(self, state: Tensor, start: int) -> Tensor:
        return self.linear(state, "lm_head")

    def _stack(self, x: Tensor, name: str, cycle: str, depth: int, start: int) -> Tensor:
        eps = self.config["rms_norm_eps"]
        for layer in range(self.config["num_hidden_layers"]):
            here = f"{name}.layers.{layer}"
            x = x + self._attention(self.norm(x, None, eps), f"{here}.attn", cycle, depth, start)
            up = self.linear(self.norm(x, None, eps), f"{here}.mlp.gate_up_proj")
            half = up.shape[-1] // 2
            x = x + self.linear(silu(up[:, :half]) * up[:, half:], f"{here}.mlp.down_proj")
        return self.norm(x, None, eps)

    def _attention(self, x: Tensor, name: str, cycle: str, depth: int, start: int) -> Tensor:
        width, base = self.config["head_dim"], self.config["rope_theta"]
        gate, *qkv = self.linear(x, f"{name}.gqkv_proj").chunk(4, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, width)) for part in qkv)
        q, k = turned(q, start, base, neighbours=False), turned(k, start, base, neighbours=False)
        out = self.attend(name + cycle, depth, q, k, v, start, self.prefix)
        return self.linear(torch.sigmoid(gate) * out, f"{name}.o_proj")


def initial_state(seed: int, position: int, width: int) -> list[float]:
    """Huginn's start: normal draws cut off at three deviations, of deviation sqrt(2 / (5 E)) times sqrt(E)."""
    token = _hash(_hash(seed) + position)
    low = NormalDist().cdf(-3.0)
    uniform = [((_hash(token + i) >> 11) + 0.5) / 2**53 for i in range(width)]
    return [math.sqrt(2 / 5) * NormalDist().inv_cdf(low + u * (1 - 2 * low)) for u in uniform]


def _hash(x: int) -> int:
    z = (x + 0x9E3779B97F4A7C15) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return z ^ (z >> 31)


_KINDS = {"ouro": SerialOuro, "huginn_raven": SerialHuginn, "hrm_text": SerialHrm}


def serial(model: nn.Module | Path, seed: int = 0) -> Serial:
    """A fresh sequence of a looped module (which has its raw `config`), or of the checkpoint in a folder."""
    if isinstance(model, Path):
        config, weights = json.loads((model / "config.json").read_text()), load_file(model / "model.safetensors")
    else:
        config, weights = dict(model.config), dict(model.named_parameters())
    return _KINDS[config["model_type"]](config, weights, seed)


def serial_logits(
    model: nn.Module | Path, prompt: Sequence[int], max_new_tokens: int, exits: Exits = FULL, seed: int = 0
) -> tuple[Tensor, list[int]]:
    """Logits that each greedy token was taken from, (max_new_tokens, vocabulary), and the loops each ran.

    The prompt runs every loop, so the first depth is the model's.
    """
    sequence, ids, start, rows, depths = serial(model, seed), list(prompt), 0, [], []
    with torch.no_grad():
        for output in range(max_new_tokens):
            state = sequence.prelude(ids, start)
            depth, chance, due = 0, 1.0, False
            while True:
                state, gate = sequence.loop(state, depth, start)
                depth += 1
                chance *= 1.0 - (gate or 0.0)
                met = exits.threshold < 1.0 and 1.0 - chance >= exits.threshold and depth >= exits.min_loops
                if output == 0:
                    leave = depth == sequence.loops
                elif exits.mode == "trace":
                    leave = depth == min(exits.trace[output % len(exits.trace)], sequence.loops)
                else:
                    leave = depth == (exits.max_loops or sequence.loops)
                    leave = leave or (exits.mode == "immediate" and met) or (exits.mode == "delayed" and due)
                due = due or met
                if leave:
                    break
            sequence.copy_deeper(depth)
            rows.append(sequence.logits(state, start)[-1])
            depths.append(depth)
            start, ids = start + len(ids), [int(rows[-1].argmax())]
    return torch.stack(rows), depths


def serial_greedy(
    model: nn.Module | Path, prompt: Sequence[int], max_new_tokens: int, exits: Exits = FULL, seed: int = 0
) -> tuple[list[int], list[int]]:
    """The greedy tokens, and the loops each ran. End tokens do not end it."""
    logits, depths = serial_logits(model, prompt, max_new_tokens, exits, seed)
    return logits.argmax(dim=-1).tolist(), depths
