"""The Triton kernels at the sizes of real models, on the device they are for. Needs no other packages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from interlock.executors.torch.attention import attention_for
from interlock.executors.torch.attention.check import Example, check, example
from interlock.executors.torch.attention.reference import Reference
from interlock.executors.torch.attention.triton_attention import TritonAttention
from interlock.executors.torch.paged import Layer, Paged

TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}
FLOATS = [torch.bfloat16, torch.float32]
DECODE = [(1, 1 + 67 * i) for i in range(40)]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float16])
@pytest.mark.parametrize("heads", [(32, 8), (16, 16), (28, 4), (64, 1)])
def test_decode(dtype: torch.dtype, heads: tuple[int, int]) -> None:
    given = example(DECODE, heads=heads[0], kv_heads=heads[1], head_dim=128, dtype=dtype, device="cuda")
    check(attention_for(torch.device("cuda")), given, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_deep_row_split_among_all_multiprocessors(dtype: torch.dtype) -> None:
    given = example([(1, 30_000)], heads=32, kv_heads=8, head_dim=128, dtype=dtype, device="cuda")
    for splits in (None, 1, 128):
        check(TritonAttention(splits), given, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("prefix", [None, 700])
def test_a_mixed_batch_of_prompts_chunks_drafts_and_decode(dtype: torch.dtype, prefix: int | None) -> None:
    rows = [(700, 700), (1, 5), (512, 2048), (4, 900), (1, 0), (1, 3000), (17, 17)]
    prefixes = None if prefix is None else [min(prefix, context) for _, context in rows]
    given = example(rows, heads=32, kv_heads=8, head_dim=128, dtype=dtype, device="cuda", prefix=prefixes)
    check(TritonAttention(), given, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 256])
def test_head_sizes(dtype: torch.dtype, head_dim: int) -> None:
    rows = [(300, 500), (1, 777), (1, 64)]
    given = example(rows, heads=8, kv_heads=2, head_dim=head_dim, dtype=dtype, device="cuda")
    check(TritonAttention(), given, TOLERANCE[dtype])


@pytest.mark.parametrize("block_size", [1, 3, 32, 64])
def test_block_sizes(block_size: int) -> None:
    rows = [(200, 400), (1, 777), (1, 64)]
    given = example(rows, heads=8, kv_heads=2, head_dim=64, block_size=block_size, device="cuda")
    check(TritonAttention(), given, TOLERANCE[torch.float32])


def test_a_cache_of_more_elements_than_32_bits_count() -> None:
    given = example([(1, 100), (60, 200)], kv_heads=8, heads=8, head_dim=128, dtype=torch.bfloat16, device="cuda")
    small = given.layer.keys
    blocks = 2**31 // small[0].numel() + len(small)
    if torch.cuda.mem_get_info()[0] < 5 * blocks * small[0].nbytes:
        pytest.skip("the device has too little free memory")
    shift = blocks - len(small)
    layer = Layer(*(torch.empty(blocks, *small.shape[1:], dtype=small.dtype, device="cuda") for _ in range(2)))
    for big, cache in zip(layer, given.layer, strict=True):
        big[shift:] = cache
    pages = -(-given.paged.context[:, None] // small.shape[1])
    owned = torch.arange(given.paged.table.shape[1], device="cuda") < pages
    table = torch.where(owned, given.paged.table + shift, given.paged.table)
    paged = replace(given.paged, table=table, slots=given.paged.slots + shift * small.shape[1])
    results = []
    for attention, cache, places in ((TritonAttention(), layer, paged), (Reference(), given.layer, given.paged)):
        attention.write(cache, given.key, given.value, places)
        results.append(attention.attend(given.query, cache, places, given.scale))
    torch.testing.assert_close(*results, atol=2e-2, rtol=0.0)


class Step:
    """Write and attend for a fixed number of decode rows, captured once and replayed on whatever is copied in."""

    def __init__(self, given: Example) -> None:
        self.given = given
        attention = TritonAttention()
        self._run(attention)  # kernels compile before the capture
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.out = self._run(attention)

    def _run(self, attention: TritonAttention) -> torch.Tensor:
        given = self.given
        attention.write(given.layer, given.key, given.value, given.paged)
        return attention.attend(given.query, given.layer, given.paged, given.scale)

    def replay(self, new: Example) -> torch.Tensor:
        """The output for another batch of the same rows, whose blocks fit in this one's cache."""
        for mine, other in zip(self.given[:3], new[:3], strict=True):
            mine.copy_(other)
        for mine, other in zip(self.given.layer, new.layer, strict=True):
            mine.fill_(torch.nan)[: len(other)] = other
        pages = new.paged.table.shape[1]
        self.given.paged.table.fill_(-1)[:, :pages] = new.paged.table
        self.given.paged.context.copy_(new.paged.context)
        self.given.paged.slots.copy_(new.paged.slots)
        self._graph.replay()
        return self.out


def _decode(contexts: Sequence[int], dtype: torch.dtype, seed: int) -> Example:
    rows = [(1, context) for context in contexts]
    return example(rows, heads=32, kv_heads=8, head_dim=128, dtype=dtype, device="cuda", seed=seed)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_captured_step_follows_the_contexts(dtype: torch.dtype) -> None:
    step = Step(_decode([3000] * 8, dtype, seed=0))
    for seed, contexts in enumerate(([1] * 8, [5, 17, 64, 300, 1, 2999, 0, 0], [3000] * 8, [0] * 8, range(9, 17)), 1):
        new = _decode(contexts, dtype, seed)
        out = step.replay(new)
        check(_Given(step.given.layer, out), new, TOLERANCE[dtype])


class _Given:
    """What a replay has left behind, as if it had been computed just now."""

    def __init__(self, layer: Layer, out: torch.Tensor) -> None:
        self._layer, self._out = layer, out

    def write(self, layer: Layer, key: torch.Tensor, value: torch.Tensor, paged: Paged) -> None:
        for mine, other in zip(layer, self._layer, strict=True):
            mine.copy_(other[: len(mine)])

    def attend(self, query: torch.Tensor, layer: Layer, paged: Paged, scale: float) -> torch.Tensor:
        return self._out
