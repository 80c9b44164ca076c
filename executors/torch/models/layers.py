"""Norms and rotary embeddings that the looped models share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Norm(nn.Module):
    """x / sqrt(mean(x^2) + eps), times a learned weight unless `weighted` is False (Zhang and Sennrich 2019).

    Computed in at least float32 and rounded once, at the end.
    """

    weight: Tensor | None

    def __init__(self, width: int, eps: float, *, weighted: bool = True) -> None:
        super().__init__()
        self._width, self._eps = (width,), eps
        self.register_parameter("weight", nn.Parameter(torch.ones(width)) if weighted else None)

    def forward(self, x: Tensor) -> Tensor:
        """(T, width) to the same."""
        return functional.rms_norm(x, self._width, self.weight, self._eps)


Angles = tuple[Tensor, Tensor]  # cosine and sine, each (T, 1, head_dim // 2), in at least float32


class Rope:
    """Rotary position embedding (Su et al. 2021): pair i of a head turns by position * base^(-2 i / head_dim)."""

    def __init__(self, base: float, head_dim: int, length: int) -> None:
        self._base, self._head_dim, self._length = base, head_dim, length
        # Not a buffer: a module that is cast to bfloat16 would round it, and one built on "meta" would lose it.
        self._table: Tensor | None = None

    def at(self, positions: Tensor, dtype: torch.dtype) -> Angles:
        """The angles of these positions, int64 (T,), for queries and keys of type `dtype`."""
        exact = torch.promote_types(dtype, torch.float32)
        if self._table is None or self._table.device != positions.device or self._table.dtype != exact:
            self._table = self._compute(positions.device).to(exact)
        rows = self._table[positions]
        return rows[:, None, 0], rows[:, None, 1]

    def _compute(self, device: torch.device) -> Tensor:
        pair = torch.arange(0, self._head_dim, 2, dtype=torch.float64, device=device)
        position = torch.arange(self._length, dtype=torch.float64, device=device)
        angles = torch.outer(position, self._base ** (-pair / self._head_dim))
        return torch.stack((angles.cos(), angles.sin()), dim=1)


def rotate_halves(x: Tensor, angles: Angles) -> Tensor:
    """Rotate (T, heads, head_dim) where a pair is an element of the first half and its fellow of the second."""
    cos, sin = angles
    first, second = x.to(cos.dtype).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def rotate_neighbours(x: Tensor, angles: Angles) -> Tensor:
    """Rotate (T, heads, head_dim) where a pair is two neighbours, the parts of one complex number."""
    cos, sin = angles
    real, imaginary = x.to(cos.dtype).reshape(*x.shape[:-1], -1, 2).unbind(-1)
    turned = torch.stack((real * cos - imaginary * sin, imaginary * cos + real * sin), dim=-1)
    return turned.flatten(-2).to(x.dtype)
