"""When the simulated looped model lets a decode token leave its loop."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from interlock.core.hashing import splitmix64

_UNIT = 2.0**-53
_SALT = np.uint64(0x6A09E667F3BCC909)  # keeps exit depths and tokens of one position apart


class ExitModel(Protocol):
    """The depth of each decode token. A pure function of its arguments."""

    def depths(self, digest: np.ndarray, index: np.ndarray, seed: int) -> np.ndarray:
        """Loops after which the tokens at output positions `index` leave, int64 (n,), 1 or more.

        `digest` uint64 (n,) stands for each row's prompt.
        """
        ...


class Fixed:
    """Every token leaves after the same number of loops."""

    def __init__(self, loops: int) -> None:
        self._loops = loops

    def depths(self, digest: np.ndarray, index: np.ndarray, seed: int) -> np.ndarray:
        """That number for each row."""
        return np.full(len(index), self._loops, np.int64)


class Trace:
    """Depths given as a list, which each request goes through by output position, again and again."""

    def __init__(self, depths: tuple[int, ...]) -> None:
        self._depths = np.asarray(depths, np.int64)

    def depths(self, digest: np.ndarray, index: np.ndarray, seed: int) -> np.ndarray:
        """The list's entry at index modulo its length."""
        return np.asarray(self._depths[index % len(self._depths)])


class Pmf:
    """Depths 1, 2, ... with the given probabilities, drawn by hashing prompt, position and seed."""

    def __init__(self, pmf: tuple[float, ...]) -> None:
        # The last bound is left out, so that rounding of the sum cannot yield a depth beyond the list.
        self._bounds = np.cumsum(pmf)[:-1]

    def depths(self, digest: np.ndarray, index: np.ndarray, seed: int) -> np.ndarray:
        """Draws by inversion of the distribution."""
        salt = splitmix64(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64) ^ _SALT)
        draw = (splitmix64((digest ^ salt) + index.astype(np.uint64)) >> np.uint64(11)) * _UNIT
        return np.searchsorted(self._bounds, draw, side="right").astype(np.int64) + 1
