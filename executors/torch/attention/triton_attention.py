"""Attention through Triton kernels: on CUDA, and in Triton's interpreter on the CPU."""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from interlock.executors.torch.attention.decode import combine_kernel, decode_kernel
from interlock.executors.torch.attention.prompt import prompt_kernel
from interlock.executors.torch.attention.store import store_kernel
from interlock.executors.torch.paged import Layer, Paged

_LANES = 16  # rows of the smallest matrix product: a decode tile takes up to 16 queries for the price of one
_WAVES = 8  # programs per multiprocessor that a decode launch is split into: rows differ in length
_SPLIT_TOKENS = 256  # of the deepest context per split, at least
_MOST_SPLITS = 128
_FUSED = {"enable_fp_fusion": True}  # said, because Triton's default changes between versions
_OPERANDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class Tile(NamedTuple):
    """The shape of a kernel's tile and how it is compiled."""

    lanes: int
    tokens: int
    num_warps: int
    num_stages: int


class TritonAttention:
    """Attention with products accumulated in float32; queries, keys and values in float32, bfloat16 or float16.

    Nothing is read back from the device, and shapes and grids depend only on the shapes of `Paged` and on `longest` and
    `deepest`: a batch can be captured in a CUDA graph and replayed with other contexts up to that depth, runs of the
    same lengths, and rows of context 0 and slot -1 (their output is zeros). `splits` fixes how many programs share a
    row's context, for tests.
    """

    def __init__(self, splits: int | None = None) -> None:
        self._splits = splits
        self._programs: dict[torch.device, int] = {}

    def write(self, layer: Layer, key: Tensor, value: Tensor, paged: Paged) -> None:
        """Store each token's key and value, (T, kv_heads, head_dim), at its slot; negative slots are skipped."""
        key, value = _dense_heads(key), _dense_heads(value)
        heads, dim = key.shape[1:]
        store_kernel[(len(key),)](
            *layer,
            key,
            value,
            paged.slots,
            *_strides(layer),
            *key.stride()[:2],
            *value.stride()[:2],
            HEADS=heads,
            BLOCK_SIZE=layer.keys.shape[1],
            DIM=dim,
            PADDED=triton.next_power_of_2(heads * dim),
            **_FUSED,
        )

    def attend(self, query: Tensor, layer: Layer, paged: Paged, scale: float) -> Tensor:
        """softmax(scale * q k) v over what each token sees. (T, heads, head_dim) to the same; zeros for context 0."""
        if query.dtype not in _OPERANDS:
            raise TypeError(f"the kernels compute in {', '.join(map(str, _OPERANDS))}, not in {query.dtype}")
        query = _dense_heads(query)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        rows = len(paged.context)
        group = query.shape[1] // layer.keys.shape[2]
        short = max(1, _LANES // group)
        if paged.longest > short:
            self._prompt(out, query, layer, paged, scale, group, short)
        # Rows of few tokens beside long ones have a launch of their own: theirs may be the deepest contexts, over which
        # a tile of the prompt kernel would go alone. When all rows have the longest run, there are none.
        if paged.longest <= short or len(query) < rows * paged.longest:
            self._decode(out, query, layer, paged, scale, group, short)
        return out

    def _prompt(
        self, out: Tensor, query: Tensor, layer: Layer, paged: Paged, scale: float, group: int, short: int
    ) -> None:
        tile = prompt_tile(query.dtype, query.shape[2])
        grid = (triton.cdiv(paged.longest * group, tile.lanes), len(paged.context), layer.keys.shape[2])
        prompt_kernel[grid](
            out,
            *_inputs(query, layer, paged, scale),
            **_constants(query, layer, paged, group, tile),
            SHORT=short,
        )

    def _decode(
        self, out: Tensor, query: Tensor, layer: Layer, paged: Paged, scale: float, group: int, short: int
    ) -> None:
        rows, kv_heads = len(paged.context), layer.keys.shape[2]
        tile = decode_tile(query.dtype, query.shape[2], group)
        splits = self._splits or _splits(rows * kv_heads, paged.deepest, self._programs_of(query.device))
        parts = (rows, kv_heads, splits if splits > 1 else 0, tile.lanes)
        logs = torch.empty(parts, dtype=torch.float32, device=query.device)
        results = torch.empty((*parts, query.shape[2]), dtype=torch.float32, device=query.device)
        decode_kernel[(rows, kv_heads, splits)](
            out,
            results,
            logs,
            *_inputs(query, layer, paged, scale),
            **_constants(query, layer, paged, group, tile),
            SHORT=short,
            SPLIT=splits > 1,
        )
        if splits > 1:
            combine_kernel[(rows, kv_heads, group * min(short, paged.longest))](
                out,
                results,
                logs,
                paged.offsets,
                splits,
                out.stride(0),
                GROUP=group,
                DIM=query.shape[2],
                PADDED=_padded(query.shape[2]),
                LANES=tile.lanes,
                SHORT=short,
                CHUNK=16,
                **_FUSED,
            )

    def _programs_of(self, device: torch.device) -> int:
        if device not in self._programs:
            units = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
            self._programs[device] = _WAVES * units
        return self._programs[device]


def prompt_tile(dtype: torch.dtype, head_dim: int) -> Tile:
    """The largest tile whose sums fit in registers; float32 has no matrix units, which takes more of them."""
    if dtype == torch.float32:
        small = _padded(head_dim) > 64
        return Tile(16 if small else 32, 16 if small else 32, num_warps=4, num_stages=2)
    return Tile(128, 64, num_warps=8, num_stages=2 if _padded(head_dim) > 128 else 3)


def decode_tile(dtype: torch.dtype, head_dim: int, group: int) -> Tile:
    """Few queries, so that what counts is how many bytes of keys and values are under way at once."""
    lanes = max(_LANES, triton.next_power_of_2(group))
    if dtype == torch.float32:
        return Tile(lanes, 16 if _padded(head_dim) > 64 else 32, num_warps=4, num_stages=3)
    return Tile(lanes, 32 if _padded(head_dim) > 128 else 64, num_warps=4, num_stages=3)


def _splits(programs: int, deepest: int, wanted: int) -> int:
    """How many programs share a row's context, where there are `programs` without."""
    return max(1, min(-(-wanted // programs), -(-deepest // _SPLIT_TOKENS), _MOST_SPLITS))


def _inputs(query: Tensor, layer: Layer, paged: Paged, scale: float) -> tuple[Any, ...]:
    """The arguments that both attention kernels begin with, after their outputs."""
    return (
        query,
        *layer,
        paged.offsets,
        paged.context,
        paged.table,
        paged.context if paged.prefix is None else paged.prefix,
        scale * math.log2(math.e),
        query.shape[1] * query.shape[2],
        *query.stride()[:2],
        *_strides(layer),
        paged.table.stride(0),
    )


def _constants(query: Tensor, layer: Layer, paged: Paged, group: int, tile: Tile) -> dict[str, Any]:
    return {
        "GROUP": group,
        "BLOCK_SIZE": layer.keys.shape[1],
        "DIM": query.shape[2],
        "PADDED": _padded(query.shape[2]),
        "LANES": tile.lanes,
        "TOKENS": tile.tokens,
        "PREFIX": paged.prefix is not None,
        # Triton's interpreter has no products of bfloat16.
        "OPERANDS": tl.float32 if query.device.type == "cpu" else _OPERANDS[query.dtype],
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        **_FUSED,
    }


def _padded(head_dim: int) -> int:
    """A product's dimensions are powers of two, 16 at least."""
    return max(16, int(triton.next_power_of_2(head_dim)))


def _strides(layer: Layer) -> tuple[int, int, int]:
    keys, values = (cache.stride() for cache in layer)
    if keys != values or keys[3] != 1:
        raise ValueError(f"keys and values must lie alike, with dense heads; their strides are {keys} and {values}")
    return keys[0], keys[1], keys[2]


def _dense_heads(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
