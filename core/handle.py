"""The caller's end of a submitted request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from interlock.core.record import Outcome
from interlock.core.request import FinishReason, Request

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
