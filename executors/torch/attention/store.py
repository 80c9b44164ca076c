"""The kernel that stores a batch's keys and values in the cache."""

# Triton is untyped, and so are the parameters of its kernels.
# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_kernel(
    keys,
    values,
    key,
    value,
    slots,
    stride_block,
    stride_slot,
    stride_head,
    stride_key_token,
    stride_key_head,
    stride_value_token,
    stride_value_head,
    HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Grid (tokens,). A negative slot, that of a row which only fills up a batch, is skipped. PADDED >= HEADS * DIM."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot >= 0:
        lane = tl.arange(0, PADDED)
        head, dim = lane // DIM, lane % DIM
        there = lane < HEADS * DIM
        at = slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_slot + head * stride_head + dim
        new = tl.load(key + token * stride_key_token + head * stride_key_head + dim, mask=there)
        tl.store(keys + at, new.to(keys.dtype.element_ty), mask=there)
        new = tl.load(value + token * stride_value_token + head * stride_value_head + dim, mask=there)
        tl.store(values + at, new.to(values.dtype.element_ty), mask=there)
