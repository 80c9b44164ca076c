"""A small Llama with random weights, made on the spot: the model of the benchmarks that need one."""

from __future__ import annotations

from pathlib import Path

import torch

SIZES = {
    "vocab_size": 32000,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,  # tied, a random model says its last token again and again
}


def made(folder: Path) -> Path:
    """The model, float32, saved as a Hugging Face folder without a tokenizer; always the same weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, bos_token_id=1, eos_token_id=2, dtype="float32"))
    for name, weight in model.named_parameters():
        if "norm" not in name:
            # As wide as a trained model's: the likeliest token is far from the next, and rounding decides nothing.
            torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return folder
