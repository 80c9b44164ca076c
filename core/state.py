"""All that the engine knows between two boundaries, and the questions that admission, views and rules ask of it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from interlock.core.blocks import BlockPool, PrefixHash
from interlock.core.errors import ExecutorError
from interlock.core.queues import WaitingQueue
from interlock.core.request import Request, RequestStatus
from interlock.core.table import SECONDS, RequestTable, read_only
from interlock.core.work import IS_PROMPT, Operation, WorkKey

if TYPE_CHECKING:
    from interlock.core.batch import Ticket
    from interlock.core.config import EngineSection, KVSection
    from interlock.core.executor import Capabilities
    from interlock.core.handle import Handle

_PROMPT_RECURRENT, _CODA = int(WorkKey.PROMPT_RECURRENT), int(WorkKey.DECODE_CODA)
_NO_BLOCKS = np.empty(0, np.int32)


@dataclass(slots=True)
class Entry:
    """What belongs to a live request and is no array: its caller's side, its clock, its block keys."""

    request: Request
    number: int
    handle: Handle | None = None
    from_feed: bool = False
    since_ns: int = 0  # when it entered its present status
    queue_ns: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    preempted_ns: int = 0
    transfer_ns: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    seen_by_executor: bool = False
    host_blocks: np.ndarray | None = None  # where its KV is on the host
    chain: np.ndarray | None = None  # of the full blocks of the context, as of the last time it waited
    keys: list[int] | None = None


class Faces:
    """Read-only faces of arrays that are replaced now and then, made once for each."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def of(self, array: np.ndarray) -> np.ndarray:
        """The face of this array."""
        kept = self._made.get(id(array))
        if kept is None or kept[0] is not array:
            kept = self._made[id(array)] = (array, read_only(array))
        return kept[1]


class State:
    """The request table, the pool, who waits, who is active, and the clock."""

    def __init__(self, limits: EngineSection, kv: KVSection, model: Capabilities) -> None:
        """`kv.num_blocks` is a number by now."""
        assert isinstance(kv.num_blocks, int)
        self.limits, self.kv, self.model = limits, kv, model
        self.loops = model.loops  # depth of a looped model, 1 for a dense one
        self.table = RequestTable()
        self.pool = BlockPool(kv.num_blocks, kv.block_size, -(-limits.max_model_len // kv.block_size))
        self.hash = PrefixHash(kv.block_size)
        self.waiting = WaitingQueue()
        self.active = np.empty(0, np.intp)
        self.active_version = 0
        self.resident: dict[int, None] = {}  # waiting rows that kept their blocks, in the order in which they yielded
        self.entries: dict[int, Entry] = {}
        self.rows: dict[str, int] = {}  # of live request ids
        self.tenants: dict[str, int] = {}
        self._slots = list(range(limits.max_num_seqs))
        self._host = list(range(kv.host_blocks - 1, -1, -1))
        self.faces = Faces()
        self.rescued: int | None = None  # the row that has absolute first place until it finishes
        self.context = np.zeros((16, limits.max_model_len), np.int32)
        self.chain = np.zeros(16, np.uint64)
        self.now_ns = 0
        self.step = 0
        self._ready = 0
        self.rng = np.random.default_rng(limits.seed)
        self.last_operation: Operation | None = None
        self.tickets: list[Ticket] = []
        self.offered_base: np.ndarray | None = None
        self.step_s: Callable[[int, int, int], float] = _no_cost

    # -- slots, holders, order

    @property
    def free_slots(self) -> int:
        """Slots that nobody owns."""
        return len(self._slots)

    def take_slot(self) -> int:
        """The lowest free slot."""
        return heapq.heappop(self._slots)

    def return_slot(self, slot: int) -> None:
        """Nobody owns the slot any more."""
        heapq.heappush(self._slots, slot)

    @property
    def host_free(self) -> int:
        """Blocks that the host still has room for."""
        return len(self._host)

    def take_host(self, count: int) -> np.ndarray:
        """So many blocks on the host, int64."""
        return np.array([self._host.pop() for _ in range(count)], np.int64)

    def return_host(self, blocks: np.ndarray) -> None:
        """The host's copies are not needed any more."""
        self._host.extend(blocks[::-1].tolist())

    def room_for_holder(self, holder: int) -> None:
        """Make the context as long as the block table."""
        if holder >= len(self.context):
            longer = np.zeros((len(self.pool.table), self.limits.max_model_len), np.int32)
            longer[: len(self.context)] = self.context
            self.context = longer
            self.chain = np.concatenate([self.chain, np.zeros(len(longer) - len(self.chain), np.uint64)])

    def ready_stamps(self, count: int) -> np.ndarray:
        """The next sequence numbers for the column `ready`."""
        self._ready += count
        return np.arange(self._ready - count, self._ready)

    def entry(self, row: int) -> Entry:
        """The entry of a row that has an owner."""
        return self.entries[row]

    def tenant_code(self, name: str) -> int:
        """The code of a tenant, given at its first request."""
        return self.tenants.setdefault(name, len(self.tenants))

    def order_key(self, spec: str) -> np.ndarray:
        """The table-long key that a column's name stands for."""
        name = spec.lstrip("-")
        column = getattr(self.table, SECONDS.get(name, name))
        return np.asarray(-column if spec.startswith("-") else column)

    def _order_keys(self, row: int) -> dict[str, int | float]:
        return {spec: self._order_key_at(spec, row) for spec in self.waiting.specs}

    def _order_key_at(self, spec: str, row: int) -> int | float:
        name = spec.lstrip("-")
        value: int | float = getattr(self.table, SECONDS.get(name, name))[row].item()
        return -value if spec.startswith("-") else value

    def enqueue(self, row: int) -> None:
        """The row waits, at its place by arrival."""
        self.waiting.add(row, int(self.table.number[row]), self._order_keys(row))

    def dequeue(self, row: int) -> None:
        """The row no longer waits."""
        self.waiting.remove(row, int(self.table.number[row]), self._order_keys(row))

    def set_active(self, rows: np.ndarray) -> None:
        """The active rows, in the order of their admission."""
        self.active = read_only(rows)
        self.active_version += 1

    def drop_inactive(self) -> None:
        """Rows that are not ACTIVE any more leave the active ones."""
        active = self.table.status[self.active] == RequestStatus.ACTIVE
        if not active.all():
            self.set_active(self.active[active])

    def pending(self, rows: Any) -> Any:
        """Tokens that the rows' pending work has to run.

        The rest of the known context; on looped models the chunk that is between its loops, and one row for a coda.
        """
        table = self.table
        rest = table.prompt_tokens[rows] + table.emitted[rows] - table.computed[rows]
        if self.loops == 1:
            return rest
        work = table.work[rows]
        return np.where(work == _PROMPT_RECURRENT, table.chunk[rows], np.where(work == _CODA, 1, rest))

    def slots_for(self, rows: Any, tokens: Any) -> Any:
        """KV tokens that the rows hold once they have run so many tokens; a coda adds none."""
        table = self.table
        after = table.computed[rows] + tokens
        return after if self.loops == 1 else np.where(table.work[rows] == _CODA, table.computed[rows], after)

    # -- blocks

    def blocks_for(self, tokens: Any) -> Any:
        """KV blocks that hold so many tokens."""
        return -(-tokens // self.pool.block_size)

    def held(self, row: int) -> np.ndarray:
        """The blocks of a row, first block first."""
        count = int(self.table.blocks[row])
        return self.pool.table[self.table.holder[row], :count] if count else _NO_BLOCKS

    def blocks_only_of(self, rows: tuple[int, ...]) -> int:
        """Blocks that these rows hold and nobody else does."""
        if len(rows) == 1:
            return int((self.pool.references[self.held(rows[0])] == 1).sum())
        held = np.concatenate([self.held(row) for row in rows]) if rows else _NO_BLOCKS
        blocks, counts = np.unique(held, return_counts=True)
        return int((self.pool.references[blocks] == counts).sum())

    def peak_tokens(self, rows: Any) -> Any:
        """KV tokens that rows need at most: min(prompt + max_tokens, max_model_len) - 1; the last token needs none."""
        return self.table.prompt_tokens[rows] + self.table.limit[rows] - 1

    def promised(self, rows: np.ndarray) -> np.ndarray:
        """Blocks that the reservation mode has promised to these active rows and that they do not hold yet."""
        table = self.table
        if self.kv.reserve == "none":
            return np.zeros(len(rows), np.int64)
        tokens = (
            self.peak_tokens(rows) if self.kv.reserve == "full" else table.prompt_tokens[rows] + table.emitted[rows]
        )
        return np.asarray(np.maximum(self.blocks_for(tokens) - table.blocks[rows], 0))

    @property
    def watermark(self) -> int:
        """Blocks kept free from admission while anything is active."""
        return int(self.kv.watermark * self.pool.num_blocks)

    def keys_of(self, row: int) -> list[int]:
        """Index keys of the full blocks of a waiting row's context. Kept until it runs."""
        entry = self.entries[row]
        if entry.keys is None:
            tokens = self.known_tokens(row)
            entry.chain = self.hash.chain(tokens, self.salt(row))
            entry.keys = self.hash.keys(entry.chain).tolist()
        return entry.keys

    def salt(self, row: int) -> int:
        """Where a row's chain starts: at 0, or at its tenant's code with `kv.salt_by_tenant`."""
        return (int(self.table.tenant[row]) + 1) * 0x9E37_79B9 if self.kv.salt_by_tenant else 0

    def known_tokens(self, row: int) -> np.ndarray:
        """Token ids of prompt and output so far."""
        holder = int(self.table.holder[row])
        if holder < 0:
            return self.entries[row].request.prompt_ids()
        return self.context[holder, : int(self.table.prompt_tokens[row] + self.table.emitted[row])]

    def hits(self, row: int) -> np.ndarray:
        """The cached blocks that a waiting row without blocks would share: whole blocks, at most context - 1 tokens.

        A row that was offloaded finds the full blocks that it had computed.
        """
        table = self.table
        if not self.kv.enable_prefix_caching or table.blocks[row]:
            return _NO_BLOCKS
        tokens = int(table.computed[row] if table.host[row] else table.prompt_tokens[row] + table.emitted[row] - 1)
        return self.pool.match(self.keys_of(row)[: tokens // self.pool.block_size])

    def admission_need(self, row: int, hits: np.ndarray, tokens: int, gone: tuple[int, ...] = ()) -> int:
        """Blocks that the pool must have for this row to enter and run `tokens` tokens.

        The one formula of validation, admission and views. Shared blocks that somebody other than the rows `gone`
        holds cost nothing; cached ones without a holder are taken from the free ones.
        """
        table, size = self.table, self.pool.block_size
        kept = int(table.blocks[row]) or int(table.host[row])
        if self.kv.reserve == "none":
            # A row that comes back with its KV has room for its next token, too.
            target = int(self.slots_for(row, max(tokens, 1))) if kept else len(hits) * size + tokens
        elif self.kv.reserve == "prompt":
            target = int(table.prompt_tokens[row] + table.emitted[row])
        else:
            target = int(self.peak_tokens(row))
        need = max(-(-target // size), kept) - int(table.blocks[row])
        return max(need - self._held_by_others(hits, gone), 0)

    def _held_by_others(self, hits: np.ndarray, gone: tuple[int, ...]) -> int:
        if not len(hits):
            return 0
        references = self.pool.references[hits]
        if gone:
            held = np.concatenate([self.held(row) for row in gone])
            references = references - np.array([(held == block).sum() for block in hits])
        return int((references > 0).sum())

    def left_to_run(self, row: int, hits: np.ndarray) -> int:
        """Tokens that a waiting row's pending work has to run if it enters with these hits."""
        fresh = not self.table.blocks[row] and not self.table.host[row]
        return int(self.pending(row)) - (len(hits) * self.pool.block_size if fresh else 0)

    def whole_prompts(self, rows: np.ndarray) -> np.ndarray:
        """The fewest tokens that each row may run at once on a model whose prompts attend to their end. int64."""
        table = self.table
        fresh = IS_PROMPT[table.work[rows]] & (table.computed[rows] == 0)
        return np.where(fresh, table.prompt_tokens[rows].astype(np.int64), 1)

    def would_fit(self, row: int, without: tuple[int, ...]) -> bool:
        """Whether a waiting row could enter now, and run a token, if the rows `without` had given way."""
        rest = self.active[~np.isin(self.active, without)]
        slots = self.free_slots + len(self.active) - len(rest)
        taken, growth = self._next_walk(rest)
        held_back = np.maximum(self.promised(rest), growth)
        room = self.pool.available + self.blocks_only_of(without) - int(held_back.sum())
        if len(rest):
            room -= self.watermark
        hits = self.hits(row)
        tokens = min(self.left_to_run(row, hits), self.limits.max_num_batched_tokens - taken)
        if self.model.whole_prompts and tokens < self.whole_prompts(np.array([row]))[0]:
            return False
        return slots > 0 and tokens > 0 and self.admission_need(row, hits, tokens, without) <= room

    def _next_walk(self, rows: np.ndarray) -> tuple[int, np.ndarray]:
        """Tokens and blocks that these active rows take if they all run next, in this order."""
        pending = self.pending(rows)
        left = np.maximum(self.limits.max_num_batched_tokens - (np.cumsum(pending) - pending), 0)
        tokens = np.minimum(pending, left)
        growth = self.blocks_for(self.slots_for(rows, tokens)) - self.table.blocks[rows]
        return int(tokens.sum()), np.maximum(growth, 0)

    def protected(self, rows: np.ndarray) -> np.ndarray:
        """Which rows were preempted `max_preemptions` times without banking, and have not banked since. bool."""
        table = self.table
        struck = table.strikes[rows] >= self.limits.max_preemptions
        if not struck.any():
            return np.zeros(len(rows), bool)
        return np.asarray(struck & ~self.banked(rows))

    def banked(self, rows: np.ndarray) -> np.ndarray:
        """Which rows are past their high-water mark of (emitted + computed, loop), in lexicographic order. bool."""
        table = self.table
        now, mark = table.emitted[rows] + table.computed[rows], table.high_water[rows]
        return np.asarray((now > mark) | ((now == mark) & (table.loop[rows] > table.high_loop[rows])))

    def first_work(self) -> WorkKey:
        """The work of a request that has computed nothing."""
        return WorkKey.PROMPT_ATOMIC if self.limits.prompt == "atomic" else WorkKey.PROMPT_PRELUDE

    def is_waiting(self, row: int) -> bool:
        """Whether the row waits."""
        return bool(self.table.status[row] == RequestStatus.WAITING)


def _no_cost(prompt_tokens: int, decode_rows: int, context_tokens: int) -> float:
    raise ExecutorError("view.step_s needs a backend with the capability step_cost; name it in Policy.requires")
