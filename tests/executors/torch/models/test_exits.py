"""The exit rule on cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from interlock.executors.torch.models.exits import ExitRule

HALF = 0.5


def leaves_after(gates: list[float], *, delayed: bool = False, least: int = 1, most: int = 4, threshold: float) -> int:
    """The loops that one token runs whose gate says `gates`."""
    survival, pending = np.ones(1), np.zeros(1, bool)
    for loop, gate in enumerate(gates, 1):
        asked = np.array([gate], np.float32), np.array([loop]), least, most, threshold
        if delayed:
            survival, pending, leave = ExitRule.delayed(survival, pending, *asked)
        else:
            survival, leave = ExitRule.update(survival, *asked)
        if leave[0]:
            return loop
    raise AssertionError("stays in the loop")


@pytest.mark.parametrize(
    ("threshold", "loops"),
    [(0.0, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3), (0.875, 3), (0.88, 4), (0.99, 4), (1.0, 4)],
)
def test_a_gate_of_one_half_reaches_1_minus_2_to_the_minus_r_after_r_loops(threshold: float, loops: int) -> None:
    assert leaves_after([HALF] * 4, threshold=threshold) == loops


@pytest.mark.parametrize(("least", "loops"), [(1, 1), (2, 2), (3, 3), (4, 4), (9, 4)])
def test_nobody_leaves_before_min_loops_nor_stays_beyond_max_loops(least: int, loops: int) -> None:
    assert leaves_after([0.9] * 4, least=least, threshold=0.5) == loops


@pytest.mark.parametrize(("most", "loops"), [(1, 1), (2, 2), (3, 3)])
def test_max_loops_ends_it_whatever_the_gate_says(most: int, loops: int) -> None:
    assert leaves_after([0.0] * 4, most=most, threshold=0.5) == loops


def test_survival_counts_loops_before_min_loops_too() -> None:
    """1 - 0.8 * 0.7 = 0.44 after two loops, though neither gate reaches 0.4."""
    assert leaves_after([0.2, 0.3, 0.0, 0.0], least=2, threshold=0.4) == 2


def test_threshold_1_is_fixed_depth_even_for_a_gate_that_rounds_to_1() -> None:
    assert leaves_after([1.0] * 4, threshold=1.0) == 4
    assert leaves_after([1.0] * 4, threshold=1.0, delayed=True) == 4


@pytest.mark.parametrize(("threshold", "loops"), [(0.5, 2), (0.75, 3), (0.875, 4), (0.99, 4)])
def test_delayed_leaves_one_loop_later_but_not_beyond_max_loops(threshold: float, loops: int) -> None:
    assert leaves_after([HALF] * 4, threshold=threshold, delayed=True) == loops


def test_delayed_keeps_min_loops_to_the_test_and_does_not_read_the_last_gate() -> None:
    assert leaves_after([0.9] * 4, least=2, threshold=0.5, delayed=True) == 3
    assert leaves_after([0.9, 0.0, 0.0, 0.0], least=1, threshold=0.5, delayed=True) == 2


def test_tokens_are_independent_and_have_settings_of_their_own() -> None:
    survival, leave = ExitRule.update(
        survival=np.array([1.0, 0.5, 0.5, 1.0]),
        gate=np.array([0.5, 0.5, 0.5, 0.1], np.float32),
        loop=np.array([1, 2, 2, 3]),
        min_loops=np.array([1, 2, 3, 1]),
        max_loops=np.array([4, 4, 4, 3]),
        threshold=np.array([0.6, 0.7, 0.7, 0.9]),
    )
    assert survival.dtype == np.float64
    np.testing.assert_allclose(survival, [0.5, 0.25, 0.25, 0.9], atol=1e-8)
    assert leave.tolist() == [False, True, False, True]


def test_nothing_is_changed_in_place() -> None:
    survival, pending = np.ones(2), np.zeros(2, bool)
    ExitRule.delayed(survival, pending, np.full(2, 0.9), np.array([2, 2]), 1, 4, 0.5)
    assert survival.tolist() == [1.0, 1.0]
    assert pending.tolist() == [False, False]


def test_a_trace_gives_depths_within_the_model() -> None:
    loop = np.array([1, 2, 3, 4, 4])
    assert ExitRule.trace(loop, np.array([2, 2, 2, 4, 9]), 4).tolist() == [False, True, True, True, True]
