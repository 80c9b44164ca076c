"""Bandwidth of decode attention and throughput of prompt attention on a CUDA device, in bfloat16.

    python benchmarks/attention_gpu.py

Needs PyTorch and Triton only. A decode step is timed as a captured graph of one launch after the other, over caches
that are much larger than the device's own; bytes are those of the keys and values that the contexts hold, operations
those of the positions that are attended to.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

from interlock.executors.torch.attention import attention_for
from interlock.executors.torch.paged import Layer, Paged

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 32, 8, 128, 16
# From NVIDIA's data sheets: GB/s of memory, and dense bfloat16 TFLOP/s.
PEAKS = {
    "H200": (4800, 989),
    "H100 PCIe": (2000, 756),
    "H100": (3350, 989),
    "A100-SXM4-80GB": (2039, 312),
    "A100": (1555, 312),
    "L40S": (864, 362),
    "L4": (300, 121),
}
DECODE = [(1, 32_768), (8, 8_192), (64, 2_048), (64, 8_192), (256, 1_024)]  # rows, context
PROMPT = [(1, 2_048, 2_048), (1, 2_048, 16_384), (8, 512, 512), (1, 8_192, 8_192)]  # rows, tokens, context


def batch(rows: int, tokens: int, context: int) -> tuple[Layer, Paged]:
    """Rows of one shape, whose blocks lie in random order."""
    pages = -(-context // BLOCK)
    table = torch.randperm(rows * pages, device="cuda").to(torch.int32).view(rows, pages)
    layer = Layer(*(_random(rows * pages, BLOCK, KV_HEADS) for _ in range(2)))
    at = torch.arange(context - tokens, context, device="cuda")
    paged = Paged(
        offsets=torch.arange(0, (rows + 1) * tokens, tokens, dtype=torch.int32, device="cuda"),
        context=torch.full((rows,), context, dtype=torch.int32, device="cuda"),
        table=table,
        slots=(table.long()[:, at // BLOCK] * BLOCK + at % BLOCK).flatten(),
        longest=tokens,
        deepest=context,
    )
    return layer, paged


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, HEAD_DIM, dtype=torch.bfloat16, device="cuda")


def seconds(run: Callable[[], object], repeat: int) -> float:
    """The median of five replays of a graph that holds `repeat` runs, per run."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            run()
    graph.replay()
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / repeat)
    return statistics.median(times)


def share(figure: float, peak: float | None) -> str:
    """The part of the device's peak, where that is known."""
    return "" if peak is None else f" ({figure / peak:.0%} of {peak:g})"


def decode(cases: Sequence[tuple[int, int]], peak: float | None) -> None:
    """Print what one attention call takes when every row decodes."""
    attention = attention_for(torch.device("cuda"))
    for rows, context in cases:
        layer, paged = batch(rows, 1, context)
        query = _random(rows, HEADS)
        time = seconds(lambda: attention.attend(query, layer, paged, HEAD_DIM**-0.5), 20)  # noqa: B023
        speed = 2 * rows * context * KV_HEADS * HEAD_DIM * 2 / time / 1e9
        print(f"decode {rows:4} rows x {context:6} tokens: {time * 1e6:9.1f} us {speed:8.0f} GB/s{share(speed, peak)}")


def prompt(cases: Sequence[tuple[int, int, int]], peak: float | None) -> None:
    """Print what one attention call takes on chunks at the end of their contexts."""
    attention = attention_for(torch.device("cuda"))
    for rows, tokens, context in cases:
        layer, paged = batch(rows, tokens, context)
        query = _random(rows * tokens, HEADS)
        time = seconds(lambda: attention.attend(query, layer, paged, HEAD_DIM**-0.5), 5)  # noqa: B023
        seen = rows * (tokens * context - tokens * (tokens - 1) // 2)
        speed = 4 * seen * HEADS * HEAD_DIM / time / 1e12
        print(
            f"prompt {rows:4} rows x {tokens:5} tokens at {context:6}: {time * 1e6:9.1f} us {speed:6.0f} TFLOP/s"
            f"{share(speed, peak)} {rows * tokens / time / 1e6:6.2f} M tokens/s"
        )


def write(rows: int) -> None:
    """Print what it takes to store a batch's keys and values."""
    attention = attention_for(torch.device("cuda"))
    layer, paged = batch(rows, 1, BLOCK)
    new = _random(rows, KV_HEADS)
    print(f"write  {rows:4} tokens: {seconds(lambda: attention.write(layer, new, new, paged), 20) * 1e6:.1f} us")


def main() -> None:
    """One line per case."""
    name = torch.cuda.get_device_name()
    memory, compute = next((peaks for part, peaks in PEAKS.items() if part in name), (None, None))
    print(
        f"{name}, PyTorch {torch.__version__}: {HEADS} heads, {KV_HEADS} KV heads, {HEAD_DIM} dims, blocks of {BLOCK}"
    )
    torch.manual_seed(0)
    write(256)
    decode(DECODE, memory)
    prompt(PROMPT, compute)


if __name__ == "__main__":
    main()
