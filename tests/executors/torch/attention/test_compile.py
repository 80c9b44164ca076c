"""The kernels as they are launched, compiled for a Hopper GPU, which needs none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from interlock.executors.torch.attention import triton_attention  # noqa: E402
from interlock.executors.torch.attention.check import Example, example  # noqa: E402
from interlock.executors.torch.paged import Layer, Paged  # noqa: E402

KERNELS = ("store_kernel", "prompt_kernel", "decode_kernel", "combine_kernel")
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int32: "*i32", torch.int64: "*i64"}
SHARED = 227 << 10  # bytes that a program may have on a Hopper GPU


class Launch(NamedTuple):
    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


class Recorder:
    """Stands in for a kernel and notes how it is launched."""

    def __init__(self, kernel: Any, launches: list[Launch]) -> None:
        self._kernel, self._launches = kernel, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **constants: self._launches.append(Launch(self._kernel, arguments, constants))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Launch]]:
    if not isinstance(triton_attention.prompt_kernel, triton.JITFunction):
        pytest.skip("Triton interprets in this process")
    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    if not ptxas.exists() and shutil.which("ptxas") is None:
        pytest.skip("there is no ptxas")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found: list[Launch] = []
    for name in KERNELS:
        monkeypatch.setattr(triton_attention, name, Recorder(getattr(triton_attention, name), found))
    yield found


def _without_data(given: Example) -> Example:
    """On the meta device, where no kernel could run."""
    paged = given.paged
    tables = [tensor.to("meta") for tensor in (paged.offsets, paged.context, paged.table, paged.slots)]
    return Example(
        *(tensor.to("meta") for tensor in given[:3]),
        layer=Layer(*(cache.to("meta") for cache in given.layer)),
        paged=Paged(*tables, paged.longest, paged.deepest),
        scale=given.scale,
    )


def _compile(launch: Launch) -> Any:
    names = launch.kernel.arg_names
    signature, attributes = {}, {}
    for i, (name, argument) in enumerate(zip(names, launch.arguments, strict=False)):
        tensor = isinstance(argument, torch.Tensor)
        signature[name] = TYPES[argument.dtype] if tensor else {int: "i32", float: "fp32"}[type(argument)]
        if tensor or (isinstance(argument, int) and argument % 16 == 0):
            attributes[(i,)] = [["tt.divisibility", 16]]
    constants = {name: value for name, value in launch.constants.items() if name not in OPTIONS}
    source = ASTSource(
        launch.kernel,
        signature | dict.fromkeys(constants, "constexpr"),
        {(names.index(name),): value for name, value in constants.items()},
        attributes,
    )
    options = {name: launch.constants[name] for name in OPTIONS if name in launch.constants}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.bfloat16, 128), (torch.bfloat16, 256), (torch.float32, 80)])
def test_kernels_compile_and_fit(launches: list[Launch], dtype: torch.dtype, head_dim: int) -> None:
    given = _without_data(example([(1, 5), (40, 60)], heads=14, head_dim=head_dim, dtype=dtype))
    attention = triton_attention.TritonAttention(splits=2)
    attention.write(given.layer, given.key, given.value, given.paged)
    attention.attend(given.query, given.layer, given.paged, given.scale)
    assert [launch.kernel.__name__ for launch in launches] == list(KERNELS)
    for launch in launches:
        assert _compile(launch).metadata.shared <= SHARED
