"""Decode and store kernels against the reference, in Triton's interpreter; run by `test_interpreted.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from interlock.executors.torch.attention.check import check, example
from interlock.executors.torch.attention.triton_attention import TritonAttention

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
ROWS = [(1, 0), (1, 1), (1, 37)]


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("block_size", [1, 7, 64])
def test_block_sizes(block_size: int, splits: int) -> None:
    check(TritonAttention(splits), example(ROWS, heads=2, kv_heads=1, block_size=block_size))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("head_dim", [32, 80, 96, 256])
def test_head_sizes(head_dim: int, dtype: torch.dtype) -> None:
    check(TritonAttention(2), example([(1, 50)], heads=2, kv_heads=1, head_dim=head_dim, dtype=dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (4, 1), (7, 1), (20, 1)])
def test_groups_of_query_heads(heads: tuple[int, int]) -> None:
    check(TritonAttention(2), example(ROWS, heads=heads[0], kv_heads=heads[1]))


def test_more_splits_than_the_context_has_tiles() -> None:
    check(TritonAttention(20), example(ROWS, heads=2, kv_heads=1))


def test_drafts_are_causal_among_themselves() -> None:
    check(TritonAttention(2), example([(3, 40), (1, 5), (2, 2)], prefix=[0, 3, 2]))


def test_a_batch_may_be_deeper_than_any_of_its_rows() -> None:
    """As in a replay of a graph, whose grid was made for the deepest batch."""
    given = example(ROWS)
    check(TritonAttention(7), given._replace(paged=replace(given.paged, deepest=4000)))


def test_heads_that_do_not_lie_side_by_side() -> None:
    given = example([(1, 9), (1, 20)], heads=2, kv_heads=2)
    packed = torch.stack([given.query, given.key, given.value], 1)
    query, key, value = packed.unbind(1)
    check(TritonAttention(), given._replace(query=query, key=key, value=value))
    check(TritonAttention(), given._replace(query=given.query.mT.contiguous().mT))


def test_caches_that_lie_differently_are_refused() -> None:
    given = example([(1, 9)])
    layer = given.layer._replace(values=given.layer.values.transpose(0, 2))
    with pytest.raises(ValueError, match="must lie alike"):
        TritonAttention().write(layer, given.key, given.value, given.paged)


def test_a_type_without_matrix_products_is_refused() -> None:
    given = example([(1, 9)], dtype=torch.float64)
    with pytest.raises(TypeError, match=r"not in torch\.float64"):
        TritonAttention().attend(given.query, given.layer, given.paged, given.scale)
