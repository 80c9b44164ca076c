"""Distributions of token counts, drawn as whole arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from interlock.core.config_errors import MAX_INT
from interlock.core.config_workload import Length


def draw(length: Length, count: int, rng: np.random.Generator) -> np.ndarray:
    """So many lengths, int64, each a whole number of at least 1."""
    kind = next(name for name in _DRAWS if getattr(length, name) is not None)
    return whole(_DRAWS[kind](getattr(length, kind), count, rng))


def whole(values: np.ndarray) -> np.ndarray:
    """Rounded to whole tokens, int64, at least 1 and within 32 bits."""
    return np.asarray(np.clip(np.rint(values), 1, MAX_INT), np.int64)


def _lognormal(options: Any, count: int, rng: np.random.Generator) -> np.ndarray:
    # exp(mu + sigma^2 / 2) is the mean of a lognormal.
    return rng.lognormal(math.log(options.mean) - options.sigma**2 / 2, options.sigma, count)


def _hyperexponential(options: Any, count: int, rng: np.random.Generator) -> np.ndarray:
    probabilities = np.array(options.probabilities)
    chosen = rng.choice(len(probabilities), count, p=probabilities / probabilities.sum())
    return rng.exponential(np.array(options.means)[chosen])


_DRAWS: dict[str, Callable[[Any, int, np.random.Generator], np.ndarray]] = {
    "constant": lambda options, count, rng: np.full(count, options.value),
    "uniform": lambda options, count, rng: rng.integers(options.low, options.high, count, endpoint=True),
    "exponential": lambda options, count, rng: rng.exponential(options.mean, count),
    "geometric": lambda options, count, rng: rng.geometric(1 / options.mean, count),
    "lognormal": _lognormal,
    "hyperexponential": _hyperexponential,
}
