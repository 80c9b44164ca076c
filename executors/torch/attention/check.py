"""Batches with a poisoned cache, and a check of any `Attention` against the reference on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from interlock.executors.torch.attention.reference import Reference
from interlock.executors.torch.paged import Attention, Layer, Paged

_GARBAGE = (-1, 2**31 - 1, -(2**31), 10**6)


class Example(NamedTuple):
    """What one layer is called with: `key` and `value` are yet to be written."""

    query: Tensor  # (T, heads, head_dim)
    key: Tensor  # (T, kv_heads, head_dim)
    value: Tensor
    layer: Layer
    paged: Paged
    scale: float


def example(
    rows: Sequence[tuple[int, int]],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    prefix: Sequence[int] | None = None,
    seed: int = 0,
) -> Example:
    """A random batch of (tokens, context) per row; a row of context 0 has one token, and nowhere to write it.

    Slots that no row owns are NaN and table entries past the context are garbage: whoever reads either is found out.
    """
    random = torch.Generator().manual_seed(seed)
    table, blocks = _table([context for _, context in rows], block_size, random)
    slots = [_slots(table[i], tokens, context, block_size) for i, (tokens, context) in enumerate(rows)]
    total = sum(tokens for tokens, _ in rows)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(device, dtype)

    layer = Layer(
        *(torch.full((blocks, block_size, kv_heads, head_dim), torch.nan).to(device, dtype) for _ in range(2))
    )
    for i, (tokens, context) in enumerate(rows):
        history = _slots(table[i], context, context, block_size)[: max(0, context - tokens)].to(device)
        for cache in layer:
            cache.view(-1, kv_heads, head_dim)[history] = draw(len(history), kv_heads, head_dim)
    paged = Paged(
        offsets=torch.tensor([0, *(tokens for tokens, _ in rows)]).cumsum(0).to(device, torch.int32),
        context=torch.tensor([context for _, context in rows], dtype=torch.int32, device=device),
        table=table.to(device),
        slots=torch.cat(slots).to(device),
        longest=max(tokens for tokens, _ in rows),
        deepest=max(context for _, context in rows),
        prefix=None if prefix is None else torch.tensor(prefix, dtype=torch.int32, device=device),
    )
    query, key, value = draw(total, heads, head_dim), draw(total, kv_heads, head_dim), draw(total, kv_heads, head_dim)
    return Example(query, key, value, layer, paged, head_dim**-0.5)


def check(attention: Attention, given: Example, tolerance: float = 1e-5) -> None:
    """Write and attend as the reference does, to `tolerance` relative to the largest output.

    Raises AssertionError that names what differs and by how much. `given` stays as it was.
    """
    results = []
    for one in (attention, Reference()):
        layer = Layer(*(cache.clone() for cache in given.layer))
        one.write(layer, given.key, given.value, given.paged)
        results.append((layer, one.attend(given.query, layer, given.paged, given.scale)))
    (layer, out), (expected_layer, expected) = results
    for name, cache, expected_cache in zip(Layer._fields, layer, expected_layer, strict=True):
        if not torch.equal(cache.nan_to_num(nan=12345.0), expected_cache.nan_to_num(nan=12345.0)):
            raise AssertionError(f"{type(attention).__name__} wrote other {name} than the reference")
    if out.shape != expected.shape or out.dtype != expected.dtype:
        raise AssertionError(f"{out.dtype}{tuple(out.shape)} where the reference has {expected.dtype}{expected.shape}")
    error = (out.double() - expected.double()).abs().max().item()
    allowed = tolerance * expected.abs().max().item()
    if not error <= allowed:  # NaN, too
        raise AssertionError(f"{type(attention).__name__} is off by {error:.3g}, more than {allowed:.3g}")


def _table(contexts: Sequence[int], block_size: int, random: torch.Generator) -> tuple[Tensor, int]:
    """Blocks of all rows in random order, garbage after each row's own; and how many blocks there are, some unused."""
    pages = [-(-context // block_size) for context in contexts]
    blocks = sum(pages) + 3
    shuffled = iter(torch.randperm(blocks, generator=random).tolist())
    width = max(pages) + 2
    rows = [[next(shuffled) if i < own else _GARBAGE[i % len(_GARBAGE)] for i in range(width)] for own in pages]
    return torch.tensor(rows, dtype=torch.int32), blocks


def _slots(table: Tensor, tokens: int, context: int, block_size: int) -> Tensor:
    """Where the last `tokens` of a row's context lie; -1 for context 0."""
    if context == 0:
        return torch.full((tokens,), -1)
    at = torch.arange(context - tokens, context)
    return table.long()[at // block_size] * block_size + at % block_size
