"""Modules have exactly the tensors of the published checkpoints.

Names and shapes: for Ouro and Huginn those that the modelling files beside the checkpoints give rise to, for HRM-Text
those that `transformers` writes. Sizes: the published configurations.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from interlock.executors.torch.models import LOOPED, looped_class
from interlock.executors.torch.models.looped import LoopedModel

Shapes = dict[str, tuple[int, ...]]

OURO = {  # ByteDance/Ouro-1.4B
    "model_type": "ouro",
    "vocab_size": 49152,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_scaling": None,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "total_ut_steps": 4,
    "early_exit_threshold": 1.0,
    "eos_token_id": 0,
}
HUGINN = {  # tomg-group-umd/huginn-0125
    "model_type": "huginn_raven",
    "vocab_size": 65536,
    "padded_vocab_size": 65536,
    "n_embd": 5280,
    "n_heads": 55,
    "intermediate_size": 17920,
    "n_layers_in_prelude": 2,
    "n_layers_in_recurrent_block": 4,
    "n_layers_in_coda": 2,
    "mean_recurrence": 32,
    "block_size": 4096,
    "norm_eps": 1e-6,
    "rope_base": 50000,
    "qk_bias": True,
    "bias": False,
    "tie_embeddings": True,
    "injection_type": "linear",
    "state_init": "like-init",
    "eos_token_id": [65505, 65508],
}
HRM = {  # sapientinc/HRM-Text-1B
    "model_type": "hrm_text",
    "vocab_size": 65536,
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "H_cycles": 2,
    "L_cycles": 3,
    "prefix_lm": True,
}


def ouro_shapes() -> Shapes:
    e, inner, vocab = 2048, 5632, 49152
    block = {f"self_attn.{part}_proj": (e, e) for part in "qkvo"} | {
        "mlp.gate_proj": (inner, e),
        "mlp.up_proj": (inner, e),
        "mlp.down_proj": (e, inner),
        "input_layernorm": (e,),
        "input_layernorm_2": (e,),
        "post_attention_layernorm": (e,),
        "post_attention_layernorm_2": (e,),
    }
    return each("model.layers", 24, block) | {
        "model.embed_tokens.weight": (vocab, e),
        "model.norm.weight": (e,),
        "model.early_exit_gate.weight": (1, e),
        "model.early_exit_gate.bias": (1,),
        "lm_head.weight": (vocab, e),
    }


def huginn_shapes() -> Shapes:
    e, inner, vocab = 5280, 17920, 65536
    block = {
        "attn.Wqkv": (3 * e, e),
        "attn.proj": (e, e),
        "mlp.fc": (2 * inner, e),
        "mlp.proj": (e, inner),
    } | {f"norm_{i}": (e,) for i in (1, 2, 3, 4)}
    parts = {"prelude": 2, "core_block": 4, "coda": 2}
    shapes: Shapes = {
        "transformer.wte.weight": (vocab, e),
        "transformer.adapter.weight": (e, 2 * e),
        "transformer.ln_f.weight": (e,),
    }
    for part, layers in parts.items():
        shapes |= each(f"transformer.{part}", layers, block)
        shapes |= {f"transformer.{part}.{layer}.attn.qk_bias": (2, 1, 55, 96) for layer in range(layers)}
    return shapes


def hrm_shapes() -> Shapes:
    e, inner, vocab = 1536, 4096, 65536
    block = {
        "attn.gqkv_proj": (4 * e, e),
        "attn.o_proj": (e, e),
        "mlp.gate_up_proj": (2 * inner, e),
        "mlp.down_proj": (e, inner),
    }
    return (
        each("model.L_module.layers", 16, block)
        | each("model.H_module.layers", 16, block)
        | {"model.embed_tokens.weight": (vocab, e), "model.z_L_init": (e,), "lm_head.weight": (vocab, e)}
    )


def each(prefix: str, layers: int, block: Shapes) -> Shapes:
    return {f"{prefix}.{layer}.{name}.weight": shape for layer in range(layers) for name, shape in block.items()}


def on_meta(config: dict[str, Any]) -> LoopedModel:
    with torch.device("meta"):
        return looped_class(config["model_type"]).build(config)


def shapes_of(model: LoopedModel) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    ("config", "shapes", "parameters"),
    [
        (OURO, ouro_shapes(), 1_434_652_673),
        (HUGINN, huginn_shapes(), 3_564_976_800),
        (HRM, hrm_shapes(), 1_182_795_264),
    ],
    ids=LOOPED,
)
def test_names_shapes_and_number_of_parameters(config: dict[str, Any], shapes: Shapes, parameters: int) -> None:
    found = shapes_of(on_meta(config))
    assert found == shapes
    assert sum(map(math.prod, found.values())) == parameters


def test_huginn_is_published_with_its_embedding_twice_and_a_table_of_angles() -> None:
    model = on_meta(HUGINN)
    assert model.rename("transformer.wte.weight") == "transformer.wte.weight"
    assert model.rename("lm_head.weight") is None
    assert model.rename("freqs_cis") is None
    twice = sum(map(math.prod, huginn_shapes().values())) + 65536 * 5280 + 4096 * 48 * 2
    assert round(4 * twice / 1e9, 2) == 15.65  # the size of the float32 checkpoint in GB


@pytest.mark.parametrize("config", [OURO, HUGINN, HRM], ids=LOOPED)
def test_weights_may_be_tied_or_not(config: dict[str, Any]) -> None:
    key = "tie_embeddings" if config is HUGINN else "tie_word_embeddings"
    tied, untied = on_meta(config | {key: True}), on_meta(config | {key: False})
    assert set(shapes_of(untied)) - set(shapes_of(tied)) == {"lm_head.weight"}
    assert tied.rename("lm_head.weight") is None
    assert untied.rename("lm_head.weight") == "lm_head.weight"


def test_shape_says_what_is_cached_and_carried() -> None:
    ouro, huginn, hrm = (on_meta(config).shape for config in (OURO, HUGINN, HRM))
    assert (ouro.prelude_layers, ouro.recurrent_layers, ouro.coda_layers, ouro.loops, ouro.carried) == (
        0,
        24,
        0,
        4,
        2048,
    )
    assert (huginn.prelude_layers, huginn.recurrent_layers, huginn.coda_layers) == (2, 4, 2)
    assert (huginn.loops, huginn.carried, huginn.max_model_len) == (32, 2 * 5280, 4096)
    assert (hrm.recurrent_layers, hrm.loops, hrm.carried) == (4 * 16, 2, 2 * 1536)
    assert [shape.planes for shape in (ouro, huginn, hrm)] == [96, 132, 128]
    assert [shape.eos_token_ids for shape in (ouro, huginn, hrm)] == [(0,), (65505, 65508), ()]
    assert [(shape.heads, shape.kv_heads, shape.head_dim) for shape in (ouro, huginn, hrm)] == [
        (16, 16, 128),
        (55, 55, 96),
        (12, 12, 128),
    ]


def test_only_hrm_text_has_prompts_that_see_all_of_themselves() -> None:
    assert [on_meta(config).prefix_lm for config in (OURO, HUGINN, HRM)] == [False, False, True]
    assert not on_meta(HRM | {"prefix_lm": False}).prefix_lm


def test_only_huginn_makes_its_kv_depend_on_the_seed() -> None:
    assert [on_meta(config).seeded for config in (OURO, HUGINN, HRM)] == [False, True, False]
