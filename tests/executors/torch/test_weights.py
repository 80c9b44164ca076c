"""Filling a module that was made elsewhere: exactly its names and shapes, or an error that tells the difference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from interlock.core import ConfigError
from interlock.executors.torch.checkpoint import open_checkpoint
from interlock.executors.torch.weights import copy_into

from .saved import logits, model_of, saved


class Pair(nn.Module):
    """Two layers, the second of which may be the first."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.one = nn.Linear(2, 3, bias=False)
        self.two = nn.Linear(2, 3, bias=False)
        self.register_buffer("scale", torch.zeros(()))
        if tied:
            self.two.weight = self.one.weight


WEIGHTS = {"one.weight": torch.ones(3, 2), "two.weight": torch.full((3, 2), 2.0), "scale": torch.tensor(4.0)}


def test_parameters_and_buffers_are_filled_in_their_own_dtype() -> None:
    module = Pair().to(torch.bfloat16)
    copy_into(module, WEIGHTS.items(), "here")
    assert all(torch.equal(found, WEIGHTS[name].bfloat16()) for name, found in module.state_dict().items())


def test_one_name_is_enough_for_tied_weights() -> None:
    module = Pair(tied=True)
    copy_into(module, [(name, WEIGHTS[name]) for name in ("two.weight", "scale")], "here")
    assert torch.equal(module.one.weight, WEIGHTS["two.weight"])


def test_names_can_be_translated_and_left_out() -> None:
    module, given = Pair(), {"m.one.weight": WEIGHTS["one.weight"], "m.two.weight": WEIGHTS["two.weight"]}
    given |= {"m.scale": WEIGHTS["scale"], "extra": torch.zeros(9)}
    copy_into(module, given.items(), "here", lambda name: name.removeprefix("m.") if name != "extra" else None)
    assert torch.equal(module.two.weight, WEIGHTS["two.weight"])


def test_every_difference_is_told_in_one_line() -> None:
    given = {"one.weight": torch.ones(2, 3), "scale": torch.ones(1), "three": torch.ones(1)}
    with pytest.raises(ConfigError) as caught:
        copy_into(Pair(), given.items(), "here")
    shapes = "of another shape: one.weight 2x3 for 3x2, scale 1 for scalar"
    found = f"missing: two.weight; unexpected: three; {shapes}"
    assert str(caught.value) == f"here: the weights are not those of the config: {found}"


def test_a_folder_fills_a_module(tmp_path: Path) -> None:
    other = model_of(seed=5)
    open_checkpoint(str(saved(tmp_path)), Path()).fill(other)
    assert torch.equal(logits(other), logits(model_of()))
