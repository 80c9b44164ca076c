"""Run folders made by hand: steps of known loads, timed by known coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TRUE = np.array([8e-3, 1e-4, 3e-4, 4e-7, 5e-8])
"""Seconds per call, prompt token, decode token, token of context and unit of prompt attention."""


def loads(count: int, seed: int = 0) -> np.ndarray:
    """Calls of prompts, of decode rows, and of both; float64 (count, 5)."""
    draw = np.random.default_rng(seed)
    prompt = draw.integers(1, 512, count) * (draw.random(count) < 0.3)
    decode = draw.integers(1, 32, count) * ((draw.random(count) < 0.9) | (prompt == 0))
    context = decode * draw.integers(10, 900, count)
    return np.stack([np.ones(count), prompt, decode, context, prompt * (prompt + 1) / 2], axis=1)


def step(
    start_s: float, ends_s: Sequence[float], load: Sequence[float] = (0, 1, 1, 0), **fields: Any
) -> dict[str, Any]:
    """A row of steps.parquet, as far as `calibrate` reads it. `load`: prompt, decode and context tokens, attention."""
    names = ("prompt_tokens", "decode_tokens", "context_tokens", "prompt_attention")
    plain = {"start_s": start_s, "ends_s": list(ends_s), "operation": "FORWARD", "running": 2, "finished": []}
    return {**plain, **dict(zip(names, load, strict=True)), **fields}


def back_to_back(loads: np.ndarray, seconds: np.ndarray, operation: str = "FORWARD") -> list[dict[str, Any]]:
    """Each call of (n, 5) a row of its own, without a pause."""
    ends = np.cumsum(np.rint(seconds * 1e9)) / 1e9
    starts = [0.0, *ends[:-1].tolist()]
    return [
        step(start, [end], load[1:], operation=operation)
        for start, end, load in zip(starts, ends.tolist(), loads.tolist(), strict=True)
    ]


def run_folder(folder: Path, rows: Sequence[dict[str, Any]], config: str = "executor: simulated\n") -> Path:
    """A folder with these steps."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(config)
    kinds = {
        "ends_s": pa.list_(pa.float64()), "finished": pa.list_(pa.int64()), "running": pa.int64(),
        "operation": pa.string(), "prompt_attention": pa.float64(), "start_s": pa.float64(),
    }  # fmt: skip
    names = list(step(0.0, []))
    columns = {name: pa.array([row[name] for row in rows], kinds.get(name, pa.int64())) for name in names}
    pq.write_table(pa.table(columns), folder / "steps.parquet")
    return folder
