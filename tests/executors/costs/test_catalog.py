"""Catalog: published architecture numbers give the published parameter counts."""

from __future__ import annotations

import pytest

from interlock.executors.costs.catalog import DEVICES, MODELS, lookup


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # Totals of the published safetensors indices.
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("qwen-2.5-7b", 7_615_616_512),
    ],
)
def test_parameters_are_the_published_ones(name: str, parameters: int) -> None:
    assert MODELS[name].parameters == parameters


@pytest.mark.parametrize(("name", "billions"), [("ouro-1.4b", 1.43), ("huginn-0125", 3.56)])
def test_looped_models_have_about_the_published_size(name: str, billions: float) -> None:
    # 24 (4 * 2048^2 + 3 * 2048 * 5632) + 2 * 2048 * 49152 = 1.434e9;
    # 8 (4 * 5280^2 + 3 * 5280 * 17920) + 2 * 5280^2 + 5280 * 65536 = 3.565e9.
    assert MODELS[name].parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_llama_3_8b_by_hand() -> None:
    model = MODELS["llama-3-8b"]
    # 2 (keys, values) * 32 layers * 8 heads * 128 * 2 bytes.
    assert model.kv_bytes() == 131_072
    # 32 (4096 (4096 + 2048) + 4096^2 + 3 * 4096 * 14336) matrices, 65 norms, head of 4096 * 128256; two bytes each.
    assert model.weight_bytes() == 2 * (32 * 218_103_808 + 65 * 4096 + 525_336_576)
    assert round(model.weight_bytes() / 1e9, 2) == 15.01


def test_looped_parts() -> None:
    huginn, ouro = MODELS["huginn-0125"], MODELS["ouro-1.4b"]
    assert (huginn.prelude, huginn.recurrent, huginn.coda, huginn.loops) == (2, 4, 2, 32)
    assert (ouro.prelude, ouro.recurrent, ouro.coda, ouro.loops) == (0, 24, 0, 4)


def test_every_model_and_device_is_whole() -> None:
    assert set(MODELS) >= {"llama-3-8b", "llama-3-70b", "qwen-2.5-7b", "ouro-1.4b", "huginn-0125"}
    assert set(DEVICES) >= {"a100-80gb", "h100-80gb", "h200", "l4"}
    assert all(model.heads % model.kv_heads == 0 for model in MODELS.values())


def test_unknown_name_says_what_is_allowed_and_what_is_near() -> None:
    with pytest.raises(
        ValueError, match=r"unknown model 'llama3-8b', allowed: .*qwen-2\.5-7b; did you mean 'llama-3-8b'"
    ):
        lookup("model", "llama3-8b", MODELS)
