"""The engine's API, driven at random: submit, cancel, step, pause, batches that fail, results that come twice or late.

The model is small: what a handle has said only grows and is what the request says when it is served alone, it ends
exactly once and for a reason that somebody gave, and at the end nothing is left. Two auditors look at each boundary.
"""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pressure import FullAudit, Looped, _again, by_priority
from scenario import MIXED, Paged, _configured, alone

from interlock.core import BatchResult, BoundaryRecord, Engine, FinishReason, Outcome, Request, SamplingParams
from interlock.core.config_sections import EngineSection, KVSection
from interlock.core.handle import Handle
from interlock.executors.simulated.executor import Simulated
from interlock.plugins.audit import Audit

LONGEST = 64
MODES = ("recompute", "yield", "offload")
NAMES = tuple("abcdefgh")  # few, so that ids are used again, and while they are live
DENSE: tuple[tuple[Any, ...], ...] = (
    ("fcfs",),
    MIXED,
    ({"priority": {"aging": 0.5}}, "mixed"),
    *(by_priority(mode, "mixed") for mode in MODES),
)
LOOPED: tuple[tuple[Any, ...], ...] = (
    ("fcfs", "refill"),
    ("fcfs", "no_refill"),
    *(by_priority(mode, "refill") for mode in MODES),
)


class Faults:
    """Mixed into an executor that checks: hands old results out again when it is told to."""

    late = False  # with the next results, one that was collected long ago comes again
    extra = 0  # results that came once too often

    def collect(self, block: bool) -> list[BatchResult]:
        """As the executor does, and what is late."""
        handed: list[BatchResult] = super().collect(block)  # type: ignore[misc]
        known = self.__dict__.setdefault("known", [])
        again = [known[0]] if self.late and known and handed else []
        self.late = self.late and not again
        self.extra += len(again) + len(handed) - len({id(result.ticket) for result in handed})
        known += handed[:1]
        return [*handed, *again]


class FaultyPaged(Faults, Paged):
    """For dense models."""


class FaultyLooped(Faults, Looped):
    """For looped ones."""


class Watch(FullAudit):
    """The invariants of the core's tests. What failed is not banked, so that is compared only while nothing has."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: dict[int, int] = {}  # batches that failed, by request

    def on_boundary(self, record: BoundaryRecord) -> None:
        for collected in record.collected:
            for number in collected.batch.numbers.tolist() if collected.result.error is not None else ():
                self.failed[number] = self.failed.get(number, 0) + 1
        super().on_boundary(record)

    def _preemptions(self, record: BoundaryRecord) -> None:
        if not self.failed:
            super()._preemptions(record)


@dataclass
class Told:
    """A submitted request: what it asked, what may end it, what it has said."""

    handle: Handle
    asked: dict[str, Any]
    wrong: str = ""  # how its rejection begins, where it can never run
    clashes: bool = False  # another had its id while neither had ended: one of them may be refused
    cancelled: bool = False
    said: list[int] = field(default_factory=list)
    outcome: Outcome | None = None

    def own(self) -> list[int]:
        """What it says when it is served alone."""
        return alone(self.handle.request.id, self.asked, LONGEST)


@st.composite
def setups(draw: Any) -> dict[str, Any]:
    """A stack, a model, and limits that are tight."""
    loops = draw(st.sampled_from([1, 1, 3]))
    return {
        "loops": loops,
        "stack": draw(st.sampled_from(DENSE if loops == 1 else LOOPED)),
        "split": loops > 1 and draw(st.booleans()),
        "exits": draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)),
        "engine": {
            "max_num_seqs": draw(st.integers(1, 4)),
            "max_num_batched_tokens": draw(st.integers(2, 24)),
            "bypass_limit": draw(st.sampled_from([0, 0, 2])),
            "max_repeat": draw(st.sampled_from([1, None])),
        },
        "kv": {
            "num_blocks": draw(st.integers(6, 14)),
            "reserve": draw(st.sampled_from(["none", "prompt", "full"])),
            "enable_prefix_caching": draw(st.booleans()),
            "host_blocks": draw(st.sampled_from([0, 4, 64])),
        },
    }


def build(setup: dict[str, Any]) -> Engine:
    """The engine of a set-up, with `watch` and `auditor` on it."""
    loops = setup["loops"]
    config, prototypes = _configured(json.dumps(setup["stack"]))
    prompt = "split" if setup["split"] else "atomic"
    limits = EngineSection(max_model_len=LONGEST, prompt=prompt, **setup["engine"])
    config = config.model_copy(update={"engine": limits, "kv": KVSection(block_size=4, **setup["kv"])})
    model = {"loops": loops, "exit": {"trace": setup["exits"]}} if loops > 1 else {}
    inner = Simulated({"cost": {"constant": {"step_s": 1.0}}, "model": model})
    executor = (FaultyLooped if loops > 1 else FaultyPaged)(inner)
    watch, auditor = Watch(), Audit()
    engine = Engine(config, [_again(policy) for policy in prototypes], executor, observers=[watch, auditor])
    watch.engine = engine
    return engine


class Serving(RuleBasedStateMachine):
    """What callers and a bad device may do to an engine, in any order."""

    @initialize(setup=setups())
    def start(self, setup: dict[str, Any]) -> None:
        """An engine without requests."""
        self.engine = build(setup)
        self.executor: Any = self.engine.executor
        self.watch = next(one.__self__ for one in self.engine.stack._observers["on_boundary"])  # type: ignore[attr-defined]
        self.told: list[Told] = []
        self.answers: list[tuple[str, Future[bool]]] = []
        self.boundaries = 0

    # -- callers

    @rule(
        name=st.sampled_from(NAMES),
        prompt=st.integers(1, 14) | st.lists(st.integers(1, 2), min_size=1, max_size=14),
        output=st.integers(1, 8),
        says=st.none() | st.integers(1, 8),
        priority=st.integers(0, 2),
        delay=st.none() | st.integers(0, 5),
        timeout=st.none() | st.none() | st.integers(1, 20),
    )
    def submit(
        self,
        name: str,
        prompt: int | list[int],
        output: int,
        says: int | None,
        priority: int,
        delay: int | None,
        timeout: int | None,
    ) -> None:
        """Hand in a request that fits alone, now or later."""
        asked = {"prompt": prompt, "max_tokens": output, **({"ignore_eos": True} if says is None else {"output": says})}
        arrival = None if delay is None else self.engine.view.now + delay
        sampling = SamplingParams(max_tokens=output, ignore_eos=says is None)
        request = Request(
            name,
            prompt,
            sampling,
            arrival=arrival,
            priority=priority,
            timeout_s=None if timeout is None else float(timeout),
        )
        others = [one for one in self.told if one.handle.request.id == name and one.outcome is None]
        for one in others:
            one.clashes = True
        self.told.append(Told(self.engine.submit(request, output=says), asked, clashes=bool(others)))

    @rule(name=st.sampled_from(NAMES), blocks=st.booleans())
    def submit_too_much(self, name: str, blocks: bool) -> None:
        """Hand in a request that no context, or no pool, has room for."""
        prompt, wrong = (4 * 14 + 1, "never_fits") if blocks else (LONGEST, "exceeds_context")
        asked = {"prompt": prompt, "max_tokens": 1}
        handle = self.engine.submit(Request(name, prompt, SamplingParams(max_tokens=1)))
        self.told.append(Told(handle, asked, wrong=wrong, clashes=True))

    @rule(name=st.sampled_from(NAMES))
    def cancel(self, name: str) -> None:
        """End whoever has this id."""
        self.answers.append((name, self.engine.cancel(name)))
        for one in self.told:
            one.cancelled |= one.handle.request.id == name and one.outcome is None

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        """Some boundaries. Each answers the cancellations that came before it."""
        for _ in range(count):
            self.boundaries += 1
            drained = self.engine.step() is None
            assert all(answer.done() for _, answer in self.answers)
            if drained:
                assert not self.engine.state.rows, "nobody is left behind"

    @rule()
    @precondition(lambda self: self.told)
    def pause(self) -> None:
        """Nobody drives: nothing moves, though handles are asked."""
        before = self.engine.view.now, self.engine.view.step
        assert [one.handle.token_ids for one in self.told] == [one.said for one in self.told]
        assert (self.engine.view.now, self.engine.view.step) == before

    # -- the device

    @rule(following=st.booleans())
    def fail(self, following: bool) -> None:
        """The batch that is out fails, or the one after it."""
        number = self.executor.submitted - 1 + following
        self.executor.fails |= {max(number, 0)}

    @rule()
    def repeat_result(self) -> None:
        """The result of the batch that is out is handed out twice."""
        self.executor.twice |= {max(self.executor.submitted - 1, 0)}

    @rule()
    def late_result(self) -> None:
        """A result that was collected long ago comes again."""
        self.executor.late = True

    # -- what must hold

    @invariant()
    def handles_tell_the_truth(self) -> None:
        """Tokens only grow, and an end comes once."""
        for one in getattr(self, "told", ()):
            self._tokens_only_grow(one)
            self._ends_once(one)

    def _tokens_only_grow(self, one: Told) -> None:
        """What was said stays said, and is what the request says alone."""
        said = one.handle.token_ids
        assert said[: len(one.said)] == one.said, "a token was taken back"
        if len(said) > len(one.said):
            assert said == one.own()[: len(said)], "not what it says alone"
        one.said = said

    def _ends_once(self, one: Told) -> None:
        """An outcome comes once, has what was said, and somebody gave the reason."""
        outcome = one.handle.outcome
        assert one.outcome is None or one.outcome is outcome, "a second end"
        if outcome is not None and one.outcome is None:
            assert outcome.output_ids.tolist() == one.said
            self._judge(one, outcome)
        one.outcome = outcome

    def _judge(self, one: Told, outcome: Outcome) -> None:
        reason = outcome.finish_reason
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert one.said == one.own() and not one.wrong
        elif reason is FinishReason.REJECTED:
            why = outcome.reject_reason or ""
            assert (one.wrong and why.startswith(one.wrong)) or (one.clashes and why == "duplicate_id")
        elif reason is FinishReason.CANCELLED:
            assert one.cancelled
        elif reason is FinishReason.TIMEOUT:
            assert one.handle.request.timeout_s is not None
        else:
            assert reason is FinishReason.ERROR and self.watch.failed.get(outcome.number, 0) >= 2

    @invariant()
    def excess_results_are_refused(self) -> None:
        """Every result that came once too often was refused and counted."""
        if hasattr(self, "engine"):
            assert self.engine.stats.refused_results == self.executor.extra

    def teardown(self) -> None:
        """The device is well again, and everybody comes to an end."""
        if not hasattr(self, "engine"):
            return
        self.executor.fails, self.executor.twice = frozenset(), frozenset()
        for _ in range(3000):
            if self.engine.step() is None:
                break
        else:
            raise AssertionError("it goes on and on")
        self.handles_tell_the_truth()
        assert all(one.outcome is not None for one in self.told)
        ends = [one.outcome.finish_reason for one in self.told if one.outcome is not None]
        assert ends.count(FinishReason.CANCELLED) == sum(answer.result(0) for _, answer in self.answers)
        assert len(self.watch.outcomes) == len(self.told)
        self.watch.drained()
        self.engine.stop()


class TestServing(Serving.TestCase):  # type: ignore[misc]
    """A minute's worth in `make test`."""

    settings = settings(derandomize=True, deadline=None, max_examples=60, stateful_step_count=30, database=None)


@pytest.mark.soak
class TestServingLong(Serving.TestCase):  # type: ignore[misc]
    """Longer stories, and many more of them."""

    settings = settings(deadline=None, max_examples=1500, stateful_step_count=60)
