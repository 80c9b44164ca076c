"""Dense models: `transformers` runs the layers, and its attention is ours, over the paged cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from interlock.executors.torch.models.kv import KV
from interlock.executors.torch.models.shape import Shape
from interlock.executors.torch.paged import Paged

ATTENTION = "interlock_paged"
"""The name under which our attention is registered (`attn_implementation`)."""


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    kv: KV,
    paged: Paged,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """One layer's attention. Query, key and value are (1, heads, T, head_dim); returns (1, T, heads, head_dim)."""
    layer = kv.recurrent[module.layer_idx]  # type: ignore[index]  # a plain int on every attention module
    kv.attention.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), paged)
    return kv.attention.attend(query[0].transpose(0, 1), layer, paged, scaling)[None], None


# No mask function stands beside it, which `transformers` takes for: this attention needs no mask.
AttentionInterface.register(ATTENTION, _attend)


class DenseModel:
    """A causal language model of `transformers` over flattened batches."""

    def __init__(self, model: PreTrainedModel, eos_token_ids: tuple[int, ...]) -> None:
        """`model` was loaded with `attn_implementation=ATTENTION`."""
        config = model.config
        heads = config.num_attention_heads
        self.shape = Shape(
            vocab_size=config.vocab_size,
            max_model_len=config.max_position_embeddings,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            prelude_layers=0,
            recurrent_layers=config.num_hidden_layers,
            coda_layers=0,
            loops=1,
            carried=0,
            eos_token_ids=eos_token_ids,
        )
        self._body = model.get_decoder()  # type: ignore[no-untyped-call]  # transformers' own
        self._head = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers' own

    def states(self, ids: Tensor, positions: Tensor, kv: KV, paged: Paged) -> Tensor:
        """The final hidden states (T, hidden) of the tokens (T,), whose KV is written."""
        out = self._body(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, return_dict=True, kv=kv, paged=paged
        )
        return out.last_hidden_state[0]  # type: ignore[no-any-return]  # transformers' outputs are untyped

    def logits(self, states: Tensor) -> Tensor:
        """(n, hidden) to (n, vocabulary)."""
        return self._head(states)  # type: ignore[no-any-return]  # a module's call is untyped
