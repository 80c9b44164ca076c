"""What the executor knows of each table row besides its KV: who it is and how its tokens are to be chosen."""

from __future__ import annotations

import numpy as np

from interlock.core.hashing import splitmix64
from interlock.core.request import Request

NEVER = 2**61
"""The end position of a row whose end is not known beforehand."""

_UNIT = 2.0**-53
_COLUMNS = ("prompt", "seed", "temperature", "top_p", "top_k", "_free_from", "_end", "_heeds_eos", "_has_stops")


class Rows:
    """Columns over table rows, grown on demand. Positions count from the start of the prompt.

    A request's random numbers are a function of its seed and the position alone, so that they survive preemption and
    do not depend on who shares the batch.
    """

    def __init__(self, eos: tuple[int, ...], seed: int) -> None:
        """`seed`: the engine's, for requests without one of their own."""
        self.eos, self._engine_seed = eos, seed
        self.prompt = np.zeros(0, np.int64)
        self.seed = np.zeros(0, np.uint64)
        self.temperature = np.zeros(0)
        self.top_p = np.ones(0)
        self.top_k = np.zeros(0, np.int64)
        self._free_from = np.zeros(0, np.int64)  # first position at which an end token may stand
        self._end = np.zeros(0, np.int64)  # the position of an end that is known beforehand
        self._heeds_eos = np.zeros(0, bool)
        self._has_stops = np.zeros(0, bool)
        self._stops: dict[int, tuple[int, ...]] = {}

    def add(self, row: int, number: int, request: Request, output: int | None) -> None:
        """This row belongs to this request now, which ends by itself after `output` tokens; None for: as it likes."""
        self._grow(row + 1)
        sampling, prompt = request.sampling, request.prompt_tokens
        own = self._engine_seed ^ (number << 20) if sampling.seed is None else sampling.seed
        self.prompt[row] = prompt
        self.seed[row] = splitmix64(np.array([own & (2**64 - 1)], np.uint64))[0]
        self.temperature[row], self.top_p[row], self.top_k[row] = sampling.temperature, sampling.top_p, sampling.top_k
        known = output is not None and not sampling.ignore_eos and bool(self.eos)
        self._end[row] = prompt + max(output or 0, sampling.min_tokens, 1) - 1 if known else NEVER
        self._free_from[row] = self._end[row] if known else prompt + sampling.min_tokens
        self._heeds_eos[row] = not sampling.ignore_eos
        self._has_stops[row] = bool(sampling.stop_token_ids)
        self._stops[row] = sampling.stop_token_ids

    def forget(self, row: int) -> None:
        """This row belongs to nobody. Idempotent."""
        self._stops.pop(row, None)

    def uniform(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The random number in [0, 1) of each row's token at its position, float64 (n,)."""
        mixed = splitmix64(self.seed[rows] + positions.astype(np.uint64))
        return np.asarray((mixed >> np.uint64(11)) * _UNIT)

    def early(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Places in `rows` of those that may not end at these positions, intp."""
        return np.flatnonzero(positions < self._free_from[rows])

    def stops(self, row: int) -> tuple[int, ...]:
        """The request's own stop tokens."""
        return self._stops.get(row, ())

    def ends(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Which rows must end at these positions, because their length is known beforehand; bool (n,)."""
        return np.asarray(positions >= self._end[rows])

    def runs_left(self, rows: np.ndarray, positions: np.ndarray) -> int:
        """Decode runs from `positions` on, up to and with the first in which an end is known to fall."""
        return max(int((self._end[rows] - positions).min()) + 1, 1)

    def stopped(self, rows: np.ndarray, tokens: np.ndarray) -> bool:
        """Whether one of these rows ends with its token."""
        if (np.isin(tokens, self.eos) & self._heeds_eos[rows]).any():
            return True
        stopping = np.flatnonzero(self._has_stops[rows])
        return any(int(tokens[at]) in self._stops[int(rows[at])] for at in stopping.tolist())

    def _grow(self, count: int) -> None:
        if count <= len(self.prompt):
            return
        missing = max(count, 2 * len(self.prompt)) - len(self.prompt)
        for name in _COLUMNS:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(missing, column.dtype)]))
