"""Refill: continuous batching over the depth of a looped model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from interlock.core import Capability, Plan, View, WorkKey
from interlock.core.claims import BoundedPrompts, Claim
from interlock.policies.stages import Group, Staged, StageOptions, coda_ready, once


class Refill(Staged):
    """Which stage of a looped model runs next? The one that refills the loop soonest.

    The first that can form a batch: decode preludes; codas, if enough are ready or nothing is in the loop; the loop, if
    decode is due; prompts, with those who enter; then preludes, codas and the loop whatever their number. So a fast
    request leaves the loop and comes back in with its next token while a slow one is still in it.
    """

    class Options(StageOptions):
        """See `StageOptions`."""

    reads: ClassVar[set[str]] = {"count", "in_flight_work", "last_operation", "step"}
    requires: ClassVar[set[Capability]] = {Capability.LOOPED}

    def claims(self) -> Iterable[Claim]:
        """Prompts keep the loop from decodes no longer than the option says."""
        return (BoundedPrompts(self.options.max_prefill_batches_before_decode),)

    def select(self, plan: Plan, view: View) -> None:
        """Rank the stages."""
        plan.prefer(*once(stages(self, view)))


def stages(policy: Staged, view: View) -> list[Group]:
    """The order of refill, first to last; a key may be named again as a fallback."""
    options, order = policy.options, list[Group]()
    if options.prefer_recurrent and WorkKey.DECODE_RECURRENT in view.in_flight_work:
        order.append(WorkKey.DECODE_RECURRENT)
    order.append(WorkKey.DECODE_PRELUDE)
    if coda_ready(view, options.min_coda_batch_size):
        order.append(WorkKey.DECODE_CODA)
    if policy.decode_due():
        order.append(WorkKey.DECODE_RECURRENT)
    prompts = (WorkKey.PROMPT_RECURRENT, WorkKey.PROMPT_ATOMIC, WorkKey.PROMPT_PRELUDE)
    return [*order, *prompts, WorkKey.DECODE_CODA, WorkKey.DECODE_RECURRENT]
