"""Attention over a paged cache: a plain reference, one for the CPU, and Triton kernels for CUDA."""

from __future__ import annotations

import torch

from interlock.executors.torch.paged import Attention


def attention_for(device: torch.device) -> Attention:
    """The implementation for tensors on `device`. ValueError for a device without one, ImportError without Triton."""
    if device.type == "cpu":
        from interlock.executors.torch.attention.cpu import CpuAttention

        return CpuAttention()
    if device.type != "cuda":
        raise ValueError(f"no attention for device {device}; there is one for cpu and one for cuda")
    try:
        from interlock.executors.torch.attention.triton_attention import TritonAttention
    except ImportError as error:
        raise ImportError(f"attention on {device} needs Triton (pip install triton): {error}") from error
    return TritonAttention()
