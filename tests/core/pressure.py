"""Engines under pressure: looped models, host copies and random small loads, audited at every boundary.

What `scenario` does for dense models without host memory, for all: `engine_of` and `play` take `loops` (depth of a
looped model), `exits` (depths by output position), `split`, `host` (blocks of the host), and all that `scenario` takes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from scenario import MIXED, Audit, Paged, Play, R, _configured, _fingerprints, alone

from interlock.core import BatchResult, BoundaryRecord, Engine, FinishReason, Operation, Policy, RequestStatus, WorkKey
from interlock.core.config_errors import validate
from interlock.core.config_sections import EngineSection, KVSection
from interlock.core.config_workload import WorkloadSection
from interlock.core.work import OPERATION_OF
from interlock.executors.simulated.executor import Simulated
from interlock.plugins import workload

MODES = ("recompute", "yield", "offload")
_POISON = np.uint64(0xDEAD)


def by_priority(mode: str, *others: Any, **options: Any) -> tuple[Any, ...]:
    """The stack of `priority` that preempts in this mode, and others."""
    return ({"priority": {"preempt": mode, **options}}, *others)


# -- an executor that checks, for looped models


class Looped(Paged):
    """As `Paged`, with a plane of KV for each depth and the hidden rows that requests carry between work items.

    A loop writes its positions at its own depth and attends to all before them at that depth; who leaves early has its
    KV copied to the deeper planes. A row must find its hidden state as it left it, whatever happened in between.
    """

    def start(self, config: Any) -> None:
        super().start(config)
        self.loops = self.inner.capabilities.loops
        self.memory = np.zeros((config.num_blocks, config.block_size, self.loops), np.uint64)
        self.hidden: dict[int, tuple[int, int, list[int]]] = {}  # by row: depth (loops: left), first position, states

    def suspend(self, rows: np.ndarray, modes: Any, copies: Any) -> None:
        for row, mode in zip(rows.tolist(), modes, strict=True):
            if mode == "recompute":
                self.hidden.pop(row, None)
        super().suspend(rows, modes, copies)

    def forget(self, rows: np.ndarray) -> None:
        for row in rows.tolist():
            self.hidden.pop(row, None)
        self.inner.forget(rows)

    def _run(self, result: BatchResult, lines: np.ndarray, known: list[np.ndarray], failed: bool) -> None:
        batch = result.ticket.batch
        marks = [_fingerprints(ids) for ids in known]
        for at, mark in enumerate(marks):
            self._write(batch, at, lines[at], mark, failed)
        if failed:
            return
        for at, mark in enumerate(marks):
            leaves = bool(result.exits[at]) if result.exits is not None else False
            self._check_and_carry(batch, at, lines[at], mark, leaves)

    def _planes(self, batch: Any, at: int) -> slice:
        """The depths that a row of this batch writes, and attends at."""
        depth = int(batch.loop[at])
        every, none = slice(0, self.loops), slice(0, 0)
        one = {Operation.FORWARD: every, Operation.RECURRENT: slice(depth, depth + 1)}
        return one.get(batch.operation, none)

    def _write(self, batch: Any, at: int, line: np.ndarray, mark: np.ndarray, failed: bool) -> None:
        new, planes = np.arange(int(batch.start[at]), len(mark)), self._planes(batch, at)
        blocks, offsets = self._where(line, new)
        self.memory[blocks, offsets, planes] = _POISON if failed else mark[new][:, None]

    def _where(self, line: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = self.memory.shape[1]
        return line[positions // size], positions % size

    def _check_and_carry(self, batch: Any, at: int, line: np.ndarray, mark: np.ndarray, leaves: bool) -> None:
        row, start, depth = int(batch.rows[at]), int(batch.start[at]), int(batch.loop[at])
        who = f"step {batch.step}: request {batch.numbers[at]}"
        blocks, offsets = self._where(line, np.arange(len(mark)))
        found = self.memory[blocks, offsets, self._planes(batch, at)]
        assert (found == mark[:, None]).all(), f"{who} reads KV that is not its own"
        states = mark[start:].tolist()
        if batch.operation is Operation.PRELUDE:
            self.hidden[row] = 0, start, states
        elif batch.operation is Operation.FORWARD:
            self.hidden[row] = self.loops, start, states
        elif batch.operation is Operation.RECURRENT:
            assert self.hidden.get(row) == (depth, start, states), f"{who} has lost its hidden rows or their depth"
            self.hidden[row] = self.loops if leaves else depth + 1, start, states
            if leaves:
                blocks, offsets = self._where(line, np.arange(start, len(mark)))
                self.memory[blocks, offsets, depth + 1 :] = mark[start:][:, None]
        else:
            left, _, last = self.hidden[row]
            assert left == self.loops and last[-1] == states[-1], f"{who} says a token without its own hidden row"


# -- invariants


class FullAudit(Audit):
    """As `Audit`; also host blocks, residents, looped batches, and how often each request gave way."""

    def __init__(self) -> None:
        super().__init__()
        self.banked: dict[int, int] = {}
        self.gave_way: dict[int, int] = {}

    def on_boundary(self, record: BoundaryRecord) -> None:
        super().on_boundary(record)
        self._host()
        self._residents()
        self._preemptions(record)

    def _host(self) -> None:
        """A host block has one owner, a waiting row; who is on the host holds nothing on the device."""
        state, table = self.engine.state, self.engine.state.table
        owned = list(state._host)
        for row, entry in state.entries.items():
            copied = [] if entry.host_blocks is None else entry.host_blocks.tolist()
            assert len(copied) == table.host[row]
            if copied:
                assert table.status[row] == RequestStatus.WAITING and not table.blocks[row]
            owned += copied
        assert sorted(owned) == list(range(state.kv.host_blocks)), "a host block is lost or has two owners"

    def _residents(self) -> None:
        """Residents are exactly the waiting rows that hold blocks."""
        state, table = self.engine.state, self.engine.state.table
        waiting = [row for row in state.entries if table.status[row] == RequestStatus.WAITING]
        assert set(state.resident) == {row for row in waiting if table.blocks[row]}

    def _preemptions(self, record: BoundaryRecord) -> None:
        """One preemption for each time somebody lost its slot; what is banked never falls."""
        state, table = self.engine.state, self.engine.state.table
        for move in record.transitions:
            if (move.from_status, move.to_status) == (RequestStatus.ACTIVE, RequestStatus.WAITING):
                self.gave_way[move.request] = self.gave_way.get(move.request, 0) + 1
            if move.from_status == move.to_status == RequestStatus.WAITING:
                assert move.request in self.gave_way, "only who has yielded turns"
        for outcome in record.outcomes:
            assert outcome.preemptions == self.gave_way.get(outcome.number, 0)
        counted = [victim.request for victim in record.preempted]
        assert len(counted) == len(set(counted))
        for row, entry in state.entries.items():
            assert table.preemptions[row] == self.gave_way.get(entry.number, 0)
            assert self.engine.view.banked[row] >= self.banked.get(entry.number, 0), "what is banked has fallen"
            self.banked[entry.number] = int(self.engine.view.banked[row])

    def _batch(self, record: BoundaryRecord, batch: Any) -> None:
        state, table = self.engine.state, self.engine.state.table
        if state.loops == 1:
            super()._batch(record, batch)
            return
        assert record.counts is not None
        assert (batch.tokens >= 1).all()
        assert batch.tokens.sum() <= min(state.limits.max_num_batched_tokens, record.counts.budget)
        assert len(batch) == len(np.unique(batch.rows)) <= state.limits.max_num_seqs
        assert (table.status[batch.rows] == RequestStatus.ACTIVE).all()
        assert (table.version[batch.rows] == batch.versions).all() and (table.in_flight[batch.rows] == 1).all()
        assert not {victim.request for victim in record.preempted} & set(batch.numbers.tolist())
        assert {OPERATION_OF[WorkKey(work)] for work in batch.work.tolist()} == {batch.operation}
        assert (batch.work == table.work[batch.rows]).all() and (batch.loop == table.loop[batch.rows]).all()
        coda = batch.operation is Operation.CODA
        assert (batch.start == table.computed[batch.rows] - coda).all() and (batch.samples == coda).all()
        context, ends = table.prompt_tokens[batch.rows] + table.emitted[batch.rows], batch.start + batch.tokens
        assert (ends <= context).all() and (ends <= table.blocks[batch.rows] * state.pool.block_size).all()
        assert (ends[~batch.is_prompt] == context[~batch.is_prompt]).all()
        whole = batch.work == WorkKey.PROMPT_RECURRENT
        assert (batch.tokens[whole] == table.chunk[batch.rows[whole]]).all(), "a chunk in its loops is cut"
        assert ((batch.loop >= 0) & (batch.loop < state.loops)).all()

    def drained(self) -> None:
        super().drained()
        state = self.engine.state
        assert len(state._host) == state.kv.host_blocks and state.rescued is None


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
    watermark: float = 0.0,
    host: int = 4096,
    loops: int = 1,
    exits: Sequence[int] = (),
    split: bool = False,
    simulated: dict[str, Any] | None = None,
    observers: Iterable[object] = (),
    **limits: Any,
) -> Engine:
    """An engine under audit. `stack` holds names, options by name, or `Policy` objects."""
    entries = [{"id": f"R{i}", **request} for i, request in enumerate(requests)]
    config, prototypes = _configured(json.dumps([item for item in stack if not isinstance(item, Policy)] or ["fcfs"]))
    prompt = "split" if split else "atomic"
    most = {"max_num_seqs": S, "max_num_batched_tokens": B, "max_model_len": L, "max_repeat": 1, "prompt": prompt}
    kv = {"num_blocks": N, "block_size": bs, "enable_prefix_caching": caching, "reserve": reserve, "host_blocks": host}
    sections = {
        "engine": EngineSection(**{**most, **limits}),
        "kv": KVSection(**kv, watermark=watermark),
        "workload": validate(WorkloadSection, {"requests": entries}),
    }
    config = config.model_copy(update=sections)
    configured = (_again(policy) for policy in prototypes)
    policies = [item if isinstance(item, Policy) else next(configured) for item in stack]
    model = {"loops": loops, "exit": {"trace": list(exits) or [loops]}} if loops > 1 else {}
    inner = Simulated({"cost": {"constant": {"step_s": 1.0}}, "model": model, **(simulated or {})})
    executor, audit = (Looped if loops > 1 else Paged)(inner, fails), FullAudit()
    assert config.workload is not None
    feed = workload.build(config.workload, base=config.base, seed=config.engine.seed, max_model_len=L)
    engine = Engine(config, policies, executor, feed=feed, observers=[audit, *observers])
    audit.engine = engine
    engine.audit = audit  # type: ignore[attr-defined]
    return engine


def _again(policy: Policy) -> Policy:
    return type(policy)(policy.options)


def run(engine: Engine, at: Callable[[Engine, BoundaryRecord], None] | None = None, most: int = 20_000) -> Play:
    """To the end, of which there is one."""
    boundaries = 0

    def count(engine: Engine, record: BoundaryRecord) -> None:
        nonlocal boundaries
        boundaries += 1
        assert boundaries < most, "it goes on and on"
        if at is not None:
            at(engine, record)

    return Play(engine, count)


def play(*requests: dict[str, Any], at: Callable[[Engine, BoundaryRecord], None] | None = None, **config: Any) -> Play:
    """Run requests to the end. Outputs are compared with those of each request alone, served by a dense model."""
    done = run(engine_of(*requests, **config), at)
    for i, request in enumerate(requests):
        name = request.get("id", f"R{i}")
        outcome, said = done.outcomes[name], done.output(name)
        own = alone(name, request, config.get("L", 64))
        whole = outcome.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        assert said == (own if whole else own[: len(said)])
    return done


def forced(done: Play) -> int:
    """How often progress needed force."""
    return done.engine.stats.rescues["forced"]


def work_of(batch: Any) -> list[tuple[str, int]]:
    """The batch's rows as (work key, tokens)."""
    return [(WorkKey(int(work)).name, int(tokens)) for work, tokens in zip(batch.work, batch.tokens, strict=True)]


def story(done: Play, name: str) -> list[tuple[int, str, int, int]]:
    """What a request ran: (step, work, depth, tokens)."""
    number = next(number for number, other in done.ids.items() if other == name)
    told = []
    for record in done.records:
        batch = record.batch
        for at in [] if batch is None else np.flatnonzero(batch.numbers == number).tolist():
            work = WorkKey(int(batch.work[at])).name
            told.append((round(record.time_s), work, int(batch.loop[at]), int(batch.tokens[at])))
    return told


# -- random small loads


def load(seed: int, *, cancels: bool = True) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Three to eight requests, short of slots, tokens or blocks, though each fits alone; and the engine's settings."""
    dice = random.Random(seed)
    size, shared, most = dice.choice([1, 2, 4]), [dice.randint(1, 99) for _ in range(40)], 0
    requests = []
    for _ in range(dice.randint(3, 8)):
        length, output = dice.randint(1, 24), dice.randint(1, 6)
        own = [dice.randint(1, 5) for _ in range(length)]
        prompt = (shared[: dice.randint(0, length)] + own)[:length]
        more: dict[str, Any] = {"cancel_at": float(dice.randint(0, 40))} if cancels and dice.random() < 0.15 else {}
        requests.append(R(dice.randint(0, 10), prompt, output, dice.randint(0, 3), **more))
        most = max(most, -(-(length + output - 1) // size))
    settings = {
        "bs": size,
        "N": most + dice.choice([0, 0, 1, 2, 5]),
        "S": dice.randint(1, 4),
        "B": dice.choice([2, 4, 6, 16, 64]),
        "reserve": dice.choice(["none", "prompt", "full"]),
        "caching": dice.random() < 0.6,
        "host": dice.choice([0, 3, 1000]),
        "watermark": dice.choice([0.0, 0.0, 0.1]),
        "bypass_limit": dice.choice([0, 0, 2]),
        "scan_limit": dice.choice([1, 64]),
        "long_prefill_token_threshold": dice.choice([0, 0, 4]),
        "max_repeat": dice.choice([None, 1]),
        "progress_window": 64,
    }
    return requests, settings


def looped_settings(seed: int, loops: int) -> dict[str, Any]:
    """A depth and exits at random depths."""
    dice = random.Random(-seed - 1)
    return {"loops": loops, "exits": [dice.randint(1, loops) for _ in range(5)]}
