"""The CPU implementation against the reference."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.executors.torch.attention.check import check, example
from interlock.executors.torch.attention.cpu import CpuAttention
from interlock.executors.torch.paged import Layer

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 1e-2}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Decode rows, short runs and chunks, at contexts that differ widely; now and then a row that only fills up."""
    run = st.one_of(st.just(1), st.integers(1, 4), st.integers(100, 150))
    some = draw(st.lists(st.tuples(run, st.one_of(st.integers(0, 20), st.integers(0, 300))), min_size=1, max_size=8))
    filling = [(1, 0)] if draw(st.booleans()) else []
    return [(tokens, tokens + before) for tokens, before in some] + filling


@settings(max_examples=40)
@given(
    rows=rows(),
    heads=st.sampled_from([(1, 1), (4, 4), (8, 4), (8, 2), (14, 2)]),
    head_dim=st.sampled_from([32, 80, 96, 256]),
    block_size=st.sampled_from([1, 3, 16, 64]),
    dtype=st.sampled_from(sorted(TOLERANCE, key=str)),
    prefix=st.one_of(st.none(), st.integers(0, 200)),
    seed=st.integers(0, 1000),
)
def test_it_agrees_with_the_reference(
    rows: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    prefix: int | None,
    seed: int,
) -> None:
    batch = example(
        rows,
        heads=heads[0],
        kv_heads=heads[1],
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
        prefix=None if prefix is None else [prefix] * len(rows),
        seed=seed,
    )
    check(CpuAttention(), batch, TOLERANCE[dtype])


def test_rows_that_do_not_fit_in_one_gather_are_split() -> None:
    check(CpuAttention(), example([(1, 700 + i) for i in range(12)], kv_heads=4, head_dim=64))


def test_one_object_serves_batches_layers_and_types_in_turn() -> None:
    attention = CpuAttention()
    for seed, (dtype, tolerance) in enumerate(TOLERANCE.items()):
        check(attention, example([(1, 40), (5, 9)], dtype=dtype, seed=seed), tolerance)
        check(attention, example([(1, 300 * (seed + 1))], dtype=dtype, kv_heads=4, seed=seed), tolerance)


def test_one_batch_may_meet_layers_of_different_shapes() -> None:
    first, second = example([(1, 33), (1, 9)]), example([(1, 33), (1, 9)], kv_heads=4, seed=1)
    attention = CpuAttention()
    check(attention, first)
    check(attention, second._replace(paged=first.paged, layer=Layer(*map(torch.nan_to_num, second.layer))))


def test_a_cache_of_another_type_than_the_model() -> None:
    half = example([(1, 20), (7, 30)], dtype=torch.bfloat16)
    check(CpuAttention(), half._replace(query=half.query.float(), key=half.key.float(), value=half.value.float()))


def test_memory_from_inference_mode_serves_outside_of_it() -> None:
    attention, batch = CpuAttention(), example([(1, 20)])
    with torch.inference_mode():
        check(attention, batch)
    check(attention, batch)
