"""Whole engines on the Triton kernels, in Triton's interpreter: the same answers as on the CPU's attention."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")


@pytest.mark.parametrize(
    ("model", "prompt", "mode"),
    [("tiny-llama", "atomic", "offload"), ("tiny-qwen", "atomic", "recompute"), ("tiny-ouro", "split", "offload")],
)
def test_kernels_and_recorded_steps_change_no_answer(model: str, prompt: str, mode: str) -> None:
    script = Path(__file__).with_name("interpreted_engine.py")
    done = subprocess.run(
        [sys.executable, str(script), model, prompt, mode], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
