"""Tiny checkpoints, saved where a test wants them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
CPU = torch.device("cpu")


def model_of(family: str = "llama", seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random model of a family of `transformers`, the same for the same seed."""
    sizes = SIZES | ({"sliding_window": None} if family == "mistral" else {}) | changes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes))
    return model.eval()


def saved(folder: Path, family: str = "llama", shard: str = "1GB", **changes: Any) -> Path:
    """A folder with such a model in it, in files of at most `shard`."""
    model_of(family, **changes).save_pretrained(folder, max_shard_size=shard)
    return folder


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes one."""
    data = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


def logits(model: PreTrainedModel) -> torch.Tensor:
    """What a model says to a fixed prompt, float32 (tokens, vocabulary)."""
    with torch.inference_mode():
        out: torch.Tensor = model(torch.arange(2, 20)[None]).logits[0]
    return out


def with_tokenizer(folder: Path, template: str | None = TEMPLATE) -> Path:
    """Add a byte-level tokenizer to a folder."""
    from speech import byte_level

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level().inner, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder
