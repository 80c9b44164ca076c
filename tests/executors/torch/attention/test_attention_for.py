"""Which implementation a device gets."""

from __future__ import annotations

import sys

import pytest
import torch

from interlock.executors.torch.attention import attention_for


def test_the_cpu_needs_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert type(attention_for(torch.device("cpu"))).__name__ == "CpuAttention"


def test_cuda_is_served_by_triton() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    assert type(attention_for(torch.device("cuda"))).__name__ == "TritonAttention"


def test_without_triton_one_line_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    package = "interlock.executors.torch.attention"
    for module in ("triton_attention", "store", "tile", "prompt", "decode"):
        monkeypatch.delitem(sys.modules, f"{package}.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match=r"attention on cuda:1 needs Triton \(pip install triton\)"):
        attention_for(torch.device("cuda:1"))


def test_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="no attention for device meta"):
        attention_for(torch.device("meta"))
