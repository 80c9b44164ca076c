"""Small random looped models, for tests and for trying things out on a CPU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

_COMMON = {"vocab_size": 512, "intermediate_size": 128, "eos_token_id": 0}
_LLAMA = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}
_CONFIGS: dict[str, dict[str, Any]] = {
    "tiny-ouro": {
        "model_type": "ouro",
        "architectures": ["OuroForCausalLM"],
        "num_key_value_heads": 2,
        "total_ut_steps": 3,
        "early_exit_threshold": 1.0,
        "use_sliding_window": False,
    }
    | _LLAMA,
    "tiny-huginn": {
        "model_type": "huginn_raven",
        "architectures": ["RavenForCausalLM"],
        "n_embd": 64,
        "n_heads": 4,
        "n_layers": 4,
        "n_layers_in_prelude": 1,
        "n_layers_in_recurrent_block": 2,
        "n_layers_in_coda": 1,
        "mean_recurrence": 4,
        "block_size": 1024,
        "norm_eps": 1e-6,
        "rope_base": 50_000.0,
        "qk_bias": True,
        "bias": False,
        "tie_embeddings": True,
        "injection_type": "linear",
        "state_init": "like-init",
    },
    "tiny-hrm": {
        "model_type": "hrm_text",
        "architectures": ["HrmTextForCausalLM"],
        "H_cycles": 3,
        "L_cycles": 2,
        "initializer_range": 0.02,
        "embedding_scale": 1.0,
        "prefix_lm": True,
    }
    | _LLAMA,
}


def tiny_config(name: str) -> dict[str, Any]:
    """A configuration in the published form: "tiny-ouro", "tiny-huginn" or "tiny-hrm". ValueError for another name."""
    if name not in _CONFIGS:
        raise ValueError(f"{name!r} is no tiny model, there are {', '.join(_CONFIGS)}")
    return _COMMON | _CONFIGS[name]


# Attention that is nearly even leaves every context alike, so that a model says one token again and again; branches as
# strong as what they are added to make it chaotic, so that rounding decides what it says.
_GAINS = {
    "q_proj.weight": 2.0,
    "k_proj.weight": 2.0,
    "layernorm_2.weight": 0.5,
    "attn.proj.weight": 0.5,
    "mlp.proj.weight": 0.5,
    "lm_head.weight": 2.0,
    "wte.weight": 2.0,
}


def init_weights(model: nn.Module, seed: int) -> None:
    """Give every parameter random values, in place: a function of the names, the shapes and `seed`.

    Logits have a standard deviation of about 2, an exit gate's probabilities one of about 0.2 around 0.3.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            draw = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            gain = next((gain for end, gain in _GAINS.items() if name.endswith(end)), 1.0)
            weight.copy_(gain * _scaled(name, draw))


def _scaled(name: str, draw: Tensor) -> Tensor:
    if draw.ndim != 2:
        if "norm" in name or "ln_f" in name:
            return 1.0 + 0.1 * draw
        return 0.5 * draw - (1.0 if "gate" in name else 0.0)
    if "embed" in name:
        return draw
    if name.endswith("Wqkv.weight"):
        draw[: 2 * draw.shape[1]] *= _GAINS["q_proj.weight"]
    return draw / math.sqrt(draw.shape[1])
