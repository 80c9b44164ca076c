"""The order in which a looped model's stages run, shared by the policies for looped models."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from pydantic import Field

from interlock.core import Batch, Policy, PolicyOptions, View, WorkKey

PROMPTS = (WorkKey.PROMPT_ATOMIC, WorkKey.PROMPT_RECURRENT)
Group = WorkKey | tuple[WorkKey, ...]


class StageOptions(PolicyOptions):
    """Options of policies for looped models.

    `min_coda_batch_size`: fewer codas than this wait while decode is due, unless nothing is in the loop.
    `max_prefill_batches_before_decode`: decode is due after so many prompt batches.
    `prefer_recurrent`: overlap the loop with a coda, where steps overlap.
    """

    min_coda_batch_size: int = Field(default=1, ge=1)
    max_prefill_batches_before_decode: int = Field(default=1, ge=1)
    prefer_recurrent: bool = False


class Staged(Policy):
    """Base of policies that alternate prompt and decode work on a looped model.

    Counts non-empty prompt batches since the last batch with decode rows in the loop. Preludes and codas count as
    neither; a batch that failed takes its count back.
    """

    def __init__(self, options: PolicyOptions | None = None, **values: object) -> None:
        super().__init__(options, **values)
        self._prompt_batches = 0
        self._before = 0

    def on_batch(self, batch: Batch, view: View) -> None:
        """Count the batch."""
        self._before = self._prompt_batches
        if holds(batch, (WorkKey.DECODE_RECURRENT, WorkKey.SPECULATIVE)):
            self._prompt_batches = 0
        elif holds(batch, PROMPTS):
            self._prompt_batches += 1

    def on_batch_failed(self, batch: Batch, view: View) -> None:
        """The batch counts for nothing."""
        self._prompt_batches = self._before

    def decode_due(self) -> bool:
        """Whether prompts have run long enough without a decode row in the loop."""
        return self._prompt_batches >= int(self.options.max_prefill_batches_before_decode)


def holds(batch: Batch, keys: Iterable[WorkKey]) -> bool:
    """Whether the batch has a row with one of these work keys."""
    return bool(np.isin(batch.work, tuple(keys)).any())


def coda_ready(view: View, least: int) -> bool:
    """Whether enough codas wait for a batch, or nothing is in the loop that could add to them."""
    return view.count(WorkKey.DECODE_CODA) >= least or view.count(WorkKey.DECODE_RECURRENT) == 0


def once(groups: Iterable[Group]) -> list[Group]:
    """The groups in order, each work key where it is first named."""
    seen: set[WorkKey] = set()
    kept: list[Group] = []
    for group in groups:
        keys = (group,) if isinstance(group, WorkKey) else group
        if not seen.intersection(keys):
            seen.update(keys)
            kept.append(group)
    return kept
