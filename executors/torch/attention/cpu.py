"""Attention on the CPU: single tokens by a compiled kernel; other rows in groups of like size, each a gather of blocks
and one PyTorch kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from interlock.executors.torch.attention.native import Single, kernels_for
from interlock.executors.torch.paged import Layer, Paged

_GATHER = 4 << 20  # bytes of keys and values that a group gathers at most, unless one row has more
_SHORT = 4  # runs up to this length are read token by token where there is a kernel for it
_QUERIES = 128  # tokens of a row per call: positions past the last of them are not computed


class CpuAttention:
    """Attention in float32 (float64 for float64 queries), whatever the cache holds.

    It plans once per `Paged` and follows the plan in all layers: the tensors of a `Paged` must not change between the
    calls it is given to. For one thread at a time. The caches must be contiguous.
    """

    def __init__(self) -> None:
        self._planned: tuple[Paged, int, bool] | None = None
        self._plan = _Plan(None, torch.empty(0), [])
        self._scratch: dict[tuple[int, torch.dtype], Tensor] = {}

    def write(self, layer: Layer, key: Tensor, value: Tensor, paged: Paged) -> None:
        """Store each token's key and value, (T, kv_heads, head_dim), at its slot; negative slots are skipped."""
        kernels = kernels_for(layer.keys.dtype)
        if kernels is not None and key.dtype == layer.keys.dtype and key.stride(-1) == value.stride(-1) == 1:
            kernels.write(layer, key, value, paged)
            return
        slots = paged.slots
        if bool((slots < 0).any()):
            kept = slots >= 0
            slots, key, value = slots[kept], key[kept], value[kept]
        for cache, new in zip(layer, (key, value), strict=True):
            cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, new.to(cache.dtype))

    def attend(self, query: Tensor, layer: Layer, paged: Paged, scale: float) -> Tensor:
        """softmax(scale * q k) v over what each token sees. (T, heads, head_dim) to the same; zeros for context 0."""
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        kernels = kernels_for(layer.keys.dtype) if dtype == torch.float32 else None
        plan = self._plan_of(paged, layer.keys, dtype, kernels is not None)
        if kernels is None or plan.single is None:
            return self._gathered(query, layer, plan, scale, dtype)
        asked = query.to(dtype) if query.stride(-1) == 1 else query.to(dtype).contiguous()
        out = torch.empty(query.shape, dtype=dtype)
        kernels.decode(out, asked, layer, paged, plan.single, scale)
        out = out.to(query.dtype)
        if plan.groups:
            out.index_copy_(0, plan.order, self._gathered(query, layer, plan, scale, dtype)[plan.order])
        return out

    def _gathered(self, query: Tensor, layer: Layer, plan: _Plan, scale: float, dtype: torch.dtype) -> Tensor:
        """The rows of the plan's groups; other rows hold anything."""
        grouped = query.index_select(0, plan.order).to(dtype)
        result = torch.empty_like(grouped)
        for group in plan.groups:
            keys, values = (self._gather(i, cache, group, dtype) for i, cache in enumerate(layer))
            rows = (len(keys), -1, *query.shape[1:])
            _attend(result[group.tokens].view(rows), grouped[group.tokens].view(rows), keys, values, group.seen, scale)
        return torch.empty_like(query).index_copy_(0, plan.order, result.to(query.dtype))

    def _plan_of(self, paged: Paged, cache: Tensor, dtype: torch.dtype, kernels: bool) -> _Plan:
        key = paged, 2 * cache[0].numel() * dtype.itemsize, kernels
        if self._planned is None or self._planned[0] is not paged or self._planned[1:] != key[1:]:
            self._plan = _plan(paged, cache.shape[1], max(1, _GATHER // key[1]), kernels)
            self._planned = key
        return self._plan

    def _gather(self, which: int, cache: Tensor, group: _Group, dtype: torch.dtype) -> Tensor:
        """The group's keys or values, (rows, tokens, kv_heads, head_dim), zeros where a slot is past its context."""
        space = self._space(which, dtype, (len(group.pages), *cache.shape[1:]))
        if cache.dtype == dtype:
            torch.index_select(cache, 0, group.pages, out=space)
        else:
            space.copy_(cache.index_select(0, group.pages))
        # To mask the scores is not enough: in the product of weights and values, 0 * NaN is NaN.
        space.view(-1, *cache.shape[2:]).index_fill_(0, group.unused, 0)
        return space.view(group.seen[0].shape[0], -1, *cache.shape[2:])

    def _space(self, which: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Memory that is kept between calls: fresh pages from the system cost more than the copy into them."""
        size = math.prod(shape)
        space = self._scratch.get((which, dtype))
        if space is None or len(space) < size:
            with torch.inference_mode(False):  # else it could not be used outside of inference mode later
                space = self._scratch[which, dtype] = torch.empty(size, dtype=dtype)
        return space[:size].view(shape)


class _Group(NamedTuple):
    """Rows of one length of run and of like context, whose pages are gathered side by side."""

    tokens: slice  # which tokens of the plan's order are theirs, row after row
    pages: Tensor  # (rows * pages,) the blocks to gather
    unused: Tensor  # which of the gathered slots may hold anything
    seen: list[Tensor]  # per `_QUERIES` tokens of each row, (rows, tokens, positions): which positions each attends to


class _Plan(NamedTuple):
    single: Single | None
    order: Tensor  # the other tokens of the batch, group after group
    groups: list[_Group]


def _plan(paged: Paged, block_size: int, most_pages: int, kernels: bool) -> _Plan:
    offsets = paged.offsets.numpy()
    runs = np.diff(offsets)
    single = _single(paged, runs, np.flatnonzero(runs <= _SHORT)) if kernels else None
    long = np.flatnonzero(runs > _SHORT) if kernels else np.arange(len(runs))
    groups: list[_Group] = []
    order, done = [np.empty(0, np.int64)], 0
    for at, pages in _alike(runs[long], -(-paged.context.numpy()[long] // block_size), most_pages):
        rows = long[at]
        tokens = offsets[rows, None] + np.arange(offsets[rows[0] + 1] - offsets[rows[0]])
        order.append(tokens.ravel())
        groups.append(_group(paged, rows, pages, block_size, slice(done, done + tokens.size)))
        done += tokens.size
    return _Plan(single, torch.from_numpy(np.concatenate(order).astype(np.int64)), groups)


def _single(paged: Paged, runs: NDArray[np.int32], rows: NDArray[np.intp]) -> Single | None:
    if not len(rows):
        return None
    owner = np.repeat(rows, runs[rows])
    first = np.repeat(np.cumsum(runs[rows]) - runs[rows], runs[rows])
    within = np.arange(len(owner)) - first
    context = paged.context.numpy()[owner].astype(np.int64)
    seen = context - runs[owner] + within + 1
    if paged.prefix is not None:
        seen = np.minimum(np.maximum(seen, paged.prefix.numpy()[owner]), context)
    return Single(paged.offsets.numpy()[owner] + within, owner.astype(np.int64), np.maximum(seen, 0))


def _alike(
    runs: NDArray[np.int32], pages: NDArray[np.int32], most_pages: int
) -> Iterator[tuple[NDArray[np.intp], int]]:
    """Groups of rows, each with the pages of its deepest row: one length of run, and at most half of a row padding."""
    order = np.lexsort((-pages, runs))
    first = 0
    while first < len(order):
        leader = order[first]
        deepest = max(1, int(pages[leader]))
        rows = order[first : first + max(1, most_pages // deepest)]
        alike = (runs[rows] == runs[leader]) & (2 * pages[rows] >= deepest)
        alike[0] = True
        rows = rows if alike.all() else rows[: np.argmin(alike)]
        yield rows, deepest
        first += len(rows)


def _group(paged: Paged, rows: NDArray[np.intp], pages: int, block_size: int, tokens: slice) -> _Group:
    context = paged.context.numpy()[rows, None]
    run = (tokens.stop - tokens.start) // len(rows)
    seen = context - run + 1 + np.arange(run)
    if paged.prefix is not None:
        seen = np.minimum(np.maximum(seen, paged.prefix.numpy()[rows, None]), context)
    starts = np.arange(pages) * block_size
    # A page past the context is read as the row's first, which is all the row's own unless the context ends in it.
    table = paged.table.numpy()[rows, :pages]
    table = np.where(starts < context, table, np.where(context > 0, table[:, :1], 0))
    partial = (starts + block_size > context) & ((starts < context) | (context < block_size))
    unused = (np.arange(pages * block_size) >= context) & partial.repeat(block_size, axis=1)
    return _Group(
        tokens=tokens,
        pages=torch.from_numpy(table.ravel().astype(np.int64)),
        unused=torch.from_numpy(np.flatnonzero(unused)),
        seen=[_mask(seen[:, first : first + _QUERIES, None]) for first in range(0, run, _QUERIES)],
    )


def _mask(seen: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.arange(max(1, int(seen.max()))) < seen)


def _attend(out: Tensor, query: Tensor, keys: Tensor, values: Tensor, seen: list[Tensor], scale: float) -> None:
    """(rows, run, heads, head_dim) queries over (rows, tokens, kv_heads, head_dim) keys and values."""
    kv_heads = keys.shape[2]
    heads = query.shape[2] // kv_heads, query.shape[3]
    for i, mask in enumerate(seen):
        part, end = slice(i * _QUERIES, (i + 1) * _QUERIES), mask.shape[2]
        # The query heads of a KV head stand side by side as if they were more tokens, so that no key is repeated.
        folded = query[:, part].view(len(query), -1, kv_heads, *heads).permute(0, 2, 3, 1, 4)
        result = scaled_dot_product_attention(
            folded.flatten(2, 3),
            keys[:, :end].transpose(1, 2),
            values[:, :end].transpose(1, 2),
            attn_mask=mask[:, None, None].expand(-1, -1, folded.shape[2], -1, -1).flatten(2, 3),
            scale=scale,
        )
        out[:, part].copy_(result.view(folded.shape).permute(0, 3, 1, 2, 4).flatten(2, 3))
