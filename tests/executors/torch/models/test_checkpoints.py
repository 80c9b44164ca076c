"""A checkpoint in the published form loads by name, and gives the logits that the serial reference reads from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from paged_run import PagedRun, tiny_model
from safetensors.torch import load_file, save_file
from serial import serial_greedy, serial_logits

from interlock.executors.torch.models import looped_class
from interlock.executors.torch.models.looped import LoopedModel


def saved(model: LoopedModel, folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(model.config))
    tensors = dict(model.named_parameters())
    if model.config["model_type"] == "huginn_raven":  # as published: the embedding twice, and a table
        tensors |= {"lm_head.weight": tensors["transformer.wte.weight"].clone(), "freqs_cis": torch.ones(1, 9, 1, 8, 2)}
    save_file(tensors, folder / "model.safetensors")
    return folder


def loaded(folder: Path) -> LoopedModel:
    config = json.loads((folder / "config.json").read_text())
    model = looped_class(config["model_type"]).build(config).double()
    renamed = {model.rename(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    model.load_state_dict({name: tensor for name, tensor in renamed.items() if name is not None}, strict=True)
    return model


@pytest.mark.parametrize("name", ["tiny-ouro", "tiny-huginn", "tiny-hrm"])
def test_a_checkpoint_goes_to_disk_and_back(name: str, tmp_path: Path) -> None:
    folder = saved(tiny_model(name, seed=5), tmp_path)
    expected, depths = serial_logits(folder, [11, 12, 13], 3)
    run = PagedRun(loaded(folder), 4, 4)
    row = run.admit([11, 12, 13], [3], 3)
    while len(row.logits) < 3:
        run.step([row])
    torch.testing.assert_close(torch.stack(row.logits), expected, rtol=0, atol=1e-9)
    assert serial_greedy(tiny_model(name, seed=5), [11, 12, 13], 3) == (row.ids[3:], depths)


@pytest.mark.parametrize("name", ["tiny-ouro", "tiny-huginn", "tiny-hrm"])
def test_building_neither_draws_weights_nor_asks_for_gradients(name: str) -> None:
    before = torch.get_rng_state()
    model = tiny_model(name)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(weight.requires_grad for weight in model.parameters())
    assert not model.training


def test_an_unknown_model_type_is_refused() -> None:
    with pytest.raises(ValueError, match="model_type is 'llama', looped models are ouro, huginn_raven, hrm_text"):
        looped_class("llama")
