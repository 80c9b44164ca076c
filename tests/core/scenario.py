"""Small scenarios: engines from compact descriptions, an executor whose memory is checked, invariants at each boundary.

`play(R(0, 33, 1), R(0, 4, 2), bs=4, N=8)` runs two requests to the end and tells what happened. Each batch takes one
second, so step k is the batch that starts at time k. `bs`, `N`, `B`, `S`, `L`: block size, blocks, token budget, slots,
longest request. Requests are called R0, R1, ... in the order given unless they have an `id`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from interlock.core import (
    BatchResult,
    BoundaryRecord,
    Engine,
    EngineConfig,
    FinishReason,
    Outcome,
    Policy,
    RequestStatus,
)
from interlock.core.config_errors import validate
from interlock.core.config_sections import EngineSection, KVSection
from interlock.core.config_workload import WorkloadSection
from interlock.core.hashing import splitmix64
from interlock.core.request import TRANSITIONS
from interlock.core.work import WorkKey
from interlock.executors.simulated.executor import Simulated
from interlock.plugins import workload

MIXED = ("fcfs", "mixed")
URGENT = ({"priority": {"preempt": "recompute"}}, "mixed")
_POISON = np.uint64(0xDEAD)


def R(
    arrival: float, prompt: int | Sequence[int], output: int, priority: int = 0, says: int | None = None, **more: Any
) -> dict[str, Any]:
    """A request that ends by length after `output` tokens; with `says`, the model ends by itself after so many."""
    own: dict[str, Any] = {"ignore_eos": True} if says is None else {"output": says}
    return {"arrival": float(arrival), "prompt": prompt, "max_tokens": output, "priority": priority, **own, **more}


# -- an executor that checks


class Paged:
    """The simulated executor, with paged memory behind it.

    Each token's KV is a fingerprint of the whole context up to it, written where the block table says. Every batch must
    find the KV of all that came before, so a wrong block, a stale hit or a skipped token does not go unnoticed.
    `fails`: submissions (by number) that fail; `twice`: submissions whose result is handed out a second time.
    """

    def __init__(self, inner: Any, fails: Iterable[int] = (), twice: Iterable[int] = ()) -> None:
        self.inner, self.fails, self.twice = inner, frozenset(fails), frozenset(twice)
        self.submitted = 0
        self.on_collect: Callable[[], None] = lambda: None  # called while results are on their way
        self._lines: dict[int, tuple[int, np.ndarray, list[np.ndarray]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def start(self, config: Any) -> None:
        self.memory = np.zeros((config.num_blocks, config.block_size), np.uint64)
        self.host: dict[int, np.ndarray] = {}
        self.inner.start(config)

    def suspend(self, rows: np.ndarray, modes: Any, copies: Any) -> None:
        for copy in copies:
            for device, host in zip(copy.device.tolist(), copy.host.tolist(), strict=True):
                self.host[host] = self.memory[device].copy()
        self.inner.suspend(rows, modes, copies)

    def resume(self, rows: np.ndarray, copies: Any) -> None:
        for copy in copies:
            for device, host in zip(copy.device.tolist(), copy.host.tolist(), strict=True):
                self.memory[device] = self.host[host]
        self.inner.resume(rows, copies)

    def submit(self, batch: Any) -> Any:
        ticket = self.inner.submit(batch)
        ends = (batch.start + batch.tokens).tolist()
        known = [batch.context[holder, :end].copy() for holder, end in zip(batch.holders.tolist(), ends, strict=True)]
        self._lines[ticket.id] = self.submitted, batch.block_table[batch.holders].copy(), known
        self.submitted += 1
        return ticket

    def collect(self, block: bool) -> list[BatchResult]:
        self.on_collect()
        handed: list[BatchResult] = []
        for result in self.inner.collect(block):
            number, lines, known = self._lines.pop(result.ticket.id)
            failed = number in self.fails
            self._run(result, lines, known, failed)
            if failed:
                none = np.empty((1, 0), np.int32)
                result = BatchResult(result.ticket, result.ends_ns, none, error=RuntimeError("device lost"))
            handed += [result, result] if number in self.twice else [result]
        return handed

    def _run(self, result: BatchResult, lines: np.ndarray, known: list[np.ndarray], failed: bool) -> None:
        batch = result.ticket.batch
        for run in range(result.runs):
            if run:
                known = [np.append(ids, said) for ids, said in zip(known, result.tokens[run - 1], strict=True)]
            marks = [_fingerprints(ids) for ids in known]
            for at, mark in enumerate(marks):
                new = np.arange(int(batch.start[at]) + run, len(mark))
                self._cells(lines[at], new, _POISON if failed else mark[new])
            for at, mark in enumerate(marks):
                if not failed:
                    found = self._cells(lines[at], np.arange(len(mark)))
                    assert np.array_equal(found, mark), (
                        f"step {batch.step}: request {batch.numbers[at]} reads KV that is not its own"
                    )

    def _cells(self, line: np.ndarray, positions: np.ndarray, values: Any = None) -> np.ndarray:
        size = self.memory.shape[1]
        where = line[positions // size], positions % size
        if values is not None:
            self.memory[where] = values
        return self.memory[where]


def _fingerprints(ids: np.ndarray) -> np.ndarray:
    places = np.arange(len(ids), dtype=np.uint64) << np.uint64(32)
    return np.cumsum(splitmix64(places + ids.astype(np.uint64)), dtype=np.uint64)


# -- invariants


class Audit:
    """The universal invariants, checked after every boundary; `drained` at the end."""

    engine: Engine

    def __init__(self) -> None:
        self.status: dict[int, RequestStatus | None] = {}
        self.versions: dict[int, int] = {}
        self.streams: dict[int, list[int]] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.ids: dict[int, str] = {}
        self.time_ns = 0

    def on_boundary(self, record: BoundaryRecord) -> None:
        assert record.time_ns >= self.time_ns, "time runs backwards"
        self.time_ns = record.time_ns
        self._blocks(record)
        self._slots()
        self._moves(record)
        self._deliveries(record)
        if record.batch is not None:
            self._batch(record, record.batch)

    def _blocks(self, record: BoundaryRecord) -> None:
        """I1, I2: every block is free, cached, used or fenced; its references are its holders."""
        state, pool = self.engine.state, self.engine.state.pool
        holders = np.zeros(pool.num_blocks, np.int64)
        for row in state.entries:
            held = state.held(row)
            assert len(np.unique(held)) == len(held), "a row holds a block twice"
            holders[held] += 1
        assert (holders == pool.references).all(), "references are not the holders"
        queue = pool.queue()
        assert len(queue) == len(np.unique(queue)) == pool.available, "the queue of free blocks is not a set"
        assert (pool.references[queue] == 0).all(), "a block is free and held"
        assert pool.available + pool.used + pool.fenced == pool.num_blocks
        counts = record.counts
        assert counts is not None
        parts = counts.free_blocks, counts.cached_blocks, counts.used_blocks, counts.fenced_blocks
        assert min(parts) >= 0 and sum(parts) == pool.num_blocks
        assert counts.used_blocks == (holders > 0).sum() and counts.used_blocks <= counts.reserved_blocks

    def _slots(self) -> None:
        """I4, I5: a slot has one owner; who waits has none, and no blocks unless it yielded."""
        state, table = self.engine.state, self.engine.state.table
        rows = np.array(sorted(state.entries), np.intp)
        owned = table.slot[rows][table.slot[rows] >= 0]
        assert len(np.unique(owned)) == len(owned)
        assert len(owned) + state.free_slots == state.limits.max_num_seqs
        active, waiting = (
            rows[table.status[rows] == RequestStatus.ACTIVE],
            rows[table.status[rows] == RequestStatus.WAITING],
        )
        assert (table.slot[active] >= 0).all() and (table.slot[waiting] < 0).all()
        assert sorted(state.active.tolist()) == active.tolist()
        queue = state.waiting.rows
        assert sorted(queue.tolist()) == waiting.tolist()
        assert (np.diff(table.number[queue]) > 0).all(), "the queue is not in arrival order"
        assert all(row in state.resident for row in waiting.tolist() if table.blocks[row])
        assert (table.in_flight[waiting] == 0).all()

    def _batch(self, record: BoundaryRecord, batch: Any) -> None:
        """I3, I4, I9: within the budget, at least a token each, active rows only, from where they stand."""
        state, table = self.engine.state, self.engine.state.table
        assert record.counts is not None
        assert (batch.tokens >= 1).all()
        assert batch.tokens.sum() <= min(state.limits.max_num_batched_tokens, record.counts.budget)
        assert len(batch) == len(np.unique(batch.rows)) <= state.limits.max_num_seqs
        assert (table.status[batch.rows] == RequestStatus.ACTIVE).all()
        assert (table.version[batch.rows] == batch.versions).all() and (table.in_flight[batch.rows] == 1).all()
        assert not {victim.request for victim in record.preempted} & set(batch.numbers.tolist())
        assert (batch.start == table.computed[batch.rows]).all()
        context = table.prompt_tokens[batch.rows] + table.emitted[batch.rows]
        ends = batch.start + batch.tokens
        assert (ends <= context).all() and (batch.samples == (ends == context)).all()
        assert (ends <= table.blocks[batch.rows] * state.pool.block_size).all()
        decode = batch.work == WorkKey.DECODE_ATOMIC
        assert (batch.tokens[decode] == 1).all() and batch.samples[decode].all()

    def _moves(self, record: BoundaryRecord) -> None:
        """I5: legal moves only, each from where the last one ended, with a version of its own."""
        for move in record.transitions:
            number = move.request
            assert move.from_status == self.status.get(number), f"{move.request_id} was not {move.from_status}"
            assert move.reason in TRANSITIONS[move.from_status, move.to_status]
            assert move.row < 0 or move.version > self.versions.get(move.row, -1)
            self.status[number], self.ids[number] = move.to_status, move.request_id
            if move.row >= 0:
                self.versions[move.row] = move.version

    def _deliveries(self, record: BoundaryRecord) -> None:
        """I6, I7, I10: one end each, nothing after it, what was delivered is what the request says alone."""
        ended = set(self.outcomes)
        for collected in record.collected:
            for run in range(collected.result.runs):
                for at in np.flatnonzero(collected.delivered[run]).tolist():
                    number = int(collected.batch.numbers[at])
                    assert number not in ended, "a token after the end"
                    self.streams.setdefault(number, []).append(int(collected.result.tokens[run, at]))
        for outcome in record.outcomes:
            assert outcome.number not in self.outcomes, "a second end"
            self.outcomes[outcome.number] = outcome
            assert outcome.output_ids.tolist() == self.streams.get(outcome.number, [])
            spent = (
                outcome.queue_ns + outcome.prefill_ns + outcome.decode_ns + outcome.preempted_ns + outcome.transfer_ns
            )
            parts = outcome.queue_ns, outcome.prefill_ns, outcome.decode_ns, outcome.preempted_ns, outcome.transfer_ns
            if outcome.finish_reason is not FinishReason.REJECTED:
                assert min(parts) >= 0 and spent == outcome.finished_ns - outcome.arrival_ns
            times = [
                outcome.arrival_ns,
                outcome.admitted_ns,
                outcome.first_token_ns,
                outcome.last_token_ns,
                outcome.finished_ns,
            ]
            known = [time for time in times if time is not None]
            assert known == sorted(known)

    def drained(self) -> None:
        """I11: nothing is left of anybody."""
        engine, state = self.engine, self.engine.state
        assert state.free_slots == state.limits.max_num_seqs
        assert len(state.waiting) == len(state.active) == len(state.table) == 0
        assert not state.entries and not state.rows and not state.resident and not state.tickets
        assert not engine.lifecycle.leaving and not engine._published and not engine._tickets
        assert (state.pool.references == 0).all() and state.pool.used == state.pool.fenced == 0
        assert sorted(state.pool._free_holders) == list(range(len(state.pool.table)))
        assert all(status is RequestStatus.FINISHED for status in self.status.values())
        assert set(self.status) == set(self.outcomes)


# -- building and running


def engine_of(
    *requests: dict[str, Any],
    stack: Sequence[Any] = MIXED,
    bs: int = 4,
    N: int = 64,
    B: int = 64,
    S: int = 8,
    L: int = 64,
    reserve: str = "prompt",
    caching: bool = False,
    fails: Iterable[int] = (),
    twice: Iterable[int] = (),
    watermark: float = 0.0,
    **limits: Any,
) -> Engine:
    """An engine under audit, its executor `Paged`. `stack` holds names, options by name, or `Policy` objects."""
    entries = [{"id": f"R{i}", **request} for i, request in enumerate(requests)]
    names = [item for item in stack if not isinstance(item, Policy)]
    config, prototypes = _configured(json.dumps(names or ["fcfs"]))
    engine_limits = {"max_num_seqs": S, "max_num_batched_tokens": B, "max_model_len": L, "max_repeat": 1, **limits}
    kv = {"num_blocks": N, "block_size": bs, "enable_prefix_caching": caching, "reserve": reserve}
    sections = {
        "engine": EngineSection(**engine_limits),
        "kv": KVSection(**kv, watermark=watermark),
        "workload": validate(WorkloadSection, {"requests": entries}),
    }
    config = config.model_copy(update=sections)
    configured = (type(policy)(policy.options) for policy in prototypes)
    policies = [item if isinstance(item, Policy) else next(configured) for item in stack]
    executor, audit = Paged(Simulated({"cost": {"constant": {"step_s": 1.0}}}), fails, twice), Audit()
    assert config.workload is not None
    feed = workload.build(config.workload, base=config.base, seed=config.engine.seed, max_model_len=L)
    engine = Engine(config, policies, executor, feed=feed, observers=[audit])
    audit.engine = engine
    engine.audit = audit  # type: ignore[attr-defined]
    return engine


@lru_cache
def _configured(stack: str) -> tuple[EngineConfig, list[Policy]]:
    """A configuration with this stack, and its policies. Looked up once: names cost a walk over what is installed."""
    config = EngineConfig.load({"policies": json.loads(stack)})
    return config, config.build_policies()


class Play:
    """An engine's run, told by request ids and step numbers."""

    def __init__(self, engine: Engine, at: Callable[[Engine, BoundaryRecord], None] | None = None) -> None:
        self.engine, self.records = engine, []
        self.audit: Audit = engine.audit  # type: ignore[attr-defined]
        for record in engine.run():
            self.records.append(record)
            if at is not None:
                at(engine, record)
        self.audit.drained()
        self.ids = self.audit.ids
        self.outcomes = {outcome.request_id: outcome for outcome in self.audit.outcomes.values()}

    @property
    def steps(self) -> dict[int, dict[str, int]]:
        """Tokens of each request, by step, in batch order."""
        return {round(r.time_s): self._tokens(r.batch) for r in self.records if r.batch is not None}

    def _tokens(self, batch: Any) -> dict[str, int]:
        return {self.ids[n]: t for n, t in zip(batch.numbers.tolist(), batch.tokens.tolist(), strict=True)}

    def ran(self, name: str) -> dict[int, int]:
        """The steps in which a request ran, with its tokens."""
        return {step: tokens[name] for step, tokens in self.steps.items() if name in tokens}

    def started(self, name: str) -> int:
        """The step in which a request ran first."""
        return min(self.ran(name))

    def finished(self, name: str) -> int:
        """The step whose result ended a request: its end is told one second after that step began."""
        return round(self.outcomes[name].finished_ns / 1e9) - 1

    def first_token(self, name: str) -> int:
        """The step that gave a request's first token."""
        first = self.outcomes[name].first_token_ns
        assert first is not None
        return round(first / 1e9) - 1

    def why(self, name: str) -> str:
        """A request's end, with the reason of a rejection."""
        outcome = self.outcomes[name]
        return f"{outcome.finish_reason}{f': {outcome.reject_reason}' if outcome.reject_reason else ''}"

    @property
    def ends(self) -> dict[str, str]:
        """The end of every request."""
        return {name: str(outcome.finish_reason) for name, outcome in self.outcomes.items()}

    @property
    def preempted(self) -> dict[int, list[str]]:
        """Who gave way, by step."""
        gone = {round(r.time_s): [self.ids[v.request] for v in r.preempted] for r in self.records}
        return {step: names for step, names in gone.items() if names}

    def output(self, name: str) -> list[int]:
        """What a request said."""
        return self.outcomes[name].output_ids.tolist()

    @property
    def used(self) -> dict[int, int]:
        """Blocks with a holder, by step."""
        return {
            round(r.time_s): r.counts.used_blocks for r in self.records if r.batch is not None and r.counts is not None
        }

    def reasons(self, name: str) -> list[str]:
        """The reasons of a request's transitions, in order."""
        return [move.reason for record in self.records for move in record.transitions if move.request_id == name]


def play(*requests: dict[str, Any], at: Callable[[Engine, BoundaryRecord], None] | None = None, **config: Any) -> Play:
    """Run requests to the end. Outputs are compared with those of each request alone."""
    run = Play(engine_of(*requests, **config), at)
    for i, request in enumerate(requests):
        name = request.get("id", f"R{i}")
        outcome = run.outcomes[name]
        if outcome.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert run.output(name) == alone(name, request, config.get("L", 64))
        elif len(outcome.output_ids):
            assert run.output(name) == alone(name, request, config.get("L", 64))[: len(outcome.output_ids)]
    return run


def alone(name: str, request: dict[str, Any], longest: int = 64) -> list[int]:
    """What a request says when it is served alone."""
    kept = ("prompt", "max_tokens", "min_tokens", "ignore_eos", "output", "stop_token_ids")
    own = {key: tuple(value) if isinstance(value := request[key], list) else value for key in kept if key in request}
    return list(_alone(name, tuple(own.items()), longest))


@lru_cache(maxsize=4096)
def _alone(name: str, own: tuple[tuple[str, Any], ...], longest: int) -> tuple[int, ...]:
    request = {"id": name, **{key: list(value) if isinstance(value, tuple) else value for key, value in own}}
    run = Play(engine_of(request, N=longest, B=longest, S=1, L=longest))
    return tuple(run.output(name))


class Hold(Policy):
    """A gate: requests enter only when it opens. `gates`: by request id, the time (`NEVER`: none that comes).

    Without `until` the engine is not told when: such a hold is a stall when nobody else runs.
    """

    NEVER = 1e6

    def __init__(self, gates: dict[str, float], until: bool = True) -> None:
        super().__init__()
        self.gates, self.until = gates, until

    def admit(self, offer: Any, view: Any) -> None:
        for row in offer.rows:
            time = self.gates.get(view.request(row).id, 0.0)
            if view.now < time:
                offer.hold(np.arange(view.capacity) == row, until=time if self.until else None)
