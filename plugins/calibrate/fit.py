"""Coefficients that are not negative, fitted to calls of very different length and to what disturbs them."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

_ROUNDS = 50
_FAR = 3.0  # times what the fit says, or a third of it: as far as a call may be without being set aside
_SPREADS = 5.0  # standard deviations of the rest beyond which it is set aside where the rest scatters more than that
_SAME = 1e-9, 1e-18  # two sums of squares are equal if they differ by this share of themselves, or of the target's


class Fit(NamedTuple):
    """`coefficients` float64 (5,); `errors` float64 (n,): |predicted - measured| / measured; `kept` bool (n,)."""

    coefficients: np.ndarray
    errors: np.ndarray
    kept: np.ndarray


def fit(loads: np.ndarray, seconds: np.ndarray) -> Fit:
    """The coefficients that predict the time of these calls, where every second of the run counts the same.

    A squared error is weighted by 1 / predicted, again and again until nothing changes; the predicted times then sum to
    the measured ones. Without weights, short calls would be left to chance. With the error's share of each call, a few
    long prompts would be, and others wait for them. Calls that are very far off, such as the first ones of a process,
    are set aside.
    """
    # At first by what was measured: slow strays count little then, and cannot hide by pulling the fit towards them.
    weights, kept, found = 1 / seconds, np.ones(len(seconds), bool), np.zeros(loads.shape[1])
    for _ in range(_ROUNDS):
        before = kept, found
        found = nnls(loads[kept] * weights[kept, None], seconds[kept] * weights[kept])
        predicted = np.maximum(loads @ found, seconds / _FAR**2)  # never zero
        weights, kept = predicted**-0.5, _near(np.log(seconds / predicted))
        if np.array_equal(kept, before[0]) and np.allclose(found, before[1], rtol=1e-9, atol=0):
            break
    return Fit(found, np.abs(loads @ found - seconds) / seconds, kept)


def _near(off: np.ndarray) -> np.ndarray:
    """Which are not far off, by the logarithms of measured / predicted. More than half always are."""
    middle = np.median(off)
    spread = 1.4826 * np.median(np.abs(off - middle))  # of a normal distribution, its standard deviation
    return np.asarray(np.abs(off - middle) <= max(np.log(_FAR), _SPREADS * spread))


def nnls(design: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The x >= 0 (k,) that minimises |design x - target|, for few columns.

    At the optimum x is the plain least-squares solution over the columns where it is not zero. So of all subsets of
    columns, those whose solution is positive are compared. Where several are equally good, columns cannot be told
    apart, and the smallest set holds, of equal sizes the one that comes first.
    """
    size = design.shape[1]
    units = np.sqrt((design**2).sum(axis=0))
    units[units == 0] = 1.0
    # |design x - target| is |triangle x - corner| up to a constant: the subsets are solved on k + 1 rows.
    triangle = np.asarray(np.linalg.qr(np.column_stack([design / units, target]), mode="r"))
    best, least = np.zeros(size), float((triangle[:, size] ** 2).sum())
    noise = _SAME[1] * least
    for count in range(1, size + 1):
        for columns in map(list, combinations(range(size), count)):
            solution = np.linalg.lstsq(triangle[:, columns], triangle[:, size], rcond=None)[0]
            left = float(((triangle[:, columns] @ solution - triangle[:, size]) ** 2).sum())
            if (solution > 0).all() and left < least * (1 - _SAME[0]) - noise:
                best, least = np.zeros(size), left
                best[columns] = solution
    return np.asarray(best / units)
