"""Tiny models with random weights: the same ones everywhere, without a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from interlock.core import InterlockError
from interlock.executors.torch.models import LOOPED
from interlock.executors.torch.models.tiny import init_weights, tiny_config
from interlock.executors.torch.quiet import quietly

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "bos_token_id": None,
    "eos_token_id": 0,
    "tie_word_embeddings": False,  # tied, a random model says its last token again and again
}
_DENSE: dict[str, dict[str, Any]] = {
    "tiny-llama": {"model_type": "llama", **_SIZES},
    "tiny-qwen": {"model_type": "qwen3", **_SIZES, "head_dim": 32},
}
TINY = (*_DENSE, "tiny-ouro", "tiny-huginn", "tiny-hrm")
_SEED = 20_260


class Tiny:
    """Implements `interlock.executors.torch.checkpoint.Checkpoint` for one of the names in `TINY`.

    Weights are drawn in float32 on the CPU, so every dtype and device has the same model, rounded.
    """

    tiny = True

    def __init__(self, name: str) -> None:
        self.origin = name
        self.config = dict(_DENSE[name]) if name in _DENSE else tiny_config(name)
        self.architecture = str(self.config["model_type"])
        self.looped = self.architecture in LOOPED

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The end of sequence, if the config has one."""
        found = self.config.get("eos_token_id")
        return () if found is None else (int(found),)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of each weight. InterlockError for a looped model, whose module `fill` draws in place."""
        if self.looped:
            raise InterlockError(f"{self.origin}: has no weights of its own: it fills a module")
        yield from self._drawn("sdpa").state_dict().items()

    def load_dense(self, attention: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        """The model of `transformers`, ready to infer."""
        model: Any = self._drawn(attention)
        return cast("PreTrainedModel", model.to(device, dtype).eval().requires_grad_(False))

    def fill(self, module: nn.Module, rename: Callable[[str], str | None] | None = None) -> None:
        """Draw the weights of a module made elsewhere."""
        init_weights(module, _SEED)

    def tokenizer(self) -> None:
        """There is none: its tokens mean nothing."""
        return

    def _drawn(self, attention: str) -> PreTrainedModel:
        from transformers import AutoConfig, AutoModelForCausalLM

        with quietly(), torch.random.fork_rng(devices=[]):
            config = AutoConfig.for_model(**self.config)
            model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # theirs
                config, attn_implementation=attention, dtype=torch.float32
            )
        init_weights(model, _SEED)
        return model
