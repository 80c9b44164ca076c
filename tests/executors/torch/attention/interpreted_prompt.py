"""Prompt kernel and mixed batches against the reference, in Triton's interpreter; run by `test_interpreted.py`."""

from __future__ import annotations

import pytest
import torch

from interlock.executors.torch.attention.check import check, example
from interlock.executors.torch.attention.triton_attention import TritonAttention

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("block_size", [1, 7, 64])
def test_chunks_and_whole_prompts(block_size: int) -> None:
    check(TritonAttention(), example([(20, 20), (17, 50)], heads=2, kv_heads=1, block_size=block_size))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("head_dim", [32, 80, 96, 256])
def test_head_sizes(head_dim: int, dtype: torch.dtype) -> None:
    given = example([(18, 70)], heads=2, kv_heads=1, head_dim=head_dim, dtype=dtype)
    check(TritonAttention(), given, TOLERANCE[dtype])


@pytest.mark.parametrize("heads", [(2, 2), (2, 1), (4, 1), (7, 1), (20, 1)])
def test_groups_of_query_heads(heads: tuple[int, int]) -> None:
    check(TritonAttention(), example([(17, 40), (21, 21)], heads=heads[0], kv_heads=heads[1]))


@pytest.mark.parametrize("splits", [1, 2])
def test_a_mixed_batch(splits: int) -> None:
    given = example([(1, 40), (30, 45), (1, 0), (3, 33), (17, 17)], prefix=[0, 20, 0, 3, 17])
    check(TritonAttention(splits), given)


@pytest.mark.parametrize("prefix", [0, 1, 33, 60])
def test_a_prefix_lm(prefix: int) -> None:
    check(TritonAttention(), example([(50, 60)], heads=2, kv_heads=1, prefix=[prefix]))
