"""Text of tokens: what a tokenizer is to the engine, and the text of an answer while it is still being written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

_PENDING = 16  # tokens that may wait for the rest of a character: one has at most 4 bytes, and a token at least one
_OPEN = 3  # bytes of a character that is not whole
_BROKEN = "\ufffd"  # what bytes that are no whole character decode to


class Tokenizer(Protocol):
    """Turns text into tokens and back. An executor that has one offers it as its attribute `tokenizer`."""

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a prompt, int32 (n,)."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of token ids; special tokens are left out, and bytes that are no character become U+FFFD."""
        ...


def tokenizer_of(executor: object) -> Tokenizer | None:
    """The executor's tokenizer, None where it has none."""
    tokenizer: Tokenizer | None = getattr(executor, "tokenizer", None)
    return tokenizer


class Detokenizer:
    """Text of tokens that come one after another: never half a character, and all pieces together are `decode(all)`.

    A token's text can depend on those before it (a leading space, a character over several tokens), so it is told from
    the difference that it makes after a few others. What a token costs does not grow with the answer. Only a tokenizer
    that takes back characters because of what follows (byte fallback, where one invalid byte spoils its neighbours)
    can decode the whole otherwise than its pieces.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode
        self._ids: list[int] = []  # the last tokens: some whose text is told, then those that wait
        self._told_ids = 0  # how many of them have been told whole
        self._told = 0  # characters of their text that have been told
        self._text = ""

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next tokens; the text that became final with them, perhaps none."""
        return "".join([self._push(int(token)) for token in token_ids])

    def flush(self) -> str:
        """The rest, however incomplete, at the end of the answer."""
        text = self._decode(self._ids)
        piece, self._told = text[self._told :], len(text)
        return piece

    def _push(self, token: int) -> str:
        text = self._decode([*self._ids, token])
        if text == self._text and self._decode([token, token]) == "":
            return ""  # a special token: it never changes a text, and a run of them must not fill the window
        self._ids.append(token)
        self._text = text
        if text.endswith(_BROKEN):
            return self._force() if len(self._ids) - self._told_ids > _PENDING else ""
        piece = text[self._told :]
        if piece:
            self._keep(self._ids[self._told_ids :], held=0)
            self._told_ids = len(self._ids)
        return piece

    def _force(self) -> str:
        """So many tokens are no character: their bytes are invalid, all but the last few."""
        untold = self._text[self._told :]
        held = min(_OPEN, len(untold) - len(untold.rstrip(_BROKEN)))
        self._keep(self._ids[-_PENDING:], held)
        self._told_ids = 0
        return untold[: len(untold) - held]

    def _keep(self, ids: list[int], held: int) -> None:
        """Forget all tokens but these, of whose text the last characters are still to be told."""
        self._ids, self._text = ids, self._decode(ids)
        self._told = max(len(self._text) - held, 0)
