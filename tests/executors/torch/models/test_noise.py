"""The random initial state: a function of seed, position and index."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from serial import initial_state

from interlock.executors.torch.models.noise import truncated_normal

SEEDS = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, position=st.integers(0, 2**20))
def test_it_is_the_formula_in_plain_numbers(seed: int, position: int) -> None:
    drawn = truncated_normal(torch.tensor([seed]), torch.tensor([position]), 6)
    expected = torch.tensor([initial_state(seed & (2**64 - 1), position, 6)], dtype=torch.float64)
    torch.testing.assert_close(math.sqrt(2 / 5) * drawn, expected, rtol=0, atol=1e-12)


@settings(max_examples=10, deadline=None)
@given(seeds=st.lists(SEEDS, min_size=2, max_size=5), at=st.integers(0, 1))
def test_a_token_does_not_depend_on_its_batch(seeds: list[int], at: int) -> None:
    many = truncated_normal(torch.tensor(seeds), torch.arange(len(seeds)), 16)
    alone = truncated_normal(torch.tensor(seeds[at : at + 1]), torch.tensor([at]), 16)
    assert torch.equal(many[at : at + 1], alone)


def test_it_is_normal_cut_off_at_three_deviations() -> None:
    drawn = truncated_normal(torch.arange(100), torch.arange(100), 1000)
    assert drawn.abs().max() < 3.0
    assert abs(drawn.mean()) < 0.01
    # A normal between -3 and 3 has the variance 1 - 6 phi(3) / erf(3 / sqrt(2)) = 0.9733.
    assert abs(drawn.var() - 0.9733) < 0.01
    assert abs((drawn.abs() < 1).double().mean() - 0.6827 / 0.9973) < 0.005


def test_seeds_positions_and_indices_all_matter() -> None:
    drawn = truncated_normal(torch.tensor([1, 1, 2, 2]), torch.tensor([0, 1, 0, 1]), 64)
    assert len(drawn.unique()) == 4 * 64
    assert torch.corrcoef(drawn).fill_diagonal_(0).abs().max() < 0.5
