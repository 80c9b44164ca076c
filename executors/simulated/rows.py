"""What the simulated model knows of each table row, in columns, and the tokens it says."""

from __future__ import annotations

import numpy as np

from interlock.core.hashing import splitmix64
from interlock.core.request import VOCABULARY, Request

EOS = 0
"""The token that ends an answer."""

NEVER = 2**61
"""The end position of a row that does not end by itself."""

_HALF = np.uint64(32)
_RANGE = np.uint64(VOCABULARY - 1)
_MASK = 0xFFFFFFFFFFFFFFFF


class _Weights:
    """Fixed pseudo-random 64-bit weights by position, made as far as the longest prompt seen."""

    def __init__(self) -> None:
        self._weights = np.empty(0, np.uint64)

    def first(self, count: int) -> np.ndarray:
        """The first `count` weights, uint64."""
        if len(self._weights) < count:
            self._weights = splitmix64(np.arange(max(count, 2 * len(self._weights), 1024), dtype=np.uint64))
        return self._weights[:count]


_WEIGHTS = _Weights()


def digest_of(token_ids: np.ndarray) -> int:
    """A 64-bit digest of token ids: a multilinear hash (sum of weight times id), mixed with the length."""
    total = np.dot(_WEIGHTS.first(len(token_ids)), token_ids.astype(np.uint64))
    mixed: np.uint64 = splitmix64(np.array([total ^ np.uint64(len(token_ids))], np.uint64))[0]
    return int(mixed)


def end_of(request: Request, output: int | None) -> int:
    """The output position (from 0) of the request's EOS when its answer has `output` tokens, or NEVER."""
    if output is None or request.sampling.ignore_eos:
        return NEVER
    return max(output, request.sampling.min_tokens, 1) - 1


class Rows:
    """Columns over table rows, grown on demand.

    Positions count from the start of the prompt: the token that follows p tokens of context stands at position p, so
    the first token of an answer stands at the prompt's length.
    """

    def __init__(self) -> None:
        self._seed = np.zeros(0, np.uint64)  # digest less prompt length: plus a position, a token's own number
        self._digest = np.zeros(0, np.uint64)
        self._prompt = np.zeros(0, np.int64)
        self._end = np.zeros(0, np.int64)  # the position of EOS
        self._stops = np.full((0, 1), -1, np.int32)
        self._number: dict[int, int] = {}
        self._stopping: set[int] = set()

    def add(self, row: int, number: int, request: Request, output: int | None) -> None:
        """This row belongs to this request now."""
        self._grow(row + 1)
        ids = request.prompt_ids()
        digest = digest_of(ids)
        self._digest[row], self._prompt[row] = digest, len(ids)
        self._seed[row] = (digest - len(ids)) & _MASK
        self._end[row], self._number[row] = len(ids) + end_of(request, output), number
        if request.sampling.stop_token_ids:
            self._add_stops(row, request.sampling.stop_token_ids)

    def forget(self, row: int) -> int | None:
        """This row belongs to nobody. Returns the number of the request it belonged to."""
        if row in self._stopping:
            self._stopping.remove(row)
            self._stops[row] = -1
        return self._number.pop(row, None)

    def answer(self, rows: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(digests of the prompts, uint64 (n,); `positions` counted from the answers' first tokens, int64 (n,))."""
        return self._digest.take(rows), positions - self._prompt.take(rows)

    def runs_left(self, rows: np.ndarray, positions: np.ndarray) -> int:
        """Decode runs from `positions` on, up to and with the first in which one of these rows says EOS."""
        return max(int((self._end.take(rows) - positions).min()) + 1, 1)

    def tokens(self, rows: np.ndarray, positions: np.ndarray, runs: int) -> np.ndarray:
        """What these rows say at `positions` and the `runs` - 1 after them, int32 (runs, n).

        At most the last run may be at or past a row's end.
        """
        numbers = self._seed.take(rows) + positions.view(np.uint64)
        if runs > 1:
            numbers = numbers + np.arange(runs, dtype=np.uint64)[:, None]
        mixed = splitmix64(numbers)
        mixed >>= _HALF  # the upper half, scaled to the vocabulary without a division
        mixed *= _RANGE
        mixed >>= _HALF
        said = mixed.astype(np.int32).reshape(runs, len(rows))
        said += 1
        ended = positions + (runs - 1) >= self._end.take(rows)
        if np.count_nonzero(ended):
            said[-1, ended] = EOS
        return said

    def stopped(self, rows: np.ndarray, said: np.ndarray) -> int:
        """How many of the runs in `said` (runs, n) count: up to and with the first in which a stop token fell."""
        if not self._stopping:
            return len(said)
        hit = (said[:, :, None] == self._stops[rows]).any(axis=(1, 2))
        return int(hit.argmax()) + 1 if hit.any() else len(said)

    def _grow(self, count: int) -> None:
        if count <= len(self._prompt):
            return
        missing = max(count, 2 * len(self._prompt)) - len(self._prompt)
        self._seed = np.concatenate([self._seed, np.zeros(missing, np.uint64)])
        self._digest = np.concatenate([self._digest, np.zeros(missing, np.uint64)])
        self._prompt = np.concatenate([self._prompt, np.zeros(missing, np.int64)])
        self._end = np.concatenate([self._end, np.full(missing, NEVER, np.int64)])
        self._stops = np.pad(self._stops, ((0, missing), (0, 0)), constant_values=-1)

    def _add_stops(self, row: int, token_ids: tuple[int, ...]) -> None:
        wider = len(token_ids) - self._stops.shape[1]
        if wider > 0:
            self._stops = np.pad(self._stops, ((0, 0), (0, wider)), constant_values=-1)
        self._stops[row, : len(token_ids)] = token_ids
        self._stopping.add(row)
