"""The options of the torch backend as the configuration writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, field_validator

from interlock.executors.costs.options import CostOptions, Count, Frozen

TinyModel: TypeAlias = Literal["tiny-llama", "tiny-qwen", "tiny-ouro", "tiny-huginn", "tiny-hrm"]
ModelPath: TypeAlias = Annotated[Path, AfterValidator(Path.expanduser)]
Share = Annotated[float, Field(ge=0, le=1)]


class ExitRuleOptions(Frozen):
    """When decode tokens of a model with a learned gate leave its loop.

    After loop r a token's survival is multiplied by 1 - gate; it leaves when 1 - survival reaches `threshold` and r is
    at least `min_loops`, or when r equals `max_loops` (None: the model's depth). Threshold 1 is full depth. `delayed`:
    the test takes effect one loop later. `trace`: depths by output position, again and again, in place of all this. A
    request's metadata may carry `exit_threshold`, `min_loops` and `max_loops` of its own.
    """

    threshold: Share = 1.0
    min_loops: Count = 2
    max_loops: Count | None = None
    delayed: bool = False
    trace: Annotated[tuple[Count, ...], Field(min_length=1)] | None = None

    @property
    def deepest(self) -> int:
        """The largest depth that is asked for."""
        return max(self.min_loops, self.max_loops or 1, *(self.trace or (1,)))


class TorchOptions(Frozen):
    """Options of the executor `torch`.

    * `model`: a Hugging Face folder, a GGUF file, or a tiny random model that is made on the spot
    * `device`: `auto` (CUDA where there is one), `cpu`, `cuda` or `cuda:N`
    * `dtype`: `auto` is float32 on the CPU and the checkpoint's own on CUDA
    * `kv_memory_gib`: what `kv.num_blocks: auto` may take; None for 90 % of what the device has free beside the model,
      a quarter of it on the CPU
    * `cpu_threads`: of PyTorch, for the whole process; None leaves them alone
    * `cost`: a cost model; with one the engine's clock is virtual, as on the simulator
    * `chat`: `text` prompts are wrapped in the model's chat template
    * `exit`: of looped models
    """

    model: TinyModel | ModelPath = "tiny-llama"
    device: str = "auto"
    dtype: Literal["auto", "float64", "float32", "bfloat16", "float16"] = "auto"
    kv_memory_gib: Annotated[float, Field(gt=0)] | None = None
    cpu_threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    cost: CostOptions | None = None
    chat: bool = False
    exit: ExitRuleOptions = ExitRuleOptions()

    @field_validator("device")
    @classmethod
    def _is_a_device(cls, name: str) -> str:
        kind, _, number = name.partition(":")
        if kind not in ("auto", "cpu", "cuda") or (number and (kind != "cuda" or not number.isdecimal())):
            raise ValueError(f"found {name!r}, allowed: auto, cpu, cuda, cuda:N")
        return name
