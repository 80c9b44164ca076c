"""Known coefficients come back: exactly without noise, nearly with it, whatever strays, and never below zero."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.plugins.calibrate.fit import fit, nnls

from .runs import TRUE, loads

COEFFICIENTS = st.tuples(
    st.floats(1e-4, 1e-1), *(st.sampled_from([0.0, low, 10 * low]) for low in (1e-5, 1e-5, 1e-7, 1e-8))
)


@settings(max_examples=25)
@given(COEFFICIENTS, st.integers(0, 2**32 - 1))
def test_without_noise_the_coefficients_come_back(true: tuple[float, ...], seed: int) -> None:
    design = loads(60, seed)
    found = fit(design, design @ np.array(true))
    assert found.coefficients == pytest.approx(np.array(true), rel=1e-6, abs=1e-15)
    assert found.kept.all() and found.errors.max() < 1e-9


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.2))
def test_with_noise_the_time_in_all_is_right(seed: int, noise: float) -> None:
    design = loads(400, seed)
    draw = np.random.default_rng(seed)
    seconds = design @ TRUE * draw.lognormal(-(noise**2) / 2, noise, len(design))
    found = fit(design, seconds)
    kept = found.kept
    assert (design[kept] @ found.coefficients).sum() == pytest.approx(seconds[kept].sum(), rel=1e-6)
    for kind in (design[:, 1] > 0, design[:, 1] == 0):  # short calls are predicted as well as long ones
        assert (design[kind] @ found.coefficients).mean() == pytest.approx((design[kind] @ TRUE).mean(), rel=noise / 2)
    assert (found.coefficients >= 0).all()


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.floats(4.0, 1000.0), st.integers(1, 20))
def test_calls_that_stray_are_set_aside(seed: int, factor: float, strays: int) -> None:
    design = loads(200, seed)
    seconds = design @ TRUE
    seconds[:strays] *= factor
    found = fit(design, seconds)
    assert found.coefficients == pytest.approx(TRUE, rel=1e-6)
    assert np.flatnonzero(~found.kept).tolist() == list(range(strays))


def test_noise_is_not_set_aside() -> None:
    design = loads(500)
    noise = np.random.default_rng(1).lognormal(0, 0.5, len(design))
    assert fit(design, design @ TRUE * noise).kept.all()


def test_a_constant_is_the_base_alone() -> None:
    assert fit(loads(50), np.full(50, 0.25)).coefficients == pytest.approx([0.25, 0, 0, 0, 0], rel=1e-12)


def test_one_call_is_its_base() -> None:
    assert fit(loads(1), np.array([0.125])).coefficients == pytest.approx([0.125, 0, 0, 0, 0], rel=1e-12)


def test_decode_alone_says_nothing_of_prompts() -> None:
    design = loads(100)
    design[:, [1, 4]] = 0
    assert fit(design, design @ TRUE).coefficients == pytest.approx([*TRUE[[0]], 0, *TRUE[2:4], 0], rel=1e-6)


def test_what_cannot_be_told_apart_goes_to_what_comes_first() -> None:
    """Prompts of one length, each on its own, beside one row that decodes at one context."""
    design = np.repeat([[1.0, 64, 0, 0, 2080], [1.0, 0, 1, 100, 0]], 20, axis=0)
    found = fit(design, design @ TRUE)
    assert np.flatnonzero(found.coefficients).tolist() == [0, 1]
    assert found.errors.max() < 1e-9


def test_time_that_falls_with_the_load_has_no_negative_coefficient() -> None:
    design = loads(100)
    found = fit(design, 1.0 - 1e-3 * design[:, 2])
    assert (found.coefficients >= 0).all() and found.coefficients[2] == 0


MATRICES = st.integers(1, 5).flatmap(
    lambda size: st.lists(st.tuples(*[st.floats(-10, 10, width=16)] * (size + 1)), min_size=1, max_size=8)
)


@settings(max_examples=60)
@given(MATRICES)
def test_nothing_near_the_solution_is_better(rows: list[tuple[float, ...]]) -> None:
    """The conditions of the optimum: no slope where x > 0, and none downwards where x = 0."""
    design, target = np.array(rows)[:, :-1], np.array(rows)[:, -1]
    x = nnls(design, target)
    slope = design.T @ (design @ x - target)
    tolerance = 1e-3 * (1 + np.abs(design).sum(axis=0) * np.abs(target).max())
    assert (x >= 0).all()
    assert (slope >= -tolerance).all()
    assert (np.abs(slope)[x > 0] <= tolerance[x > 0]).all()
