"""The engine: one turn is one boundary. `Engine.boundary` reads like the section of that name in docs/design.md."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from interlock.core.batch import Batch, Ticket
from interlock.core.clock import Clock, VirtualClock, WallClock
from interlock.core.collector import Collector
from interlock.core.commit import Committer
from interlock.core.config import EngineConfig
from interlock.core.draft import Draft
from interlock.core.errors import InterlockError
from interlock.core.executor import Capability, Executor, ExecutorConfig
from interlock.core.feed import Arrival, Feed
from interlock.core.handle import Handle
from interlock.core.ingest import Ingest, NoFeed
from interlock.core.lifecycle import Lifecycle
from interlock.core.planner import Planner
from interlock.core.policy import Policy
from interlock.core.progress import Progress
from interlock.core.record import BoundaryRecord, Counts
from interlock.core.request import FinishReason, Request
from interlock.core.requirements import fitted, refuse_what_is_missing
from interlock.core.rules import Broken, check, check_again
from interlock.core.settled import Settled
from interlock.core.stack import Stack
from interlock.core.state import State
from interlock.core.stats import Stats
from interlock.core.stretch import Stretches, foresee_blocks
from interlock.core.text import Tokenizer, tokenizer_of
from interlock.core.view import View
from interlock.core.waits import Waits

_END_OF_TIME = 2.0**62  # nanoseconds; a hold until later than this is until then


class Engine:
    """Runs requests on an executor under a stack of policies.

    `submit` and `cancel` may be called from any thread; they take effect at the next boundary. Everything else belongs
    to the thread that runs the engine.
    """

    def __init__(
        self,
        config: EngineConfig,
        policies: Sequence[Policy],
        executor: Executor,
        *,
        feed: Feed | None = None,
        observers: Iterable[object] = (),
    ) -> None:
        self.config = config = fitted(config, executor)
        self.executor, limits = executor, config.engine
        refuse_what_is_missing(config, policies, executor)
        self.state = State(limits, config.kv, executor.capabilities)
        self.stack = Stack(policies, observers, repair=limits.on_violation == "repair", warn_s=limits.hook_warn_s)
        self.stack.attach(self.state.table)
        self.view = View(self.state)
        self.lifecycle = Lifecycle(self.state, self.stack, self.view)
        self.ingest = Ingest(self.state, self.stack, self.view, self.lifecycle, executor, feed or NoFeed())
        self.collector = Collector(
            self.state, self.stack, self.view, self.lifecycle, executor.capabilities.eos_token_ids
        )
        self.planner = Planner(self.state, self.stack, self.view, executor.capabilities)
        self.committer = Committer(self.state, self.stack, self.view, self.lifecycle)
        self.waits = Waits(self.state, self.stack)
        features = executor.capabilities.features
        self.clock: Clock = VirtualClock() if Capability.VIRTUAL_TIME in features else WallClock()
        self.stretches = Stretches(self.state, self.stack, limits.max_repeat if Capability.STRETCH in features else 1)
        self.stats = Stats(self.stack, self.lifecycle)
        self.progress = Progress(self.state, self.stats, repair=self.stack.repair)
        if Capability.STEP_COST in features:
            self.state.step_s = executor.step_s
        self._published: dict[int, list[np.ndarray]] = {}  # by ticket: blocks that it fills
        self._tickets: dict[int, Ticket] = {}
        self._driver = threading.RLock()
        self._turning = False  # inside a boundary
        self._started = self._stopped = self._told_stop = False

    @classmethod
    def from_config(
        cls,
        source: EngineConfig | str | Path | Mapping[str, Any],
        *,
        policies: Sequence[Policy] | None = None,
        observers: Iterable[object] = (),
        overrides: Sequence[str] = (),
    ) -> Engine:
        """The engine that a configuration describes: a path, the name of a packaged one, a mapping, or one loaded.

        `policies` replaces the configured stack. Raises ConfigError.
        """
        config = source if isinstance(source, EngineConfig) else EngineConfig.load(source, overrides=overrides)
        if policies is None:
            policies = config.build_policies()
        executor = config.build_executor()
        config = fitted(config, executor)
        feed = config.build_feed(tokenizer_of(executor)) if config.workload is not None else None
        return cls(config, policies, executor, feed=feed, observers=[*config.build_plugins(), *observers])

    # -- callers

    def submit(self, request: Request, *, output: int | None = None) -> Handle:
        """Hand in a request; its handle iterates its tokens. `output` is where a simulated model ends by itself."""
        if isinstance(request.prompt, str):
            raise InterlockError("a prompt is token ids or their number; text: engine.tokenizer.encode(text)")
        handle = Handle(request, self)
        at_ns = self.clock.stamp_ns() if request.arrival is None else round(request.arrival * 1e9)
        self.ingest.post((Arrival(request, -1 if at_ns is None else at_ns, output), handle))
        return handle

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, to make prompts of text (`encode`); None where the executor has none."""
        return tokenizer_of(self.executor)

    def cancel(self, request_id: str) -> Future[bool]:
        """End a request. The answer comes at the next boundary: False when there was nothing to cancel."""
        answer: Future[bool] = Future()
        self.ingest.post((request_id, answer))
        return answer

    # -- running

    def run(self) -> Iterator[BoundaryRecord]:
        """Boundary by boundary until nothing is left to do. Observers' `on_stop` is called however the run ends.

        The executor keeps what it has: more requests may be submitted and run, until `stop`.
        """
        try:
            while (record := self.step()) is not None:
                yield record
        finally:
            self._tell_stop()

    def step(self) -> BoundaryRecord | None:
        """One boundary; None when nothing is left to do. Lets the clock pass to the next event where nothing runs."""
        with self._driver:
            if self._turning:
                raise InterlockError(
                    "the engine cannot be driven from inside a boundary: a hook or observer iterates a handle"
                )
            self._turning = True
            try:
                self._start()
                record = self.boundary()
            finally:
                self._turning = False
            drained = record.batch is None and not self._tickets and not self._pass_time()
        with self.ingest.news:
            self.ingest.news.notify_all()
        return None if drained and not _tells(record) else record

    def boundary(self) -> BoundaryRecord:
        """One turn of the engine: collect, ingest, retire, plan, commit, submit."""
        results = self.executor.collect(block=bool(self._tickets))
        started = time.perf_counter_ns()
        state = self.state
        for result in results:
            self.clock.advance_to(int(result.ends_ns[-1]))
        state.now_ns = self.clock.now_ns()
        self.lifecycle.record = record = BoundaryRecord(state.step, state.now_ns)
        self._collect(results)
        record.step = state.step  # a stretch that was collected ran several steps
        self.ingest.run()
        self._retire()
        try:
            draft = self._plan_with_progress()
            batch = self._commit(draft)
        except Exception:
            record.counts = self._counts(None)
            self.waits.note(record, None, self.planner)
            self.stack.observe("on_boundary", record)  # what was collected and ingested has happened
            raise
        record.counts = self._counts(draft)
        if draft is None or draft.settled is None:
            self.waits.note(record, draft, self.planner)
        self._submit(batch, draft)
        record.batch = batch
        self.progress.note(record)
        record.host_ns = time.perf_counter_ns() - started
        self.stats.note(record)
        self.stack.observe("on_boundary", record)
        self.stack.raise_deferred()
        return record

    def stop(self) -> None:
        """Release the executor and tell the observers. Idempotent."""
        if self._started and not self._stopped:
            self._stopped = True
            self.executor.stop()
        self._tell_stop()

    def _tell_stop(self) -> None:
        if self._started and not self._told_stop:
            self._told_stop = True
            self.stack.observe("on_stop")

    # -- the stages

    def _collect(self, results: Sequence[Any]) -> None:
        for result in results:
            if self._tickets.pop(result.ticket.id, None) is None:
                self.stats.refused_results += 1
                continue
            published = self._published.pop(result.ticket.id)
            self.state.step += result.runs - 1
            if result.error is not None:
                self.planner.settled = None
                self.collector.fail(result, published)
            else:
                self.collector.apply(result, self._settled_as(result.ticket.batch))
        self.state.tickets = list(self._tickets.values())
        self.progress.collected(self.lifecycle.record.collected)

    def _settled_as(self, batch: Batch) -> Settled | None:
        """The decision that this batch repeats, if its dense arrays are kept."""
        settled = self.planner.settled
        return settled if settled is not None and settled.dense and settled.rows is batch.rows else None

    def _retire(self) -> None:
        state = self.state
        if self.lifecycle.leaving:
            state.drop_inactive()
            self.lifecycle.retire()
            if self.lifecycle.retired:
                self.executor.forget(np.array(self.lifecycle.retired, np.intp))
                self.lifecycle.retired = []

    def _plan_with_progress(self) -> Draft | None:
        """The plan, after a rescue where progress needs force."""
        if self.progress.overdue():
            self.progress.rescue(f"nothing was banked in {self.config.engine.progress_window} boundaries and more")
        draft = self._plan()
        while draft is None and self._stalled():
            self.progress.rescue("no batch forms and nothing is in flight")
            draft = self._plan()
        return draft

    def _stalled(self) -> bool:
        """Whether somebody could run and nobody will.

        A hold that ends at a time is no stall, nor is waiting for time-outs alone; rejections are progress.
        """
        state = self.state
        if self._tickets or self.planner.rejected or not np.isinf(self.planner.hold_until_s) or self.ingest.all_timed:
            return False
        return len(state.waiting) > 0 or len(state.active) > 0

    def _plan(self) -> Draft | None:
        """A draft that keeps the rules, its blocks taken; under `repair`, rows that break one leave it."""
        excluded: frozenset[int] = frozenset()
        while True:
            self.state.pool.begin()
            self.state.pool.expire(self.state.now_ns)
            try:
                draft = self.planner.plan(excluded)
                if draft is not None and draft.settled is not None:
                    check_again(draft, draft.settled.rows, draft.settled.versions, self.state)
                elif draft is not None:
                    check(draft, *draft.batch(), self.state, self.executor.capabilities)
                return draft
            except Broken as broken:
                self.state.pool.undo()
                self.planner.settled = None
                if not self.stack.repair or set(broken.rows) <= excluded:
                    raise
                self.stack.count(broken)
                self.stats.rescues["repaired"] += 1
                excluded |= set(broken.rows)
            except BaseException:
                self.state.pool.undo()
                self.planner.settled = None
                raise

    def _commit(self, draft: Draft | None) -> Batch | None:
        """The draft changes the state; those whom `admit` rejected end."""
        rejected = list(self.planner.rejected.items())
        if draft is None:
            batch = None
        elif draft.settled is not None:
            return self._stretched(self.committer.commit_again(draft, draft.settled))
        else:
            rows, tokens = draft.batch()
            steady = not rejected and self.stretches.steady(draft, rows)
            batch = self.committer.commit(draft, rows, tokens)
            self._move_kv(draft)
            if steady:
                self.planner.settled = Settled(self.state, draft, batch)
                batch = self._stretched(batch)
        for row, reason in rejected:
            self.lifecycle.finish(row, FinishReason.REJECTED, reason)
        self.lifecycle.tell_finished()
        return batch

    def _move_kv(self, draft: Draft) -> None:
        """Tell the executor who gave way and who is back, with the copies that this takes."""
        lifecycle, table = self.lifecycle, self.state.table
        if draft.victims:
            rows = np.array([victim.row for victim in draft.victims], np.intp)
            self.executor.suspend(rows, [victim.mode for victim in draft.victims], lifecycle.copies_out)
            lifecycle.copies_out = []
        back = [entrant.row for entrant in draft.entrants if table.preemptions[entrant.row]]
        if back:
            self.executor.resume(np.array(back, np.intp), lifecycle.copies_in)
            lifecycle.copies_in = []

    def _stretched(self, batch: Batch) -> Batch:
        """The batch of a decision that holds, to be run as often as it does."""
        repeat = self.stretches.repeat(batch, self.ingest.feed.next_step())
        if repeat == 1:
            return batch
        until_ns = self.ingest.next_ns()
        if until_ns is not None and until_ns <= self.state.now_ns:
            return batch
        batch = replace(batch, repeat=repeat, until_ns=until_ns)
        foresee_blocks(self.state, batch)
        return batch

    def _submit(self, batch: Batch | None, draft: Draft | None) -> None:
        if batch is None or draft is None:
            return
        if self.stack.implements("on_batch"):
            self.stack.tell("on_batch", batch, self.view)
        ticket = self.executor.submit(batch)
        self._tickets[ticket.id] = ticket
        self._published[ticket.id] = draft.published
        self.state.tickets = list(self._tickets.values())
        self.state.last_operation = batch.operation
        self.state.step += 1

    def _counts(self, draft: Draft | None) -> Counts:
        state, pool = self.state, self.state.pool
        cached, used = pool.cached, pool.used
        repeats = draft is not None and draft.settled is not None and state.kv.reserve != "full"
        # Rows that decode again hold all that they were promised for what is known of them.
        reserved = used if repeats else used + int(state.promised(state.active).sum())
        budget = state.limits.max_num_batched_tokens if draft is None else draft.limits.total
        return Counts(
            len(state.active), len(state.waiting), pool.available - cached, cached, used, pool.fenced, reserved, budget
        )

    # -- time

    def _start(self) -> None:
        if not self._started:
            self._started = True
            limits = self.state.limits
            self.executor.start(
                ExecutorConfig(
                    limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len,
                    self.state.pool.num_blocks, self.state.pool.block_size, limits.prompt, limits.seed,
                    self.clock.now_ns,
                )
            )  # fmt: skip
            self.stack.tell("on_start", self.view)
            self.stack.raise_deferred()
            self.stack.observe("on_start", self.view)
            self.clock.begin()

    def _pass_time(self) -> bool:
        """Nothing runs: go to the next event. False when there is none and nobody is left."""
        state = self.state
        if self.ingest.posted or self.lifecycle.leaving or self.lifecycle.finished_ids:
            return True
        times = [time for time in (self.ingest.next_ns(), self._hold_ends_ns()) if time is not None]
        if times:
            self.clock.wait_until(max(min(times), state.now_ns), self.ingest.news)
            return True
        return bool(self.planner.rejected)

    def _hold_ends_ns(self) -> int | None:
        held = self.planner.hold_until_s
        return None if np.isinf(held) else int(min(np.ceil(held * 1e9), _END_OF_TIME))

    # -- handles

    def _delivered(self, handle: Handle) -> list[int]:
        with self._driver:
            if handle.outcome is not None:
                return [int(token) for token in handle.outcome.output_ids]
            row, state = handle._row, self.state
            if row < 0 or not state.table.emitted[row]:
                return []
            prompt, emitted = int(state.table.prompt_tokens[row]), int(state.table.emitted[row])
            return [int(token) for token in state.context[state.table.holder[row], prompt : prompt + emitted]]

    def _drive_or_wait(self) -> None:
        """One boundary, or, while another thread drives, a short wait for news."""
        if self._driver.acquire(blocking=False):
            self._driver.release()
            if self.step() is None:
                with self.ingest.news:
                    self.ingest.news.wait(0.05)
        else:
            with self.ingest.news:
                self.ingest.news.wait(0.05)


def _tells(record: BoundaryRecord) -> bool:
    """Whether anything happened at this boundary."""
    return bool(record.collected or record.transitions or record.outcomes)
