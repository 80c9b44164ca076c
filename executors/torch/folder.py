"""A Hugging Face folder: config.json, safetensors files, and perhaps a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from interlock.core import ConfigError
from interlock.core.config_errors import one_line, show
from interlock.core.errors import nearest
from interlock.executors.torch.models import LOOPED
from interlock.executors.torch.quiet import quietly
from interlock.executors.torch.weights import (
    copy_into,
    files_of,
    read_json,
    refuse_mismatch,
    shapes_in,
    tensors_in,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

DENSE = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite", "olmo2")
"""Families that `transformers` runs with any attention: causal over the whole context, logits as they are."""

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
# These scale by the longest position of a batch, so that a row's output would depend on who shares its batch.
_BY_BATCH = ("dynamic", "longrope")


class Folder:
    """Implements `interlock.executors.torch.checkpoint.Checkpoint`.

    `origin` is what errors call it where that is not the folder: the file that it was made from. Raises ConfigError for
    a config that is missing, broken or not supported.
    """

    tiny = False

    def __init__(self, folder: Path, origin: str | None = None) -> None:
        self.folder = folder
        self.origin = str(folder) if origin is None else origin
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{self.origin}: found no config.json, allowed: a Hugging Face folder, or a GGUF file")
        self.config = read_json(folder / "config.json")
        self.architecture = self._checked()
        self.looped = self.architecture in LOOPED

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer: of generation_config.json, else of config.json, else none."""
        path = self.folder / "generation_config.json"
        told = read_json(path).get("eos_token_id") if path.is_file() else None
        told = self.config.get("eos_token_id") if told is None else told
        ids = told if isinstance(told, list) else [] if told is None else [told]
        if not all(isinstance(one, int) for one in ids):
            raise ConfigError(f"{self.origin}: eos_token_id: found {show(told)}, allowed: an integer or a list of them")
        return tuple(ids)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of each weight on the CPU, one at a time."""
        return tensors_in(files_of(self.folder))

    def load_dense(self, attention: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        """The model of `transformers`, ready to infer. Raises ConfigError when weights and config do not match."""
        from transformers import AutoModelForCausalLM

        shapes_in(files_of(self.folder))  # a broken file is named before anything is built
        with quietly():
            try:
                loaded: Any = AutoModelForCausalLM.from_pretrained(
                    self.folder,
                    config=_understood(self.folder, self.origin),
                    attn_implementation=attention,
                    dtype=dtype,
                    use_safetensors=True,
                    local_files_only=True,
                    trust_remote_code=False,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,
                )
            except Exception as error:  # whatever it meets in files that it did not write
                raise ConfigError(f"{self.origin}: cannot be loaded: {one_line(error)[:300]}") from error
        info = loaded[1]
        refuse_mismatch(self.origin, info["missing_keys"], info["unexpected_keys"], info["mismatched_keys"])
        model: PreTrainedModel = loaded[0].to(device).eval().requires_grad_(False)
        return model

    def fill(self, module: nn.Module, rename: Callable[[str], str | None] | None = None) -> None:
        """Copy the weights into a module made elsewhere. Raises ConfigError when names or shapes differ."""
        copy_into(module, self.weights(), self.origin, rename)

    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer, None where the folder has none. Raises ConfigError for a broken one."""
        if not any((self.folder / name).is_file() for name in _TOKENIZERS):
            return None
        with quietly():
            from transformers import AutoTokenizer

            try:
                tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                    self.folder, local_files_only=True, trust_remote_code=False
                )
            except Exception as error:  # whatever it meets in files that it did not write
                raise ConfigError(f"{self.origin}: no usable tokenizer: {one_line(error)[:300]}") from error
        return tokenizer

    def _checked(self) -> str:
        """The architecture. Raises ConfigError where running it would give wrong answers."""
        found = self.config.get("model_type")
        if found not in (*DENSE, *LOOPED):
            hint = nearest(str(found), (*DENSE, *LOOPED))
            self._refuse("model_type", found, ", ".join((*DENSE, *LOOPED)) + hint)
        if found in DENSE:
            self._check_dense()
        if self.config.get("quantization_config") is not None:
            self._refuse("quantization_config", self.config["quantization_config"], "weights that are not quantised")
        return str(found)

    def _check_dense(self) -> None:
        if self.config.get("auto_map") is not None:
            self._refuse("auto_map", self.config["auto_map"], "none, because code of a checkpoint is never run")
        config = _understood(self.folder, self.origin)
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        # Where there are layer types they say whether a window is used; `sliding_window` alone does not.
        window = None if hasattr(config, "layer_types") else getattr(config, "sliding_window", None)
        if window is not None:
            self._refuse("sliding_window", window, "null, because attention is over the whole context")
        if kinds != {"full_attention"}:
            self._refuse("layer_types", sorted(kinds), "full_attention")
        rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
        if rope in _BY_BATCH:
            self._refuse("rope_type", rope, "one that does not depend on the longest context of a batch")

    def _refuse(self, key: str, found: object, allowed: str) -> None:
        raise ConfigError(f"{self.origin}: config.json: {key}: found {show(found)}, allowed: {allowed}")


def _understood(folder: Path, origin: str) -> PreTrainedConfig:
    """The config as `transformers` reads it, with its defaults."""
    with quietly():
        from transformers import AutoConfig

        try:
            found = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # its configs check themselves, each in its own way
            raise ConfigError(f"{origin}: config.json: {one_line(error)[:300]}") from error
    config: PreTrainedConfig = found
    return config
