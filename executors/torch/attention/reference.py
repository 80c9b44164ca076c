"""Attention as its formula reads, row by row: what every other implementation is tested against."""

from __future__ import annotations

import torch
from torch import Tensor

from interlock.executors.torch.paged import Layer, Paged


class Reference:
    """Plain PyTorch in float32 (float64 for float64 queries), for any device. It reads no slot past a context."""

    def write(self, layer: Layer, key: Tensor, value: Tensor, paged: Paged) -> None:
        """Store each token's key and value, (T, kv_heads, head_dim), at its slot; negative slots are skipped."""
        block_size = layer.keys.shape[1]
        for token, slot in enumerate(paged.slots.tolist()):
            if slot >= 0:
                layer.keys[slot // block_size, slot % block_size] = key[token]
                layer.values[slot // block_size, slot % block_size] = value[token]

    def attend(self, query: Tensor, layer: Layer, paged: Paged, scale: float) -> Tensor:
        """softmax(scale * q k) v over what each token sees. (T, heads, head_dim) to the same; zeros for context 0."""
        out = torch.zeros_like(query)
        offsets = paged.offsets.tolist()
        for row, context in enumerate(paged.context.tolist()):
            tokens = slice(offsets[row], offsets[row + 1])
            if context > 0:
                keys, values = (_read(cache, paged.table[row], context) for cache in layer)
                seen = _seen(tokens.stop - tokens.start, context, 0 if paged.prefix is None else int(paged.prefix[row]))
                out[tokens] = _attend(query[tokens], keys, values, seen.to(query.device), scale).to(query.dtype)
        return out


def _read(cache: Tensor, table: Tensor, context: int) -> Tensor:
    """The first `context` tokens of a row, (context, kv_heads, head_dim)."""
    block_size = cache.shape[1]
    pages = -(-context // block_size)
    return torch.cat([cache[block] for block in table[:pages].tolist()])[:context]


def _seen(tokens: int, context: int, prefix: int) -> Tensor:
    """Whether each of a row's last `tokens` positions attends to each position of its context."""
    queries = torch.arange(context - tokens, context)[:, None]
    keys = torch.arange(context)[None, :]
    return (keys <= queries) | (keys < prefix)


def _attend(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float) -> Tensor:
    """One row: (tokens, heads, head_dim) queries over (context, kv_heads, head_dim) keys and values."""
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    group = query.shape[1] // keys.shape[1]
    keys, values = (x.to(dtype).repeat_interleave(group, dim=1) for x in (keys, values))
    scores = scale * torch.einsum("qhd,khd->hqk", query.to(dtype), keys)
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values)
