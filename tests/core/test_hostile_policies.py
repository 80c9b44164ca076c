"""Policies that mean no good: whatever they do, requests drain or an error says who it was, and the state stays whole.

The audit of `pressure` looks at every boundary, also at the last one before an error.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from pressure import MODES, engine_of, forced, load, looped_settings, play, run
from scenario import R

from interlock.core import LivelockError, Policy, PolicyViolation
from interlock.core.errors import HookError

SHAPES = {"dense": 1, "looped": 3}


def loaded(which: int, loops: int, **more: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A random small load for a dense model, or for a looped one with split prompts (odd seeds) or atomic ones."""
    requests, settings = load(which)
    if loops > 1:
        settings |= {**looped_settings(which, loops), "split": bool(which % 2)}
    return requests, {**settings, **more}


# -- policies


class Random(Policy):
    """Orders, groups, victims and modes at random."""

    def admit(self, offer: Any, view: Any) -> None:
        offer.reorder(view.rng.permutation(offer.rows))

    def select(self, plan: Any, view: Any) -> None:
        plan.sort_by(view.rng.random(view.capacity))
        plan.prefer(*view.rng.permutation(range(8)).tolist())

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        victims.reorder(victims.rows[view.rng.permutation(len(victims.rows))])
        victims.use(MODES[int(view.rng.integers(3))])


class DropsAll(Policy):
    """Nobody runs."""

    def select(self, plan: Any, view: Any) -> None:
        plan.drop(np.ones(len(plan.rows), bool))


class HoldsAll(Policy):
    """Nobody enters."""

    def admit(self, offer: Any, view: Any) -> None:
        offer.hold(np.ones(len(offer.rows), bool))


class Greedy(Policy):
    """Every victim stands below every requester, in a mode."""

    mode = "recompute"

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        victims.sort_by((np.arange(view.capacity) == demand.row).astype(np.int64))
        victims.use(self.mode)


class GreedyYield(Greedy):
    """The same, with KV kept."""

    mode = "yield"


class GreedyOffload(Greedy):
    """The same, with KV on the host."""

    mode = "offload"


class Dice(Policy):
    """Victims by table-long random keys: whoever asks stands above about half of them, anew at each boundary."""

    def admit(self, offer: Any, view: Any) -> None:
        offer.sort_by(view.rng.random(view.capacity))

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        victims.sort_by(view.rng.random(view.capacity))
        victims.use(MODES[int(view.rng.integers(3))])


class Turns(Policy):
    """The order of all things is turned at each boundary."""

    def _turned(self, view: Any) -> Any:
        return view.arrival * (1 if view.step % 2 else -1)

    def admit(self, offer: Any, view: Any) -> None:
        offer.sort_by(self._turned(view))

    def select(self, plan: Any, view: Any) -> None:
        plan.sort_by(self._turned(view))

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        victims.sort_by(-self._turned(view))
        victims.use(MODES[view.step % 3])


class Restless(Policy):
    """Caps, drops, holds and protects at random."""

    def admit(self, offer: Any, view: Any) -> None:
        offer.hold(view.rng.random(len(offer.rows)) < 0.3)
        offer.limit(int(view.rng.integers(0, 3)))

    def select(self, plan: Any, view: Any) -> None:
        plan.drop(view.rng.random(len(plan.rows)) < 0.3)
        plan.cap(view.rng.random(len(plan.rows)) < 0.3, int(view.rng.integers(0, 4)))
        plan.budget(int(view.rng.integers(0, 8)))

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        victims.protect(view.rng.random(len(victims.rows)) < 0.5)
        victims.sort_by(view.rng.random(view.capacity))


class Selfless(Policy):
    """Whoever grows gives way itself."""

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        victims.sort_by((np.arange(view.capacity) != demand.row).astype(np.int64))


class Protective(Policy):
    """Nobody gives way, except that all are told to."""

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        victims.sort_by((np.arange(view.capacity) == demand.row).astype(np.int64))
        victims.protect(np.ones(len(victims.rows), bool))


class Backwards(Policy):
    """The latest first, whatever that costs; preludes before all else."""

    def admit(self, offer: Any, view: Any) -> None:
        offer.sort_by("-arrival")

    def select(self, plan: Any, view: Any) -> None:
        plan.sort_by("-arrival")
        plan.prefer(1, 3, 0)

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        victims.sort_by("arrival")


RUDE = [Random, Greedy, GreedyYield, GreedyOffload, Dice, Turns, Restless, Selfless, Protective, Backwards]
STUBBORN = [DropsAll, HoldsAll]


def drains_or_says(policy: type[Policy], seed: int, loops: int) -> bool:
    """True when it drained; the one other end is a LivelockError."""
    requests, settings = loaded(seed, loops, seed=seed)
    engine = engine_of(*requests, stack=("fcfs", policy()), **settings)
    try:
        done = run(engine)
    except LivelockError:
        return False
    assert len(done.ends) == len(requests) and set(done.ends.values()) <= {"length", "cancelled"}
    return True


def drains_repaired(policy: type[Policy], seed: int, loops: int) -> int:
    """Everybody drains, with its own output; how many were forced."""
    requests, settings = loaded(seed, loops, seed=seed, on_violation="repair")
    done = play(*requests, stack=("fcfs", policy()), **settings)
    assert set(done.ends.values()) <= {"length", "cancelled"}
    assert forced(done) <= len(requests), "a rescue lasts until its request finishes"
    return forced(done)


# -- order at random: the core's guarantees suffice


@pytest.mark.parametrize("loops", SHAPES.values(), ids=SHAPES)
def test_an_order_at_random_drains_unaided(loops: int) -> None:
    for seed in range(500, 512):
        assert drains_or_says(Random, seed, loops), seed


@pytest.mark.soak
@pytest.mark.parametrize("loops", SHAPES.values(), ids=SHAPES)
def test_500_orders_at_random_drain_unaided(loops: int) -> None:
    for seed in range(500):
        assert drains_or_says(Random, seed, loops), seed


# -- those that let nobody through


@pytest.mark.parametrize("loops", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("policy", STUBBORN)
def test_one_that_lets_nobody_through_ends_in_an_error_at_once(policy: type[Policy], loops: int) -> None:
    for seed in range(6):
        requests, settings = loaded(seed, loops)
        requests = [{key: value for key, value in request.items() if key != "cancel_at"} for request in requests]
        engine = engine_of(*requests, stack=("fcfs", policy()), **settings)
        with pytest.raises(LivelockError):
            run(engine)
        assert engine.state.step == 0 and engine.state.pool.used == 0, "no batch was formed"


# -- those that never leave anybody in peace


@pytest.mark.parametrize("loops", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("policy", RUDE)
def test_a_rude_one_drains_or_ends_in_an_error(policy: type[Policy], loops: int) -> None:
    for seed in range(520, 524):
        drains_or_says(policy, seed, loops)


@pytest.mark.soak
@pytest.mark.parametrize("loops", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("policy", RUDE)
def test_a_rude_one_drains_or_ends_in_an_error_500_times(policy: type[Policy], loops: int) -> None:
    for seed in range(500):
        drains_or_says(policy, seed, loops)


@pytest.mark.parametrize("loops", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("policy", [Greedy, GreedyYield, GreedyOffload])
def test_two_that_displace_each_other_for_ever_are_stopped(policy: type[Policy], loops: int) -> None:
    # Protection suffices: whoever lost `max_preemptions` times without banking keeps its slot until it banks.
    shape = {"loops": loops, "split": loops > 1, "S": 1}
    done = play(R(0, 9, 4), R(0, 9, 4), stack=("fcfs", policy()), **shape)
    assert forced(done) == 0 and sum(outcome.preemptions for outcome in done.outcomes.values()) > 4


# -- repair


@pytest.mark.parametrize("loops", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("policy", RUDE + STUBBORN)
def test_under_repair_all_of_them_drain(policy: type[Policy], loops: int) -> None:
    rescues = [drains_repaired(policy, seed, loops) for seed in range(540, 544)]
    assert policy not in STUBBORN or min(rescues) >= 1, "and are counted"


@pytest.mark.soak
@pytest.mark.parametrize("loops", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("policy", RUDE + STUBBORN)
def test_under_repair_all_of_them_drain_500_times(policy: type[Policy], loops: int) -> None:
    for seed in range(500):
        drains_repaired(policy, seed, loops)


# -- nonsense: an error that names plugin, hook and rule


class Nonsense(Policy):
    """Does one senseless thing to one proposal, from a step on."""

    def __init__(self, hook: str, verb: str, call: Any) -> None:
        super().__init__()
        self.hook, self.verb, self.call = hook, verb, call

    def admit(self, offer: Any, view: Any) -> None:
        if self.hook == "admit":
            self.call(offer, view)

    def select(self, plan: Any, view: Any) -> None:
        if self.hook == "select":
            self.call(plan, view)

    def preempt(self, victims: Any, demand: Any, view: Any) -> None:
        if self.hook == "preempt":
            self.call(victims, view)

    def release(self, retention: Any, view: Any) -> None:
        if self.hook == "release":
            self.call(retention, view)


def _foreign(proposal: Any) -> Any:
    rows = proposal.rows.copy()
    rows[0] = rows[0] + 7
    return rows


ANY = {
    "NaN": lambda p, v: p.sort_by(np.full(v.capacity, np.nan)),
    "no key": lambda p, v: p.sort_by(),
    "a key that is no column": lambda p, v: p.sort_by("priorty"),
    "a key of a wrong length": lambda p, v: p.sort_by(np.zeros(len(p.rows) + 1)),
    "a key of two dimensions": lambda p, v: p.sort_by(np.zeros((v.capacity, 2))),
    "a key of words": lambda p, v: p.sort_by(np.array(["a"] * v.capacity)),
    "a key of objects": lambda p, v: p.sort_by(np.array([None] * v.capacity)),
    "a key that is a number": lambda p, v: p.sort_by(3),
    "foreign rows": lambda p, v: p.reorder(_foreign(p)),
    "rows twice": lambda p, v: p.reorder(np.concatenate([p.rows, p.rows[:1]])),
    "fewer rows": lambda p, v: p.reorder(p.rows[1:]),
    "rows as floats": lambda p, v: p.reorder(p.rows.astype(float)),
    "negative rows": lambda p, v: p.reorder(-p.rows - 1),
    "written rows": lambda p, v: p.rows.__setitem__(0, 0),
    "a written view": lambda p, v: v.priority.__setitem__(0, 9),
    "a view made writable": lambda p, v: v.status.setflags(write=True) or v.status.__setitem__(0, 0),
    "a view with a new attribute": lambda p, v: setattr(v, "now", 5.0),
    "an attribute that is none": lambda p, v: v.preority,
}
OWN = {
    "admit": {
        "a mask of a wrong length": lambda p, v: p.hold(np.ones(len(p.rows) + 1, bool)),
        "a mask of numbers": lambda p, v: p.hold(p.rows),
        "a hold until NaN": lambda p, v: p.hold(np.ones(len(p.rows), bool), until=float("nan")),
        "a negative limit": lambda p, v: p.limit(-1),
        "half a limit": lambda p, v: p.limit(0.5),
        "a limit per nothing": lambda p, v: p.limit(1, per="tenants"),
        "limits without per": lambda p, v: p.limit(np.ones(3, int)),
        "a rejection without a reason": lambda p, v: p.reject(np.ones(len(p.rows), bool), ""),
    },
    "select": {
        "a negative cap": lambda p, v: p.cap(np.ones(len(p.rows), bool), -1),
        "half a token": lambda p, v: p.cap(np.ones(len(p.rows), bool), 0.5),
        "caps of a wrong length": lambda p, v: p.cap(np.ones(len(p.rows), bool), np.ones(len(p.rows) + 1, int)),
        "a negative budget": lambda p, v: p.budget(-1),
        "a budget for each": lambda p, v: p.budget(np.ones(3, int)),
        "a group that is none": lambda p, v: p.prefer(99),
        "no work": lambda p, v: p.prefer(-1),
        "an empty group": lambda p, v: p.prefer(()),
        "a key in two groups": lambda p, v: p.prefer(0, (0,)),
        "operations mixed": lambda p, v: p.prefer((0, 1)),
        "a drop of a wrong length": lambda p, v: p.drop(np.ones(1 + len(p.rows), bool)),
    },
    "preempt": {
        "no mode": lambda p, v: p.use("swap"),
        "a protection of a wrong length": lambda p, v: p.protect(np.ones(1 + len(p.rows), bool)),
        "a mode for a wrong length": lambda p, v: p.use("yield", np.ones(1 + len(p.rows), bool)),
    },
    "release": {
        "a weight of NaN": lambda p, v: p.keep(np.ones(len(p.rows), bool), float("nan")),
        "a drop of a wrong length": lambda p, v: p.drop(np.ones(1 + len(p.rows), bool)),
    },
}
PLAIN_ERRORS = {"an attribute that is none"}  # raised by Python itself: a hook that raises
NONSENSE = [
    (hook, verb, call)
    for hook in ("admit", "select", "preempt", "release")
    for verb, call in {**ANY, **OWN[hook]}.items()
    if not (hook == "release" and verb in ("fewer rows",))
]
# R1 needs a block in step 1 and there is none; priorities make H ask for a slot in step 2.
SCENE = [R(0, 8, 6), R(0, 7, 6), R(2, 4, 2)]


@pytest.mark.parametrize(("hook", "verb", "call"), NONSENSE, ids=[f"{hook}: {verb}" for hook, verb, _ in NONSENSE])
@pytest.mark.parametrize("loops", SHAPES.values(), ids=SHAPES)
def test_nonsense_ends_in_an_error_that_names_plugin_and_hook(hook: str, verb: str, call: Any, loops: int) -> None:
    policy = Nonsense(hook, verb, call)
    engine = engine_of(*SCENE, N=4, S=2, loops=loops, stack=("fcfs", policy))
    with pytest.raises(PolicyViolation) as caught:
        run(engine)
    assert (caught.value.plugin, caught.value.hook) == ("nonsense", hook)
    assert caught.value.rule and f"nonsense.{hook} broke rule '{caught.value.rule}'" in str(caught.value)
    assert isinstance(caught.value, HookError) == (verb in PLAIN_ERRORS), str(caught.value)
    engine.audit._slots()  # type: ignore[attr-defined]  # the state is whole
    engine.audit._host()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("hook", "verb", "call"), NONSENSE, ids=[f"{hook}: {verb}" for hook, verb, _ in NONSENSE])
@pytest.mark.parametrize("loops", SHAPES.values(), ids=SHAPES)
def test_under_repair_nonsense_is_undone_and_counted(hook: str, verb: str, call: Any, loops: int) -> None:
    with_it = play(*SCENE, N=4, S=2, loops=loops, stack=("fcfs", Nonsense(hook, verb, call)), on_violation="repair")
    assert with_it.steps == plain(loops), "as if it were not there"
    assert with_it.engine.stats.violations >= 1 and forced(with_it) == 0


@lru_cache
def plain(loops: int) -> dict[int, dict[str, int]]:
    """What runs without any such policy."""
    return play(*SCENE, N=4, S=2, loops=loops, stack=("fcfs",)).steps


class Halfway(Policy):
    """A valid edit, then nonsense: under repair neither counts."""

    def admit(self, offer: Any, view: Any) -> None:
        offer.sort_by("-arrival")
        offer.hold(np.ones(len(offer.rows), bool))
        offer.limit(-1)

    def select(self, plan: Any, view: Any) -> None:
        plan.budget(1)
        plan.cap(np.ones(len(plan.rows), bool), 0)
        plan.budget(-1)


def test_under_repair_a_failing_hook_loses_all_its_edits() -> None:
    done = play(*SCENE, N=4, S=2, stack=("fcfs", Halfway()), on_violation="repair")
    assert done.steps == plain(1) and forced(done) == 0


# -- those that raise


HOOKS = ("admit", "select", "preempt", "release")
EVENTS = ("on_start", "on_arrival", "on_admitted", "on_batch", "on_result", "on_preempted", "on_finished", "on_retired")


def raising(name: str) -> Policy:
    """A policy of which one method raises."""

    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError("of all things")

    signature = {
        "admit": lambda self, offer, view: fail(), "select": lambda self, plan, view: fail(),
        "preempt": lambda self, victims, demand, view: fail(), "release": lambda self, retention, view: fail(),
        "on_start": lambda self, view: fail(), "on_batch": lambda self, batch, view: fail(),
        "on_result": lambda self, rows, computed, emitted, view: fail(),
        "on_preempted": lambda self, rows, modes, view: fail(),
        "on_batch_failed": lambda self, batch, view: fail(),
    }  # fmt: skip
    method = signature.get(name, lambda self, rows, view: fail())
    policy: Policy = type("Raises", (Policy,), {name: method})()
    return policy


@pytest.mark.parametrize("loops", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", [*HOOKS, *EVENTS])
def test_one_that_raises_ends_in_an_error_with_its_name(name: str, loops: int) -> None:
    engine = engine_of(*SCENE, N=4, S=2, loops=loops, stack=("fcfs", raising(name)))
    with pytest.raises(HookError, match=rf"raises\.{name} broke rule 'hooks do not raise': ZeroDivisionError: of all"):
        run(engine)


@pytest.mark.parametrize("loops", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", [*HOOKS, *EVENTS, "on_batch_failed"])
def test_under_repair_one_that_raises_is_counted_and_all_drain(name: str, loops: int) -> None:
    fails = (3,) if name == "on_batch_failed" else ()
    done = play(*SCENE, N=4, S=2, loops=loops, stack=("fcfs", raising(name)), on_violation="repair", fails=fails)
    assert set(done.ends.values()) == {"length"} and done.engine.stats.violations >= 1


class Vandal(Policy):
    """Tries to write whatever it can reach by its public face."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = self.tried = 0

    def select(self, plan: Any, view: Any) -> None:
        arrays = [getattr(view, name) for name in ("status", "slot", "computed", "blocks", "emitted", "loop", "work")]
        for array in [*arrays, view.active, view.waiting, plan.rows]:
            if not len(array):
                continue
            self.tried += 1
            try:
                array[0] = 3
            except ValueError:
                self.refused += 1


@pytest.mark.parametrize("loops", SHAPES.values(), ids=SHAPES)
def test_whoever_writes_into_the_view_writes_nothing(loops: int) -> None:
    vandal = Vandal()
    done = play(*SCENE, N=4, S=2, loops=loops, stack=("fcfs", vandal))
    assert vandal.tried > 20 and vandal.refused == vandal.tried
    assert done.steps == plain(loops)
