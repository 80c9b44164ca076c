"""Roofline: the published steps of the hand-set roofline, terms by hand, tensor parallelism, looped operations."""

from __future__ import annotations

import pytest

from interlock.core.work import Operation
from interlock.executors.costs.catalog import DEVICES, MODELS
from interlock.executors.costs.cost import Load
from interlock.executors.costs.roofline import Factors, Roofline

LLAMA = MODELS["llama-3-8b"]
BARE = Factors(kernel_s=0.0)


def roofline(
    model: str = "llama-3-8b", device: str = "a100-80gb", tp: int = 1, factors: Factors | None = None
) -> Roofline:
    return Roofline(MODELS[model], DEVICES[device], tp, MODELS[model].loops, factors)


def decodes(n: int, context: int = 512) -> Load:
    return Load(decode_tokens=n, context_tokens=n * context, sampled=n)


def prompt(q: int, beside: int = 0) -> Load:
    rows = decodes(beside)
    return rows._replace(prompt_tokens=q, prompt_attention=q * (q + 1) / 2, prompt_rows=1, sampled=beside + 1)


@pytest.mark.parametrize(
    ("load", "a100_ms", "h100_ms"),
    [
        # Steps of Llama-3-8B as a hand-set roofline (MFU 0.80, MBU 0.80, 4 microseconds per kernel) gives them.
        (decodes(1), 10.5, 6.9),
        (decodes(32), 12.4, 8.0),
        (decodes(128), 17.9, 11.4),
        (prompt(512), 32.8, 13.2),
        (prompt(2048), 130.0, 49.7),
        (prompt(448, beside=64), 36.4, 15.6),
    ],
)
def test_reference_steps_within_six_percent(load: Load, a100_ms: float, h100_ms: float) -> None:
    assert roofline().step_s(load) * 1e3 == pytest.approx(a100_ms, rel=0.06)
    assert roofline(device="h100-80gb").step_s(load) * 1e3 == pytest.approx(h100_ms, rel=0.06)


def test_one_decode_reads_all_weights_but_the_embedding() -> None:
    # The final norm is the one weight that the formula leaves to its launch; activations of one token are 5e-6 s.
    expected = LLAMA.weight_bytes() / (2.039e12 * 0.8)
    assert roofline(factors=BARE).step_s(decodes(1, context=0)) == pytest.approx(expected, rel=1e-3)


def test_context_costs_its_kv_bytes_over_the_attention_bandwidth() -> None:
    more = roofline().step_s(decodes(1, context=1001)) - roofline().step_s(decodes(1, context=1))
    assert more == pytest.approx(1000 * 131_072 / (2.039e12 * 0.7), rel=1e-6)


def test_a_long_prompt_is_bound_by_compute() -> None:
    # Per token 2 * 32 * 218,103,808 FLOPs of matrices; a quarter of a million tokens in no context of their own.
    load = Load(prompt_tokens=1 << 18)
    factors = Factors(kernel_s=0.0, attention_n0=0.0)
    matrices = (1 << 18) * 2 * 32 * 218_103_808 / (312e12 * 0.8)
    # 12 * 4096 + 6 * 4096 + 8 * 1024 + 6 * 14336 values of two bytes, 32 layers.
    activations = (1 << 18) * 32 * 2 * 167_936 / (2.039e12 * 0.8)
    assert roofline(factors=factors).step_s(load) == pytest.approx(matrices + activations, rel=1e-9)


@pytest.mark.parametrize("tokens", [512, 2048, 8192])
def test_prompt_attention_follows_the_fitted_efficiency(tokens: int) -> None:
    # e n / (n + n0) with the A100's 0.58 and 566: 0.28, 0.45 and 0.54 of peak (measured 0.17, 0.40 and 0.57).
    seconds = roofline().step_s(prompt(tokens)) - roofline(factors=Factors(attention_mfu=1e12)).step_s(prompt(tokens))
    flops = 4 * 32 * 128 * 32 * tokens * (tokens + 1) / 2
    assert flops / seconds / 312e12 == pytest.approx(0.58 * tokens / (tokens + 566), rel=2e-3)


def test_the_head_costs_only_sampled_rows() -> None:
    chunk = Load(prompt_tokens=512, prompt_attention=131_328.0, prompt_rows=1)
    head = roofline().step_s(chunk._replace(sampled=1)) - roofline().step_s(chunk)
    assert head == pytest.approx(4096 * 128_256 * 2 / (2.039e12 * 0.8), rel=1e-9)


def test_chunks_add_up() -> None:
    # Two chunks in one call attend as much as the whole prompt does.
    whole = prompt(1024)
    halves = whole._replace(prompt_rows=2, prompt_attention=512 * 513 / 2 + 512 * 512 + 512 * 513 / 2)
    assert roofline().step_s(halves) == roofline().step_s(whole)


def test_tensor_parallel_divides_and_adds_two_all_reduces_per_layer() -> None:
    load = prompt(2048)
    one, four = roofline(factors=BARE).step_s(load), roofline(tp=4, factors=BARE).step_s(load)
    # A ring sends 2 * 3 / 4 of 2048 * 4096 * 2 bytes; 12 h values per token and layer are not divided.
    ring = 64 * 1.5 * 2048 * 4096 * 2 / 300e9
    whole = 2048 * 32 * 12 * 4096 * 2 / (2.039e12 * 0.8)
    assert four == pytest.approx((one - whole) / 4 + whole + ring, rel=1e-9)


def test_tensor_parallel_divides_kv_by_at_most_the_kv_heads() -> None:
    def per_token(tp: int) -> float:
        return roofline(tp=tp).split(decodes(1))[1]

    assert per_token(8) == pytest.approx(per_token(1) / 8)
    assert per_token(32) == per_token(8)


def test_overheads_count_kernels() -> None:
    load = decodes(1)
    extra = roofline(factors=Factors(host_s=0.002)).step_s(load) - roofline(factors=BARE).step_s(load)
    assert extra == pytest.approx(0.002 + 4e-6 * (10 * 32 + 4), rel=1e-9)


def test_looped_operations_add_up_to_a_forward() -> None:
    cost = roofline("huginn-0125", factors=BARE)
    load = Load(decode_tokens=4, context_tokens=4000, sampled=4)
    parts = {operation: cost.step_s(load._replace(operation=operation)) for operation in Operation}
    whole = parts[Operation.PRELUDE] + 32 * parts[Operation.RECURRENT] + parts[Operation.CODA]
    assert parts[Operation.FORWARD] == pytest.approx(whole, rel=1e-9)


def test_a_loop_of_huginn_reads_four_layers_and_the_injection() -> None:
    cost = roofline("huginn-0125", factors=BARE)
    load = Load(Operation.RECURRENT, decode_tokens=1)
    parameters = 4 * (4 * 5280**2 + 3 * 5280 * 17920 + 4 * 5280) + 2 * 5280**2
    assert cost.step_s(load) == pytest.approx(2 * parameters / (2.039e12 * 0.8), rel=1e-3)


def test_a_prelude_without_layers_costs_its_launches() -> None:
    assert roofline("ouro-1.4b").step_s(Load(Operation.PRELUDE, decode_tokens=9, context_tokens=99)) == 16e-6
