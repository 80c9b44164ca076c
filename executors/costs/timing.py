"""When batches end in virtual time."""

from __future__ import annotations

import numpy as np

from interlock.core.batch import Batch
from interlock.executors.costs.cost import CostModel, Load

_CHUNK = 64  # runs of a stretch whose durations are computed at first; each further chunk is twice as long


class VirtualTime:
    """A batch starts at its `start_ns` or at the end of the one before, whichever is later, and takes what it costs.

    Durations are rounded to whole nanoseconds. KV copies delay the next batch.
    """

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._end_ns = self._copy_ns = 0

    def copy(self, tokens: int, gbps: float) -> None:
        """The KV of so many tokens moves between host and device at so many GB/s."""
        self._copy_ns += round(tokens * self._cost.kv_bytes_per_token / (gbps * 1e9) * 1e9)

    def ends(self, batch: Batch, load: Load, runs: int) -> np.ndarray:
        """End times of up to `runs` runs, int64 ns, up to and with the first at or past `until_ns`."""
        start = max(batch.start_ns, self._end_ns) + self._copy_ns
        if batch.repeat == 1:
            return np.array([start + round(self._cost.step_s(load) * 1e9)], np.int64)
        done, chunk = 0, _CHUNK
        parts: list[np.ndarray] = []
        while done < runs:
            size = min(chunk, runs - done)
            ends = start + np.cumsum(_to_ns(self._cost.stretch_s(load.advanced(done), size)))
            if batch.until_ns is not None and ends[-1] >= batch.until_ns:
                parts.append(ends[: int(np.searchsorted(ends, batch.until_ns)) + 1])
                break
            parts.append(ends)
            start, done, chunk = int(ends[-1]), done + size, 2 * chunk
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def passed(self, end_ns: int) -> None:
        """The last of these ends that counts."""
        self._end_ns, self._copy_ns = end_ns, 0


def _to_ns(seconds: np.ndarray) -> np.ndarray:
    """Whole nanoseconds, int64, ties to even as `round` has them."""
    return np.rint(seconds * 1e9).astype(np.int64)
