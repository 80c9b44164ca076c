"""Where a run's requests come from: a recorded trace, distributions, or a list written out."""

from __future__ import annotations

from pathlib import Path

from interlock.core.config_workload import WorkloadSection
from interlock.core.feed import Feed
from interlock.core.text import Tokenizer
from interlock.plugins.workload.feeds import ArrivalFeed, ClosedFeed
from interlock.plugins.workload.generate import generated_requests
from interlock.plugins.workload.requests import ListFeed
from interlock.plugins.workload.trace import traced_requests

__all__ = ["build"]


def build(
    workload: WorkloadSection, *, base: Path, seed: int, max_model_len: int, tokenizer: Tokenizer | None = None
) -> Feed:
    """The feed of a workload, from its start.

    Relative paths are relative to `base`, and every draw comes from `seed`. `max_model_len` bounds no request here:
    one that is too long is the engine's to reject. `tokenizer` turns prompts that are text into tokens. Raises
    ConfigError, one line, for a file that is missing or wrong, and for text where there is no tokenizer.
    """
    if workload.requests is not None:
        return ListFeed(workload.requests, workload, seed, tokenizer)
    if workload.trace is not None:
        return ArrivalFeed(traced_requests(workload, base, seed))
    assert workload.generate is not None  # the section has exactly one source
    source = generated_requests(workload, base, seed)
    closed = workload.generate.arrivals.closed
    return ArrivalFeed(source) if closed is None else ClosedFeed(source, closed.concurrency)
