"""Prompt chunks and decode tokens in one batch, under one token budget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import numpy as np

from interlock.core import Batch, Capabilities, Capability, EngineSection, Plan, View, WorkKey
from interlock.core.claims import Claim, DecodesFirst, WorkConserving
from interlock.policies.refill import stages
from interlock.policies.stages import Group, Staged, StageOptions, once

_FORWARD = (WorkKey.PROMPT_ATOMIC, WorkKey.DECODE_ATOMIC)
_PRELUDE = (WorkKey.PROMPT_PRELUDE, WorkKey.DECODE_PRELUDE)
_RECURRENT = (WorkKey.PROMPT_RECURRENT, WorkKey.DECODE_RECURRENT)
_PROMPTS = (WorkKey.PROMPT_ATOMIC, WorkKey.PROMPT_PRELUDE, WorkKey.PROMPT_RECURRENT)


class Mixed(Staged):
    """What shares a batch? Everything that runs as the same operation.

    On dense models that is a prompt chunk beside a decode token. `order: admission` serves rows in the order of their
    admission, as vLLM's v1 scheduler does; `decode_first` serves decodes before prompt chunks, as Sarathi-Serve does,
    so that a long prompt never delays a token. On looped models prompts join decode preludes and decode recurrences; a
    recurrent batch of both runs first when both are ready, and otherwise stages follow in the order of `refill`.
    """

    class Options(StageOptions):
        """`order`: `admission` or `decode_first`; the others see `StageOptions`, for looped models."""

        order: Literal["admission", "decode_first"] = "admission"

    reads: ClassVar[set[str]] = {"work", "count", "in_flight_work"}

    def __init__(self, options: Options | None = None, **values: object) -> None:
        super().__init__(options, **values)
        self._looped = False

    def refuses(self, limits: EngineSection, capabilities: Capabilities) -> str | None:
        """On looped models prompts can join decodes only stage by stage, and drafts cannot."""
        self._looped = capabilities.loops > 1
        if self._looped and limits.prompt != "split":
            return "engine.prompt: found 'atomic', allowed on a looped model: split"
        if self._looped and Capability.SPECULATION in capabilities.features:
            return "speculation cannot be mixed on a looped model; allowed: executor without speculation"
        return None

    def on_batch(self, batch: Batch, view: View) -> None:
        """Only looped models have stages to alternate."""
        if self._looped:
            super().on_batch(batch, view)

    def claims(self) -> Iterable[Claim]:
        """Whatever can run, does; with `decode_first`, decodes before prompts."""
        yield WorkConserving()
        if self.options.order == "decode_first":
            yield DecodesFirst()

    def select(self, plan: Plan, view: View) -> None:
        """One group for each operation, prompt and decode together."""
        if self._looped:
            plan.prefer(*once(_joined(stages(self, view), view)))
        else:
            plan.prefer(_FORWARD)
        if self.options.order == "decode_first":
            plan.sort_by(np.isin(view.work[plan.rows], _PROMPTS))


def _joined(order: list[Group], view: View) -> list[Group]:
    """Refill's order with prompt and decode of one operation as one group, the loop first when both are in it.

    A group has the place of a member that is ready: arrivals by themselves keep a prompt's place, or they would starve
    all, and so do decodes in a loop that no prompt is in.
    """
    both = all(view.count(key) for key in _RECURRENT)
    joined: dict[Group, Group] = {**dict.fromkeys(_PRELUDE, _PRELUDE), **dict.fromkeys(_RECURRENT, _RECURRENT)}
    leads = (WorkKey.DECODE_PRELUDE, WorkKey.PROMPT_RECURRENT)
    ready = [group for group in order if group not in leads or view.count(WorkKey(group))]
    return ([_RECURRENT] if both else []) + [joined.get(group, group) for group in ready]
