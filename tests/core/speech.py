"""Small tokenizers, made on the spot, that differ in how text depends on its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

LINES = (
    "the quick brown fox jumps over the lazy dog, and the dog does not mind",
    "naïve café, Zoë's résumé: 12 + 34 = 46",
    "e\u0301le\u0300ve a\u0308 — combining marks stay with their letters",
    "吾輩は猫である。名前はまだ無い。",
    "👩‍🚀🚀 👍🏽 🇫🇷 emoji of several code points 🧑‍🤝‍🧑",
    "שלום عالم  два  пробела\n\ttabs and\r\nlines",
)


class Made:
    """Implements `interlock.core.text.Tokenizer` by one of the library `tokenizers`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.inner = tokenizer
        self.size = tokenizer.get_vocab_size()
        self.longest = 0  # the most tokens that were ever decoded at once

    def encode(self, text: str) -> np.ndarray:
        """Token ids."""
        return np.array(self.inner.encode(text).ids, np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Their text."""
        self.longest = max(self.longest, len(ids))
        return str(self.inner.decode([int(one) for one in ids], skip_special_tokens=True))


@cache
def byte_level(merges: int = 60) -> Made:
    """Byte-level BPE with few merges: most characters beyond ASCII are several tokens. Ids 0 and 1 are special."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=258 + merges, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
    )
    inner.train_from_iterator(LINES, trainer)
    return Made(inner)


@cache
def sentence_piece() -> Made:
    """Words that begin with a mark for their space, and single bytes for what the vocabulary lacks."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁the", "▁fox", "fox", "es", "▁a", "b", ",", "▁▁"]
    inner = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>")
    )
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "</s>")])
    return Made(inner)
