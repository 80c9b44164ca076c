"""Configurations that cannot be run are refused in one line that names the field."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.executors.torch.models import looped_class
from interlock.executors.torch.models.tiny import tiny_config

COMMON = ("vocab_size", "intermediate_size")
LLAMA = (*COMMON, "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "rms_norm_eps")
PARTS = ("n_layers_in_prelude", "n_layers_in_recurrent_block", "n_layers_in_coda", "mean_recurrence")
NEEDED = {
    "tiny-ouro": (*LLAMA, "total_ut_steps"),
    "tiny-huginn": (*COMMON, "n_embd", "n_heads", "norm_eps", "block_size", *PARTS),
    "tiny-hrm": (*LLAMA, "H_cycles", "L_cycles"),
}


def build(config: dict[str, Any]) -> None:
    looped_class(config["model_type"]).build(config)


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, fields in NEEDED.items() for field in fields])
def test_a_missing_field_is_named(name: str, field: str) -> None:
    config = tiny_config(name)
    del config[field]
    shown = "num_layers_per_stack" if (name, field) == ("tiny-hrm", "num_hidden_layers") else field
    with pytest.raises(ValueError, match=rf"^{config['model_type']} config: {shown} is missing$"):
        build(config)


@pytest.mark.parametrize(
    ("name", "field", "value", "told"),
    [
        ("tiny-ouro", "hidden_act", "gelu", "hidden_act is 'gelu', supported is 'silu'"),
        ("tiny-ouro", "use_sliding_window", True, "use_sliding_window is True, supported is False"),
        ("tiny-ouro", "layer_types", ["x"], r"layer_types is \['x'\], supported is 'full_attention' throughout"),
        ("tiny-ouro", "rope_scaling", {"type": "yarn"}, "rope type is 'yarn', supported is 'default'"),
        ("tiny-ouro", "total_ut_steps", 0, "total_ut_steps is 0, it must be a positive integer"),
        ("tiny-ouro", "total_ut_steps", 2.5, "total_ut_steps is 2.5, it must be a positive integer"),
        ("tiny-ouro", "rms_norm_eps", -1.0, "rms_norm_eps is -1.0, it must be a positive number"),
        ("tiny-ouro", "tie_word_embeddings", "no", "tie_word_embeddings is 'no', it must be true or false"),
        ("tiny-ouro", "num_key_value_heads", 3, "num_key_value_heads is 3, it must divide num_attention_heads, 4"),
        ("tiny-ouro", "head_dim", 15, "head_dim is 15, it must be even"),
        ("tiny-huginn", "n_heads", 5, "n_heads is 5, it must divide half of n_embd, 32"),
        ("tiny-huginn", "state_init", "zero", "state_init is 'zero', supported is 'like-init'"),
        ("tiny-huginn", "injection_type", "add", "injection_type is 'add', supported is 'linear'"),
        ("tiny-huginn", "test_time_noise", 0.1, "test_time_noise is 0.1, supported is 0"),
        ("tiny-huginn", "num_key_value_heads", 2, "num_key_value_heads is 2, supported is 4"),
        ("tiny-huginn", "padded_vocab_size", 1024, "padded_vocab_size is 1024, supported is 512"),
        ("tiny-hrm", "attention_bias", True, "attention_bias is True, supported is False"),
        ("tiny-hrm", "mlp_bias", True, "mlp_bias is True, supported is False"),
        ("tiny-hrm", "rope_parameters", {"rope_type": "linear"}, "rope type is 'linear', supported is 'default'"),
    ],
)
def test_a_field_that_is_not_supported_is_named(name: str, field: str, value: object, told: str) -> None:
    config = tiny_config(name) | {field: value}
    with pytest.raises(ValueError, match=rf"^{config['model_type']} config: {told}$"):
        build(config)


def test_a_config_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="ouro config: model_type is 'hrm_text', supported is 'ouro'"):
        looped_class("ouro").build(tiny_config("tiny-hrm"))


def test_null_and_the_other_names_of_a_field_are_understood() -> None:
    config = tiny_config("tiny-huginn") | {"num_attention_heads": 4, "qk_bias": None}
    del config["n_heads"]
    assert looped_class("huginn_raven").build(config).shape.heads == 4
    rope = {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    assert looped_class("ouro").build(tiny_config("tiny-ouro") | rope | {"head_dim": None}).shape.head_dim == 16
