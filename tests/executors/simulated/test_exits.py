"""Exit models: depths of decode tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from interlock.core.hashing import splitmix64
from interlock.executors.simulated.exits import Fixed, Pmf, Trace
from interlock.executors.simulated.options import SimulatedOptions

DIGEST = splitmix64(np.arange(20_000, dtype=np.uint64))
INDEX = np.arange(20_000)


def test_fixed() -> None:
    assert Fixed(3).depths(DIGEST[:2], INDEX[:2], 0).tolist() == [3, 3]


def test_trace_goes_round_by_output_position() -> None:
    assert Trace((4, 2, 3)).depths(DIGEST[:5], np.array([0, 1, 2, 3, 7]), 0).tolist() == [4, 2, 3, 4, 2]


def test_pmf_has_its_frequencies() -> None:
    depths = Pmf((0.1, 0.2, 0.0, 0.7)).depths(DIGEST, INDEX, 1)
    shares = np.bincount(depths, minlength=5)[1:] / len(depths)
    # Five standard errors of a share near one half, over 20,000 draws.
    assert shares == pytest.approx([0.1, 0.2, 0.0, 0.7], abs=5 * 0.5 / 20_000**0.5)


def test_pmf_is_a_function_of_prompt_position_and_seed() -> None:
    pmf = Pmf((0.25, 0.25, 0.25, 0.25))
    whole = pmf.depths(DIGEST[:100], INDEX[:100], 5)
    one_by_one = [pmf.depths(DIGEST[i : i + 1], INDEX[i : i + 1], 5)[0] for i in range(100)]
    assert whole.tolist() == one_by_one
    assert whole.tolist() != pmf.depths(DIGEST[:100], INDEX[:100], 6).tolist()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"loops": 4, "exit": {"fixed": 5}}, "depth 5 is beyond the model's loops, 4"),
        ({"loops": 2, "exit": {"trace": [1, 3]}}, "depth 3 is beyond the model's loops, 2"),
        ({"loops": 2, "exit": {"pmf": [0.2, 0.2, 0.6]}}, "depth 3 is beyond the model's loops, 2"),
        ({"exit": {"fixed": 2}}, "beyond the model's loops, 1"),
        ({"loops": 2, "exit": {"pmf": [0.2, 0.2]}}, "must sum to 1, found 0.4"),
        ({"loops": 2, "exit": {"trace": []}}, "at least 1 item"),
        ({"loops": 2, "exit": {}}, "exactly one of fixed, trace, pmf is needed"),
        ({"loops": 0}, "greater than or equal to 1"),
    ],
)
def test_bad_models_are_refused(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SimulatedOptions.model_validate({"model": model})


def test_the_roofline_model_gives_the_loops_unless_they_are_given() -> None:
    cost = {"roofline": {"model": "ouro-1.4b", "device": "h200"}}
    assert SimulatedOptions.model_validate({"cost": cost}).loops == 4
    assert SimulatedOptions.model_validate({"cost": cost, "model": {"loops": 2}}).loops == 2
    assert SimulatedOptions().loops == 1
