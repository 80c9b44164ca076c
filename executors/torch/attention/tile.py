"""What the kernels share: which tokens and heads a tile of queries holds, and one pass of it over a row's context.

A tile is a number of lanes, and a lane is one query head of one token. The query heads that read the same KV head are
lanes of one tile, so that each key is loaded once for all of them. The softmax is the online one (Milakov and
Gimelshein, 2018) with powers of two: `scale` holds log2(e).
"""

# Triton is untyped, and so are the parameters of its kernels.
# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def lanes_of_row(
    offsets,
    context,
    prefix,
    row,
    kv_head,
    first,
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    PREFIX: tl.constexpr,
):
    """For the row's lanes from `first` on: token in the batch, query head, positions attended to (0 past the row)."""
    begin = tl.load(offsets + row)
    run = tl.load(offsets + row + 1) - begin
    depth = tl.load(context + row)
    lane = first + tl.arange(0, LANES)
    token = lane // GROUP
    seen = depth - run + token + 1
    if PREFIX:
        seen = tl.maximum(seen, tl.load(prefix + row))
    seen = tl.where(token < run, tl.minimum(tl.maximum(seen, 0), depth), 0)
    return (begin + token).to(tl.int64), kv_head * GROUP + lane % GROUP, token < run, seen


@triton.jit
def over_context(
    state_top,
    state_sum,
    state_out,
    query,
    keys,
    values,
    table,
    start,
    stop,
    seen,
    scale,
    stride_block,
    stride_slot,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    TOKENS: tl.constexpr,
    MASKED: tl.constexpr,
    OPERANDS: tl.constexpr,
):
    """Go on with the softmax of (LANES, PADDED) queries over positions `start` to `stop`, TOKENS at a time.

    `keys` and `values` point to the KV head in slot 0, `table` to the row's blocks. State per lane: the highest score,
    the sum of the weights, and the weighted values. Without MASKED, each lane attends to all of whole TOKENS. Products
    are of type OPERANDS, summed in float32.
    """
    dims = tl.arange(0, PADDED)
    for first in range(start, stop, TOKENS):
        position = first + tl.arange(0, TOKENS)
        if MASKED:
            inside = position < stop
            block = tl.load(table + position // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
            there = inside[:, None] & (dims < DIM)[None, :]
        else:
            block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
            there = (dims < DIM)[None, :]
        at = (block * stride_block + (position % BLOCK_SIZE) * stride_slot)[:, None] + dims[None, :]
        key = tl.load(keys + at, mask=there, other=0.0)
        score = tl.dot(query.to(OPERANDS), tl.trans(key.to(OPERANDS)), input_precision="ieee") * scale
        if MASKED:
            score = tl.where(position[None, :] < seen[:, None], score, float("-inf"))
        top = tl.maximum(state_top, tl.max(score, 1))
        # A lane that has seen nothing yet has no finite score, and -inf less -inf is NaN.
        base = tl.where(top == float("-inf"), 0.0, top)
        weight = tl.exp2(score - base[:, None])
        shrink = tl.exp2(state_top - base)
        value = tl.load(values + at, mask=there, other=0.0)
        state_sum = state_sum * shrink + tl.sum(weight, 1)
        state_out = state_out * shrink[:, None]
        state_out += tl.dot(weight.to(OPERANDS), value.to(OPERANDS), input_precision="ieee")
        state_top = top
    return state_top, state_sum, state_out
