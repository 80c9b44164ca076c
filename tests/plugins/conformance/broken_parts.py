"""Parts of the engine, and executors, that break what a check of the conformance suite checks, one each.

Each is a function that patches with `patch.setattr`, so that the part is whole again afterwards. What goes wrong is
taken from faults that serving engines had.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import interlock.core.ingest
from interlock.core import WorkKey
from interlock.core.blocks import BlockPool, PrefixHash
from interlock.core.collector import Collector
from interlock.core.commit import Committer
from interlock.core.engine import Engine
from interlock.core.errors import PolicyViolation
from interlock.core.giving_way import GivingWay
from interlock.core.ingest import Ingest
from interlock.core.lifecycle import Lifecycle
from interlock.core.stack import Stack
from interlock.core.state import State
from interlock.core.table import RequestTable
from interlock.executors.costs.timing import VirtualTime
from interlock.executors.simulated.executor import Simulated
from interlock.executors.simulated.rows import Rows

Patch = pytest.MonkeyPatch


def around(patch: Patch, cls: type, name: str, change: Any) -> None:
    """`change(original, self, *arguments)` in place of a method."""
    original = getattr(cls, name)
    patch.setattr(cls, name, lambda self, *arguments, **more: change(original, self, *arguments, **more))


def twice_in_the_batch(patch: Patch) -> None:
    """A row is selected a second time."""
    around(patch, Committer, "_batch", lambda made, self, op, rows, tokens: made(
        self, op, np.append(rows, rows[:1]), np.append(tokens, tokens[:1])))  # fmt: skip


def a_token_too_many(patch: Patch) -> None:
    """A prompt chunk is a token longer than the prompt."""

    def longer(made: Any, self: Any, operation: Any, rows: np.ndarray, tokens: np.ndarray) -> Any:
        prompts = self.state.table.work[rows] == WorkKey.PROMPT_ATOMIC
        return made(self, operation, rows, tokens + prompts)

    around(patch, Committer, "_batch", longer)


def a_token_skipped(patch: Patch) -> None:
    """A row that enters starts a token too late."""

    def late(made: Any, self: Any, entrant: Any) -> None:
        made(self, entrant)
        row = entrant.row
        table = self.state.table
        if table.prompt_tokens[row] - table.computed[row] > 1 and entrant.tokens > 1:
            table.computed[row] += 1

    around(patch, Lifecycle, "activate", late)


def another_work(patch: Patch) -> None:
    """A prompt of one token runs as a decode."""

    def as_decode(made: Any, self: Any, *arguments: Any) -> Any:
        batch = made(self, *arguments)
        short = (batch.work == WorkKey.PROMPT_ATOMIC) & (batch.tokens == 1)
        return replace(batch, work=np.where(short, np.int8(WorkKey.DECODE_ATOMIC), batch.work))

    around(patch, Committer, "_batch", as_decode)


def says_in_the_middle(patch: Patch) -> None:
    """Every chunk samples, not only the last."""
    around(patch, Committer, "_batch", lambda made, self, *arguments: (
        lambda batch: replace(batch, samples=np.ones(len(batch), bool)))(made(self, *arguments)))  # fmt: skip


def colliding_keys(patch: Patch) -> None:
    """Blocks of different prompts have one key, so that a hit is somebody else's KV."""
    keys = PrefixHash.keys
    patch.setattr(PrefixHash, "keys", staticmethod(lambda chain: keys(chain) & np.uint64(1)))


def slots_leak(patch: Patch) -> None:
    """A slot is not given back."""
    around(patch, State, "return_slot", lambda made, self, slot: None)


def lost_from_the_list(patch: Patch) -> None:
    """The last of several active rows falls out of the list (habana: the victims vanish with the running list)."""
    around(patch, State, "set_active", lambda made, self, rows: made(self, rows[: max(len(rows) - 1, 1)]))


def shared_twice(patch: Patch) -> None:
    """A hit counts two references."""

    def more(made: Any, self: Any, blocks: np.ndarray) -> None:
        made(self, blocks)
        self.references[blocks] += 1

    around(patch, BlockPool, "share", more)


def cached_told_as_used(patch: Patch) -> None:
    """Reclaimable cache is reported as used."""

    def told(made: Any, self: Any, draft: Any) -> Any:
        counts = made(self, draft)
        return replace(counts, used_blocks=counts.used_blocks + counts.cached_blocks, cached_blocks=0)

    around(patch, Engine, "_counts", told)


def host_leaks(patch: Patch) -> None:
    """Host copies are never free again."""
    around(patch, State, "return_host", lambda made, self, blocks: None)


def untold_preemption(patch: Patch) -> None:
    """A recompute is not told."""
    around(patch, Lifecycle, "_log", lambda made, self, row, before, to, reason: (
        None if reason == "recompute" else made(self, row, before, to, reason)))  # fmt: skip


def versions_begin_anew(patch: Patch) -> None:
    """A row's version begins anew with its next owner."""

    def reset(made: Any, self: Any, rows: np.ndarray) -> None:
        made(self, rows)
        self.version[rows] = 0

    around(patch, RequestTable, "free_rows", reset)


def told_twice(patch: Patch) -> None:
    """A terminal event comes twice."""

    def twice(made: Any, self: Any, outcome: Any, handle: Any, from_feed: bool) -> None:
        made(self, outcome, handle, from_feed)
        self.record.outcomes.append(outcome)

    around(patch, Lifecycle, "_deliver", twice)


def cancels_only_the_active(patch: Patch) -> None:
    """A cancellation looks only at who has a slot."""

    def only(made: Any, self: Any, request_id: str) -> bool:
        row = self.state.rows.get(request_id)
        return row is not None and self.state.table.slot[row] >= 0 and made(self, request_id)

    around(patch, Ingest, "_cancel", only)


def last_token_charged(patch: Patch) -> None:
    """The last token is charged KV that it does not need."""
    validate = interlock.core.ingest.validate

    def strict(request: Any, state: State) -> str | None:
        limit = request.sampling.max_tokens or 1
        need = -(-(request.prompt_tokens + limit) // state.pool.block_size)
        return validate(request, state) or ("never_fits" if need > state.pool.num_blocks else None)

    patch.setattr(interlock.core.ingest, "validate", strict)


def too_large_accepted(patch: Patch) -> None:
    """What can never fit is accepted, and waits for ever."""
    validate = interlock.core.ingest.validate

    def lenient(request: Any, state: State) -> str | None:
        why = validate(request, state)
        return None if why is not None and why.startswith("never_fits") else why

    patch.setattr(interlock.core.ingest, "validate", lenient)


def last_token_lost(patch: Patch) -> None:
    """The answer lacks the token that came with the end."""
    around(patch, Lifecycle, "_outcome", lambda made, self, *arguments: (
        lambda outcome: replace(outcome, output_ids=outcome.output_ids[:-1]))(made(self, *arguments)))  # fmt: skip


def tokens_of_the_crowd(patch: Patch) -> None:
    """What a row says depends on how many rows run."""

    def said(made: Any, self: Any, rows: np.ndarray, positions: np.ndarray, runs: int) -> np.ndarray:
        tokens = made(self, rows, positions, runs)
        return np.where(tokens > 0, np.maximum(tokens - (len(rows) > 1), 1), tokens)

    around(patch, Rows, "tokens", said)


def time_charged_twice(patch: Patch) -> None:
    """A preemption's interval begins before the last one ends."""

    def early(made: Any, self: Any, entry: Any, row: int) -> None:
        made(self, entry, row)
        entry.since_ns -= 1

    around(patch, Lifecycle, "_close_active", early)


def counted_twice(patch: Patch) -> None:
    """A preemption counts two."""

    def more(made: Any, self: Any, victim: Any) -> None:
        made(self, victim)
        self.state.table.preemptions[victim.row] += 1

    around(patch, Lifecycle, "give_way", more)


def holders_leak(patch: Patch) -> None:
    """A line of the block table is never free again."""
    around(patch, BlockPool, "return_holder", lambda made, self, holder: None)


def requester_left_out(patch: Patch) -> None:
    """Victims give way, and the last of those they gave way to does not enter."""
    around(patch, GivingWay, "seat", lambda made, self, draft, order, noted: made(self, draft, order, noted[:-1]))


def a_block_too_many(patch: Patch) -> None:
    """Admission asks for a block more than validation."""
    around(patch, State, "admission_need", lambda made, self, *arguments: made(self, *arguments) + 1)


def arrivals_unseen(patch: Patch) -> None:
    """A stretch does not end when somebody arrives."""
    around(patch, Engine, "_stretched", lambda made, self, batch: replace(made(self, batch), until_ns=None))


def ended_at_once(patch: Patch) -> None:
    """A failed batch ends its rows at the first failure."""

    def strict(made: Any, self: Any, result: Any, published: Any) -> None:
        self._failed = set(result.ticket.batch.rows.tolist())
        made(self, result, published)

    around(patch, Collector, "fail", strict)


def stale_applied(patch: Patch) -> None:
    """A second result of a ticket is taken for one that is out."""

    def lenient(made: Any, self: Any, results: Any) -> None:
        for result in results:
            self._tickets.setdefault(result.ticket.id, result.ticket)
            self._published.setdefault(result.ticket.id, [])
        made(self, results)

    around(patch, Engine, "_collect", lenient)


def half_undone(patch: Patch) -> None:
    """After an error in the middle of a plan its blocks stay taken."""

    def undo(made: Any, self: Any, mark: int = 0) -> None:
        error = sys.exc_info()[1]
        if error is None or isinstance(error, PolicyViolation):
            made(self, mark)

    around(patch, BlockPool, "undo", undo)


def uncounted(patch: Patch) -> None:
    """A repaired violation is not counted."""
    around(patch, Stack, "count", lambda made, self, violation: None)


# -- executors


def one_ticket(patch: Patch) -> None:
    """Every ticket has the number of the first."""
    around(patch, Simulated, "submit", lambda made, self, batch: (setattr(self, "_tickets", 0), made(self, batch))[1])


def no_minus_one(patch: Patch) -> None:
    """Rows that sample nothing say token 1."""
    around(patch, Simulated, "_sampled", lambda made, self, *arguments: np.maximum(made(self, *arguments), 1))


def ends_before_it_begins(patch: Patch) -> None:
    """A batch takes no time, and less."""
    around(patch, VirtualTime, "ends", lambda made, self, batch, load, runs: np.array([batch.start_ns - 1], np.int64))


def remembers_the_last(patch: Patch) -> None:
    """Where nothing is out, the last result comes again."""

    def again(made: Any, self: Any, block: bool) -> Any:
        results = made(self, block)
        if results:
            self.last = results[-1]
        return results if results or block or not hasattr(self, "last") else [self.last]

    around(patch, Simulated, "collect", again)


def costs_nothing(patch: Patch) -> None:
    """A step's estimate falls with its size."""
    around(patch, Simulated, "step_s", lambda made, self, prompt, rows, context: 1.0 / (1 + prompt + rows))


def old_owner(patch: Patch) -> None:
    """A row that is forgotten keeps its request."""

    def kept(made: Any, self: Any, row: int, *more: Any) -> None:
        if row not in getattr(self, "known", {}):
            made(self, row, *more)
        self.known = {*getattr(self, "known", set()), row}

    around(patch, Rows, "add", kept)


def forgets_when_suspended(patch: Patch) -> None:
    """Suspended rows lose where they were."""

    def lose(made: Any, self: Any, rows: np.ndarray, modes: Any, copies: Any) -> None:
        made(self, rows, modes, copies)
        self._rows._seed[rows] += np.uint64(7)

    around(patch, Simulated, "suspend", lose)
