"""Each safety rule, broken by hand: it is named with the request, and nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scenario import R, engine_of
from structlog.testing import capture_logs

from interlock.core import Engine, PolicyViolation, PreemptMode, RequestStatus, WorkKey
from interlock.core.draft import Draft, Entrant, Victim, Walk
from interlock.core.proposals import DemandKind
from interlock.core.rules import Broken, check
from interlock.core.table import COLUMNS

NO_BLOCKS = np.empty(0, np.int32)


def scene(*, repair: bool = False) -> Engine:
    """At 2 s R0 and R1 decode, R2 is at the end of its prompt, and R3 arrives and fits. Nothing is in flight then."""
    engine = engine_of(
        R(0, 6, 9), R(0, 5, 9), R(1, 20, 9), R(2, 4, 9),
        S=5, B=20, N=32, stack=["mixed"], on_violation="repair" if repair else "raise",
    )  # fmt: skip
    config = engine.config  # without the audit, which would see what the tests tamper with
    return Engine(config, config.build_policies(), engine.executor, feed=config.build_feed())


def before(engine: Engine, time_s: float = 2.0) -> Engine:
    """Run until just before the boundary at this time."""
    while engine.clock.now_ns() < round(time_s * 1e9) - 10**9:
        engine.step()
    return engine


def snapshot(engine: Engine) -> dict[str, Any]:
    """All columns, the pool, and who is where."""
    state, pool = engine.state, engine.state.pool
    kept: dict[str, Any] = {name: getattr(state.table, name).tolist() for name in COLUMNS}
    kept |= {
        "queue": pool.queue().tolist(),
        "references": pool.references.tolist(),
        "holders": sorted(pool._free_holders),
    }
    kept |= {"published": pool.is_published(np.arange(pool.num_blocks)).tolist(), "cached": pool.cached}
    return kept | {"waiting": state.waiting.rows.tolist(), "active": state.active.tolist(), "slots": state.free_slots}


class Tampering:
    """Changes what the planner drafts at the boundary at `time_s`, and takes a snapshot of the state before."""

    def __init__(self, engine: Engine, change: Callable[[Engine, Draft], Draft | None], time_s: float = 2.0) -> None:
        self.engine, self.change, self.at = engine, change, round(time_s * 1e9)
        self.before: dict[str, Any] | None = None
        self._plan = engine.planner.plan
        engine.planner.plan = self.plan  # type: ignore[method-assign]

    def plan(self, excluded: frozenset[int] = frozenset(), *more: Any, **named: Any) -> Draft | None:
        here = self.engine.state.now_ns == self.at
        if here and self.before is None:
            self.before = snapshot(self.engine)
        if here:
            self.engine.planner.settled = None
        draft = self._plan(excluded, *more, **named)
        if here and draft is not None:
            return self.change(self.engine, draft) or draft
        return draft


def row(engine: Engine, name: str) -> int:
    return engine.state.rows[name]


def walk(draft: Draft, rows: list[int], tokens: list[int]) -> None:
    """The draft runs these rows, taking the blocks it needs no further."""
    draft.walk = Walk(np.array(rows, np.intp), np.array(tokens, np.int64), np.zeros(len(rows), np.int64))
    draft.sequence = None


def changed(draft: Draft, name: str, tokens: int, engine: Engine) -> None:
    """This row runs so many tokens instead."""
    counts = draft.walk.tokens.copy()
    counts[draft.walk.rows == row(engine, name)] = tokens
    draft.walk = draft.walk._replace(tokens=counts)


# -- tampering with the walk and the entrants; each with the rule that it breaks and the request that is named


def beyond_the_prompt(engine: Engine, draft: Draft) -> None:
    changed(draft, "R0", 2, engine)


def no_tokens(engine: Engine, draft: Draft) -> None:
    changed(draft, "R1", 0, engine)


def negative(engine: Engine, draft: Draft) -> None:
    changed(draft, "R1", -1, engine)


def over_the_budget(engine: Engine, draft: Draft) -> None:
    changed(draft, "R2", 21, engine)


def twice(engine: Engine, draft: Draft) -> None:
    walk(draft, [row(engine, "R0"), row(engine, "R1"), row(engine, "R0")], [1, 1, 1])
    draft.entrants = []


def waiting_runs(engine: Engine, draft: Draft) -> None:
    walk(draft, [row(engine, "R0"), row(engine, "R3")], [1, 4])
    draft.entrants = []


def nobody_runs(engine: Engine, draft: Draft) -> None:
    free = int(np.flatnonzero(engine.state.table.number < 0)[0])
    walk(draft, [free], [1])
    draft.entrants = []


def out_of_the_table(engine: Engine, draft: Draft) -> None:
    walk(draft, [row(engine, "R0"), engine.state.table.capacity + 3], [1, 1])
    draft.entrants = []


def active_enters(engine: Engine, draft: Draft) -> None:
    at = row(engine, "R0")
    draft.entrants = [*draft.entrants, Entrant(at, int(engine.state.table.holder[at]), NO_BLOCKS, 0, 0)]


def enters_twice(engine: Engine, draft: Draft) -> None:
    draft.walk = draft.walk_of(draft.walk.rows[:2], draft.walk.tokens[:2])
    at = row(engine, "R3")
    draft.entrants = [Entrant(at, 7, NO_BLOCKS, 1, 0), Entrant(at, 8, NO_BLOCKS, 1, 0)]


def in_flight_again(engine: Engine, draft: Draft) -> None:
    engine.state.table.in_flight[row(engine, "R0")] = 1


def victim_runs(engine: Engine, draft: Draft) -> None:
    draft.victims = [Victim(row(engine, "R0"), PreemptMode.RECOMPUTE, DemandKind.GROWTH)]


def victim_twice(engine: Engine, draft: Draft) -> None:
    at = row(engine, "R0")
    walk(draft, [row(engine, "R1")], [1])
    draft.entrants = []
    draft.victims = [Victim(at, PreemptMode.RECOMPUTE, DemandKind.GROWTH)] * 2


def victim_enters(engine: Engine, draft: Draft) -> None:
    draft.victims = [Victim(row(engine, "R3"), PreemptMode.RECOMPUTE, DemandKind.SLOT)]
    walk(draft, [row(engine, "R1")], [1])
    draft.entrants = [Entrant(row(engine, "R3"), 7, NO_BLOCKS, 1, 0)]


def victim_is_no_holder(engine: Engine, draft: Draft) -> None:
    """R3 waits and holds nothing."""
    draft.victims = [Victim(row(engine, "R3"), PreemptMode.RECOMPUTE, DemandKind.GROWTH)]
    walk(draft, [row(engine, "R1")], [1])
    draft.entrants = []


def victim_of_an_equal(engine: Engine, draft: Draft) -> None:
    """R3 takes the slot of R0: their priorities are equal, and no policy gave a key."""
    draft.victims = [Victim(row(engine, "R0"), PreemptMode.RECOMPUTE, DemandKind.SLOT)]
    walk(draft, [row(engine, "R1")], [1])
    draft.entrants = [Entrant(row(engine, "R3"), 7, NO_BLOCKS, 1, 0)]


def other_work(engine: Engine, draft: Draft) -> None:
    """The chosen group is decodes alone; R2 is in its prompt."""
    draft.group = (WorkKey.DECODE_ATOMIC,)
    draft.limits.group[WorkKey.PROMPT_ATOMIC] = False


def two_operations(engine: Engine, draft: Draft) -> None:
    draft.group = (WorkKey.PROMPT_ATOMIC, WorkKey.DECODE_ATOMIC, WorkKey.DECODE_CODA)


def unmixable(engine: Engine, draft: Draft) -> None:
    draft.group = (WorkKey.PROMPT_PRELUDE, WorkKey.DECODE_PRELUDE)
    draft.limits.group[:] = True


def too_many_enter(engine: Engine, draft: Draft) -> None:
    engine.state._slots.clear()


POSITIVE = "tokens are positive and within what is pending"
CASES: list[tuple[Callable[[Engine, Draft], None], str, str]] = [
    (beyond_the_prompt, POSITIVE, "R0"),
    (no_tokens, POSITIVE, "R1"),
    (negative, POSITIVE, "R1"),
    (over_the_budget, "the token budget holds", "R2"),
    (twice, "rows are unique", "R0"),
    (waiting_runs, "what runs is active", "R3"),
    (active_enters, "only waiting rows enter", "R0"),
    (enters_twice, "", "R3"),
    (nobody_runs, "", ""),
    (out_of_the_table, "rows exist", ""),
    (in_flight_again, "nothing in flight is selected again", "R0"),
    (victim_runs, "a victim is not in this batch", "R0"),
    (victim_twice, "a row gives way once", "R0"),
    (victim_enters, "a victim is not the requester", "R3"),
    (victim_is_no_holder, "", "R3"),
    (victim_of_an_equal, "", "R0"),
    (other_work, "a row runs its pending work", "R2"),
    (two_operations, "a batch has one operation, and mixes what the executor can", ""),
    (unmixable, "a batch has one operation, and mixes what the executor can", ""),
    (too_many_enter, "slots never exceed max_num_seqs", "R3"),
]
NAMED = [case for case in CASES if case[2] and case[0] not in (in_flight_again, too_many_enter)]


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [name for name in one if one[name] != other[name]]


@pytest.mark.parametrize(("tamper", "rule", "request_id"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_broken_rule_is_named_and_nothing_has_changed(tamper: Any, rule: str, request_id: str) -> None:
    engine = before(scene())
    tampering = Tampering(engine, tamper)
    with pytest.raises(PolicyViolation) as caught:
        while engine.step() is not None:
            pass
    error = caught.value
    assert error.plugin == "core" and (not rule or error.rule == rule)
    if request_id:
        assert error.request == request_id and repr(request_id) in str(error)
    assert "\n" not in str(error) and error.rule in str(error)
    assert tampering.before is not None
    # What the test itself tampered with aside.
    allowed = {in_flight_again: ["in_flight"], too_many_enter: ["slots"]}.get(tamper, [])
    assert differences(tampering.before, snapshot(engine)) == allowed


@pytest.mark.parametrize(("tamper", "rule", "request_id"), NAMED, ids=[case[0].__name__ for case in NAMED])
def test_under_repair_the_rows_concerned_are_left_out(tamper: Any, rule: str, request_id: str) -> None:
    """The rest of the boundary goes on; the violation is counted and logged."""
    engine = before(scene(repair=True))

    def once(engine: Engine, draft: Draft) -> None:
        nonlocal broken
        if not broken:
            broken = True
            tamper(engine, draft)

    broken = False
    Tampering(engine, once)
    with capture_logs() as logs:
        while True:
            record = engine.step()
            if record is None or record.time_s >= 2.0:
                break
    assert record is not None and engine.stats.violations == 1
    (line,) = [log for log in logs if log["event"] == "repaired"]
    assert line["plugin"] == "core" and (not rule or line["rule"] == rule)
    names = {number: name for name, number in ((n, engine.state.table.number[r]) for n, r in engine.state.rows.items())}
    batch = [] if record.batch is None else [names[number] for number in record.batch.numbers.tolist()]
    assert request_id not in batch
    left_out = {"R2", "R3"} if tamper in (over_the_budget, other_work) else {request_id}
    assert set(batch) == {"R0", "R1", "R2", "R3"} - left_out


def test_the_untampered_draft_keeps_all_rules() -> None:
    engine = before(scene())
    plain: list[set[int]] = []

    def look(engine: Engine, draft: Draft) -> None:
        rows, tokens = draft.batch()
        check(draft, rows, tokens, engine.state, engine.executor.capabilities)
        plain.append(set(rows.tolist()))

    Tampering(engine, look)
    list(engine.run())
    assert len(plain) == 1 and len(plain[0]) == 4, "the case has two decodes, a prompt and an entrant"


def test_a_victim_in_flight_breaks_a_rule() -> None:
    """With one ticket at a time it cannot come up by itself."""
    engine = before(scene())

    def tamper(engine: Engine, draft: Draft) -> None:
        walk(draft, [row(engine, "R1")], [1])
        draft.entrants = []
        draft.victims = [Victim(row(engine, "R0"), PreemptMode.RECOMPUTE, DemandKind.GROWTH)]
        engine.state.table.in_flight[row(engine, "R0")] = 1

    Tampering(engine, tamper)
    with pytest.raises(Broken, match="a victim is not in flight") as caught:
        list(engine.run())
    assert caught.value.request == "R0"


def test_more_rows_than_sequences_break_a_rule() -> None:
    engine = before(scene())

    def tamper(engine: Engine, draft: Draft) -> None:
        engine.state.limits.__dict__["max_num_seqs"] = 1

    Tampering(engine, tamper)
    with pytest.raises(Broken, match="at most max_num_seqs rows run"):
        list(engine.run())


def test_a_settled_decision_is_checked_too() -> None:
    """Rows that decode again must have the versions of then, hence the status, slot and work of then."""
    engine = engine_of(R(0, 4, 30), R(0, 4, 30))
    for _ in range(4):
        engine.step()
    assert engine.planner.settled is not None, "the case has a settled decision"
    engine.state.table.version[row(engine, "R1")] += 1
    with pytest.raises(Broken) as caught:
        for _ in range(3):
            engine.step()
    assert caught.value.request == "R1"


def test_a_plan_that_raises_leaves_the_pool_as_it_was() -> None:
    engine = before(scene())

    def tamper(engine: Engine, draft: Draft) -> None:
        raise RuntimeError("halfway")

    tampering = Tampering(engine, tamper)
    with pytest.raises(RuntimeError, match="halfway"):
        list(engine.run())
    assert tampering.before is not None and differences(tampering.before, snapshot(engine)) == []


def test_statuses_are_those_of_the_lifecycle() -> None:
    """What the rules take for granted: a row without an owner is FINISHED and holds nothing."""
    assert COLUMNS["status"][1] == RequestStatus.FINISHED and COLUMNS["slot"][1] == -1 and COLUMNS["blocks"][1] == 0
