"""When a decode token leaves the loop of a model with a learned exit gate."""

from __future__ import annotations

import numpy as np

Bound = np.ndarray | int
Threshold = np.ndarray | float


class ExitRule:
    """The three ways to decide, for n tokens at once; nothing is kept between calls.

    * `survival` float64 (n,): the probability not to have left before, 1 at the start of each token
    * `gate` (n,): the probability to leave after this loop
    * `loop` int (n,): the loops a token has behind it, this one included, so 1 after the first
    * `min_loops`, `max_loops`, `threshold`: per token, or one for all

    Prompts do not ask: they run every loop.
    """

    @staticmethod
    def update(
        survival: np.ndarray,
        gate: np.ndarray,
        loop: np.ndarray,
        min_loops: Bound,
        max_loops: Bound,
        threshold: Threshold,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Survival after this loop, and whether to leave, bool (n,).

        Survival is multiplied by 1 - gate. A token leaves when 1 - survival has reached `threshold` and `min_loops` are
        done, and in any case at `max_loops`; at a threshold of 1 only then.
        """
        left, met = _test(survival, gate, loop, min_loops, threshold)
        return left, met | (loop >= max_loops)

    @staticmethod
    def delayed(
        survival: np.ndarray,
        pending: np.ndarray,
        gate: np.ndarray,
        loop: np.ndarray,
        min_loops: Bound,
        max_loops: Bound,
        threshold: Threshold,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Survival, whether an exit is pending, and whether to leave.

        The test is that of `update` and takes effect one loop later, so that who leaves after this loop is known before
        its gate is. `pending` bool (n,) is False at the start of each token.
        """
        left, met = _test(survival, gate, loop, min_loops, threshold)
        return left, pending | met, pending | (loop >= max_loops)

    @staticmethod
    def trace(loop: np.ndarray, depths: np.ndarray, max_loops: Bound) -> np.ndarray:
        """Whether to leave, where each token's depth is given, int (n,), and bounded by `max_loops`."""
        return np.asarray(loop >= np.minimum(depths, max_loops))


def _test(
    survival: np.ndarray, gate: np.ndarray, loop: np.ndarray, min_loops: Bound, threshold: Threshold
) -> tuple[np.ndarray, np.ndarray]:
    left = survival * (1.0 - gate.astype(np.float64))
    bound = np.asarray(threshold)
    # Asked for on its own: a gate that rounds to 1 would reach even the threshold of a fixed depth.
    return left, (1.0 - left >= bound) & (bound < 1.0) & (loop >= min_loops)
