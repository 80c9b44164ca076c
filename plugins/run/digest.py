"""One hash of everything a run decided and emitted. Host times and dates are not in it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from interlock.core.record import Transition
from interlock.plugins.run.flat import Flat
from interlock.plugins.run.steps import Step

if TYPE_CHECKING:
    from interlock.plugins.run.recorder import Recorder

_NUMBERS = ("request", "version", "to_status", "step", "time_ns", "work", "computed", "emitted", "blocks", "slot")


def digest(recorder: Recorder) -> str:
    """The hash of all transitions, batches and emitted tokens of a run, as hexadecimal digits.

    Equal across processes, and whether or not equal decode batches were submitted as one stretch.
    """
    state = blake2b(digest_size=16)
    for name, column in (*_transitions(recorder.transitions), *_batches(recorder.steps, recorder.flat)):
        state.update(f"{name}:{len(column)}:".encode())
        state.update(column)
    return state.hexdigest()


def _transitions(transitions: Sequence[Transition]) -> list[tuple[str, bytes]]:
    columns = [(name, _bytes([getattr(one, name) for one in transitions])) for name in _NUMBERS]
    origins = [-1 if one.from_status is None else int(one.from_status) for one in transitions]
    reasons = "\n".join(one.reason for one in transitions)
    return [*columns, ("from_status", _bytes(origins)), ("reason", reasons.encode())]


def _batches(steps: Sequence[Step], flat: Flat) -> list[tuple[str, bytes]]:
    emitted = flat.deliveries
    return [
        ("batch", _bytes([step.step for step in steps])),
        ("operation", _bytes([int(step.operation) for step in steps])),
        ("start_ns", _bytes([step.start_ns for step in steps])),
        ("ends_ns", _bytes(flat.ends)),
        ("repeats", _bytes(flat.repeats)),
        ("sizes", _bytes(flat.sizes)),
        ("members", _bytes(flat.numbers)),
        ("versions", _bytes(flat.versions)),
        ("work", _bytes(flat.work)),
        ("start", _bytes(flat.start)),
        ("tokens", _bytes(flat.tokens)),
        ("delivered", _bytes(flat.delivered)),
        ("emitted_by", _bytes(emitted.numbers)),
        ("emitted_ids", _bytes(emitted.tokens)),
    ]


def _bytes(values: Sequence[int] | np.ndarray) -> bytes:
    return np.ascontiguousarray(values, "<i8").tobytes()
