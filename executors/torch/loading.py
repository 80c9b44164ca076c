"""A model in memory: its weights on their device, its shape, its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from interlock.core.errors import ConfigError
from interlock.executors.torch.checkpoint import Checkpoint, open_checkpoint
from interlock.executors.torch.models.dense import ATTENTION, DenseModel
from interlock.executors.torch.models.shape import Shape
from interlock.executors.torch.options import TorchOptions
from interlock.executors.torch.packing import pack

if TYPE_CHECKING:
    from interlock.executors.torch.models.looped import LoopedModel


_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to run."""

    checkpoint: Checkpoint
    model: DenseModel | LoopedModel
    dtype: torch.dtype
    device: torch.device
    weight_bytes: int

    @property
    def shape(self) -> Shape:
        """Its sizes."""
        return self.model.shape


def load(options: TorchOptions, base: Path) -> Loaded:
    """The model that the options name. ConfigError, one line, where it cannot be had."""
    device = _device(options.device)
    checkpoint = open_checkpoint(str(options.model), base)
    dtype = _dtype(options.dtype, checkpoint, device)
    if checkpoint.tiny:
        return _load_tiny(str(options.model), dtype, device)
    return _load(checkpoint, dtype, device)


@lru_cache(maxsize=8)
def _load_tiny(name: str, dtype: torch.dtype, device: torch.device) -> Loaded:
    """Tiny models are kept: engines that are made by the thousand share their weights, which nobody writes."""
    return _load(open_checkpoint(name, Path(".")), dtype, device)


def _load(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Loaded:
    if not checkpoint.looped:
        weights = checkpoint.load_dense(ATTENTION, dtype, device)
        size = _bytes(weights)
        pack(weights)
        return Loaded(checkpoint, DenseModel(weights, checkpoint.eos_token_ids), dtype, device, size)
    model = _load_looped(checkpoint, dtype, device)
    return Loaded(checkpoint, model, dtype, device, _bytes(model))


def _bytes(module: nn.Module) -> int:
    return sum(each.numel() * each.itemsize for each in (*module.parameters(), *module.buffers()))


def _load_looped(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> LoopedModel:
    from interlock.executors.torch.models import looped_class

    try:
        with device:
            model = looped_class(checkpoint.architecture).build(checkpoint.config).to(dtype)
    except ValueError as error:
        raise ConfigError(f"{checkpoint.origin}: {error}") from error
    checkpoint.fill(model, model.rename)
    return model.eval().requires_grad_(False)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} CUDA devices" if torch.cuda.is_available() else "no CUDA device"
        raise ConfigError(f"executor.torch.device: found {name!r}, and this machine has {found}; allowed: auto, cpu")
    return device


def _dtype(name: str, checkpoint: Checkpoint, device: torch.device) -> torch.dtype:
    if name == "auto":
        config = checkpoint.config
        own = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
        name = "float32" if device.type == "cpu" or own not in _DTYPES else own
    if device.type == "cuda" and name == "float64":
        raise ConfigError("executor.torch.dtype: found float64, allowed on CUDA: auto, float32, bfloat16, float16")
    return _DTYPES[name]
