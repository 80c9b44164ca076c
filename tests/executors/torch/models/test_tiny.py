"""Tiny models: the same everywhere, and lively enough to tell a right answer from a wrong one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from paged_run import tiny_model
from serial import Exits, serial_greedy, serial_logits

from interlock.executors.torch.models.tiny import tiny_config

MODELS = ("tiny-ouro", "tiny-huginn", "tiny-hrm")
PROMPTS = [np.random.default_rng(0).integers(0, 512, length).tolist() for length in (3, 9)]


@pytest.mark.parametrize("name", MODELS)
def test_logits_spread_by_about_2_and_tokens_do_not_repeat(name: str) -> None:
    model = tiny_model(name)
    for prompt in PROMPTS:
        logits, _ = serial_logits(model, prompt, 20)
        assert 1.5 < logits.std(dim=-1).mean() < 2.5
        assert len(logits.argmax(dim=-1).unique()) >= 10


def test_the_gate_of_ouro_lets_tokens_leave_at_different_depths() -> None:
    model = tiny_model("tiny-ouro", total_ut_steps=4)
    depths = [serial_greedy(model, prompt, 20, Exits("immediate", 0.6))[1] for prompt in PROMPTS]
    assert {depth for each in depths for depth in each} == {2, 3, 4}


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_a_function_of_the_seed(name: str) -> None:
    one, same, other = (dict(tiny_model(name, torch.float32, seed).named_parameters()) for seed in (1, 1, 2))
    assert all(torch.equal(weight, same[key]) for key, weight in one.items())
    assert not any(torch.equal(weight, other[key]) for key, weight in one.items())


def test_the_seed_of_a_request_changes_what_huginn_says() -> None:
    """Its state starts random."""
    model = tiny_model("tiny-huginn")
    assert serial_greedy(model, PROMPTS[0], 8, seed=1) != serial_greedy(model, PROMPTS[0], 8, seed=2)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="'tiny-x' is no tiny model, there are tiny-ouro, tiny-huginn, tiny-hrm"):
        tiny_config("tiny-x")
