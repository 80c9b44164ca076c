"""When generated requests arrive, as whole arrays of seconds."""

from __future__ import annotations

import numpy as np

from interlock.core.config_workload import Arrivals


def arrival_times(arrivals: Arrivals, count: int, rng: np.random.Generator) -> np.ndarray:
    """So many times, ascending, float64 seconds; zeros for a closed loop, whose times come of themselves."""
    if arrivals.closed is not None:
        return np.zeros(count)
    return np.cumsum(_gaps(arrivals, count, rng))


def _gaps(arrivals: Arrivals, count: int, rng: np.random.Generator) -> np.ndarray:
    if arrivals.poisson is not None:
        return rng.exponential(1 / arrivals.poisson.rate, count)
    if arrivals.gamma is not None:
        # A gamma of shape k has the coefficient of variation 1 / sqrt(k).
        shape = arrivals.gamma.cv**-2
        return rng.gamma(shape, 1 / (arrivals.gamma.rate * shape), count)
    assert arrivals.constant is not None  # the section has exactly one kind
    return np.full(count, 1 / arrivals.constant.rate)
