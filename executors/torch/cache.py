"""The paged KV pool of a model, on its device, and the copies of blocks on the host."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from interlock.executors.torch.models.kv import KV
from interlock.executors.torch.models.shape import Shape
from interlock.executors.torch.paged import Attention, Layer


def block_bytes(shape: Shape, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block: keys and values of `block_size` tokens in every layer and plane."""
    return shape.planes * 2 * block_size * shape.kv_heads * shape.head_dim * dtype.itemsize


class PagedCache:
    """KV blocks of every layer. A recurrent layer has a plane of blocks per loop; the others have one.

    Each part of the model is one tensor of shape (layers, 2, planes, blocks, block_size, kv_heads, head_dim), so that a
    block is moved in all its layers and planes at once. The last block of each plane is spare: what nobody may read is
    written there.
    """

    def __init__(
        self,
        shape: Shape,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        attention: Attention,
        device: torch.device,
    ) -> None:
        self.num_blocks, self.loops, self._device = num_blocks, shape.loops, device
        page = (num_blocks + 1, block_size, shape.kv_heads, shape.head_dim)

        def part(layers: int, planes: int = 1) -> Tensor:
            return _zeros((layers, 2, planes, *page), dtype, device)

        self.prelude, self.coda = part(shape.prelude_layers), part(shape.coda_layers)
        self.recurrent = part(shape.recurrent_layers, shape.loops)
        self.kv = KV(attention, _layers(self.prelude), _layers(self.recurrent), _layers(self.coda))
        self._host: list[Tensor] = [self._host_part(each, 0) for each in self._parts]

    @property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.prelude, self.recurrent, self.coda

    def offload(self, device: np.ndarray, host: np.ndarray) -> None:
        """Copy these blocks to these places on the host."""
        self._reserve(int(host.max(initial=-1)) + 1)
        for here, there in zip(self._parts, self._host, strict=True):
            for block, place in zip(device.tolist(), host.tolist(), strict=True):
                there[place].copy_(here[:, :, :, block], non_blocking=True)
        self._settle()

    def restore(self, device: np.ndarray, host: np.ndarray) -> None:
        """Copy these places on the host back to these blocks."""
        for here, there in zip(self._parts, self._host, strict=True):
            for block, place in zip(device.tolist(), host.tolist(), strict=True):
                here[:, :, :, block].copy_(there[place], non_blocking=True)
        self._settle()

    def spread(self, slots: Tensor, depths: Tensor) -> None:
        """The KV of tokens that left the loop early stands for all deeper planes, too.

        `slots` int64 (n,): block * block_size + offset, not folded. `depths` int64 (n,): loops that each token ran.
        """
        layers, two, planes, blocks, size, heads, width = self.recurrent.shape
        flat = self.recurrent.view(layers * two, planes, blocks * size, heads, width)
        for plane in range(1, planes):
            deeper = (depths <= plane).nonzero().squeeze(1)
            if len(deeper):
                flat[:, plane, slots[deeper]] = flat[:, plane - 1, slots[deeper]]

    def _reserve(self, places: int) -> None:
        """Host memory is taken as it is needed, since a pool that nobody offloads to should cost nothing."""
        have = len(self._host[0])
        if places <= have:
            return
        grown = [self._host_part(each, max(places, 2 * have)) for each in self._parts]
        for old, new in zip(self._host, grown, strict=True):
            new[:have] = old
        self._host = grown

    def _host_part(self, part: Tensor, places: int) -> Tensor:
        """Host copies lie block by block, pinned where there is a device to copy from."""
        layers, two, planes, _, *page = part.shape
        pinned = self._device.type == "cuda" and places > 0
        return torch.empty((places, layers, two, planes, *page), dtype=part.dtype, pin_memory=pinned)

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. On the CPU NumPy's, whose pages the system gives when they are first written; PyTorch writes them all."""
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


def _layers(part: Tensor) -> list[Layer]:
    """Each layer's keys and values with its planes in a row: (planes * blocks, block_size, kv_heads, head_dim)."""
    flat = part.flatten(2, 3)
    return [Layer(flat[layer, 0], flat[layer, 1]) for layer in range(len(flat))]
