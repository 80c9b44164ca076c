"""How much of the true output a policy sees: as `max_tokens`, and as a prediction."""

from __future__ import annotations

import numpy as np

from interlock.core.config_workload import WorkloadSection
from interlock.plugins.workload.lengths import whole

ARRIVALS, PROMPTS, OUTPUTS, PREDICTIONS = range(4)
"""Streams of random numbers, one per purpose, so that one purpose's draws never shift another's."""


def stream(seed: int, purpose: int) -> np.random.Generator:
    """The generator of a seed for one purpose."""
    return np.random.default_rng([seed, purpose])


def seen_max_tokens(workload: WorkloadSection, output: np.ndarray) -> np.ndarray:
    """`max_tokens` of each request, int64, -1 for as many as the context allows."""
    if workload.max_tokens == "output":
        return output
    return np.full(len(output), -1 if workload.max_tokens == "context" else workload.max_tokens, np.int64)


def seen_prediction(
    workload: WorkloadSection, output: np.ndarray, seed: int, column: np.ndarray | None = None
) -> np.ndarray:
    """The predicted output of each request, int64, -1 for unknown. An output of -1 has no truth to predict."""
    if workload.predict == "oracle":
        return output
    if workload.predict == "none":
        return np.full(len(output), -1, np.int64)
    if workload.predict.noisy is not None:
        noise = stream(seed, PREDICTIONS).lognormal(0.0, workload.predict.noisy.sigma, len(output))
        return np.where(output < 0, -1, whole(output * noise))
    assert column is not None  # the section allows a column beside a trace only
    return column
