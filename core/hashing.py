"""Vectorised 64-bit hashing: one mixer, for synthetic tokens, the simulated model and the prefix index."""

from __future__ import annotations

import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def splitmix64(x: np.ndarray) -> np.ndarray:
    """The finaliser of Steele, Lea and Flood's SplitMix64 (OOPSLA 2014), element by element over uint64."""
    z = x + _GAMMA
    z = (z ^ (z >> _S30)) * _M1
    z = (z ^ (z >> _S27)) * _M2
    return np.asarray(z ^ (z >> _S31))
