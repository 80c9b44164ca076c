"""The kernels for runs of few tokens: the context is split among programs, and what they find is put together.

Split attention as in Flash-Decoding (Dao et al., 2023). A split leaves its normalized output and the logarithm of its
sum of weights; their weighted mean is the output.
"""

# Triton is untyped, and so are the parameters of its kernels.
# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from interlock.executors.torch.attention.tile import lanes_of_row, over_context


@triton.jit
def decode_kernel(
    out,
    parts,
    logs,
    query,
    keys,
    values,
    offsets,
    context,
    table,
    prefix,
    scale,
    stride_out_token,
    stride_query_token,
    stride_query_head,
    stride_block,
    stride_slot,
    stride_head,
    stride_table,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    LANES: tl.constexpr,
    TOKENS: tl.constexpr,
    SHORT: tl.constexpr,
    SPLIT: tl.constexpr,
    PREFIX: tl.constexpr,
    OPERANDS: tl.constexpr,
):
    """Grid (rows, KV heads, splits), for rows of at most SHORT tokens: SHORT * GROUP <= LANES.

    With SPLIT, `parts` float32 (rows, kv_heads, splits, LANES, DIM) and `logs` (rows, kv_heads, splits, LANES) are
    filled; else `out`.
    """
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    splits = tl.num_programs(2)
    run = tl.load(offsets + row + 1) - tl.load(offsets + row)
    if run <= SHORT:
        token, head, inside, seen = lanes_of_row(offsets, context, prefix, row, kv_head, 0, GROUP, LANES, PREFIX)
        dims = tl.arange(0, PADDED)
        there = inside[:, None] & (dims < DIM)[None, :]
        at = token * stride_query_token + head * stride_query_head
        queries = tl.load(query + at[:, None] + dims[None, :], mask=there, other=0.0)
        keys += kv_head.to(tl.int64) * stride_head
        values += kv_head.to(tl.int64) * stride_head
        table += row.to(tl.int64) * stride_table
        # Of the row's own context, so that a grid made for a deeper batch still shares the work evenly.
        deepest = tl.max(seen, 0)
        share = tl.cdiv(tl.cdiv(deepest, splits), TOKENS) * TOKENS
        start = tl.minimum(tl.program_id(2) * share, deepest)
        stop = tl.minimum(start + share, deepest)
        top = tl.full([LANES], float("-inf"), tl.float32)
        total = tl.zeros([LANES], tl.float32)
        result = tl.zeros([LANES, PADDED], tl.float32)
        top, total, result = over_context(
            top, total, result, queries, keys, values, table, start, stop, seen, scale, stride_block, stride_slot,
            BLOCK_SIZE, DIM, PADDED, TOKENS, True, OPERANDS,
        )  # fmt: skip
        total = tl.where(total == 0.0, 1.0, total)
        result = result / total[:, None]
        if SPLIT:
            part = (row.to(tl.int64) * tl.num_programs(1) + kv_head) * splits + tl.program_id(2)
            lane = part * LANES + tl.arange(0, LANES)
            tl.store(logs + lane, top + tl.log2(total))
            tl.store(parts + lane[:, None] * DIM + dims[None, :], result, mask=there)
        else:
            at = token * stride_out_token + head * DIM
            tl.store(out + at[:, None] + dims[None, :], result.to(out.dtype.element_ty), mask=there)


@triton.jit
def combine_kernel(
    out,
    parts,
    logs,
    offsets,
    splits,
    stride_out_token,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    LANES: tl.constexpr,
    SHORT: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Grid (rows, KV heads, lanes in use): the weighted mean of a lane's splits, CHUNK of them at a time."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    lane = tl.program_id(2)
    begin = tl.load(offsets + row)
    run = tl.load(offsets + row + 1) - begin
    if (run <= SHORT) & (lane < run * GROUP):
        dims = tl.arange(0, PADDED)
        base = (row.to(tl.int64) * tl.num_programs(1) + kv_head) * splits * LANES + lane
        top = tl.full([CHUNK], float("-inf"), tl.float32)
        for first in range(0, splits, CHUNK):
            split = first + tl.arange(0, CHUNK)
            log = tl.load(logs + base + split * LANES, mask=split < splits, other=float("-inf"))
            top = tl.maximum(top, log)
        highest = tl.max(top, 0)
        highest = tl.where(highest == float("-inf"), 0.0, highest)
        total = tl.zeros([CHUNK], tl.float32)
        result = tl.zeros([PADDED], tl.float32)
        for first in range(0, splits, CHUNK):
            split = first + tl.arange(0, CHUNK)
            log = tl.load(logs + base + split * LANES, mask=split < splits, other=float("-inf"))
            weight = tl.exp2(log - highest)
            at = (base + split * LANES)[:, None] * DIM + dims[None, :]
            part = tl.load(parts + at, mask=(split < splits)[:, None] & (dims < DIM)[None, :], other=0.0)
            result += tl.sum(part * weight[:, None], 0)
            total += weight
        mass = tl.sum(total, 0)
        result = result / tl.where(mass == 0.0, 1.0, mass)
        at = (begin + lane // GROUP).to(tl.int64) * stride_out_token + (kv_head * GROUP + lane % GROUP) * DIM
        tl.store(out + at + dims, result.to(out.dtype.element_ty), mask=dims < DIM)
