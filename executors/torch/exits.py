"""When each request's decode tokens leave the loop, and when its earlier ones did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from interlock.core.request import Request
from interlock.executors.torch.models.exits import ExitRule
from interlock.executors.torch.options import ExitRuleOptions

_LOOPS = ("a whole number of at least 1", 1, 2**31)
_ALLOWED = {"exit_threshold": ("a number from 0 to 1", 0, 1), "min_loops": _LOOPS, "max_loops": _LOOPS}


class Exits:
    """The exit rule's state by table row, and the depth of each token that was decoded.

    A token that is computed again, as context after a preemption, goes as deep as it went before; that is what makes
    recomputing lossless.
    """

    def __init__(self, options: ExitRuleOptions, loops: int) -> None:
        self._options, self._loops = options, loops
        self._trace = np.array(options.trace, np.int64) if options.trace else None
        self.early = self._trace is not None
        """Whether a token may leave before the whole depth."""
        self._survival = np.ones((2, 0))  # by the parity of the loops behind a token, so that a loop can be run again
        self._due = np.zeros((2, 0), bool)  # delayed: leaves at the next loop
        self._settings = np.zeros((0, 3))  # threshold, min_loops, max_loops
        self._depths: dict[int, list[int]] = {}

    def welcome(self, row: int, request: Request) -> None:
        """The row belongs to this request now."""
        self._grow(row + 1)
        own, said = self._options, exit_settings(request.metadata)
        most = min(said.get("max_loops", own.max_loops or self._loops), self._loops)
        self._settings[row] = said.get("exit_threshold", own.threshold), said.get("min_loops", own.min_loops), most
        threshold, _, most = self._settings[row]
        self.early |= bool(threshold < 1 or most < self._loops)
        self._depths[row] = []

    def begin(self, rows: np.ndarray) -> None:
        """A token of each of these rows enters the loop."""
        self._survival[0, rows], self._due[0, rows] = 1.0, False

    def leave(self, rows: np.ndarray, outputs: np.ndarray, loop: np.ndarray, gate: np.ndarray | None) -> np.ndarray:
        """Which rows leave after the loop they have just run, bool (n,).

        `outputs`: the output position of the token that comes of it. `loop`: loops run before this one. `gate`: exit
        probabilities, None without a gate.
        """
        done = loop + 1
        threshold, least, most = self._settings[rows].T
        here, there = (loop % 2, rows), (done % 2, rows)
        survival = self._survival[here]
        if self._trace is not None:
            left = ExitRule.trace(done, self._trace[outputs % len(self._trace)], self._loops)
        elif gate is None:
            left = done >= most
        elif self._options.delayed:
            told = ExitRule.delayed(survival, self._due[here], gate, done, least, most, threshold)
            self._survival[there], self._due[there], left = told
        else:
            self._survival[there], left = ExitRule.update(survival, gate, done, least, most, threshold)
        for row, output, depth in zip(rows[left].tolist(), outputs[left].tolist(), done[left].tolist(), strict=True):
            self._depths[row][output - 1 :] = [depth]
        return np.asarray(left)

    def depth_of(self, row: int, first: int, count: int) -> np.ndarray:
        """Depths of `count` tokens from output position `first` on (negative: in the prompt), int64.

        Prompt tokens and tokens that were never decoded go through the whole depth.
        """
        known = np.array(self._depths[row], np.int64)
        at = np.arange(first, first + count)
        depths = np.full(count, self._loops, np.int64)
        decoded = (at >= 0) & (at < len(known))
        depths[decoded] = known[at[decoded]]
        return depths

    def undecided(self, row: int, output: int) -> bool:
        """Whether the token at this output position was never decoded before."""
        return output == len(self._depths[row])

    def _grow(self, count: int) -> None:
        if count <= len(self._settings):
            return
        missing = max(count, 2 * len(self._settings)) - len(self._settings)
        self._survival = np.concatenate([self._survival, np.ones((2, missing))], axis=1)
        self._due = np.concatenate([self._due, np.zeros((2, missing), bool)], axis=1)
        self._settings = np.concatenate([self._settings, np.zeros((missing, 3))])


def exit_settings(metadata: Mapping[str, Any]) -> dict[str, float]:
    """What a request's metadata says of its exits; nothing, or an empty cell of a trace, leaves it to the options.

    Numbers may be text, as they are in a CSV trace. Raises ValueError, one line.
    """
    said = {key: metadata[key] for key in _ALLOWED if metadata.get(key) not in (None, "")}
    return {key: _number(key, value) for key, value in said.items()}


def _number(key: str, value: object) -> float:
    allowed, whole, most = _ALLOWED[key]
    try:
        number = float("nan") if isinstance(value, bool) else float(value)  # type: ignore[arg-type]  # or it raises
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not (whole <= number <= most) or (whole and number != int(number)):
        raise ValueError(f"{key} is {value!r}, allowed: {allowed}")
    return number
