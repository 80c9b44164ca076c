"""The packaged scenarios, boundary by boundary: who owns what, what is delivered, when it is free again."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest
from scenario import MIXED, Audit, Policy, R, engine_of

from interlock.core import Engine, FinishReason, Request, SamplingParams


class Stand(NamedTuple):
    """Where a live request stands after a boundary: its slot (-1: none), blocks, tokens computed, tokens emitted."""

    slot: int
    blocks: list[int]
    computed: int
    emitted: int


def boundaries(name: str) -> tuple[Audit, dict[int, tuple[dict[str, Stand], dict[str, int], list[str]]]]:
    """By time: where everybody stands, the batch submitted, who ended."""
    audit = Audit()
    engine = Engine.from_config(name, overrides=["engine.max_repeat=1"], observers=[audit])
    audit.engine, state, table, seen = engine, engine.state, engine.state.table, {}
    for record in engine.run():
        stands = {
            entry.request.id: Stand(
                int(table.slot[row]), state.held(row).tolist(), int(table.computed[row]), int(table.emitted[row])
            )
            for row, entry in state.entries.items()
        }
        numbers = {entry.number: entry.request.id for entry in state.entries.values()}
        batch = record.batch
        ran = (
            {} if batch is None else {numbers[n]: t for n, t in zip(batch.numbers, batch.tokens.tolist(), strict=True)}
        )
        seen[round(record.time_s * 10) / 10] = (
            stands,
            ran,
            [f"{o.request_id} {o.finish_reason}" for o in record.outcomes],
        )
    audit.drained()
    return audit, seen


def test_the_fixture_boundary_by_boundary() -> None:
    _, seen = boundaries("fixture")
    assert list(seen) == [0, 1, 2, 3, 4, 5, 6, 7]
    # Two prompts fill the budget: 6 + 10 = 16. Blocks of four tokens, taken in order: 2 and 3 of them.
    assert seen[0] == ({"a": Stand(0, [0, 1], 0, 0), "b": Stand(1, [2, 3, 4], 0, 0)}, {"a": 6, "b": 10}, [])
    # Both have their first token. d (arrived at 0.5) and c wait: no slot, no blocks.
    assert seen[1] == (
        {
            "a": Stand(0, [0, 1], 6, 1),
            "b": Stand(1, [2, 3, 4], 10, 1),
            "d": Stand(-1, [], 0, 0),
            "c": Stand(-1, [], 0, 0),
        },
        {"a": 1, "b": 1},
        [],
    )
    # b has its second and last token: its answer is out and its slot is d's in the plan of this same boundary.
    assert seen[2] == (
        {"a": Stand(0, [0, 1], 7, 2), "d": Stand(1, [5, 6], 0, 0), "c": Stand(-1, [], 0, 0)},
        {"a": 1, "d": 7},
        ["b stop"],
    )
    # a's token 9 of context opens its third block.
    assert seen[3] == (
        {"a": Stand(0, [0, 1, 7], 8, 3), "d": Stand(1, [5, 6], 7, 1), "c": Stand(-1, [], 0, 0)},
        {"a": 1, "d": 1},
        [],
    )
    # a ends; d's second token is delivered, then its cancellation is read; c has the lowest free slot at once.
    assert seen[4] == ({"c": Stand(0, [8, 9], 0, 0)}, {"c": 5}, ["a stop", "d cancelled"])
    assert seen[5] == ({"c": Stand(0, [8, 9], 5, 1)}, {"c": 1}, [])
    assert seen[6] == ({"c": Stand(0, [8, 9], 6, 2)}, {"c": 1}, [])
    assert seen[7] == ({}, {}, ["c stop"])


def test_the_answers_of_the_fixture() -> None:
    audit, _ = boundaries("fixture")
    outcomes = {outcome.request_id: outcome for outcome in audit.outcomes.values()}
    assert {name: len(outcome.output_ids) for name, outcome in outcomes.items()} == {"a": 4, "b": 2, "c": 3, "d": 2}
    assert {name: outcome.finished_ns // 10**9 for name, outcome in outcomes.items()} == {
        "a": 4,
        "b": 2,
        "c": 7,
        "d": 4,
    }


def test_a_preempted_request_goes_on_with_what_it_had() -> None:
    audit, seen = boundaries("preemption")
    # Under way: 8 + 8 tokens of prompt, then both decode; the third block of each comes with its ninth token.
    assert seen[2][0] == {"first": Stand(0, [0, 1, 4], 9, 2), "second": Stand(1, [2, 3, 5], 9, 2)}
    # urgent takes the slot of the latest admitted, who has three tokens out and keeps them, and nothing else.
    assert seen[3] == (
        {"first": Stand(0, [0, 1, 4], 10, 3), "second": Stand(-1, [], 0, 3), "urgent": Stand(1, [6, 7], 0, 0)},
        {"first": 1, "urgent": 6},
        [],
    )
    # first ends, second runs its 8 + 3 tokens of context again: its fourth token comes of it.
    assert seen[5][0]["second"] == Stand(0, [8, 9, 10], 0, 3)
    assert seen[5][1] == {"urgent": 1, "second": 11}
    assert seen[6][0] == {"second": Stand(0, [8, 9, 10], 11, 4)}
    assert list(seen)[-1] == 9 and seen[9][2] == ["second stop"]
    number = next(n for n, name in audit.ids.items() if name == "second")
    outcome = audit.outcomes[number]
    assert number == 1 and outcome.preemptions == 1 and outcome.recomputed_tokens == 10
    assert len(audit.streams[number]) == len(outcome.output_ids) == 7
    assert outcome.queue_ns == 0 and outcome.preempted_ns == 2 * 10**9


def test_an_answer_is_out_while_longer_ones_still_run() -> None:
    engine = engine_of(S=2)
    handles = [
        engine.submit(Request(name, 4, SamplingParams(max_tokens=tokens, ignore_eos=True)))
        for name, tokens in (("long", 20), ("short", 2), ("next", 3))
    ]
    steps = [engine.step() for _ in range(3)]
    assert handles[1].outcome is not None and handles[1].outcome.finished_ns == 2 * 10**9
    assert handles[0].outcome is None and steps[2] is not None and steps[2].admitted == [2]
    while engine.step() is not None:
        pass
    assert [len(handle.token_ids) for handle in handles] == [20, 2, 3]


# -- completion, cancellation and selection of one request at one boundary, in every order

PHASES = ("before", "selected", "in flight", "applied")


class Caller(Policy):
    """Cancels a request when the engine is at a phase of a step."""

    def __init__(self, phase: str, step: int) -> None:
        super().__init__()
        self.phase, self.step = phase, step
        self.engine: Any = None
        self.answers: list[Any] = []

    def at(self, phase: str, step: int) -> None:
        if (phase, step) == (self.phase, self.step):
            self.answers.append(self.engine.cancel("R0"))

    def on_batch(self, batch: Any, view: Any) -> None:
        self.at("selected", batch.step)

    def on_result(self, rows: Any, computed: Any, emitted: Any, view: Any) -> None:
        self.at("applied", view.step - 1)


@pytest.mark.parametrize(("phase", "step"), list(itertools.product(PHASES, range(5))))
def test_a_cancellation_meets_a_completion_in_every_order(phase: str, step: int) -> None:
    # R0 waits in step 0 (one slot, R1 is first), is selected in steps 1 to 3, and complete at the boundary of step 4.
    caller = Caller(phase, step)
    requests = [R(0, 4, 1, id="R1"), R(0, 4, 3, id="R0"), R(0, 4, 2, id="R2")]
    engine = engine_of(*requests, S=1, stack=(*MIXED, caller))
    caller.engine = engine
    engine.executor.on_collect = lambda: caller.at("in flight", engine.state.step - 1)  # type: ignore[attr-defined]
    while True:
        caller.at("before", engine.state.step)
        if engine.step() is None:
            break
    engine.audit.drained()  # type: ignore[attr-defined]
    outcomes = {o.request_id: o for o in engine.audit.outcomes.values()}  # type: ignore[attr-defined]
    # What is said before a boundary or while its results come in is read there; what is said in its plan, at the next.
    read_at = step + 1 if phase in ("selected", "in flight", "applied") else step
    (answer,) = caller.answers
    assert answer.result() is (read_at < 4), "a completion collected at the same boundary wins"
    assert outcomes["R0"].finish_reason is (FinishReason.CANCELLED if read_at < 4 else FinishReason.LENGTH)
    assert len(outcomes["R0"].output_ids) == max(min(read_at, 4) - 1, 0)
    assert outcomes["R1"].finish_reason is outcomes["R2"].finish_reason is FinishReason.LENGTH
    # Its slot is R2's at the boundary at which it ends.
    assert outcomes["R2"].admitted_ns == max(min(read_at, 4), 1) * 10**9
