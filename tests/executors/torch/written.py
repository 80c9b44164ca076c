"""Tiny GGUF files, written as the tools that quantise models write them."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from speech import byte_level
from transformers import PreTrainedModel

_KINDS = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    quantised: bool = False,
    extra: dict[str, np.ndarray] | None = None,
    words: bool = True,
    width: int | None = None,
) -> Path:
    """A model as a GGUF file, its matrices as Q8_0 where `quantised`.

    `extra` are tensors besides, by name; `words` whether it has a tokenizer; `width` a lie about the feed-forward size.
    """
    family = model.config.model_type
    writer = gguf.GGUFWriter(path, family)
    _describe(writer, model, width)
    if words:
        _tokenizer(writer)
    names = gguf.get_tensor_name_map(_KINDS[family], model.config.num_hidden_layers)
    tied = ("lm_head.weight",) if model.config.tie_word_embeddings else ()
    for name, tensor in model.state_dict().items():
        if name in tied:
            continue
        place = names.get_name(name, try_suffixes=(".weight", ".bias"))
        values = _interleaved(tensor.numpy(), name, model) if family == "llama" else tensor.numpy()
        if quantised and values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(place, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(place, values)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return path


def _describe(writer: gguf.GGUFWriter, model: PreTrainedModel, width: int | None) -> None:
    config = model.config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(width or config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head)
    writer.add_key_length(head)
    writer.add_vocab_size(config.vocab_size)


def _tokenizer(writer: gguf.GGUFWriter) -> None:
    told = json.loads(byte_level().inner.to_str())
    words = told["model"]["vocab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(sorted(words, key=lambda word: words[word]))
    writer.add_token_types([3 if at < 2 else 1 for at in range(len(words))])
    writer.add_token_merges([" ".join(pair) for pair in told["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}")


def _interleaved(values: np.ndarray, name: str, model: PreTrainedModel) -> np.ndarray:
    """Rows of queries and keys with the two halves of each head interleaved, as llama.cpp has them."""
    config = model.config
    projection = name.split(".")[-2]
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(projection)
    if heads is None:
        return values
    return np.ascontiguousarray(values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape))
