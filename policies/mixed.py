"""Prompt chunks and decode tokens in one batch, under one token budget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import numpy as np

from interlock.core import Plan, Policy, PolicyOptions, View, WorkKey
from interlock.core.claims import Claim, WorkConserving


class Mixed(Policy):
    """What shares a batch? Everything that runs as the same operation.

    `order: admission` serves rows in the order of their admission, as vLLM's v1 scheduler does; `decode_first` serves
    decodes before prompt chunks, as Sarathi-Serve does, so that a long prompt never delays a token.
    """

    class Options(PolicyOptions):
        """`order`: `admission` or `decode_first`."""

        order: Literal["admission", "decode_first"] = "admission"

    reads: ClassVar[set[str]] = {"work"}

    def claims(self) -> Iterable[Claim]:
        """Whatever can run, does."""
        return (WorkConserving(),)

    def select(self, plan: Plan, view: View) -> None:
        """One group for each operation, prompt and decode together."""
        plan.prefer(_FORWARD)
        if self.options.order == "decode_first":
            plan.sort_by(np.isin(view.work[plan.rows], _PROMPTS))


_FORWARD = (WorkKey.PROMPT_ATOMIC, WorkKey.DECODE_ATOMIC)
_PROMPTS = (WorkKey.PROMPT_ATOMIC, WorkKey.PROMPT_PRELUDE, WorkKey.PROMPT_RECURRENT)
