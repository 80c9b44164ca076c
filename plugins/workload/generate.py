"""Requests of distributions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from interlock.core.config_workload import Generate, WorkloadSection
from interlock.plugins.workload.arrivals import arrival_times
from interlock.plugins.workload.feeds import Source
from interlock.plugins.workload.lengths import draw
from interlock.plugins.workload.trace import read_lengths
from interlock.plugins.workload.truth import ARRIVALS, OUTPUTS, PROMPTS, seen_max_tokens, seen_prediction, stream


def generated_requests(workload: WorkloadSection, base: Path, seed: int) -> Source:
    """The columns of `workload.generate`."""
    options = workload.generate
    assert options is not None
    prompt, output = _lengths(options, base, seed)
    arrival = arrival_times(options.arrivals, options.count, stream(seed, ARRIVALS))
    predicted = seen_prediction(workload, output, seed)
    return Source(arrival, prompt, output, seen_max_tokens(workload, output), predicted)


def _lengths(options: Generate, base: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompt and output tokens, int64."""
    prompts, outputs = stream(seed, PROMPTS), stream(seed, OUTPUTS)
    if options.lengths is None:
        assert options.prompt is not None and options.output is not None
        return draw(options.prompt, options.count, prompts), draw(options.output, options.count, outputs)
    prompt, output = read_lengths(options.lengths, base)
    if options.lengths.sample:
        rows = prompts.integers(0, len(prompt), options.count)
    else:
        rows = np.arange(options.count) % len(prompt)
    return prompt[rows], output[rows]
