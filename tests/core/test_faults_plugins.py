"""Plugins: without effect where they decide nothing, named where they are wrong, and never able to harm the state."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import numpy as np
import pytest
from scenario import MIXED, URGENT, Play, R, alone, engine_of, play

from interlock.core import ConfigError, HookError, LivelockError, Policy, PolicyViolation, Request, SamplingParams
from interlock.core.work import WorkKey
from interlock.policies.fcfs import Fcfs

PRESSURE = [R(0, 8, 6, 1), R(0, 7, 6, 2), R(1, 12, 4, 0), R(3, 4, 9, 1, cancel_at=7.0), R(3, 40, 2, 0), R(9, 4, 1, 3)]
TIGHT = {"N": 11, "S": 3, "B": 10, "caching": True}


def log(run: Play) -> list[Any]:
    """All that was decided: batches with blocks, transitions, tokens."""
    moves = [tuple(move) for record in run.records for move in record.transitions]
    return [run.steps, run.used, moves, {name: run.output(name) for name in run.outcomes}]


# -- a plugin that decides nothing (B105)


class Looks(Policy):
    """Every hook and event, and nothing done."""

    def admit(self, offer: Any, view: Any) -> None:
        _ = offer.rows, view.waiting, view.active

    def select(self, plan: Any, view: Any) -> None:
        _ = plan.rows, view.pending(plan.rows), view.tokens_left

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        _ = victims.rows, view.freed_by(victims.rows), view.tokens_left

    def release(self, retention: Any, view: Any) -> None:
        _ = retention.rows

    def on_start(self, view: Any) -> None: ...
    def on_arrival(self, rows: Any, view: Any) -> None: ...
    def on_admitted(self, rows: Any, view: Any) -> None: ...
    def on_batch(self, batch: Any, view: Any) -> None: ...
    def on_result(self, rows: Any, computed: Any, emitted: Any, view: Any) -> None: ...
    def on_preempted(self, rows: Any, modes: Any, view: Any) -> None: ...
    def on_finished(self, rows: Any, view: Any) -> None: ...
    def on_retired(self, rows: Any, view: Any) -> None: ...


class Delegates(Fcfs):
    """First come, first served under another name."""

    def admit(self, offer: Any, view: Any) -> None:
        super().admit(offer, view)


@pytest.mark.parametrize(
    ("plain", "other"),
    [
        (MIXED, (Looks(), *MIXED)),
        (MIXED, (*MIXED, Looks())),
        (MIXED, (Delegates(), "mixed")),
        (MIXED, ("mixed",)),
        (URGENT, (*URGENT, Policy())),
        (("fcfs",), (Delegates(),)),
    ],
)
def test_a_plugin_that_decides_nothing_changes_nothing(plain: tuple, other: tuple) -> None:
    assert log(play(*PRESSURE, stack=plain, **TIGHT)) == log(play(*PRESSURE, stack=other, **TIGHT))


@pytest.mark.parametrize("stack", [(*MIXED, Looks()), (*URGENT, Looks())])
def test_looking_at_victims_takes_from_nobody(stack: tuple) -> None:
    # A `preempt` that sorts by nothing gives no standing. Under [priority, mixed, looks] the key is priority's still.
    plain = stack[:-1]
    assert log(play(*PRESSURE, stack=plain, **TIGHT)) == log(play(*PRESSURE, stack=stack, **TIGHT))


@pytest.mark.parametrize("repeat", [1, 4, None])
def test_the_engine_s_mode_does_not_depend_on_a_plugin(repeat: int | None) -> None:
    outputs = []
    for stack in (MIXED, (*MIXED, Looks())):
        run = play(*PRESSURE, stack=stack, **TIGHT, max_repeat=repeat)
        ends = {name: (outcome.finished_ns, str(outcome.finish_reason)) for name, outcome in run.outcomes.items()}
        moves = [tuple(move) for record in run.records for move in record.transitions]
        outputs.append((ends, moves, {name: run.output(name) for name in run.outcomes}))
    assert outputs[0] == outputs[1]


# -- what a hook is shown (B104)


def test_no_hook_sees_the_true_length() -> None:
    seen: list[Any] = []

    class Peeks(Policy):
        def admit(self, offer: Any, view: Any) -> None:
            for name in ("true_output_len", "output", "output_tokens", "limit", "stops"):
                with pytest.raises(AttributeError):
                    getattr(view, name)
            for row in offer.rows:
                request = view.request(row)
                seen.append(
                    (
                        view.predicted[row],
                        view.max_tokens[row],
                        getattr(request, "output", None),
                        dict(request.metadata),
                    )
                )

    play(R(0, 4, 30, says=3), stack=(*MIXED, Peeks()))
    assert seen == [(-1, 30, None, {})]


@pytest.mark.parametrize("name", ["priority", "status", "max_tokens", "arrival", "banked"])
def test_a_view_is_read_only(name: str) -> None:
    class Writes(Policy):
        def admit(self, offer: Any, view: Any) -> None:
            column = getattr(view, name)
            with pytest.raises(ValueError, match=r"WRITEABLE|writeable|cannot set"):
                column.flags.writeable = True
            column[0] = 1

    engine = engine_of(R(0, 4, 2), stack=(*MIXED, Writes()))
    with pytest.raises(PolicyViolation, match=r"writes\.admit broke rule 'views are read-only'"):
        engine.step()


# -- wrong edits and raising hooks: a named error, and the state is whole


def hostile(hook: str, edit: Any) -> Policy:
    """A policy whose hook makes one wrong edit, each time it is asked."""
    if hook == "preempt":

        class Wrong(Policy):
            def preempt(self, victims: Any, demand: Any, view: Any) -> None:
                edit(victims, view)

    elif hook == "release":

        class Wrong(Policy):  # type: ignore[no-redef]
            def release(self, retention: Any, view: Any) -> None:
                edit(retention, view)

    elif hook == "select":

        class Wrong(Policy):  # type: ignore[no-redef]
            def select(self, plan: Any, view: Any) -> None:
                edit(plan, view)

    else:

        class Wrong(Policy):  # type: ignore[no-redef]
            def admit(self, offer: Any, view: Any) -> None:
                edit(offer, view)

    return Wrong()


EDITS = {
    "a key of another length": lambda p, v: p.sort_by(np.zeros(len(p.rows) + v.capacity + 1)),
    "a key of words": lambda p, v: p.sort_by(np.full(v.capacity, "a")),
    "an unknown column": lambda p, v: p.sort_by("priorty"),
    "no key": lambda p, v: p.sort_by(),
    "NaN": lambda p, v: p.sort_by(np.full(v.capacity, np.nan)),
    "rows twice": lambda p, v: p.reorder(np.concatenate([p.rows, p.rows])),
    "unknown rows": lambda p, v: p.reorder(np.asarray(p.rows) + 1),
    "no rows": lambda p, v: p.reorder(np.empty(0, np.intp)),
    "a raise": lambda p, v: 1 / 0,
}
OWN = {
    "admit": {
        "a mask of numbers": lambda p, v: p.hold(np.zeros(v.capacity)),
        "a negative limit": lambda p, v: p.limit(-1),
        "half a request": lambda p, v: p.limit(0.5),
        "a limit for no column": lambda p, v: p.limit(1, per="tenants"),
        "no reason": lambda p, v: p.reject(np.ones(v.capacity, bool), ""),
        "until NaN": lambda p, v: p.hold(np.ones(v.capacity, bool), until=float("nan")),
    },
    "select": {
        "a negative cap": lambda p, v: p.cap(np.ones(v.capacity, bool), -1),
        "half a token": lambda p, v: p.budget(0.5),
        "a negative budget": lambda p, v: p.budget(-1),
        "two operations": lambda p, v: p.prefer((WorkKey.PROMPT_ATOMIC, WorkKey.DECODE_CODA)),
        "a key twice": lambda p, v: p.prefer(WorkKey.PROMPT_ATOMIC, WorkKey.PROMPT_ATOMIC),
        "no work": lambda p, v: p.prefer(WorkKey.NONE),
        "no key at all": lambda p, v: p.prefer("decode"),
    },
    "preempt": {
        "an unknown mode": lambda p, v: p.use("drop"),
        "a mask of numbers": lambda p, v: p.protect(np.zeros(v.capacity)),
    },
    "release": {"a weight of NaN": lambda p, v: p.keep(np.ones(v.capacity, bool), float("nan"))},
}
WRONG = [(hook, what, edit) for hook, own in OWN.items() for what, edit in {**EDITS, **own}.items()]
SMALL = [R(0, 8, 6), R(0, 7, 6), R(1, 4, 2)]


@pytest.mark.parametrize(("hook", "what", "edit"), WRONG, ids=[f"{hook}: {what}" for hook, what, _ in WRONG])
def test_a_wrong_edit_is_an_error_that_names_plugin_and_hook(hook: str, what: str, edit: Any) -> None:
    engine = engine_of(*SMALL, N=4, stack=(*MIXED, hostile(hook, edit)))
    with pytest.raises(PolicyViolation, match=rf"wrong\.{hook} broke rule") as raised:
        for _ in engine.run():
            pass
    assert isinstance(raised.value, HookError) == (what == "a raise")
    engine.audit._slots()  # type: ignore[attr-defined]
    state = engine.state
    assert (
        np.bincount(np.concatenate([state.held(row) for row in state.entries]), minlength=4) == state.pool.references
    ).all()


@pytest.mark.parametrize(("hook", "what", "edit"), WRONG, ids=[f"{hook}: {what}" for hook, what, _ in WRONG])
def test_under_repair_a_wrong_edit_is_undone_and_counted(hook: str, what: str, edit: Any) -> None:
    run = play(*SMALL, N=4, stack=(*MIXED, hostile(hook, edit)), on_violation="repair")
    assert log(run) == log(play(*SMALL, N=4))
    assert run.engine.stats.violations > 0


@pytest.mark.parametrize(
    "event", ["on_arrival", "on_admitted", "on_batch", "on_result", "on_preempted", "on_finished", "on_retired"]
)
def test_a_raising_event_is_named_and_under_repair_harmless(event: str) -> None:
    def raises(self: Policy, *arguments: Any) -> None:
        raise RuntimeError("boom")

    def policy() -> Policy:
        arguments = ", ".join(list(inspect.signature(getattr(Policy, event)).parameters)[1:])
        namespace: dict[str, Any] = {"raises": raises}
        exec(f"def {event}(self, {arguments}): raises(self)", namespace)
        return type("Bad", (Policy,), {event: namespace[event]})()

    engine = engine_of(*SMALL, N=4, stack=(*MIXED, policy()))
    with pytest.raises(HookError, match=rf"bad\.{event} broke rule 'hooks do not raise'.*boom"):
        for _ in engine.run():
            pass
    run = play(*SMALL, N=4, stack=(*MIXED, policy()), on_violation="repair")
    assert set(run.ends.values()) == {"length"} and run.engine.stats.violations > 0


def test_half_an_edit_is_undone_with_the_rest_under_repair() -> None:
    class Half(Policy):
        def admit(self, offer: Any, view: Any) -> None:
            offer.sort_by("-arrival")
            offer.hold(np.ones(view.capacity, bool))
            offer.sort_by("nothing of this name")

    run = play(R(0, 4, 1), R(0, 4, 1), S=1, stack=(*MIXED, Half()), on_violation="repair")
    assert (run.started("R0"), run.started("R1")) == (0, 1)


@pytest.mark.parametrize("method", ["admitt", "on_finish", "preempts"])
def test_a_misspelt_hook_is_refused(method: str) -> None:
    policy = type("Typo", (Policy,), {method: lambda self, rows, view: None})()
    with pytest.raises(ConfigError, match=method):
        engine_of(R(0, 4, 1), stack=(*MIXED, policy))


# -- streams of their own (B107)


def request(name: str, tokens: int = 3) -> Request:
    return Request(name, 4, SamplingParams(max_tokens=tokens, ignore_eos=True))


def test_an_idle_start_is_legal_and_each_request_has_a_stream_that_ends() -> None:
    engine = engine_of()
    assert engine.step() is None and engine.step() is None
    first, second = engine.submit(request("a", 3)), engine.submit(request("b", 7))
    assert len(list(first)) == 3 and first.finish_reason == "length"
    assert len(list(second)) == 7
    third = engine.submit(request("c", 2))
    assert list(third) == [int(t) for t in third.result().output_ids] and len(list(third)) == 2
    assert first.token_ids == list(first)
    engine.audit.drained()  # type: ignore[attr-defined]


def test_who_reads_one_stream_only_still_has_the_others_served() -> None:
    engine = engine_of(S=1)
    handles = [engine.submit(request(name, 3)) for name in "abc"]
    assert len(list(handles[2])) == 3
    assert [len(handle.token_ids) for handle in handles] == [3, 3, 3]


def test_streams_interleave_without_mixing() -> None:
    engine = engine_of()
    one, two = iter(engine.submit(request("a", 5))), iter(engine.submit(request("b", 4)))
    said: dict[str, list[int]] = {"a": [next(one)], "b": [next(two), next(two)]}
    said["a"] += [next(one), *one]
    said["b"] += two
    assert said == {"a": alone("a", R(0, 4, 5)), "b": alone("b", R(0, 4, 4))}


def test_streams_may_be_awaited_together() -> None:
    engine = engine_of()

    async def read(name: str, tokens: int) -> list[int]:
        return [token async for token in engine.submit(request(name, tokens))]

    async def both() -> list[list[int]]:
        return await asyncio.gather(read("a", 6), read("b", 3))

    a, b = asyncio.run(both())
    assert (len(a), len(b)) == (6, 3)


def test_a_rejected_request_s_stream_ends_at_once() -> None:
    engine = engine_of()
    handle = engine.submit(Request("x", 0))
    assert list(handle) == [] and handle.finish_reason == "rejected"


# -- zero means none, null means no limit (B109)


class Allow(Policy):
    """Nobody enters before a time."""

    def __init__(self, n: int, before: float) -> None:
        super().__init__()
        self.n, self.before = n, before

    def admit(self, offer: Any, view: Any) -> None:
        offer.limit(self.n if view.now < self.before else None)


@pytest.mark.parametrize(("n", "started"), [(0, 3), (1, 2), (2, 2)])
def test_an_allowance_of_none_admits_nobody(n: int, started: int) -> None:
    # Two of four slots run until step 8; R2 and R3 wait from 2 on. With 1 at a boundary R3 follows R2 a step later.
    run = play(
        R(0, 4, 9),
        R(0, 4, 9),
        R(2, 4, 2),
        R(2, 4, 2),
        S=4,
        stack=(*MIXED, Allow(n, 3.0 if n == 0 else 99.0)) if n else (*MIXED, Late()),
    )
    assert run.started("R2") == started


class Late(Policy):
    """In step 2 nobody may enter."""

    def admit(self, offer: Any, view: Any) -> None:
        offer.limit(0 if view.now == 2 else None)


def test_with_all_slots_taken_and_no_allowance_nobody_enters() -> None:
    run = play(*[R(0, 4, 5) for _ in range(4)], *[R(1, 4, 1) for _ in range(3)], S=4, stack=(*MIXED, Allow(4, 99.0)))
    assert [run.started(f"R{i}") for i in range(4, 7)] == [5, 5, 5]


@pytest.mark.parametrize(("limit", "served"), [(0, 0), (1, 1), (2, 2), (None, 6)])
def test_a_queue_of_none_refuses_everybody(limit: int | None, served: int) -> None:
    run = play(*[R(0, 4, 1) for _ in range(6)], S=1, max_waiting=limit)
    assert list(run.ends.values()).count("length") == served
    refused = [outcome.reject_reason for outcome in run.outcomes.values() if outcome.reject_reason]
    assert all(str(reason).startswith("queue_full") for reason in refused) and len(refused) == 6 - served


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_a_scan_of_none_displaces_nobody(limit: int) -> None:
    run = play(
        *[R(0, 4, 9, 9) for _ in range(3)],
        *[R(2, 4, 2, 0, id=f"H{i}") for i in range(2)],
        S=3,
        stack=URGENT,
        scan_limit=limit,
    )
    assert len(run.preempted.get(2, [])) == limit


@pytest.mark.parametrize("verb", ["budget", "cap", "drop", "limit", "hold"])
def test_a_policy_that_stops_everything_for_ever_is_told_so(verb: str) -> None:
    everybody = lambda v: np.ones(v.capacity, bool)  # noqa: E731
    edits = {
        "budget": ("select", lambda p, v: p.budget(0)),
        "cap": ("select", lambda p, v: p.cap(everybody(v), 0)),
        "drop": ("select", lambda p, v: p.drop(everybody(v))),
        "limit": ("admit", lambda p, v: p.limit(0)),
        "hold": ("admit", lambda p, v: p.hold(everybody(v))),
    }
    engine = engine_of(R(0, 4, 2), stack=(*MIXED, hostile(*edits[verb])))
    with pytest.raises(LivelockError, match="R0"):
        for _ in engine.run():
            pass
