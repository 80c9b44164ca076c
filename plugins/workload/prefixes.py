"""Recorded prefix ids as prompts: equal ids are equal tokens, so that what was shared then is shared now."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from interlock.core.hashing import splitmix64
from interlock.core.request import SyntheticPrompt

BLOCK = 512
"""Tokens that one id of a trace stands for; the last id of a prompt stands for what is left."""


class Prefixes:
    """The prefix ids of many prompts, end to end: prompt i has `ids[starts[i]:starts[i + 1]]`."""

    def __init__(self, ids: np.ndarray, counts: np.ndarray) -> None:
        # Seeds are mixed because tokens count up from the seed: neighbouring ids would share all tokens but one.
        self._seeds = splitmix64(ids.astype(np.int64).view(np.uint64))
        self._starts = np.concatenate([[0], np.cumsum(counts)])

    def take(self, rows: np.ndarray) -> Prefixes:
        """The prefixes of these prompts, in this order."""
        chosen = object.__new__(Prefixes)
        counts = np.diff(self._starts)[rows]
        chosen._starts = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(chosen._starts[-1]) - np.repeat(chosen._starts[:-1], counts)
        chosen._seeds = self._seeds[np.repeat(self._starts[:-1][rows], counts) + within]
        return chosen

    def prompt(self, i: int, request_id: str, tokens: int) -> SyntheticPrompt:
        """Prompt i. Tokens beyond its ids belong to the request alone."""
        segments: list[tuple[int, int]] = []
        left = tokens
        for seed in self._seeds[self._starts[i] : self._starts[i + 1]].tolist():
            segments.append((seed, min(BLOCK, left)))
            left -= segments[-1][1]
        own: Sequence[tuple[int, int]] = SyntheticPrompt.of(request_id, left).segments if left else ()
        return SyntheticPrompt((*segments, *own))
