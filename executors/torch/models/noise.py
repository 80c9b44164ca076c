"""Random numbers that are a function of a seed, a position and an index alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# The increment and the multipliers of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), as signed 64-bit integers.
_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_M1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_M2 = 0x94D049BB133111EB - (1 << 64)


def truncated_normal(seeds: Tensor, positions: Tensor, width: int, bound: float = 3.0) -> Tensor:
    """Normal draws conditioned to lie within `bound` standard deviations, float64 (T, width).

    Element i of a token is drawn by inversion from hash(hash(hash(seed) + position) + i): it depends on no other token,
    batch or earlier draw. `seeds` and `positions` are int64 (T,).
    """
    index = torch.arange(width, device=seeds.device)
    bits = _mix(_mix(_mix(seeds) + positions)[:, None] + index)
    uniform = (_shift(bits, 11).double() + 0.5) * 2.0**-53
    return torch.erfinv((2.0 * uniform - 1.0) * math.erf(bound / math.sqrt(2.0))) * math.sqrt(2.0)


def _mix(x: Tensor) -> Tensor:
    z = x + _GAMMA
    z = (z ^ _shift(z, 30)) * _M1
    z = (z ^ _shift(z, 27)) * _M2
    return z ^ _shift(z, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """A right shift that fills with zeros; torch's own repeats the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
