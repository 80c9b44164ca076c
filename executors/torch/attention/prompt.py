"""The kernel for runs of many tokens: a tile of queries goes over all of the context that it sees."""

# Triton is untyped, and so are the parameters of its kernels.
# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from interlock.executors.torch.attention.tile import lanes_of_row, over_context


@triton.jit
def prompt_kernel(
    out,
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
    PREFIX: tl.constexpr,
    OPERANDS: tl.constexpr,
):
    """Grid (tiles of the longest run, rows, KV heads). Rows of at most SHORT tokens are left to the decode kernel."""
    row = tl.program_id(1)
    kv_head = tl.program_id(2)
    # The last tiles see the most, so they start first.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * LANES
    run = tl.load(offsets + row + 1) - tl.load(offsets + row)
    if (run > SHORT) & (first < run * GROUP):
        token, head, inside, seen = lanes_of_row(offsets, context, prefix, row, kv_head, first, GROUP, LANES, PREFIX)
        dims = tl.arange(0, PADDED)
        there = inside[:, None] & (dims < DIM)[None, :]
        at = token * stride_query_token + head * stride_query_head
        queries = tl.load(query + at[:, None] + dims[None, :], mask=there, other=0.0)
        keys += kv_head.to(tl.int64) * stride_head
        values += kv_head.to(tl.int64) * stride_head
        table += row.to(tl.int64) * stride_table
        stop = tl.max(seen, 0)
        whole = tl.min(tl.where(inside, seen, stop), 0) // TOKENS * TOKENS
        top = tl.full([LANES], float("-inf"), tl.float32)
        total = tl.zeros([LANES], tl.float32)
        result = tl.zeros([LANES, PADDED], tl.float32)
        # Up to `whole` every lane attends to everything; only what follows needs a mask.
        top, total, result = over_context(
            top, total, result, queries, keys, values, table, 0, whole, seen, scale, stride_block, stride_slot,
            BLOCK_SIZE, DIM, PADDED, TOKENS, False, OPERANDS,
        )  # fmt: skip
        top, total, result = over_context(
            top, total, result, queries, keys, values, table, whole, stop, seen, scale, stride_block, stride_slot,
            BLOCK_SIZE, DIM, PADDED, TOKENS, True, OPERANDS,
        )  # fmt: skip
        result = result / tl.where(total == 0.0, 1.0, total)[:, None]
        at = token * stride_out_token + head * DIM
        tl.store(out + at[:, None] + dims[None, :], result.to(out.dtype.element_ty), mask=there)
