"""How many KV blocks the memory holds."""

from __future__ import annotations

from typing import NamedTuple

import torch

from interlock.core.errors import ConfigError

_CUDA_SHARE = 0.9  # of the device's memory, the weights and one large batch taken off
_FREE_SHARE = 0.97  # of what is free now, the batch taken off: other processes may use the device
_CPU_SHARE = 0.25  # of what is available: other processes live there, too
GIB = 2**30


class Beside(NamedTuple):
    """What a device holds besides the pool, bytes: the weights, and what the largest batch takes while it runs."""

    weights: int
    activations: int


def num_blocks(
    kv_memory_gib: float | None, device: torch.device, block_bytes: int, blocks_per_request: int, beside: Beside
) -> int:
    """The blocks that the memory given, or found, holds. ConfigError when that is less than one request may need."""
    memory = _free(device, beside) if kv_memory_gib is None else _given(kv_memory_gib, device)
    blocks = max(memory, 0) // block_bytes
    if blocks < blocks_per_request:
        found = f"{memory / GIB:.3g} GiB" + (f" free on {device}" if kv_memory_gib is None else "")
        raise ConfigError(
            f"executor.torch.kv_memory_gib: found {found}, which holds {blocks} KV blocks; allowed: at least "
            f"{_up(blocks_per_request * block_bytes / GIB)}, since one request of engine.max_model_len tokens takes "
            f"{blocks_per_request}"
        )
    return blocks


def _given(gib: float, device: torch.device) -> int:
    most = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else _available_host_bytes()
    if gib * GIB > most:
        raise ConfigError(
            f"executor.torch.kv_memory_gib: found {gib:g}, allowed: at most {most / GIB:.3g}, what {device} has"
        )
    return int(gib * GIB)


def _free(device: torch.device, beside: Beside) -> int:
    """Bytes that the pool may take where no size is given.

    On CUDA a share of the whole and not of what is free, so that every engine of a process finds the same.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return min(int(total * _CUDA_SHARE) - beside.weights, int(free * _FREE_SHARE)) - beside.activations
    return int(_available_host_bytes() * _CPU_SHARE)


def _available_host_bytes() -> int:
    """What the host has left, by /proc/meminfo; 4 GiB where there is none."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return found["MemAvailable"] * 1024
    except (OSError, KeyError, ValueError):
        return 4 * GIB


def _up(gib: float) -> str:
    """So many GiB in three digits, rounded up."""
    return f"{gib * 1.005:.3g}"
