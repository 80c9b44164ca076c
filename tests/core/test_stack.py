"""Policies in a stack: which methods are called and when, what wrong ones lead to, and that the engine stays whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scenario import R, engine_of, play
from structlog.testing import capture_logs

from interlock.core import (
    Batch,
    BoundaryRecord,
    ConfigError,
    Demand,
    Engine,
    HookError,
    Offer,
    Plan,
    Policy,
    PolicyViolation,
    PreemptMode,
    Request,
    SamplingParams,
    Victims,
    View,
    column,
)
from interlock.core.errors import ExecutorError
from interlock.core.policy import EVENTS, HOOKS
from interlock.core.request import RequestStatus
from interlock.core.stack import Stack
from interlock.policies.fcfs import Fcfs
from interlock.policies.mixed import Mixed

BUSY = [R(0, 6, 4, 3), R(0, 5, 3, 3), R(1, 4, 2, 3), R(2, 7, 3, 1), R(4, 3, 2, 0)]
"""Displacements, growth and a queue, in few slots and blocks."""
TIGHT: dict[str, Any] = {"S": 2, "N": 6, "bs": 4}


LIFE = ("on_arrival", "on_finished", "on_retired")


class Log(Policy):
    """Writes down each call with its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, str, tuple[Any, ...]]] = []

    def _log(self, name: str, view: View, *arguments: Any) -> None:
        self.calls.append((view.step, name, arguments))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """Arguments of the calls of one hook or event."""
        return [arguments for _, called, arguments in self.calls if called == name]

    def admit(self, offer: Any, view: View) -> None:
        self._log("admit", view)

    def select(self, plan: Any, view: View) -> None:
        self._log("select", view)

    def preempt(self, victims: Any, demand: Any, view: View) -> None:
        victims.sort_by("-priority")
        self._log("preempt", view, demand)

    def release(self, retention: Any, view: View) -> None:
        self._log("release", view, retention.rows.tolist())

    def on_start(self, view: View) -> None:
        self._log("on_start", view)

    def on_arrival(self, rows: np.ndarray, view: View) -> None:
        assert (view.status[rows] == RequestStatus.WAITING).all()
        self._log("on_arrival", view, [view.request(row).id for row in rows])

    def on_admitted(self, rows: np.ndarray, view: View) -> None:
        assert (view.status[rows] == RequestStatus.ACTIVE).all() and (view.slot[rows] >= 0).all()
        self._log("on_admitted", view, [view.request(row).id for row in rows])

    def on_batch(self, batch: Batch, view: View) -> None:
        assert (view.in_flight[batch.rows] == 1).all()
        self._log("on_batch", view, batch)

    def on_result(self, rows: np.ndarray, computed: np.ndarray, emitted: np.ndarray, view: View) -> None:
        assert len(rows) == len(computed) == len(emitted)
        each = zip([view.request(row).id for row in rows], computed.tolist(), emitted.tolist(), strict=True)
        self._log("on_result", view, {name: (int(c), int(e)) for name, c, e in each})

    def on_preempted(self, rows: np.ndarray, modes: np.ndarray, view: View) -> None:
        assert (view.status[rows] == RequestStatus.WAITING).all() and (view.slot[rows] == -1).all()
        self._log("on_preempted", view, [view.request(row).id for row in rows], list(modes))

    def on_finished(self, rows: np.ndarray, view: View) -> None:
        assert (view.status[rows] == RequestStatus.FINISHED).all()
        self._log("on_finished", view, [view.request(row).id for row in rows])

    def on_retired(self, rows: np.ndarray, view: View) -> None:
        self._log("on_retired", view, [view.request(row).id for row in rows])

    def on_batch_failed(self, batch: Batch, view: View) -> None:
        self._log("on_batch_failed", view, batch)


# -- who is called, and when


def test_only_what_is_overridden_is_a_hook() -> None:
    class One(Policy):
        def admit(self, offer: Offer, view: View) -> None:
            pass

        def on_result(self, rows: np.ndarray, computed: np.ndarray, emitted: np.ndarray, view: View) -> None:
            pass

    class Two(One):
        def select(self, plan: Plan, view: View) -> None:
            pass

    assert (
        Policy.hooks() == ()
        and One.hooks() == ("admit", "on_result")
        and Two.hooks() == ("admit", "select", "on_result")
    )
    stack = Stack([One(), Two()], [], repair=False, warn_s=1.0)
    assert [hook for hook in HOOKS + EVENTS if stack.implements(hook)] == ["admit", "select", "on_result"]
    assert stack.author_of("admit") == "two" and stack.author_of("preempt") == ""


def test_a_hook_left_alone_is_never_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*arguments: Any) -> None:
        raise AssertionError("a hook that nobody overrides was called")

    class Nothing(Policy):
        pass

    hooks = Nothing.hooks()
    for name in HOOKS + EVENTS:
        monkeypatch.setattr(Nothing, name, getattr(Policy, name))
    nothing = Nothing()
    for name in HOOKS + EVENTS:
        monkeypatch.setitem(vars(nothing), name, called)
    assert hooks == ()
    play(*BUSY, stack=[nothing], **TIGHT)


@pytest.mark.parametrize("stack", [[Log], [Log, "mixed"], ["fcfs", Log]])
def test_each_hook_is_called_at_most_once_per_boundary(stack: list[Any]) -> None:
    """`preempt` once for each requester; events once for each thing that happened, with rows as arrays."""
    log, counts = Log(), list[Counter[str]]()
    engine = engine_of(*BUSY, stack=[log if each is Log else each for each in stack], **TIGHT)
    while True:
        before = len(log.calls)
        record = engine.step()
        if record is None:
            break
        new = log.calls[before:]
        counts.append(Counter(name for _, name, _ in new if name != "preempt"))
        assert all(count == 1 for count in counts[-1].values()), counts[-1]
        asked = [arguments[0].row for _, name, arguments in new if name == "preempt"]
        assert len(asked) == len(set(asked)), "one requester was asked for twice"
    seen = sum(counts, Counter())
    assert set(seen) >= set(HOOKS + EVENTS) - {"preempt", "on_batch_failed"}, "the case has all of it"
    assert log.of("preempt"), "and demands"


def test_events_come_in_the_order_of_the_boundary() -> None:
    log = Log()
    list(engine_of(R(0, 4, 2), R(1, 4, 1), stack=[log], S=1).run())
    names = [name for _, name, _ in log.calls]
    assert names == [
        "on_start", "on_arrival", "admit", "select", "on_admitted", "on_batch",
        "on_result", "on_arrival", "admit", "preempt", "select", "on_batch",
        "on_result", "on_finished", "release", "on_retired", "admit", "select", "on_admitted", "on_batch",
        "on_result", "on_finished", "release", "on_retired",
    ] or names == [
        "on_start", "on_arrival", "admit", "select", "on_admitted", "on_batch",
        "on_result", "on_arrival", "admit", "select", "preempt", "on_batch",
        "on_result", "on_finished", "release", "on_retired", "admit", "select", "on_admitted", "on_batch",
        "on_result", "on_finished", "release", "on_retired",
    ]  # fmt: skip


def test_results_are_told_as_tokens_newly_valid_and_newly_delivered() -> None:
    log = Log()
    list(engine_of(R(0, 7, 3), R(0, 4, 2), stack=[log, "mixed"], B=6).run())
    assert [result for (result,) in log.of("on_result")] == [
        {"R0": (6, 0)},
        {"R0": (1, 1), "R1": (4, 1)},
        {"R0": (1, 1), "R1": (1, 1)},
        {"R0": (1, 1)},
    ]


def test_the_sums_of_the_results_are_what_was_run_and_delivered() -> None:
    for repeat in (1, None):
        log = Log()
        run = play(*BUSY, stack=[log], max_repeat=repeat, **TIGHT)
        emitted, computed = Counter[str](), Counter[str]()
        for (result,) in log.of("on_result"):
            for name, (valid, delivered) in result.items():
                computed[name] += valid
                emitted[name] += delivered
        for name, outcome in run.outcomes.items():
            assert emitted[name] == len(outcome.output_ids)
            assert computed[name] == outcome.prompt_tokens + len(outcome.output_ids) - 1 + outcome.recomputed_tokens


def test_every_request_is_told_once_from_arrival_to_retirement() -> None:
    log = Log()
    run = play(*BUSY, stack=[log], **TIGHT)
    for event in ("on_arrival", "on_finished", "on_retired"):
        told = [name for arguments in log.of(event) for name in arguments[0]]
        assert sorted(told) == sorted(run.outcomes), event
    admitted = Counter(name for (names,) in log.of("on_admitted") for name in names)
    preempted = Counter(name for names, _ in log.of("on_preempted") for name in names)
    assert preempted and all(admitted[name] == 1 + preempted[name] for name in run.outcomes)
    assert {mode for _, modes in log.of("on_preempted") for mode in modes} == {PreemptMode.RECOMPUTE}


@pytest.mark.parametrize(
    "ending",
    [
        {"request": R(0, 4, 9), "cancel": True},
        {"request": R(0, 4, 9, timeout_s=2.5)},
        {"request": R(0, 4, 9), "reject": True},
        {"request": R(0, 4, 9), "fails": [1, 2]},
    ],
    ids=["cancelled", "timeout", "rejected by a policy", "error"],
)
def test_every_kind_of_end_is_told(ending: dict[str, Any]) -> None:
    """A row that arrived is told to finish and to retire, whatever ends it; one that was not told to arrive is not."""

    class Rejects(Policy):
        def admit(self, offer: Offer, view: View) -> None:
            if ending.get("reject"):
                offer.reject(np.ones(len(offer.rows), bool), "no")

    log = Log()
    engine = engine_of(ending["request"], stack=[log, Rejects()], fails=ending.get("fails", ()))
    for step in range(30):
        if step == 2 and ending.get("cancel"):
            engine.cancel("R0")
        if engine.step() is None:
            break
    told = {
        event: [name for args in log.of(event) for name in args[0]]
        for event in ("on_arrival", "on_finished", "on_retired")
    }
    assert told["on_arrival"] == told["on_finished"] == told["on_retired"]
    assert told["on_finished"] == ["R0"]


def test_a_request_for_no_tokens_ends_at_the_door() -> None:
    log = Log()
    engine = engine_of(R(0, 4, 1), stack=[log])
    handle = engine.submit(Request("none", 4, SamplingParams(max_tokens=0)))
    list(engine.run())
    told = {event: sorted(name for args in log.of(event) for name in args[0]) for event in LIFE}
    assert told["on_arrival"] == told["on_finished"] == told["on_retired"]
    assert handle.finish_reason == "length" and handle.token_ids == []


def test_a_request_cancelled_where_it_arrives_is_not_told_as_waiting() -> None:
    log = Log()
    engine = engine_of(R(0, 4, 4, cancel_at=0.0), R(0, 4, 1), stack=[log])
    list(engine.run())
    told = {
        event: [name for args in log.of(event) for name in args[0]]
        for event in ("on_arrival", "on_finished", "on_retired")
    }
    assert told["on_arrival"] == told["on_finished"] == told["on_retired"]


def test_a_failed_batch_is_told() -> None:
    log = Log()
    list(engine_of(R(0, 4, 2), stack=[log], fails=[1]).run())
    assert [batch.step for (batch,) in log.of("on_batch_failed")] == [1]


def test_policies_edit_in_the_order_of_the_stack_and_listen_in_it() -> None:
    heard: list[str] = []

    class Hears(Policy):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def admit(self, offer: Offer, view: View) -> None:
            heard.append(f"{self.name}.admit")

        def on_arrival(self, rows: np.ndarray, view: View) -> None:
            heard.append(f"{self.name}.on_arrival")

    engine_of(R(0, 4, 2), stack=[Hears("x"), Hears("a"), Hears("m")]).step()
    assert heard == ["x.on_arrival", "a.on_arrival", "m.on_arrival", "x.admit", "a.admit", "m.admit"]


# -- what a stack refuses


def with_method(name: str, *parameters: str) -> Policy:
    """A policy with one method of these parameters."""
    scope: dict[str, Any] = {}
    exec(f"def {name}({', '.join(('self', *parameters))}): pass", scope)
    return type("Wrong", (Policy,), {name: scope[name]})()


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ([Fcfs(), Fcfs()], "'fcfs' is in the stack twice"),
        ([with_method("admit", "offer")], r"Wrong.admit takes \(offer\); allowed: \(offer, view\)"),
        ([with_method("admit", "view", "offer")], r"allowed: \(offer, view\)"),
        ([with_method("select", "plan", "view", "extra")], r"allowed: \(plan, view\)"),
        ([with_method("preempt", "victims", "view")], r"allowed: \(victims, demand, view\)"),
        ([with_method("on_result", "rows", "view")], r"allowed: \(rows, computed, emitted, view\)"),
        ([with_method("on_start")], r"on_start takes \(\); allowed: \(view\)"),
        ([with_method("admitt", "offer", "view")], "no hook 'admitt'; did you mean 'admit'"),
        ([with_method("preemt", "victims", "demand", "view")], "no hook 'preemt'; did you mean 'preempt'"),
        ([with_method("on_finish", "rows", "view")], "no event 'on_finish'; did you mean 'on_finished'"),
        ([with_method("on_boundary", "record")], "no event 'on_boundary'"),
    ],
)  # fmt: skip
def test_wrong_policies_are_refused_in_one_line(policies: list[Policy], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Stack(policies, [], repair=False, warn_s=1.0)
    assert "\n" not in str(caught.value)


def test_misspelt_hooks_of_a_base_class_are_refused_too() -> None:
    class Child(type(with_method("on_finish", "rows", "view"))):  # type: ignore[misc]
        pass

    with pytest.raises(ConfigError, match="no event 'on_finish'"):
        Stack([Child()], [], repair=False, warn_s=1.0)


def test_helpers_of_a_policy_are_no_hooks() -> None:
    class Fine(Policy):
        limit = 3

        def standing(self, view: View) -> np.ndarray:
            return np.asarray(view.priority)

        def _admits(self) -> None:
            pass

    Stack([Fine()], [], repair=False, warn_s=1.0)


def test_wrong_observers_are_refused_in_one_line() -> None:
    class Wrong:
        def on_boundary(self, rec: BoundaryRecord) -> None:
            pass

    with pytest.raises(ConfigError, match="rec") as caught:
        Stack([], [Wrong()], repair=False, warn_s=1.0)
    assert "\n" not in str(caught.value)


def test_a_policy_that_needs_what_the_backend_lacks_is_refused() -> None:
    class Needs(Policy):
        requires = {"looped"}  # type: ignore[assignment]  # a capability's value

    with pytest.raises(ConfigError, match="'needs' requires looped, which executor 'simulated' lacks") as caught:
        engine_of(R(0, 4, 1), stack=[Needs()])
    assert "\n" not in str(caught.value)


def test_what_a_stack_reads_is_the_union_and_everything_where_one_does_not_say() -> None:
    class Says(Policy):
        reads = {"priority"}

        def admit(self, offer: Offer, view: View) -> None:
            pass

    class ByHook(Policy):
        reads = {"admit": {"arrival"}}

        def admit(self, offer: Offer, view: View) -> None:
            pass

        def select(self, plan: Plan, view: View) -> None:
            pass

    stack = Stack([Says(), ByHook()], [], repair=False, warn_s=1.0)
    assert stack.reads("admit") == {"priority", "arrival"}
    assert stack.reads("select") is None and stack.reads("preempt") == frozenset()


# -- a hook or an event that raises


class Raises(Policy):
    """Raises once, in one hook or event, the `nth` time it is called."""

    def __init__(self, where: str, nth: int) -> None:
        super().__init__()
        self.where, self.left = where, nth

    def _now(self, where: str) -> None:
        if where == self.where:
            self.left -= 1
            if self.left == 0:
                raise ZeroDivisionError("of mine")

    def admit(self, offer: Any, view: View) -> None:
        self._now("admit")

    def select(self, plan: Any, view: View) -> None:
        self._now("select")

    def preempt(self, victims: Any, demand: Any, view: View) -> None:
        victims.sort_by("-priority")
        self._now("preempt")

    def release(self, retention: Any, view: View) -> None:
        self._now("release")

    def on_arrival(self, rows: np.ndarray, view: View) -> None:
        self._now("on_arrival")

    def on_admitted(self, rows: np.ndarray, view: View) -> None:
        self._now("on_admitted")

    def on_batch(self, batch: Batch, view: View) -> None:
        self._now("on_batch")

    def on_result(self, rows: np.ndarray, computed: np.ndarray, emitted: np.ndarray, view: View) -> None:
        self._now("on_result")

    def on_preempted(self, rows: np.ndarray, modes: np.ndarray, view: View) -> None:
        self._now("on_preempted")

    def on_finished(self, rows: np.ndarray, view: View) -> None:
        self._now("on_finished")

    def on_retired(self, rows: np.ndarray, view: View) -> None:
        self._now("on_retired")

    def on_batch_failed(self, batch: Batch, view: View) -> None:
        self._now("on_batch_failed")


def unaudited(engine: Engine, *policies: Policy, observers: Sequence[object] = ()) -> Engine:
    """The same engine with these policies, without an audit, which is not told of a boundary that raises."""
    config = engine.config
    return Engine(config, policies, engine.executor, feed=config.build_feed(), observers=observers)


WHERE = [name for name in HOOKS + EVENTS if name != "on_start"]


def drained(engine: Engine) -> None:
    """Nothing is left of anybody, and everybody has the answer that was due."""
    audit = engine.audit  # type: ignore[attr-defined]
    audit.drained()
    plain = play(*BUSY, **TIGHT)
    for outcome in audit.outcomes.values():
        if len(outcome.output_ids):
            assert outcome.output_ids.tolist() == plain.output(outcome.request_id)[: len(outcome.output_ids)]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("where", WHERE)
def test_a_raising_hook_is_named_and_the_engine_can_go_on(where: str, nth: int, caching: bool) -> None:
    raising = Raises(where, nth)
    engine = unaudited(engine_of(*BUSY, stack=["mixed"], fails=[2, 6], caching=caching, **TIGHT), raising, Mixed())
    failures = 0
    for _ in range(200):
        try:
            if engine.step() is None:
                break
        except HookError as error:
            failures += 1
            assert (error.plugin, error.hook, error.rule) == ("raises", where, "hooks do not raise")
            assert str(error) == f"raises.{where} broke rule 'hooks do not raise': ZeroDivisionError: of mine"
            assert isinstance(error.__cause__, ZeroDivisionError)
    else:
        pytest.fail("it does not drain")
    assert failures == 1, "the case calls it"
    state = engine.state
    assert state.free_slots == 2 and not state.entries and not state.rows and len(state.table) == 0
    assert (state.pool.references == 0).all() and state.pool.available == 6
    assert not engine.lifecycle.leaving and not state.tickets


@pytest.mark.parametrize("where", WHERE)
def test_under_repair_a_raising_hook_is_counted_and_the_run_goes_on(where: str) -> None:
    raising = Raises(where, 1)
    engine = engine_of(*BUSY, stack=[raising, "mixed"], fails=[2, 6], on_violation="repair", **TIGHT)
    with capture_logs() as logs:
        list(engine.run())
    drained(engine)
    assert engine.stats.violations == 1 and raising.left <= 0
    (line,) = [log for log in logs if log["event"] == "repaired"]
    assert (line["plugin"], line["hook"], line["rule"]) == ("raises", where, "hooks do not raise")


def test_a_raising_on_start_is_named() -> None:
    class Starts(Policy):
        def on_start(self, view: View) -> None:
            raise KeyError("x")

    with pytest.raises(HookError, match=r"starts\.on_start"):
        engine_of(R(0, 4, 1), stack=[Starts()]).step()


@pytest.mark.parametrize("event", ["on_start", "on_boundary", "on_stop"])
def test_a_raising_observer_is_named(event: str) -> None:
    scope: dict[str, Any] = {}
    names = {"on_start": "view", "on_boundary": "record", "on_stop": ""}[event]
    exec(f"def {event}(self{', ' if names else ''}{names}): raise ZeroDivisionError('seen enough')", scope)
    observer = type("Watcher", (), {event: scope[event]})()
    plain = unaudited(engine_of(R(0, 4, 1)), observers=[observer])
    with pytest.raises(HookError, match=rf"(?i)watcher.*{event}"):
        list(plain.run())


# -- repair


class Bad(Policy):
    """Edits, then makes an invalid edit."""

    def admit(self, offer: Offer, view: View) -> None:
        offer.sort_by("-arrival")
        offer.hold(np.ones(len(offer.rows), bool))
        offer.limit(-1)

    def select(self, plan: Plan, view: View) -> None:
        plan.cap(np.ones(len(plan.rows), bool), 0)
        plan.drop(np.ones(len(plan.rows), bool))
        plan.budget(0)
        plan.sort_by("nothing")

    def preempt(self, victims: Victims, demand: Demand, view: View) -> None:
        victims.sort_by("priority")
        victims.use("nonsense")


def test_under_repair_an_invalid_edit_undoes_all_edits_of_that_hook_and_no_other() -> None:
    bad, plain = Bad(), play(*BUSY, stack=[{"priority": {}}, "mixed"], **TIGHT)
    with capture_logs() as logs:
        repaired = play(*BUSY, stack=[{"priority": {}}, "mixed", bad], on_violation="repair", **TIGHT)
        first = play(*BUSY, stack=[bad, {"priority": {}}, "mixed"], on_violation="repair", **TIGHT)
    assert repaired.steps == plain.steps == first.steps
    assert repaired.preempted == plain.preempted
    assert repaired.engine.stats.violations > 10
    lines = [log for log in logs if log["event"] == "repaired"]
    assert {(line["hook"], line["rule"]) for line in lines} == {
        ("admit", "an offer's edits are valid"),
        ("select", "a plan's edits are valid"),
        ("preempt", "victims' edits are valid"),
    }


def test_repairs_are_logged_at_a_limited_rate() -> None:
    """One line for each plugin and rule, not one for each boundary."""
    with capture_logs() as logs:
        run = play(R(0, 4, 40), stack=[Bad()], on_violation="repair")
    lines = [(log["plugin"], log["rule"]) for log in logs if log["event"] == "repaired"]
    assert run.engine.stats.violations > 30 and len(lines) == len(set(lines)) <= 3


def test_under_raise_the_first_broken_edit_ends_the_boundary() -> None:
    with pytest.raises(PolicyViolation, match=r"bad\.admit broke rule 'an offer's edits are valid'"):
        play(R(0, 4, 40), stack=[Bad()])


# -- columns


def test_columns_are_written_in_events_and_only_there() -> None:
    class Counts(Policy):
        served = column(np.int64, initial=5)

        def on_result(self, rows: np.ndarray, computed: np.ndarray, emitted: np.ndarray, view: View) -> None:
            self.served[rows] += computed

        def select(self, plan: Plan, view: View) -> None:
            assert (self.served[plan.rows] == 5 + view.computed[plan.rows]).all()

    play(R(0, 6, 3), R(1, 4, 3), stack=[Counts(), "mixed"])


@pytest.mark.parametrize("hook", HOOKS)
def test_a_column_written_in_a_hook_breaks_a_rule(hook: str) -> None:
    class Writes(Policy):
        level = column(np.int64)

        def _write(self, where: str) -> None:
            if where == hook:
                self.level[:] = 1

        def admit(self, offer: Any, view: View) -> None:
            self._write("admit")

        def select(self, plan: Any, view: View) -> None:
            self._write("select")

        def preempt(self, victims: Any, demand: Any, view: View) -> None:
            self._write("preempt")

        def release(self, retention: Any, view: View) -> None:
            self._write("release")

    with pytest.raises(PolicyViolation, match=rf"writes\.{hook} broke rule 'views are read-only'"):
        play(R(0, 4, 2, 1), R(1, 4, 2), stack=[Writes()], S=1)


def test_columns_live_and_die_with_the_row() -> None:
    seen: list[int] = []

    class Marks(Policy):
        level = column(np.int64, initial=7)

        def on_arrival(self, rows: np.ndarray, view: View) -> None:
            seen.extend(self.level[rows].tolist())
            self.level[rows] = 99

        def on_retired(self, rows: np.ndarray, view: View) -> None:
            assert (self.level[rows] == 99).all(), "still readable"

    play(*[R(i, 4, 1) for i in range(6)], stack=[Marks()])
    assert seen == [7] * 6


def test_columns_exist_once_an_engine_has_loaded_the_policy() -> None:
    class Marks(Policy):
        level = column(np.int64)

    with pytest.raises(ConfigError, match=r"marks\.level"):
        _ = Marks().level
    assert isinstance(Marks.level, column) and list(Marks.columns()) == ["level"]


def test_columns_grow_with_the_table() -> None:
    class Marks(Policy):
        level = column(np.int64, initial=3)

        def on_arrival(self, rows: np.ndarray, view: View) -> None:
            self.level[rows] = view.prompt_tokens[rows]

        def admit(self, offer: Offer, view: View) -> None:
            assert (self.level[offer.rows] == view.prompt_tokens[offer.rows]).all()
            assert len(self.level) == view.capacity
            offer.sort_by("level")

    play(*[R(i % 3, 1 + i % 5, 1) for i in range(150)], stack=[Marks()], N=512)


# -- time


def test_slow_hooks_are_reported() -> None:
    import time

    class Slow(Policy):
        def admit(self, offer: Offer, view: View) -> None:
            time.sleep(0.003)

    with capture_logs() as logs:
        run = play(R(0, 4, 1), stack=[Slow()], hook_warn_s=0.001)
    assert [log["hook"] for log in logs if log["event"] == "slow hook"] == ["slow.admit"]
    assert run.engine.stats.hook_ns["slow.admit"] >= 3_000_000


def test_an_executor_that_fails_to_submit_is_no_policys_fault() -> None:
    engine = engine_of(R(0, 4, 1))

    def submit(batch: Batch) -> Any:
        raise ExecutorError("no device")

    engine.executor.submit = submit  # type: ignore[method-assign]
    with pytest.raises(ExecutorError, match="no device"):
        list(engine.run())
