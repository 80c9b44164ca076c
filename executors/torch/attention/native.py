"""The C kernel of decode attention, compiled for this machine when it is first needed and kept.

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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import torch
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


class DecodeKernel:
    """Attention of single tokens over the blocks of their rows."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._pool: ThreadPoolExecutor | None = None

    def __call__(
        self,
        out: Tensor,
        query: Tensor,
        layer: Layer,
        paged: Paged,
        tokens: np.ndarray,
        rows: np.ndarray,
        seen: np.ndarray,
    ) -> None:
        """Write the results of `tokens` into `out`, (T, heads, head_dim) float32 as `query`, which is scaled.

        `tokens`, `rows` and `seen` int64 (n,): places in the batch, whose they are, how many positions each attends to.
        """
        heads, dim = query.shape[1:]
        threads = max(1, min(torch.get_num_threads(), len(tokens)))
        work = torch.empty((threads, 2 * heads))
        shape = (layer.keys.shape[1], heads, layer.keys.shape[2], dim)

        def part(thread: int) -> None:
            own = slice(thread * len(tokens) // threads, (thread + 1) * len(tokens) // threads)
            arrays = (_pointer(each[own]) for each in (tokens, rows, seen))
            addresses = (_address(each) for each in (out, query, layer.keys, layer.values))
            table = (_address(paged.table), ctypes.c_int64(paged.table.stride(0)), ctypes.c_int64(shape[0]))
            count = ctypes.c_int64(own.stop - own.start)
            self._function(*addresses, *arrays, count, *table, *shape[1:], _address(work[thread]))

        if threads == 1:
            part(0)
        else:
            list(self._threads(threads).map(part, range(threads)))

    def _threads(self, count: int) -> ThreadPoolExecutor:
        if self._pool is None or self._pool._max_workers < count:
            self._pool = ThreadPoolExecutor(count, "decode")
        return self._pool


@cache
def decode_kernel(cache: torch.dtype) -> DecodeKernel | None:
    """The kernel for a cache of this type; None where it cannot be had."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if cache not in _TYPES or compiler is None:
        return None
    try:
        library = ctypes.CDLL(str(_compiled(compiler, _TYPES[cache])))
    except (OSError, subprocess.SubprocessError):
        return None
    return DecodeKernel(library.paged_decode)


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


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
