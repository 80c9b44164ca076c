"""Cost models: hand-calculated seconds, and stretches that equal their single steps bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from interlock.core.batch import Batch
from interlock.core.errors import ConfigError
from interlock.core.work import Operation, WorkKey
from interlock.executors.costs.cost import CostModel, Load
from interlock.executors.costs.options import CostOptions

LINEAR = {"base_s": 0.005, "prefill_token_s": 2e-5, "decode_token_s": 1e-4, "context_token_s": 1e-8}
MIXED = Load(prompt_tokens=100, decode_tokens=8, context_tokens=4000, prompt_attention=5050.0, prompt_rows=1, sampled=9)


def cost(loops: int | None = None, base: Path = Path("."), **options: Any) -> CostModel:
    return CostOptions.model_validate(options).build(base, loops)


def profile(**changes: Any) -> dict[str, Any]:
    whole = {
        "format": "interlock-cost-profile",
        "version": 1,
        "coefficients": {**LINEAR, "prompt_attention_s": 1e-9},
    }
    return whole | changes


def test_load_of_a_mixed_batch_by_hand(make_batch: Callable[..., Batch]) -> None:
    batch = make_batch(
        [(WorkKey.PROMPT_ATOMIC, 16, 4), (WorkKey.PROMPT_ATOMIC, 0, 3), (WorkKey.DECODE_ATOMIC, 9, 1)],
        samples=[False, True, True],
    )
    # Attention 4 * 16 + 10 and 0 + 6; the decode row reads its 9 tokens and the new one.
    assert Load.of(batch) == Load(Operation.FORWARD, 7, 1, 10, 80.0, 2, 2)


def test_load_of_a_decode_batch_is_that_of_its_properties(make_batch: Callable[..., Batch]) -> None:
    batch = make_batch([(WorkKey.DECODE_ATOMIC, 9, 1), (WorkKey.DECODE_ATOMIC, 20, 1)])
    assert Load.of(batch) == Load(Operation.FORWARD, 0, 2, batch.context_tokens, 0.0, 0, 2)
    assert batch.context_tokens == 31


def test_constant() -> None:
    assert cost(constant={"step_s": 1.5}).step_s(MIXED) == 1.5


def test_constant_per_operation() -> None:
    model = cost(constant={"step_s": 1.0, "recurrent_s": 0.25})
    assert [model.step_s(Load(operation)) for operation in Operation] == [1.0, 1.0, 0.25, 1.0]


def test_linear_by_hand() -> None:
    # 5 ms + 100 * 20 us + 8 * 100 us + 4000 * 10 ns = 7.84 ms.
    assert cost(linear=LINEAR).step_s(MIXED) == pytest.approx(0.00784, rel=1e-12)


def test_linear_per_operation_replaces_all_coefficients() -> None:
    model = cost(linear={**LINEAR, "operations": {"coda": {"base_s": 0.001}}})
    assert model.step_s(MIXED._replace(operation=Operation.CODA)) == 0.001
    assert model.step_s(MIXED._replace(operation=Operation.PRELUDE)) == model.step_s(MIXED)


def test_profile_by_hand(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(profile(about={"model": "x", "rows": 3})))
    # The linear cost and 5050 * 1 ns of prompt attention; the path is relative to the configuration.
    assert cost(base=tmp_path, profile={"path": "p.json"}).step_s(MIXED) == pytest.approx(0.00784505, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(profile(version=2)), "version: Input should be 1"),
        (json.dumps(profile(coefficients={**LINEAR})), "coefficients.prompt_attention_s: Field required"),
        (json.dumps(profile(coefficients={**LINEAR, "prompt_attention_s": -1.0})), "greater than or equal to 0"),
        (json.dumps(profile(coefficients={**LINEAR, "prompt_attention_s": "1"})), "should be a valid number"),
        (json.dumps(profile(extra=1)), "extra: Extra inputs are not permitted"),
        ("{", "Invalid JSON"),
        (None, "No such file"),
    ],
)
def test_a_bad_profile_is_a_configuration_error_of_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "p.json").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        cost(base=tmp_path, profile={"path": "p.json"})
    assert str(tmp_path / "p.json") in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of constant, linear, roofline, profile is needed, found none"),
        ({"constant": {"step_s": 1}, "linear": LINEAR}, "found constant and linear"),
        ({"constant": {"step_s": 0}}, "greater than 0"),
        ({"constant": {"step_s": float("nan")}}, "finite number"),
        ({"linear": {}}, "at least one coefficient must be above 0"),
        ({"linear": {**LINEAR, "operations": {"head": LINEAR}}}, "'forward', 'prelude', 'recurrent' or 'coda'"),
        ({"roofline": {"model": "llama-3-8", "device": "l4"}}, "did you mean 'llama-3-8b'"),
        ({"roofline": {"model": "llama-3-8b", "device": "a100"}}, "did you mean 'a100-80gb'"),
        ({"roofline": {"model": "llama-3-8b", "device": "l4", "tp": 3}}, "tp 3 does not divide the 32 heads"),
        ({"table": {}}, "Extra inputs are not permitted"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CostOptions.model_validate(options)


MODELS = [
    cost(constant={"step_s": 1 / 3}),
    cost(linear=LINEAR),
    cost(roofline={"model": "llama-3-8b", "device": "a100-80gb"}),
    cost(roofline={"model": "huginn-0125", "device": "h200", "tp": 5}),
]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.sampled_from(MODELS), st.integers(1, 4096), st.integers(1, 10**6), st.integers(1, 40))
def test_a_stretch_is_its_single_steps_bit_for_bit(model: CostModel, n: int, context: int, runs: int) -> None:
    load = Load(decode_tokens=n, context_tokens=n * context, sampled=n)
    assert model.stretch_s(load, runs).tolist() == [model.step_s(load.advanced(i)) for i in range(runs)]
