"""With and without stretches and settled decisions a run is the same: decisions, tokens, blocks, transitions, times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenario import R, engine_of

from interlock.core import (
    BoundaryRecord,
    Engine,
    LivelockError,
    Offer,
    Plan,
    Policy,
    Request,
    SamplingParams,
    View,
    column,
)


class Run(NamedTuple):
    """A run as its single steps tell it."""

    batches: list[Any]
    ends: list[Any]
    transitions: list[Any]
    outcomes: list[Any]
    waits: dict[int, list[Any]]
    preempted: list[Any]
    blocks: list[Any]
    totals: dict[str, dict[int, int]]


class Totals(Policy):
    """Sums over the events, which a stretch tells once."""

    computed_sum = column(np.int64)
    emitted_sum = column(np.int64)

    def __init__(self) -> None:
        super().__init__()
        self.totals: dict[str, dict[int, int]] = {"computed": {}, "emitted": {}}

    def on_result(self, rows: np.ndarray, computed: np.ndarray, emitted: np.ndarray, view: View) -> None:
        self.computed_sum[rows] += computed
        self.emitted_sum[rows] += emitted

    def on_retired(self, rows: np.ndarray, view: View) -> None:
        for row in rows.tolist():
            number = view._state.entries[row].number
            self.totals["computed"][number] = int(self.computed_sum[row])
            self.totals["emitted"][number] = int(self.emitted_sum[row])


def run_of(engine: Engine, totals: Totals) -> tuple[Run, int]:
    """Every step of every stretch on its own, and how many boundaries it took."""
    run = Run([], [], [], [], defaultdict(list), [], [], totals.totals)
    boundaries = 0
    for record in engine.run():
        boundaries += 1
        _note(run, record, engine)
    engine.audit.drained()  # type: ignore[attr-defined]
    return run, boundaries


def _note(run: Run, record: BoundaryRecord, engine: Engine) -> None:
    for collected in record.collected:
        batch, result = collected.batch, collected.result
        starts = [batch.start_ns, *result.ends_ns[:-1].tolist()]
        for at in range(result.runs):
            positions = (batch.start + at).tolist()
            members = list(
                zip(batch.numbers.tolist(), positions, batch.tokens.tolist(), batch.versions.tolist(), strict=True)
            )
            run.batches.append((batch.step + at, starts[at], members))
            run.ends.append((int(result.ends_ns[at]), result.tokens[at].tolist(), collected.delivered[at].tolist()))
    run.transitions.extend(record.transitions)
    run.outcomes.extend(_plain(outcome) for outcome in record.outcomes)
    for wait in record.waits:
        if not run.waits[wait.request] or run.waits[wait.request][-1][1:] != (wait.reason, wait.by):
            run.waits[wait.request].append((record.time_ns, wait.reason, wait.by))
    run.preempted.extend((record.time_ns, *victim) for victim in record.preempted)
    if record.transitions:
        pool = engine.state.pool
        lines = {
            entry.number: pool.table[engine.state.table.holder[row], : engine.state.table.blocks[row]].tolist()
            for row, entry in engine.state.entries.items()
            if engine.state.table.blocks[row]
        }
        run.blocks.append((record.time_ns, lines, pool.queue().tolist(), pool.cached, record.counts))


def _plain(outcome: Any) -> tuple[Any, ...]:
    return tuple(
        value.tolist() if isinstance(value, np.ndarray) else value
        for value in (getattr(outcome, name) for name in outcome.__dataclass_fields__)
    )


class ByPriority(Policy):
    """A policy that says what it reads, and asks for victims."""

    reads = {"priority"}

    def admit(self, offer: Offer, view: View) -> None:
        offer.sort_by("priority")

    def preempt(self, victims: Any, demand: Any, view: View) -> None:
        victims.sort_by("-priority")


class ByTime(Policy):
    """Reads the clock, and says so."""

    reads = {"now", "arrival"}

    def admit(self, offer: Offer, view: View) -> None:
        offer.hold(view.now < view.arrival + 2.0, until=view.arrival + 2.0)


class SaysNothing(Policy):
    """Says nothing of what it reads: each boundary is its own."""

    def select(self, plan: Plan, view: View) -> None:
        plan.sort_by(view.emitted % 3)


class Few(Policy):
    """A decision that holds only while nobody comes or goes."""

    reads = {"tenant", "active"}

    def admit(self, offer: Offer, view: View) -> None:
        offer.limit(1, per="tenant")

    def select(self, plan: Plan, view: View) -> None:
        plan.budget(3, mask=view.tenant == 0)


class ByService(Policy):
    """Its own column moves with each result."""

    reads = {"served"}
    served = column(np.int64)

    def on_result(self, rows: np.ndarray, computed: np.ndarray, emitted: np.ndarray, view: View) -> None:
        self.served[rows] += emitted

    def select(self, plan: Plan, view: View) -> None:
        plan.sort_by("served")
        plan.budget(2)


STACKS: dict[str, Callable[[], list[Any]]] = {
    "fcfs+mixed": lambda: ["fcfs", "mixed"],
    "fcfs": lambda: ["fcfs"],
    "none": list,
    "priority": lambda: [{"priority": {}}, "mixed"],
    "priority, no displacement": lambda: [{"priority": {"displace": False}}, "mixed"],
    "ageing": lambda: [{"priority": {"aging": 0.5}}, "mixed"],
    "decode first": lambda: ["fcfs", {"mixed": {"order": "decode_first"}}],
    "own priority": lambda: [ByPriority(), "mixed"],
    "time": lambda: [ByTime(), "mixed"],
    "says nothing": lambda: [SaysNothing()],
    "parts": lambda: [Few(), "mixed"],
    "service": lambda: [ByService()],
}


def same(requests: list[dict[str, Any]], stack: str, **config: Any) -> tuple[int, int]:
    """Both ways, compared. Returns the boundaries it took, single steps first."""
    told = []
    for repeat in (1, None):
        totals = Totals()
        engine = engine_of(*requests, stack=[*STACKS[stack](), totals], max_repeat=repeat, **config)
        try:
            told.append(run_of(engine, totals))
        except LivelockError as error:
            told.append((str(error), 0))  # type: ignore[arg-type]
    (single, boundaries), (stretched, fewer) = told
    if isinstance(single, Run) and isinstance(stretched, Run):
        for name in Run._fields:
            assert getattr(stretched, name) == getattr(single, name), name
    else:
        assert single == stretched
    return boundaries, fewer


SHARED = [3, 1, 4, 1, 5, 9, 2, 6]


@st.composite
def requests(draw: Any) -> list[dict[str, Any]]:
    """Bursts and gaps, long answers, ends of every kind, some prompts that begin alike."""
    entries = []
    for _ in range(draw(st.integers(1, 7))):
        prompt: Any = draw(st.integers(1, 14))
        if draw(st.booleans()):
            prompt = SHARED[: min(prompt, 8)] + [7] * draw(st.integers(0, 3))
        entry = R(
            draw(st.sampled_from([0, 0, 1, 3, 7.5, 12, 30])), prompt, draw(st.integers(1, 30)), draw(st.integers(0, 2))
        )
        entry["tenant"] = draw(st.sampled_from(["x", "y"]))
        ending = draw(st.sampled_from(["length", "length", "stop", "token", "cancel", "step", "timeout"]))
        if ending == "stop":
            entry |= {
                "output": draw(st.integers(1, 30)),
                "ignore_eos": False,
                "min_tokens": draw(st.sampled_from([0, 0, 5])),
            }
        elif ending == "token":
            entry |= {"stop_token_ids": draw(st.lists(st.integers(1, 32_000), max_size=3))}
        elif ending == "cancel":
            entry["cancel_at"] = entry["arrival"] + draw(st.sampled_from([0.0, 0.5, 4.0, 9.25]))
        elif ending == "step":
            entry["cancel_at_step"] = draw(st.integers(1, 25))
        elif ending == "timeout":
            entry["timeout_s"] = draw(st.sampled_from([0.5, 3.0, 8.5]))
        entries.append(entry)
    return entries


LIMITS = st.fixed_dictionaries(
    {
        "S": st.integers(1, 4),
        "N": st.integers(12, 24),
        "B": st.sampled_from([6, 16, 64]),
        "bs": st.sampled_from([2, 4]),
        "caching": st.booleans(),
        "reserve": st.sampled_from(["none", "prompt", "full"]),
        "watermark": st.sampled_from([0.0, 0.1]),
        "bypass_limit": st.sampled_from([0, 0, 2]),
        "max_preemptions": st.sampled_from([1, 8]),
    }
)


@pytest.mark.parametrize("stack", STACKS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(requests(), LIMITS)
def test_a_run_is_the_same_with_and_without_stretches(
    stack: str, entries: list[dict[str, Any]], limits: dict[str, Any]
) -> None:
    same(entries, stack, **limits)


@pytest.mark.soak
@pytest.mark.parametrize("stack", STACKS)
@given(requests(), LIMITS)
def test_many_runs_are_the_same_with_and_without_stretches(
    stack: str, entries: list[dict[str, Any]], limits: dict[str, Any]
) -> None:
    same(entries, stack, **limits)


@pytest.mark.parametrize("stack", ["fcfs+mixed", "fcfs", "none", "priority", "ageing", "own priority", "decode first"])
def test_a_stretch_takes_few_boundaries(stack: str) -> None:
    """The test above would hold for an engine that never repeats anything."""
    single, stretched = same([R(0, 5, 40), R(0, 6, 50)], stack)
    assert single > 50 and stretched < 12


@pytest.mark.parametrize("stack", ["says nothing", "service", "time"])
def test_what_moves_with_each_step_is_asked_each_time(stack: str) -> None:
    single, stretched = same([R(0, 5, 40), R(0, 6, 50)], stack)
    assert single == stretched


def test_a_stretch_goes_on_beside_a_queue_that_only_waits_for_a_slot() -> None:
    single, stretched = same([R(0, 5, 30), R(0, 6, 30), *[R(1, 4, 3)] * 3], "fcfs+mixed", S=2)
    assert single > 30 and stretched < 20


def test_a_stretch_ends_where_the_next_request_arrives() -> None:
    for arrival in (10.0, 10.5, 11.0):
        same([R(0, 5, 40), R(arrival, 6, 10)], "fcfs+mixed")


def test_a_stretch_ends_before_blocks_run_short() -> None:
    single, stretched = same([R(0, 4, 28), R(0, 4, 28), R(0, 4, 28)], "fcfs+mixed", N=16, bs=4)
    assert stretched < single


def test_a_stretch_is_no_longer_than_max_repeat() -> None:
    def longest(limit: int | None) -> int:
        engine = engine_of(R(0, 4, 40), max_repeat=limit)
        return max(each.result.runs for record in engine.run() for each in record.collected)

    assert [longest(limit) for limit in (1, 5, None)] == [1, 5, 39]


def test_the_tokens_of_a_stretch_are_iterated_one_by_one() -> None:
    engine = engine_of(max_repeat=None)
    handle = engine.submit(Request("a", 4, SamplingParams(max_tokens=20, ignore_eos=True)))
    assert len(list(handle)) == 20


def test_a_listener_hears_of_a_stretch_once() -> None:
    """The batch says how often it may run, the results how often it did."""
    heard: list[tuple[int, int]] = []
    told: list[int] = []

    class Hears(Policy):
        def on_batch(self, batch: Any, view: View) -> None:
            heard.append((batch.step, batch.repeat))

        def on_result(self, rows: np.ndarray, computed: np.ndarray, emitted: np.ndarray, view: View) -> None:
            told.append(int(emitted[0]))

    list(engine_of(R(0, 4, 20), stack=["fcfs", Hears(), "mixed"], max_repeat=None).run())
    assert heard == [(0, 1), (1, 19)] and told == [1, 19]


def _steps(engine: Engine) -> Iterator[int]:
    for record in engine.run():
        for each in record.collected:
            yield from range(each.batch.step, each.batch.step + each.result.runs)


def test_steps_are_numbered_without_gaps() -> None:
    assert list(_steps(engine_of(R(0, 4, 20), R(8, 4, 20), max_repeat=None))) == list(range(28))
