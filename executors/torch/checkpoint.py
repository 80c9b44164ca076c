"""Where a model comes from: a Hugging Face folder, a GGUF file, or a tiny random model that is made on the spot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from interlock.core import ConfigError
from interlock.core.errors import nearest
from interlock.executors.torch.folder import Folder
from interlock.executors.torch.gguf import opened_gguf
from interlock.executors.torch.tiny import TINY, Tiny

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_KINDS = f"a Hugging Face folder, a GGUF file, or one of {', '.join(TINY)}"


class Checkpoint(Protocol):
    """A model's config, weights and tokenizer. Opening one reads no weights."""

    @property
    def origin(self) -> str:
        """What errors call it: its path, or its name."""
        ...

    @property
    def tiny(self) -> bool:
        """Whether it is made on the spot, from a fixed seed."""
        ...

    @property
    def config(self) -> dict[str, Any]:
        """config.json as it is."""
        ...

    @property
    def architecture(self) -> str:
        """The config's `model_type`."""
        ...

    @property
    def looped(self) -> bool:
        """Whether a block of layers is applied several times: a model of ours, filled by `fill`."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer: of generation_config.json, else of config.json, else none."""
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of each weight on the CPU, one at a time."""
        ...

    def load_dense(self, attention: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        """The model of `transformers`, ready to infer, with this `attn_implementation`. Raises ConfigError."""
        ...

    def fill(self, module: nn.Module, rename: Callable[[str], str | None] | None = None) -> None:
        """Copy the weights into a module made elsewhere, as `copy_into` of `weights.py` does. Raises ConfigError."""
        ...

    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer, None where there is none. Raises ConfigError for a broken one."""
        ...


def open_checkpoint(model: str, base: Path) -> Checkpoint:
    """The checkpoint at a path, relative to `base`, or the built-in tiny model of this name.

    Nothing is fetched, and no code of a checkpoint runs. Raises ConfigError, one line: what was found at which path,
    and what is allowed.
    """
    if model in TINY:
        return Tiny(model)
    path = base / Path(model).expanduser()
    if path.is_dir():
        return Folder(path)
    if path.is_file():
        return opened_gguf(path)
    raise ConfigError(f"{path}: no such file or folder, allowed: {_KINDS}{_nearest(path)}")


def _nearest(path: Path) -> str:
    beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
    return nearest(path.name, [*beside, *TINY])
