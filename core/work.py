"""Which piece of model work a request has pending, and the model call that runs it."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class WorkKey(IntEnum):
    """The pending work of a request. At most one at a time; NONE for a request that has none."""

    NONE = -1
    PROMPT_ATOMIC = 0
    PROMPT_PRELUDE = 1
    PROMPT_RECURRENT = 2
    DECODE_PRELUDE = 3
    DECODE_RECURRENT = 4
    DECODE_CODA = 5
    SPECULATIVE = 6
    DECODE_ATOMIC = 7


class Operation(IntEnum):
    """A model call. A batch has exactly one."""

    FORWARD = 0
    PRELUDE = 1
    RECURRENT = 2
    CODA = 3


OPERATION_OF: dict[WorkKey, Operation] = {
    WorkKey.PROMPT_ATOMIC: Operation.FORWARD,
    WorkKey.PROMPT_PRELUDE: Operation.PRELUDE,
    WorkKey.PROMPT_RECURRENT: Operation.RECURRENT,
    WorkKey.DECODE_PRELUDE: Operation.PRELUDE,
    WorkKey.DECODE_RECURRENT: Operation.RECURRENT,
    WorkKey.DECODE_CODA: Operation.CODA,
    WorkKey.SPECULATIVE: Operation.FORWARD,
    WorkKey.DECODE_ATOMIC: Operation.FORWARD,
}

PROMPT_WORK = frozenset({WorkKey.PROMPT_ATOMIC, WorkKey.PROMPT_PRELUDE, WorkKey.PROMPT_RECURRENT})

# Without a policy's word, prompts run before decodes, and of a token's stages the one nearest its end first.
DEFAULT_ORDER: tuple[WorkKey, ...] = (
    WorkKey.PROMPT_ATOMIC,
    WorkKey.PROMPT_RECURRENT,
    WorkKey.PROMPT_PRELUDE,
    WorkKey.DECODE_CODA,
    WorkKey.DECODE_RECURRENT,
    WorkKey.DECODE_PRELUDE,
    WorkKey.SPECULATIVE,
    WorkKey.DECODE_ATOMIC,
)

IS_PROMPT = np.array([key in PROMPT_WORK for key in WorkKey if key is not WorkKey.NONE] + [False])
"""Indexed by a work key, NONE (-1) included: whether it is prompt work."""
