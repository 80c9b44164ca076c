"""Text of a checkpoint's own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jinja2 import TemplateError

from interlock.core import ConfigError
from interlock.core.config_errors import one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class HFTokenizer:
    """Implements `interlock.core.text.Tokenizer` by a tokenizer of `transformers`.

    With `chat`, a text is one message of a user, in the model's chat template up to where the answer begins. Without,
    it is encoded as it stands, with whatever special tokens the tokenizer itself puts around it. Raises ConfigError for
    `chat` where there is no template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat: bool = False) -> None:
        if chat and not tokenizer.chat_template:
            why = "the model's tokenizer has no chat template"
            raise ConfigError(f"executor.torch.chat: found true, allowed: false, because {why}")
        self._tokenizer, self._chat = tokenizer, chat

    def encode(self, text: str) -> np.ndarray:
        """Token ids, int32 (n,)."""
        if self._chat:
            message = [{"role": "user", "content": text}]
            try:
                text = str(self._tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False))
            except TemplateError as error:
                raise ConfigError(f"chat: the model's chat template does not work: {one_line(error)}") from error
        # A template writes its special tokens itself.
        ids = self._tokenizer.encode(text, add_special_tokens=not self._chat, verbose=False)
        return np.array(ids, np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of token ids, special tokens left out."""
        ids = [int(one) for one in ids]
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
