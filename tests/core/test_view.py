"""What policies see: every attribute, in the units promised, read-only; and queries that equal a count by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario import R, engine_of

from interlock.core import (
    ConfigError,
    Engine,
    HookError,
    Offer,
    Operation,
    Plan,
    Policy,
    PolicyViolation,
    RequestStatus,
    View,
    WorkKey,
    column,
)
from interlock.core.view import COLUMN_NAMES
from interlock.plugins.testing import boundary

COLUMNS = [
    "status",
    "work",
    "ready",
    "slot",
    "version",
    "arrival",
    "priority",
    "deadline",
    "tenant",
    "prompt_tokens",
    "max_tokens",
    "predicted",
    "computed",
    "banked",
    "emitted",
    "in_flight",
    "loop",
    "blocks",
    "preemptions",
    "bypasses",
    "overtaken",
    "admitted_s",
    "first_token_s",
    "last_token_s",
]
INSIDE = [
    "high_water",
    "high_loop",
    "chunk",
    "number",
    "limit",
    "holder",
    "peak",
    "strikes",
    "stops",
    "arrival_ns",
    "admitted_ns",
    "first_token_ns",
    "last_token_ns",
]


def running(*requests: dict[str, Any], steps: int, **config: Any) -> Engine:
    """An engine after so many boundaries; the results of the last one are still out."""
    engine = engine_of(*requests, **config)
    for _ in range(steps):
        engine.step()
    return engine


def row_of(engine: Engine, name: str) -> int:
    return engine.state.rows[name]


# -- columns


def test_every_column_is_an_attribute_as_long_as_the_table() -> None:
    view = running(R(0, 4, 3), steps=1).view
    assert set(COLUMNS) == set(COLUMN_NAMES)
    for name in COLUMNS:
        assert getattr(view, name).shape == (view.capacity,), name


@pytest.mark.parametrize("name", INSIDE)
def test_what_is_the_cores_own_is_not_there(name: str) -> None:
    with pytest.raises(AttributeError, match=f"a view has no '{name}'"):
        getattr(running(R(0, 4, 3), steps=1).view, name)


def test_a_misspelt_attribute_names_its_nearest() -> None:
    with pytest.raises(AttributeError, match="a view has no 'priorty'; did you mean 'priority'"):
        _ = running(R(0, 4, 3), steps=1).view.priorty


def test_the_columns_of_a_request() -> None:
    engine = running(
        R(0, 5, 7, -3, tenant="x", deadline_s=9.5), R(1, 6, 4, 2, tenant="y"), R(1, 6, 4, tenant="x"),
        steps=4, S=2,
    )  # fmt: skip
    view, (first, second, third) = engine.view, (row_of(engine, f"R{i}") for i in range(3))
    assert view.now == 3.0
    assert view.status[[first, second, third]].tolist() == [
        RequestStatus.ACTIVE,
        RequestStatus.ACTIVE,
        RequestStatus.WAITING,
    ]
    assert view.work[[first, second, third]].tolist() == [
        WorkKey.DECODE_ATOMIC,
        WorkKey.DECODE_ATOMIC,
        WorkKey.PROMPT_ATOMIC,
    ]
    assert view.arrival[[first, second, third]].tolist() == [0.0, 1.0, 1.0]
    assert view.priority[[first, second, third]].tolist() == [-3, 2, 0]
    assert view.deadline[[first, second]].tolist() == [9.5, math.inf]
    assert [view.tenants[code] for code in view.tenant[[first, second, third]]] == ["x", "y", "x"]
    assert view.prompt_tokens[[first, second]].tolist() == [5, 6]
    assert view.max_tokens[[first, second]].tolist() == [7, 4]
    assert view.predicted[first] == -1
    assert view.computed[[first, second, third]].tolist() == [7, 7, 0]
    assert view.emitted[[first, second, third]].tolist() == [3, 2, 0]
    assert view.in_flight[[first, second, third]].tolist() == [1, 1, 0]
    assert view.blocks[[first, second, third]].tolist() == [2, 2, 0]
    assert sorted(view.slot[[first, second]].tolist()) == [0, 1] and view.slot[third] == -1
    assert view.loop[first] == view.preemptions[first] == view.bypasses[first] == view.overtaken[first] == 0
    assert view.version[first] > view.version[third] >= 1
    assert view.ready[second] > view.ready[first] > view.ready[third]


def test_deadlines_are_on_the_engines_clock() -> None:
    engine = running(R(2, 4, 9, deadline_s=1.5), steps=2)
    assert engine.view.deadline[row_of(engine, "R0")] == 3.5


def test_times_are_seconds_and_nan_before_they_come() -> None:
    engine = running(R(0, 4, 9), R(1, 4, 9), R(0, 4, 9), steps=4, S=2)
    view, rows = engine.view, [row_of(engine, name) for name in ("R0", "R1", "R2")]
    # R0 and R2 enter at 0 and give their first token at 1; R1 finds no slot.
    assert view.admitted_s[[rows[0], rows[2]]].tolist() == [0.0, 0.0]
    assert view.first_token_s[[rows[0], rows[2]]].tolist() == [1.0, 1.0]
    assert view.last_token_s[[rows[0], rows[2]]].tolist() == [3.0, 3.0]
    assert np.isnan([view.admitted_s[rows[1]], view.first_token_s[rows[1]], view.last_token_s[rows[1]]]).all()


def test_times_survive_preemption() -> None:
    engine = running(R(0, 4, 9, 5), R(2, 4, 9, 0), steps=4, S=1, stack=[{"priority": {}}, "mixed"])
    view, row = engine.view, row_of(engine, "R0")
    assert view.status[row] == RequestStatus.WAITING and view.preemptions[row] == 1
    assert (view.admitted_s[row], view.first_token_s[row], view.last_token_s[row]) == (0.0, 1.0, 2.0)


def test_banked_is_progress_that_a_preemption_cannot_take_away() -> None:
    engine = running(R(0, 6, 9, 5), R(2, 4, 2, 0), steps=1, S=1, stack=[{"priority": {}}, "mixed"])
    view, row, seen = engine.view, row_of(engine, "R0"), []
    while engine.step() is not None:
        seen.append(
            (int(view.computed[row] + view.emitted[row]), int(view.banked[row])) if "R0" in engine.state.rows else None
        )
    told = [pair for pair in seen if pair is not None]
    assert any(now < banked for now, banked in told), "it lost its KV, and what it had reached stays"
    assert all(banked >= now for now, banked in told)
    assert [banked for _, banked in told] == sorted(banked for _, banked in told)


def test_overtaken_counts_later_arrivals_admitted_first() -> None:
    class Lifo(Policy):
        def admit(self, offer: Offer, view: View) -> None:
            offer.reorder(offer.rows[::-1])

    turn = boundary(waiting=[{"id": name, "prompt": 4} for name in "abcd"], stack=Lifo, max_num_seqs=2)
    view, rows = turn.engine.view, turn.engine.state.rows
    assert turn.admitted == ["d", "c"]
    assert [int(view.overtaken[rows[name]]) for name in "abcd"] == [2, 2, 0, 0]


def test_max_tokens_is_what_the_request_asks_for_or_the_context_leaves() -> None:
    waiting = [{"id": "a", "prompt": 4, "max_tokens": 5}, {"id": "b", "prompt": 4, "max_tokens": None}]
    view = boundary(waiting=waiting, max_model_len=20).engine.view
    assert view.max_tokens[:2].tolist() == [5, 16]


# -- scalars


def test_scalars() -> None:
    engine = running(R(0, 5, 3), R(0, 5, 9), R(0, 5, 3, tenant="y"), steps=3, S=2, N=20, B=33)
    view = engine.view
    assert (view.now, view.step, view.capacity) == (2.0, 3, 64)
    assert view.limits.max_num_seqs == 2 and view.limits.max_num_batched_tokens == 33 == view.tokens_left
    assert view.free_slots == 0 and view.available_blocks == 20 - 4
    assert view.count(WorkKey.DECODE_ATOMIC) == 2 and view.count(WorkKey.PROMPT_ATOMIC) == 0
    assert view.last_operation is Operation.FORWARD
    assert view.in_flight_work == {WorkKey.DECODE_ATOMIC}
    assert view.tenants == ("", "y")
    assert [view.request(row).id for row in view.active] == ["R0", "R1"]
    assert [view.request(row).id for row in view.waiting] == ["R2"]


def test_before_anything_there_is_nothing() -> None:
    view = engine_of(R(3, 4, 1)).view
    assert view.last_operation is None and view.in_flight_work == frozenset() and view.tenants == ()
    assert len(view.waiting) == len(view.active) == 0 and view.step == 0


def test_randomness_is_seeded_by_the_engine() -> None:
    def drawn(seed: int) -> list[float]:
        return engine_of(R(0, 4, 1), seed=seed).view.rng.random(3).tolist()

    assert drawn(1) == drawn(1) != drawn(2)


def test_tokens_left_in_preempt_is_what_the_walk_leaves() -> None:
    seen: list[int] = []

    class Ask(Policy):
        def preempt(self, victims: Any, demand: Any, view: View) -> None:
            seen.append(view.tokens_left)

    active = [{"id": "a", "prompt": 4}, {"id": "b", "prompt": 9, "computed": 3}]
    boundary(
        active=active,
        waiting=[{"id": "c", "prompt": 4}],
        stack=[Ask(), "mixed"],
        max_num_seqs=2,
        max_num_batched_tokens=20,
    )
    assert seen == [20 - 1 - 6]


def test_a_request_is_the_callers_with_its_metadata() -> None:
    turn = boundary(waiting=[{"id": "a", "prompt": 4, "metadata": {"user": 7}}])
    request = turn.engine.view.request(0)
    assert request.id == "a" and request.metadata == {"user": 7}
    with pytest.raises(AttributeError):
        request.id = "b"  # type: ignore[misc]


def test_step_s_is_the_executors_estimate() -> None:
    assert engine_of(R(0, 4, 1)).view.step_s(100, 3, 50) == 1.0  # the constant cost


# -- nothing can be written


ARRAYS: list[Callable[[View], np.ndarray]] = [
    *[lambda view, name=name: getattr(view, name) for name in COLUMNS],
    lambda view: view.waiting,
    lambda view: view.active,
    lambda view: view.of("other").level,
    lambda view: view.level,
]
NAMES = [*COLUMNS, "waiting", "active", "of", "own"]


class Other(Policy):
    level = column(np.int8, initial=4)


@pytest.mark.parametrize("array", ARRAYS, ids=NAMES)
def test_arrays_cannot_be_written_nor_made_writable(array: Callable[[View], np.ndarray]) -> None:
    engine = running(R(0, 4, 9), R(0, 4, 9), R(0, 4, 9), steps=2, S=2, stack=[Other(), "fcfs"])
    face = array(engine.view)
    with pytest.raises(ValueError, match="read-only"):
        face[0] = 1
    with pytest.raises(ValueError, match=r"(?i)writeable"):
        face.flags.writeable = True


@pytest.mark.parametrize("rows", ["admit", "select", "preempt", "release"])
def test_the_rows_of_a_proposal_cannot_be_written_nor_made_writable(rows: str) -> None:
    """With and without candidates beside the active rows, sorted and not."""

    class Writes(Policy):
        def admit(self, offer: Any, view: View) -> None:
            self._try("admit", offer)

        def select(self, plan: Any, view: View) -> None:
            self._try("select", plan)

        def preempt(self, victims: Any, demand: Any, view: View) -> None:
            self._try("preempt", victims)

        def release(self, retention: Any, view: View) -> None:
            self._try("release", retention)

        def _try(self, hook: str, proposal: Any) -> None:
            if hook == rows:
                with pytest.raises(ValueError, match=r"(?i)writeable"):
                    proposal.rows.flags.writeable = True

    for stack in ([Writes()], ["fcfs", Writes()], [{"priority": {}}, Writes(), "mixed"]):
        list(engine_of(R(0, 4, 3, 2), R(1, 4, 3, 1), R(2, 4, 3), S=1, stack=stack).run())


@pytest.mark.parametrize(
    "field",
    ["rows", "versions", "numbers", "work", "start", "tokens", "samples", "loop", "holders", "block_table", "context"],
)
def test_a_batch_is_immutable(field: str) -> None:
    """Its arrays reach policies (`on_batch`), observers and executors."""
    seen: list[np.ndarray] = []

    class Listens(Policy):
        def on_batch(self, batch: Any, view: View) -> None:
            seen.append(getattr(batch, field))

    list(engine_of(R(0, 4, 3), R(1, 4, 3), stack=[Listens(), "mixed"]).run())
    for array in seen:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


@pytest.mark.parametrize(
    "write",
    [
        lambda view: view.priority.__setitem__(0, 9),
        lambda view: view.priority.__iadd__(1),
        lambda view: np.add(view.computed, 1, out=view.computed),
        lambda view: view.computed.sort(),
        lambda view: view.active.fill(0),
        lambda view: view.of("other").level.__setitem__(0, 1),
        lambda view: setattr(view, "priority", np.zeros(64)),
        lambda view: setattr(view, "anything", 1),
        lambda view: setattr(view, "now", 1.0),
    ],
    ids=["item", "iadd", "out", "sort", "fill", "of", "attribute", "new attribute", "property"],
)
def test_a_policy_that_writes_into_a_view_breaks_a_rule(write: Callable[[View], Any]) -> None:
    class Writes(Policy):
        def select(self, plan: Plan, view: View) -> None:
            write(view)

    active = [{"id": name, "prompt": 4} for name in "ab"]
    with pytest.raises(PolicyViolation, match=r"writes\.select broke rule") as caught:
        boundary(active=active, stack=[Other(), Writes()])
    assert not isinstance(caught.value, HookError), "not just any error of the hook"
    assert caught.value.rule == "views are read-only"


# -- columns of policies


def test_columns_of_policies_are_read_by_name_and_of() -> None:
    class Mine(Policy):
        level = column(np.int64, initial=7)
        share = column(np.float64, initial=0.5)

        def on_arrival(self, rows: np.ndarray, view: View) -> None:
            self.level[rows] = [view.request(row).prompt_tokens for row in rows]

    engine = running(R(0, 4, 9), R(0, 6, 9), steps=2, stack=[Mine(), Other()])
    view, rows = engine.view, [row_of(engine, "R0"), row_of(engine, "R1")]
    assert view.of("mine").level[rows].tolist() == [4, 6] and view.of("mine").level.dtype == np.int64
    assert view.of("mine").share[rows].tolist() == [0.5, 0.5] == view.share[rows].tolist()
    assert view.of("other").level[rows].tolist() == [4, 4]


def test_columns_of_policies_that_are_not_there() -> None:
    view = engine_of(R(0, 4, 1), stack=[Other(), "fcfs"]).view
    with pytest.raises(AttributeError, match="no policy 'othr' with columns; did you mean 'other'"):
        view.of("othr")
    with pytest.raises(AttributeError, match="no policy 'fcfs' with columns"):
        view.of("fcfs")
    with pytest.raises(AttributeError):
        _ = view.of("other").rank


@pytest.mark.parametrize("name", ["priority", "arrival", "banked", "admitted_s", "now", "waiting", "of"])
def test_a_column_cannot_take_a_name_that_a_view_has(name: str) -> None:
    """It could never be read by that name."""
    with pytest.raises((TypeError, RuntimeError, ConfigError)):
        engine_of(R(0, 4, 1), stack=[type("Takes", (Policy,), {name: column(np.int8)})()])


# -- queries


def brute(engine: Engine, name: str) -> dict[str, Any]:
    """What is known of a request, from its entry and the block table alone."""
    state, row = engine.state, row_of(engine, name)
    table, size = state.table, state.pool.block_size
    known = int(table.prompt_tokens[row] + table.emitted[row])
    held = state.pool.table[table.holder[row], : table.blocks[row]].tolist() if table.blocks[row] else []
    return {"row": row, "known": known, "computed": int(table.computed[row]), "held": held, "size": size}


SHARED = [5, 6, 7, 8, 9, 10, 11, 12]


def crowded(caching: bool) -> Engine:
    """Two that share a prefix, one in its prompt, three waiting."""
    return running(
        R(0, [*SHARED, 1], 12), R(1, [*SHARED, 2, 3], 12), R(2, 17, 12),
        R(3, [*SHARED, 4], 3), R(3, 30, 3), R(3, SHARED[:4], 3),
        steps=4, S=3, N=16, B=11, bs=4, caching=caching,
    )  # fmt: skip


@pytest.mark.parametrize("caching", [False, True])
def test_pending_and_remaining_prompt_count_the_known_context(caching: bool) -> None:
    engine = crowded(caching)
    view = engine.view
    for name in list(engine.state.rows):
        facts = brute(engine, name)
        rows = np.array([facts["row"]])
        assert view.pending(rows).tolist() == [facts["known"] - facts["computed"]]
        decodes = view.work[facts["row"]] == WorkKey.DECODE_ATOMIC
        assert view.remaining_prompt(rows).tolist() == [0 if decodes else facts["known"] - facts["computed"]]
    every = np.array(list(engine.state.rows.values()))
    assert view.pending(every).shape == every.shape == view.remaining_prompt(every).shape


@pytest.mark.parametrize("caching", [False, True])
@given(tokens=st.integers(0, 20))
def test_blocks_needed_are_those_that_a_row_lacks(caching: bool, tokens: int) -> None:
    engine = crowded(caching)
    for name in list(engine.state.rows):
        facts = brute(engine, name)
        need = max(math.ceil((facts["computed"] + tokens) / facts["size"]) - len(facts["held"]), 0)
        assert engine.view.blocks_needed(np.array([facts["row"]]), tokens).tolist() == [need]


def test_blocks_needed_takes_tokens_by_row() -> None:
    engine = crowded(False)
    rows = np.array(list(engine.state.rows.values()))
    tokens = np.arange(len(rows)) * 3
    each = [int(engine.view.blocks_needed(np.array([row]), int(n))[0]) for row, n in zip(rows, tokens, strict=True)]
    assert engine.view.blocks_needed(rows, tokens).tolist() == each


@pytest.mark.parametrize("caching", [False, True])
def test_freed_by_counts_the_blocks_that_nobody_else_holds(caching: bool) -> None:
    engine = crowded(caching)
    facts = {name: brute(engine, name) for name in engine.state.rows}
    for name, mine in facts.items():
        others = {block for other in facts if other != name for block in facts[other]["held"]}
        assert engine.view.freed_by(np.array([mine["row"]])).tolist() == [len(set(mine["held"]) - others)]
    if caching:
        assert set(facts["R0"]["held"]) & set(facts["R1"]["held"]), "the case has a shared prefix"


def test_cached_prefix_is_what_a_waiting_row_would_find() -> None:
    engine = crowded(True)
    view = engine.view
    assert view.cached_prefix(np.array([row_of(engine, "R3"), row_of(engine, "R4")])).tolist() == [8, 0]
    assert view.cached_prefix(np.array([row_of(engine, "R5")])).tolist() == [0], "at most context - 1 tokens"
    assert crowded(False).view.cached_prefix(np.array([row_of(engine, "R3")])).tolist() == [0]


def test_fits_says_who_could_enter_if_others_gave_way() -> None:
    active = [
        {"id": "a", "prompt": 8},
        {"id": "b", "prompt": 16},
    ]  # holding 2 and 4 blocks, each about to take one more
    said: dict[tuple[str, str], bool] = {}

    class Ask(Policy):
        def admit(self, offer: Offer, view: View) -> None:
            rows = {view.request(row).id: int(row) for row in [*view.waiting, *view.active]}
            for name in ("small", "large", "huge"):
                for without in ("", "a", "b", "ab"):
                    said[name, without] = view.fits(rows[name], without=[rows[each] for each in without])

    waiting = [
        {"id": "small", "prompt": 7},
        {"id": "large", "prompt": 17},
        {"id": "huge", "prompt": 40, "max_tokens": 1},
    ]
    boundary(active=active, waiting=waiting, stack=[Ask()], num_blocks=10, block_size=4, enable_prefix_caching=False)
    # 10 - 6 held = 4 free, 2 of them for the growth of a and b.
    assert {key: value for key, value in said.items() if key[0] == "small"} == dict.fromkeys(
        [("small", ""), ("small", "a"), ("small", "b"), ("small", "ab")], True
    )
    assert [said["large", without] for without in ("", "a", "b", "ab")] == [
        False,
        True,
        True,
        True,
    ]  # needs 5: 2, 5, 7, 10
    assert [said["huge", without] for without in ("", "a", "b", "ab")] == [False, False, False, True]


def test_fits_needs_a_slot_too() -> None:
    said: list[bool] = []

    class Ask(Policy):
        def preempt(self, victims: Any, demand: Any, view: View) -> None:
            said.extend([view.fits(demand.row), view.fits(demand.row, without=victims.rows[:1])])

    boundary(
        active=[{"id": "a", "prompt": 8}], waiting=[{"id": "b", "prompt": 8}], stack=[Ask(), "mixed"], max_num_seqs=1
    )
    assert said == [False, True]


@pytest.mark.parametrize("reserve", ["none", "prompt", "full"])
@pytest.mark.parametrize("watermark", [0.0, 0.2])
@settings(max_examples=40)
@given(data=st.data())
def test_whoever_fits_alone_enters_and_whoever_does_not_stays(reserve: str, watermark: float, data: Any) -> None:
    """One formula: `fits` says what the fill does, beside the growth of those who are active."""
    small = st.integers(1, 14)
    active = [
        {"id": f"a{i}", "prompt": n, "max_tokens": m + 1}
        for i, (n, m) in enumerate(data.draw(st.lists(st.tuples(small, small), max_size=3)))
    ]
    prompt, output = data.draw(st.tuples(st.integers(1, 30), small))
    said: list[bool] = []

    class Ask(Policy):
        def admit(self, offer: Offer, view: View) -> None:
            said.append(view.fits(int(offer.rows[0])))

    try:
        turn = boundary(
            active=active, waiting=[{"id": "new", "prompt": prompt, "max_tokens": output}], stack=[Ask(), "mixed"],
            num_blocks=12, block_size=4, max_num_seqs=4, max_num_batched_tokens=64,
            reserve=reserve, watermark=watermark,
        )  # fmt: skip
    except ConfigError:
        return  # those do not fit together
    grown = not turn.preempted
    if said and grown:
        assert said == [turn.admitted == ["new"]], (active, prompt, output)


# -- what may not be known


def test_the_true_output_length_cannot_be_reached_through_a_view() -> None:
    """The model ends after 3 tokens; the caller asked for up to 40 and predicted nothing."""
    ends = {**R(0, 4, 40), "output": 3, "ignore_eos": False}
    engine = engine_of(ends, ends)
    engine.step()
    view, row = engine.view, row_of(engine, "R0")
    names = [name for name in dir(view) if not name.startswith("_")] + COLUMNS
    for name in names:
        value = getattr(view, name)
        if isinstance(value, np.ndarray) and len(value) == view.capacity and name not in ("step", "slot"):
            assert value[row] not in (3, 3 + 4, 3 + 4 - 1) or name in ("status", "ready"), name
    request = view.request(row)
    assert view.max_tokens[row] == 40 == request.sampling.max_tokens and view.predicted[row] == -1
    assert "output" not in {*request.metadata, *request.__dataclass_fields__}
