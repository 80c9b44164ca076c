"""Looped models say what the serial reference says, and leave the loop where it does, whoever shares their batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pressure import MODES, by_priority, run
from scenario import Play, R
from serial import FULL, Exits

from interlock.core import Engine, WorkKey

from .answers import Serially, agree, hrm_greedy
from .kit import COST, GIVES_WAY, depths, engine_of, ids, reasons, save_looped
from .loads import loads

ANY: tuple[tuple[Any, ...], ...] = (
    ("fcfs",),
    ("fcfs", "refill"),
    ("fcfs", "no_refill"),
    *[("fcfs", *by_priority(mode, "refill")) for mode in MODES],
    *[by_priority(mode, "no_refill") for mode in MODES],
)
SPLIT: tuple[tuple[Any, ...], ...] = (("fcfs", "mixed"), *[by_priority(mode, "mixed") for mode in MODES])
OWN = ({}, {"exit_threshold": 0.4}, {"exit_threshold": 0.2, "min_loops": 1}, {"max_loops": 2}, {"exit_threshold": 1.0})
"""What a request may say of its exits in its metadata."""


class Kind(NamedTuple):
    """A looped model and its exit rule: as the executor's option, and as the reference knows it."""

    model: str
    option: Mapping[str, Any] = {}
    exits: Exits = FULL
    whole: bool = False  # prompts run at once
    own: bool = False  # requests may say otherwise


KINDS = {
    "ouro": Kind("tiny-ouro", exits=Exits("immediate"), own=True),
    "ouro, immediate": Kind("tiny-ouro", {"threshold": 0.5, "min_loops": 1}, Exits("immediate", 0.5, 1), own=True),
    "ouro, delayed": Kind(
        "tiny-ouro", {"threshold": 0.3, "min_loops": 1, "delayed": True}, Exits("delayed", 0.3, 1), own=True
    ),
    "ouro, trace": Kind("tiny-ouro", {"trace": [1, 3, 2, 1, 2]}, Exits("trace", trace=(1, 3, 2, 1, 2))),
    "huginn": Kind("tiny-huginn"),
    "huginn, two loops": Kind("tiny-huginn", {"max_loops": 2}, Exits(max_loops=2)),
    "hrm": Kind("tiny-hrm", whole=True),
}
OURO, TRACE, HUGINN, HRM = KINDS["ouro, immediate"], KINDS["ouro, trace"], KINDS["huginn"], KINDS["hrm"]


@cache
def reference(model: str) -> Serially:
    """One for each model."""
    return Serially(model)


def alone(kind: Kind, request: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Tokens and depths of a request in the serial reference."""
    own = {key.removeprefix("exit_"): value for key, value in request.get("metadata", {}).items()}
    exits = replace(kind.exits, **own)
    return reference(kind.model).greedy(request["prompt"], request["max_tokens"], exits, request.get("seed", 0))


def served(kind: Kind, *requests: dict[str, Any], **config: Any) -> Play:
    """The run of these requests. Each says what it says serially, and leaves the loop at the same depths."""
    options = {"dtype": "float64", "exit": dict(kind.option)}
    done = run(engine_of(*requests, model=kind.model, options=options, **config))
    for at, request in enumerate(requests):
        name, said = f"R{at}", done.output(f"R{at}")
        tokens, loops = alone(kind, request)
        assert said == (tokens if done.ends[name] == "length" else tokens[: len(said)]), name
        seen = depths(done, name)
        assert seen == {output: loops[output] for output in seen}, name
        if not done.outcomes[name].preemptions:
            assert len(seen) >= len(said) - 1, name
    return done


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@settings(max_examples=4)
@given(data=st.data())
def test_tokens_and_depths_are_those_of_a_serial_run(kind: Kind, data: st.DataObject) -> None:
    play_any(kind, data)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@settings(max_examples=300)
@given(data=st.data())
def test_tokens_and_depths_are_those_of_a_serial_run_for_many(kind: Kind, data: st.DataObject) -> None:
    play_any(kind, data)


def play_any(kind: Kind, data: st.DataObject) -> None:
    """Any load under any stack."""
    split = data.draw(st.booleans())
    stack = data.draw(st.sampled_from(ANY + SPLIT if split else ANY))
    if data.draw(st.booleans()):
        stack = (*stack, {GIVES_WAY: {"mode": data.draw(st.sampled_from(MODES))}})
    requests, limits = data.draw(loads(longest=20, output=7, most=5, whole=kind.whole))
    own = st.sampled_from(OWN) if kind.own else st.just({})
    requests = [{**request, "ignore_eos": True, "metadata": data.draw(own)} for request in requests]
    served(kind, *requests, stack=stack, split=split, L=64, **limits)


# -- loads that are known to take something from somebody

LEFT = {"yield": "yielded", "offload": "offloaded", "recompute": "recompute"}


def interrupted(done: Play) -> set[tuple[str, bool]]:
    """What those had run last who gave way."""
    last, told = dict[int, tuple[str, bool]](), set()
    for record in done.records:
        told |= {last[victim.request] for victim in record.preempted}
        batch = record.batch
        if batch is not None:
            prompts = zip(batch.numbers.tolist(), batch.is_prompt.tolist(), strict=True)
            last.update({number: (batch.operation.name, prompt) for number, prompt in prompts})
    return told


PLACES = {
    "tiny-ouro": (16, 18, 24, 25, 26, 29),
    "tiny-huginn": (20, 22, 27, 30, 31, 33),
    "tiny-hrm": (17, 19, 21, 22, 24),
}
"""When the urgent one comes, so that it meets the other in each of its stages."""


def interrupt(kind: Kind, mode: str, at: int, split: bool) -> set[tuple[str, bool]]:
    """The only slot is taken from a prompt in chunks, or from its answer. Its row was another's that has just ended."""
    low = [R(0, ids(5, 3), 3, 1, seed=9), R(PLACES[kind.model][0] - 1, ids(1, 7), 4, 1, seed=1)]
    stack, most = by_priority(mode, "refill"), 8 if kind.whole else 4
    return interrupted(served(kind, *low, R(at, ids(2, 3), 1, 0, seed=2), stack=stack, S=1, B=most, N=12, split=split))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [OURO, HUGINN, HRM], ids=lambda kind: kind.model)
def test_whoever_gives_way_anywhere_goes_on_as_if_nothing_had_been(kind: Kind, mode: str) -> None:
    seen = set().union(*(interrupt(kind, mode, at, split=True) for at in PLACES[kind.model]))
    assert seen == {("PRELUDE", True), ("RECURRENT", True), ("PRELUDE", False), ("RECURRENT", False), ("CODA", False)}


@pytest.mark.soak
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_whoever_gives_way_at_any_time_goes_on(kind: Kind, mode: str, split: bool) -> None:
    assert set().union(*(interrupt(kind, mode, at, split) for at in range(4, 44)))


@pytest.mark.parametrize("mode", ["offload", "recompute"])
@pytest.mark.parametrize("kind", [OURO, HUGINN, HRM], ids=lambda kind: kind.model)
def test_who_gave_way_to_anothers_growth_goes_on_too(kind: Kind, mode: str) -> None:
    requests = [R(0, ids(seed, 5 + seed), 12, seed=seed) for seed in range(3)]
    stack = ("fcfs", "refill", {GIVES_WAY: {"mode": mode}})
    done = served(kind, *requests, stack=stack, bs=2, N=14, reserve="none")
    assert {LEFT[mode], "resumed"} <= reasons(done)


# -- what shares a batch


@pytest.mark.parametrize("kind", [OURO, TRACE, HUGINN, KINDS["huginn, two loops"]], ids=lambda kind: kind.model)
@pytest.mark.parametrize("B", [5, 7, 16])
def test_chunks_share_preludes_and_loops_with_decodes(kind: Kind, B: int) -> None:
    requests = [R(9 * at, ids(at, 17 - 3 * at), 6, seed=at) for at in range(4)]
    done = served(kind, *requests, stack=("fcfs", "mixed"), B=B, split=True)
    mixed = {batch.operation.name for batch in batches(done) if batch.is_prompt.any() and not batch.is_prompt.all()}
    assert mixed == {"PRELUDE", "RECURRENT"}
    loops = [batch.loop for batch in batches(done) if batch.operation.name == "RECURRENT"]
    assert any(len(set(loop.tolist())) > 1 for loop in loops) or kind is HUGINN, "rows of several depths"


def batches(done: Play) -> list[Any]:
    """All of them."""
    return [record.batch for record in done.records if record.batch is not None]


def test_requests_of_one_batch_have_exit_rules_of_their_own() -> None:
    requests = [R(0, ids(1, 6), 10, metadata=own) for own in OWN]
    done = served(KINDS["ouro"], *requests, stack=("fcfs", "refill"))
    seen = [set(depths(done, f"R{at}").values()) for at in range(len(OWN))]
    assert seen[0] == seen[4] == {3} and seen[3] == {2}, "fixed depths"
    assert seen[1] == {2, 3} and seen[2] == {1, 2}, "the gate's"


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"max_loops": 0}, "max_loops is 0, allowed: a whole number of at least 1"),
        ({"min_loops": True}, "min_loops is True, allowed: a whole number of at least 1"),
        ({"exit_threshold": "half"}, "exit_threshold is 'half', allowed: a number from 0 to 1"),
        ({"exit_threshold": 1.5}, "exit_threshold is 1.5, allowed: a number from 0 to 1"),
    ],
)
def test_an_exit_rule_that_is_none_is_refused_at_the_door(metadata: dict[str, Any], why: str) -> None:
    requests = [R(0, ids(1, 6), 3, metadata=metadata), R(0, ids(1, 6), 3, metadata={"anything": "else"})]
    done = run(engine_of(*requests, model="tiny-ouro", stack=("fcfs",)))
    assert (done.why("R0"), done.why("R1")) == (f"rejected: bad_metadata: {why}", "length")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_trace_says_how_deep_its_requests_go(kind: str, tmp_path: Path) -> None:
    """By columns of its own; who says nothing goes as deep as the model."""
    lines = {
        "csv": "arrival_s,prompt_tokens,output_tokens,depth\n0.0,5,4,1\n0.0,6,4,2\n0.0,7,4,\n",
        "jsonl": "".join(
            f'{{"arrival_s": 0.0, "prompt_tokens": {5 + at}, "output_tokens": 4, "depth": {depth}}}\n'
            for at, depth in enumerate(("1", "2", "null"))
        ),
    }
    (tmp_path / f"trace.{kind}").write_text(lines[kind])
    trace = {"path": str(tmp_path / f"trace.{kind}"), "columns": {"max_loops": "depth"}}
    executor = {"torch": {"model": "tiny-ouro", "device": "cpu", **COST}}
    engine = Engine.from_config(
        {"policies": ["fcfs", "refill"], "executor": executor, "workload": {"trace": trace}, "kv": {"num_blocks": 64}}
    )
    deepest = {0: 0, 1: 0, 2: 0}
    for batch in (record.batch for record in engine.run() if record.batch is not None):
        for number, loop, work in zip(batch.numbers.tolist(), batch.loop.tolist(), batch.work.tolist(), strict=True):
            if work == WorkKey.DECODE_RECURRENT:
                deepest[number] = max(deepest[number], loop + 1)
    assert deepest == {0: 1, 1: 2, 2: 3}


def test_the_same_prompt_of_another_seed_is_another_state_in_huginn() -> None:
    requests = [R(0, ids(1, 6), 10, seed=seed) for seed in (1, 2, 1)]
    done = served(HUGINN, *requests, stack=("fcfs", "refill"))
    assert done.output("R0") == done.output("R2") != done.output("R1")


@pytest.mark.parametrize("kind", [HUGINN, HRM], ids=lambda kind: kind.model)
def test_where_kv_depends_on_more_than_the_tokens_nothing_is_cached(kind: Kind) -> None:
    requests = [R(at, ids(1, 16), 4, seed=at) for at in range(3)]
    done = served(kind, *requests, stack=("fcfs", "refill"), caching=True)
    assert [done.outcomes[f"R{at}"].cached_tokens for at in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("kind", [OURO, TRACE], ids=["gate", "trace"])
def test_prompts_are_shared_in_ouro_and_answers_are_not_since_they_leave_early(kind: Kind) -> None:
    first = R(0, ids(1, 9), 8)
    answer = alone(kind, first)[0]
    requests = [first, R(60, ids(1, 9) + answer[:-1] + ids(2, 4), 6)]
    done = served(kind, *requests, stack=("fcfs", "refill"), caching=True)
    assert done.outcomes["R1"].cached_tokens == 8


# -- HRM-Text: a prompt that attends to all of itself


@pytest.mark.parametrize("prefix_lm", [False, True])
def test_hrm_text_says_what_transformers_says(prefix_lm: bool, tmp_path: Path) -> None:
    folder = save_looped(tmp_path, "tiny-hrm", prefix_lm=prefix_lm)
    requests = [R(2 * at, ids(at, 15 - 4 * at), 8, 3 - at) for at in range(4)]
    stack = by_priority("recompute", "refill" if prefix_lm else "mixed")
    done = run(engine_of(*requests, model=folder, stack=stack, S=2, B=15 if prefix_lm else 6, split=True))
    for at, request in enumerate(requests):
        agree(done.output(f"R{at}"), hrm_greedy(folder, request["prompt"], 8))
    assert "recompute" in reasons(done)


def test_a_prompt_that_does_not_fit_into_one_batch_is_rejected_by_a_model_that_needs_it_whole() -> None:
    done = run(engine_of(R(0, ids(1, 16), 3), R(0, ids(2, 17), 3), model="tiny-hrm", stack=("fcfs",), B=16))
    assert done.why("R0") == "length"
    assert done.why("R1") == (
        "rejected: exceeds_budget: 17 prompt tokens have to run at once, max_num_batched_tokens is 16"
    )


@pytest.mark.parametrize("split", [False, True])
def test_what_a_whole_prompt_has_said_is_computed_again_behind_it(split: bool) -> None:
    """Prompt and answer together do not fit into a batch then; the prompt alone attends to all of itself."""
    requests = [R(0, ids(1, 12), 8, 1), R(31, ids(2, 5), 2, 0)]
    done = served(HRM, *requests, stack=by_priority("recompute", "refill"), S=1, B=12, split=split)
    assert done.outcomes["R0"].recomputed_tokens > 12
