"""The C kernels of decode attention, compiled for this machine when they are first needed, and kept.

PyTorch has no attention over a paged cache on the CPU: blocks have to be gathered first, which costs two to five times
what it costs to read them where they lie. Where there is no C compiler, the gathering path does all the work.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interlock.executors.torch.keep import cache_folder
from interlock.executors.torch.paged import Layer, Paged

_SOURCE = Path(__file__).with_name("decode_cpu.c")
# What -ffast-math would allow, but for the start-up code it links in, which changes rounding in the whole process.
_FLAGS = (
    *("-O3", "-march=native", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
    *("-fassociative-math", "-freciprocal-math", "-ffinite-math-only"),
)
_TYPES = {torch.float32: ("-DCACHE_TYPE=float",), torch.bfloat16: ("-DCACHE_TYPE=uint16_t", "-DBFLOAT16")}
_COMPILE_S = 60


class Single(NamedTuple):
    """Single tokens, int64 (n,): their places in the batch, whose they are, how many positions each attends to."""

    tokens: NDArray[np.int64]
    rows: NDArray[np.int64]
    seen: NDArray[np.int64]


class Kernels:
    """Writing to the cache, and attention of single tokens over the blocks of their rows."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._write, self._decode = library.paged_write, library.paged_decode
        self._pool: ThreadPoolExecutor | None = None

    def write(self, layer: Layer, key: Tensor, value: Tensor, paged: Paged) -> None:
        """Store keys and values, (T, kv_heads, head_dim) in the cache's type with dense heads, at their slots."""
        strides = (_int64(each) for each in (*key.stride()[:2], *value.stride()[:2]))
        addresses = (_address(each) for each in (*layer, key, value, paged.slots))
        self._write(*addresses, _int64(len(key)), *strides, *key.shape[1:])

    def decode(self, out: Tensor, query: Tensor, layer: Layer, paged: Paged, single: Single, scale: float) -> None:
        """Write the results of single tokens into `out`, (T, heads, head_dim) float32 as `query`, with dense heads."""
        (_, heads, dim), count = query.shape, len(single.tokens)
        threads = max(1, min(torch.get_num_threads(), count))
        work = torch.empty((threads, heads * (dim + 2)))
        fixed = (
            *(_int64(each) for each in (paged.table.stride(0), layer.keys.shape[1], *query.stride()[:2])),
            *(ctypes.c_float(scale), heads, layer.keys.shape[2], dim),
        )
        addresses = [_address(each) for each in (out, query, *layer)]

        def part(thread: int) -> None:
            own = slice(thread * count // threads, (thread + 1) * count // threads)
            arrays = (ctypes.c_void_p(each[own].ctypes.data) for each in single)
            counted = _int64(own.stop - own.start)
            self._decode(*addresses, *arrays, counted, _address(paged.table), *fixed, _address(work[thread]))

        if threads == 1:
            part(0)
        else:
            list(self._threads(threads).map(part, range(threads)))

    def _threads(self, count: int) -> ThreadPoolExecutor:
        if self._pool is None or self._pool._max_workers < count:
            self._pool = ThreadPoolExecutor(count, "decode")
        return self._pool


@cache
def kernels_for(dtype: torch.dtype) -> Kernels | None:
    """The kernels for a cache of this type; None where they cannot be had."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if dtype not in _TYPES or compiler is None:
        return None
    try:
        library = ctypes.CDLL(str(_compiled(compiler, _TYPES[dtype])))
    except (OSError, subprocess.SubprocessError):
        return None
    return Kernels(library)


def _compiled(compiler: str, definitions: tuple[str, ...]) -> Path:
    """The library's path, kept by what it was made from and the processor that it was made for."""
    command = (*_FLAGS, *definitions)
    key = hashlib.sha256(b"\0".join([_SOURCE.read_bytes(), " ".join(command).encode(), _processor()])).hexdigest()[:16]
    path = cache_folder() / f"decode-{key}.so"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            subprocess.run(
                [compiler, *command, str(_SOURCE), "-o", str(made)], check=True, capture_output=True, timeout=_COMPILE_S
            )
            made.replace(path)  # whole or not at all, whoever else compiles it
    return path


def _processor() -> bytes:
    """What tells processors apart that do not have the same instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return os.uname().machine.encode()
    return next((line for line in lines if line.startswith((b"flags", b"Features"))), b"")


def _address(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _int64(number: int) -> ctypes.c_int64:
    return ctypes.c_int64(number)
