"""Norms and rotary embeddings, alone."""

from __future__ import annotations

import pytest
import torch
from serial import turned
from torch import Tensor

from interlock.executors.torch.models.layers import Norm, Rope, rotate_halves, rotate_neighbours

GENERATOR = torch.Generator().manual_seed(0)
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=GENERATOR)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [True, False])
def test_a_norm_is_exact_up_to_one_rounding(dtype: torch.dtype, weighted: bool) -> None:
    norm, x = Norm(48, 1e-6, weighted=weighted).to(dtype), (30 * drawn(7, 48)).to(dtype)
    if norm.weight is not None:
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5, generator=GENERATOR)
    wide = x.double()
    exact = wide / (wide.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
    exact = exact if norm.weight is None else exact * norm.weight.double()
    found = norm(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("neighbours", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation_is_multiplication_by_complex_numbers_of_length_1(neighbours: bool, dtype: torch.dtype) -> None:
    rope, x = Rope(10_000.0, 16, 64), drawn(5, 3, 16).to(dtype)
    rotate = rotate_neighbours if neighbours else rotate_halves
    found = rotate(x, rope.at(torch.arange(40, 45), dtype))
    assert found.dtype == dtype
    exact = turned(x.double(), 40, 10_000.0, neighbours=neighbours)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_scores_depend_on_the_distance_alone() -> None:
    rope = Rope(50_000.0, 8, 64)
    query, key = drawn(1, 1, 8), drawn(1, 1, 8)

    def score(at: int, other: int) -> float:
        turned_query = rotate_neighbours(query, rope.at(torch.tensor([at]), torch.float64))
        return float((turned_query * rotate_neighbours(key, rope.at(torch.tensor([other]), torch.float64))).sum())

    assert score(3, 1) == pytest.approx(score(52, 50), abs=1e-12)
    assert score(3, 1) != pytest.approx(score(3, 2), abs=1e-3)


def test_angles_stay_exact_when_they_were_asked_for_in_another_type_before() -> None:
    rope, at = Rope(10_000.0, 8, 64), torch.tensor([63])
    assert rope.at(at, torch.bfloat16)[0].dtype == torch.float32
    assert float(rope.at(at, torch.float64)[0][0, 0, 0]) == float(torch.cos(torch.tensor(63.0, dtype=torch.float64)))


def test_a_position_beyond_the_context_is_refused() -> None:
    with pytest.raises(IndexError):
        Rope(10_000.0, 8, 64).at(torch.tensor([64]), torch.float32)
