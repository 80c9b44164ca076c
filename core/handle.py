"""The caller's end of a submitted request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from interlock.core.errors import InterlockError
from interlock.core.record import Outcome
from interlock.core.request import FinishReason, Request
from interlock.core.text import Detokenizer, Tokenizer, tokenizer_of

if TYPE_CHECKING:
    from interlock.core.engine import Engine


class Handle:
    """Iterates the tokens of one request as they are delivered, also with `async for`; ends at its terminal event.

    Whoever waits for a token drives the engine, unless another thread already does.
    """

    def __init__(self, request: Request, engine: Engine) -> None:
        self.request = request
        self.outcome: Outcome | None = None
        self._row = -1
        self._engine = engine

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the request ended, None while it has not."""
        return self.outcome.finish_reason if self.outcome else None

    @property
    def token_ids(self) -> list[int]:
        """The tokens delivered so far."""
        return self._engine._delivered(self)

    def result(self) -> Outcome:
        """Wait for the end."""
        while self.outcome is None:
            self._engine._drive_or_wait()
        return self.outcome

    def text(self) -> AnswerText:
        """The answer's text, piece by piece as it is delivered. Raises InterlockError without a tokenizer."""
        tokenizer = tokenizer_of(self._engine.executor)
        if tokenizer is None:
            raise InterlockError(f"request {self.request.id!r} has tokens and no text: the executor has no tokenizer")
        return AnswerText(self, tokenizer)

    def __iter__(self) -> Iterator[int]:
        seen = 0
        while True:
            ended = self.outcome is not None
            tokens = self.token_ids
            yield from tokens[seen:]
            seen = len(tokens)
            if ended:
                return
            self._engine._drive_or_wait()

    async def __aiter__(self) -> AsyncIterator[int]:
        seen = 0
        while True:
            ended = self.outcome is not None
            tokens = self.token_ids
            for token in tokens[seen:]:
                yield token
            seen = len(tokens)
            if ended:
                return
            await asyncio.to_thread(self._engine._drive_or_wait)


class AnswerText:
    """Iterates the text of one answer, also with `async for`; ends when the request does.

    A piece is what has become final since the last one, never half a character.
    """

    def __init__(self, handle: Handle, tokenizer: Tokenizer) -> None:
        self._handle, self._tokenizer = handle, tokenizer

    def __iter__(self) -> Iterator[str]:
        words = Detokenizer(self._tokenizer)
        for token in self._handle:
            if piece := words.push([token]):
                yield piece
        if rest := words.flush():
            yield rest

    async def __aiter__(self) -> AsyncIterator[str]:
        words = Detokenizer(self._tokenizer)
        async for token in self._handle:
            if piece := words.push([token]):
                yield piece
        if rest := words.flush():
            yield rest
