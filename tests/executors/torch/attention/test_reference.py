"""The reference against attention on plain tensors, without a cache."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from interlock.executors.torch.attention.check import Example, example
from interlock.executors.torch.attention.reference import Reference


def _attend(given: Example) -> torch.Tensor:
    reference = Reference()
    reference.write(given.layer, given.key, given.value, given.paged)
    return reference.attend(given.query, given.layer, given.paged, given.scale)


def _history(given: Example, row: int) -> list[torch.Tensor]:
    """The keys and values of a row, (1, kv_heads, context, head_dim), token by token from the cache."""
    block_size = given.layer.keys.shape[1]
    table, context = given.paged.table[row].tolist(), int(given.paged.context[row])
    places = [(table[i // block_size], i % block_size) for i in range(context)]
    return [torch.stack([cache[block, slot] for block, slot in places], 1)[None] for cache in given.layer]


def test_a_whole_prompt_is_causal_attention() -> None:
    given = example([(11, 11)], dtype=torch.float64)
    out = _attend(given)
    keys, values = _history(given, 0)
    query = given.query.transpose(0, 1)[None]
    expected = scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(out, expected[0].transpose(0, 1))


def test_a_decode_row_attends_to_all_of_its_own_context_only() -> None:
    given = example([(1, 20), (1, 3)], dtype=torch.float64)
    out = _attend(given)
    for row in range(2):
        query = given.query[row, None, :, None]
        expected = scaled_dot_product_attention(query, *_history(given, row), enable_gqa=True)
        torch.testing.assert_close(out[row], expected[0, :, 0])


def test_a_prefix_is_seen_by_all_of_its_tokens() -> None:
    given = example([(9, 9)], prefix=[5], dtype=torch.float64)
    out = _attend(given)
    seen = torch.ones(9, 9, dtype=torch.bool).tril()
    seen[:, :5] = True
    query = given.query.transpose(0, 1)[None]
    expected = scaled_dot_product_attention(query, *_history(given, 0), attn_mask=seen, enable_gqa=True)
    torch.testing.assert_close(out, expected[0].transpose(0, 1))


def test_a_chunk_is_the_end_of_what_the_whole_prompt_gives() -> None:
    whole = example([(20, 20)], prefix=[16])
    out = _attend(whole)
    paged = whole.paged
    chunk = Example(
        query=whole.query[14:],
        key=whole.key[14:],
        value=whole.value[14:],
        layer=whole.layer,
        paged=type(paged)(
            torch.tensor([0, 6], dtype=torch.int32), paged.context, paged.table, paged.slots[14:], 6, 20, paged.prefix
        ),
        scale=whole.scale,
    )
    torch.testing.assert_close(_attend(chunk), out[14:])


def test_a_row_without_context_writes_nothing_and_gives_zeros() -> None:
    given = example([(1, 0)])
    assert not _attend(given).any()
    assert given.layer.keys.isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_result_has_the_type_of_the_query(dtype: torch.dtype) -> None:
    assert _attend(example([(1, 4)], dtype=dtype)).dtype == dtype
