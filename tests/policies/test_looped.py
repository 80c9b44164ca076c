"""What shares a batch and what runs next on a looped model: `refill`, `no_refill` and `mixed`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pressure import MODES, by_priority, engine_of, forced, load, looped_settings, play, run, story, work_of
from scenario import R

from interlock.core import ConfigError, Engine, EngineConfig, Operation, Policy, WorkKey

STACKS = (("fcfs", "refill"), ("fcfs", "no_refill"), ("fcfs", "mixed"))
SPLIT = {"loops": 4, "split": True}


def batches(done: Any) -> list[dict[str, str]]:
    """Each batch: the work of each member."""
    told = []
    for record in done.records:
        if record.batch is not None:
            names = [done.ids[number] for number in record.batch.numbers.tolist()]
            told.append({name: work for name, (work, _) in zip(names, work_of(record.batch), strict=True)})
    return told


def short(done: Any) -> list[str]:
    """Each batch in a word: its operation's letter and its members, by first letter."""
    told = []
    for record in done.records:
        if record.batch is not None:
            names = sorted(done.ids[number] for number in record.batch.numbers.tolist())
            told.append(f"{record.batch.operation.name[0]}:{''.join(names)}")
    return told


# -- who may share a batch: prompt and decode of one operation, under `mixed` alone


def test_a_prompt_prelude_joins_a_decode_prelude_and_then_its_loops() -> None:
    # A's first token is out after prelude, four loops and coda (steps 0 to 5). B arrives at 6: its prompt's prelude
    # joins A's, then both are in the loop at depths that stay equal, and leave it together.
    done = play(R(0, 5, 3, id="A"), R(6, 7, 2, id="B"), stack=("fcfs", "mixed"), **SPLIT)
    assert batches(done)[6:12] == [
        {"A": "DECODE_PRELUDE", "B": "PROMPT_PRELUDE"},
        *[{"A": "DECODE_RECURRENT", "B": "PROMPT_RECURRENT"}] * 4,
        {"A": "DECODE_CODA", "B": "DECODE_CODA"},
    ]
    assert [tokens for _, _, _, tokens in story(done, "B")[:5]] == [7] * 5


@pytest.mark.parametrize(("at", "depth"), [(7, 1), (8, 1), (9, 2)])
def test_a_prompt_joins_the_loop_at_a_depth_of_its_own(at: int, depth: int) -> None:
    # B comes while A's second token is in the loop: at depth 0 at 7, where decode is due after A's own prompt, so that
    # A's first loop runs before B's prelude; at 8 and 9 it is not due, and B's prelude, a prompt's, goes first. Then
    # both share the loop at different depths.
    done = play(R(0, 5, 3, id="A"), R(at, 7, 2, id="B"), stack=("fcfs", "mixed"), **SPLIT)
    shared = [record.batch for record in done.records if record.batch is not None and len(record.batch) == 2]
    first = shared[0]
    assert first.operation is Operation.RECURRENT
    assert first.work.tolist() == [WorkKey.DECODE_RECURRENT, WorkKey.PROMPT_RECURRENT]
    assert first.loop.tolist() == [depth, 0]


class Stage(Policy):
    """Runs the first `until` batches of each request up to where its script ends, so that scenes can be set."""

    def __init__(self, script: dict[str, int]) -> None:
        super().__init__()
        self.left = dict(script)

    @property
    def set(self) -> bool:
        """Whether everybody is where its script ends."""
        return not any(left > 0 for left in self.left.values())

    def select(self, plan: Any, view: Any) -> None:
        if not self.set:
            names = [view.request(row).id for row in plan.rows.tolist()]
            first = next((name for name in self.left if self.left[name] > 0 and name in names), None)
            plan.drop(np.array([name != first for name in names], bool))

    def on_batch(self, batch: Any, view: Any) -> None:
        for row in batch.rows.tolist():
            self.left[view.request(row).id] -= 1


# Batches of a request of one chunk: 0 prelude, 1 to 4 loops, 5 coda, 6 prelude, 7 to 10 loops, 11 coda, ...
PLACES = {
    "PROMPT_PRELUDE": 0, "PROMPT_RECURRENT": 2, "CODA": 5, "DECODE_PRELUDE": 6, "DECODE_RECURRENT": 8,
}  # fmt: skip


def staged(stack: tuple[Any, ...], *places: str, **config: Any) -> list[tuple[str, str]]:
    """The first batch of the stack when one request stands at each of these places: (name of its place, work)."""
    requests = [R(0, 5, 4, id=f"{at}:{place}") for at, place in enumerate(places)]
    stage = Stage({request["id"]: PLACES[place] for request, place in zip(requests, places, strict=True)})
    engine = engine_of(*requests, stack=(*stack, stage), **{**SPLIT, **config})
    batch: Any = None
    while min(stage.left.values()) >= 0:
        record = engine.step()
        assert record is not None
        batch = record.batch
    names = {entry.number: entry.request.id for entry in engine.state.entries.values()}
    works = [work for work, _ in work_of(batch)]
    return [(names[n].split(":")[1], work) for n, work in zip(batch.numbers.tolist(), works, strict=True)]


ALL = ("PROMPT_PRELUDE", "PROMPT_RECURRENT", "CODA", "DECODE_PRELUDE", "DECODE_RECURRENT")


def test_mixed_takes_the_loop_of_both_first_though_all_else_is_ready() -> None:
    first = staged(("fcfs", "mixed"), *ALL)
    assert first == [("PROMPT_RECURRENT", "PROMPT_RECURRENT"), ("DECODE_RECURRENT", "DECODE_RECURRENT")]


@pytest.mark.parametrize("missing", ["PROMPT_RECURRENT", "DECODE_RECURRENT"])
def test_mixed_takes_preludes_of_both_when_the_loop_holds_one_kind_only(missing: str) -> None:
    first = staged(("fcfs", "mixed"), *[place for place in ALL if place != missing])
    assert sorted(work for _, work in first) == ["DECODE_PRELUDE", "PROMPT_PRELUDE"]


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (("CODA", "DECODE_PRELUDE", "DECODE_RECURRENT", "PROMPT_RECURRENT", "PROMPT_PRELUDE"), "DECODE_PRELUDE"),
        (("CODA", "DECODE_RECURRENT", "PROMPT_RECURRENT", "PROMPT_PRELUDE"), "DECODE_CODA"),
        (("DECODE_RECURRENT",), "DECODE_RECURRENT"),
        (("PROMPT_PRELUDE",), "PROMPT_PRELUDE"),
    ],
)
def test_refill_ranks_preludes_before_codas_before_prompts_and_the_loop(places: tuple, expected: str) -> None:
    assert {work for _, work in staged(("fcfs", "refill"), *places)} == {expected}


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (ALL, "DECODE_RECURRENT"),
        (("CODA", "DECODE_PRELUDE", "PROMPT_RECURRENT", "PROMPT_PRELUDE"), "DECODE_CODA"),
        (("DECODE_PRELUDE", "PROMPT_RECURRENT", "PROMPT_PRELUDE"), "PROMPT_RECURRENT"),
    ],
)
def test_no_refill_drains_the_loop_and_the_codas_first(places: tuple, expected: str) -> None:
    assert {work for _, work in staged(("fcfs", "no_refill"), *places)} == {expected}


@pytest.mark.parametrize("stack", [("fcfs", "refill"), ("fcfs", "no_refill"), ("fcfs",)])
def test_prompt_and_decode_share_nothing_without_mixed(stack: tuple) -> None:
    done = play(*[R(k % 5, 5 + k, 3) for k in range(6)], stack=stack, **SPLIT)
    for record in done.records:
        if record.batch is not None:
            assert len(np.unique(record.batch.work)) == 1


@pytest.mark.parametrize("stack", STACKS)
def test_a_batch_has_all_that_may_be_in_it(stack: tuple) -> None:
    """Decode preludes, codas and loops of all rows that stand there share the batch: depths may differ."""
    done = play(*[R(0, 5, 4) for _ in range(5)], stack=stack, exits=[1, 3, 2, 4], loops=4, split=True)
    codas = [
        record.batch for record in done.records if record.batch is not None and record.batch.operation.name == "CODA"
    ]
    assert all(len(batch) == 5 for batch in codas), "equal requests stay together"


# -- fast and slow


class Exits:
    """Depths by request instead of by position: the executor's exit model, replaced."""

    def __init__(self, engine: Engine, depths: dict[str, list[int]]) -> None:
        self.by_prompt: dict[int, list[int]] = {}
        self.engine, self.named = engine, depths
        engine.executor.inner._exits = self  # type: ignore[attr-defined]

    def depths(self, digest: Any, index: Any, seed: int) -> Any:
        rows = self.engine.executor.inner._rows  # type: ignore[attr-defined]
        mine = {int(rows._digest[row]): self.engine.view.request(row).id for row in self.engine.state.rows.values()}
        lists = [self.named[mine[int(key)]] for key in digest.tolist()]
        return np.array([own[i % len(own)] for own, i in zip(lists, index.tolist(), strict=True)], np.int64)


def together(stack: tuple[Any, ...], depths: dict[str, list[int]], tokens: int = 4, **config: Any) -> Any:
    """Requests of one prompt token that are in the loop from the start, each with depths of its own."""
    requests = [R(0, 1, tokens, id=name) for name in depths]
    engine = engine_of(*requests, stack=stack, loops=config.pop("loops", 3), **config)
    Exits(engine, depths)
    return run(engine)


def test_refill_re_batches_fast_and_slow_exactly() -> None:
    # F's tokens leave after 1, 3, 1, 3 loops, S's after 3, 1, 3, 1. Both are in the loop; F leaves at once, says its
    # token, and is back with the next before S is done: it is with S twice, and then S with F twice, and so on.
    done = together(("fcfs", "refill"), {"F": [9, 1, 3, 1, 3], "S": [9, 3, 1, 3, 1]}, 5)
    assert short(done) == [
        "F:FS", "C:FS",  # prompts
        "P:FS", "R:FS", "C:F",  # F's first leaves after one loop
        "P:F", "R:FS", "R:FS", "C:S",  # F's second twice beside S's first, which leaves at depth 3
        "P:S", "R:FS", "C:FS",  # S's second leaves at once, F's second at depth 3
        "P:FS", "R:FS", "C:F", "P:F", "R:FS", "R:FS", "C:S", "P:S", "R:FS", "C:FS",
    ]  # fmt: skip


def test_no_refill_leaves_the_fast_one_waiting_for_the_slowest() -> None:
    done = together(("fcfs", "no_refill"), {"F": [9, 1, 3, 1, 3], "S": [9, 3, 1, 3, 1]}, 5)
    cohort = {1: ["P:FS", "R:FS", "R:S", "R:S", "C:FS"], 3: ["P:FS", "R:FS", "R:F", "R:F", "C:FS"]}
    assert short(done) == ["F:FS", "C:FS", *cohort[1], *cohort[3], *cohort[1], *cohort[3]]


@pytest.mark.parametrize("stack", [("fcfs", "refill"), ("fcfs", "no_refill"), ("fcfs", "mixed")])
@settings(max_examples=15, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_outputs_and_depths_are_those_of_each_request_alone(stack: tuple, data: Any) -> None:
    number = st.integers
    requests = [
        R(data.draw(number(0, 20)), data.draw(number(1, 14)), data.draw(number(1, 5)))
        for _ in range(data.draw(number(2, 6)))
    ]
    trace = data.draw(st.lists(number(1, 4), min_size=1, max_size=5))
    settings_: dict[str, Any] = {"loops": 4, "split": stack[1] == "mixed" or data.draw(st.booleans()), "exits": trace}
    most = {"B": data.draw(number(2, 20)), "S": data.draw(number(1, 4)), "N": data.draw(number(9, 20)), "bs": 2}
    caching = {"caching": data.draw(st.booleans())}
    done = play(*requests, stack=stack, **settings_, **most, **caching)
    for i, request in enumerate(requests):
        alone = play({**request, "id": f"R{i}"}, stack=stack, **settings_, N=99, B=99)
        depth = [[d for _, w, d, _ in story(one, f"R{i}") if w == "DECODE_RECURRENT"] for one in (done, alone)]
        assert done.outcomes[f"R{i}"].preemptions or depth[0] == depth[1]


# -- codas wait for company, but not for ever


@pytest.mark.parametrize("stack", ["refill", "mixed"])
@pytest.mark.parametrize("least", [2, 1000])
def test_a_huge_least_coda_batch_still_flushes(stack: str, least: int) -> None:
    done = play(
        *[R(k % 3, 4, 4) for k in range(5)], stack=("fcfs", {stack: {"min_coda_batch_size": least}}), **SPLIT,
        exits=[1, 3, 2, 4],
    )  # fmt: skip
    assert set(done.ends.values()) == {"length"} and forced(done) == 0


@pytest.mark.parametrize(("least", "expected"), [(1, "DECODE_CODA"), (2, "DECODE_RECURRENT"), (99, "DECODE_RECURRENT")])
def test_codas_wait_for_company_while_the_loop_is_due(least: int, expected: str) -> None:
    # One is in the loop, and a prompt has just been through it, so that decode is due: a coda may wait for it.
    stack = ("fcfs", {"refill": {"min_coda_batch_size": least}})
    assert staged(stack, "DECODE_RECURRENT", "CODA") == [(expected.replace("DECODE_CODA", "CODA"), expected)]


def test_one_coda_is_enough_by_default() -> None:
    done = together(("fcfs", "refill"), {"F": [9, 1, 1], "S": [9, 3, 3]}, 3)
    assert short(done)[2:5] == ["P:FS", "R:FS", "C:F"]


# -- decode is due


class Counted(Policy):
    """Notes the counter of another policy after each batch."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.other, self.seen = other, list[tuple[str, int]]()

    def on_batch(self, batch: Any, view: Any) -> None:
        work = "+".join(sorted({name for name, _ in work_of(batch)}))
        self.seen.append((work, self.other._prompt_batches))


def refill(**options: Any) -> Any:
    """An instance of the policy, to look into."""
    from interlock.policies.refill import Refill

    return Refill(**options)


def test_the_counter_counts_prompts_since_the_last_decode_in_the_loop_and_nothing_else() -> None:
    counted = Counted(policy := refill(max_prefill_batches_before_decode=3))
    requests = [R(0, 3, 4), *[R(2 * k, 5, 2) for k in range(1, 8)]]
    play(*requests, stack=("fcfs", policy, counted), S=8, loops=4, split=True)
    count = 0
    for work, seen in counted.seen:
        if work == "DECODE_RECURRENT":
            count = 0
        elif work == "PROMPT_RECURRENT":  # preludes and codas change nothing
            count += 1
        assert seen == count, work
    assert max(seen for _, seen in counted.seen) >= 3
    assert {work for work, _ in counted.seen} >= {"PROMPT_PRELUDE", "DECODE_PRELUDE", "DECODE_CODA"}


def test_a_mixed_loop_counts_as_decode_and_a_mixed_prelude_as_neither() -> None:
    from interlock.policies.mixed import Mixed

    counted = Counted(policy := Mixed())
    play(R(0, 3, 9), *[R(2 * k, 5, 2) for k in range(1, 8)], stack=("fcfs", policy, counted), S=8, **SPLIT)
    works = [work for work, _ in counted.seen]
    assert "DECODE_RECURRENT+PROMPT_RECURRENT" in works and "DECODE_PRELUDE+PROMPT_PRELUDE" in works
    count = 0
    for work, seen in counted.seen:
        count = 0 if "DECODE_RECURRENT" in work else count + (work == "PROMPT_RECURRENT")
        assert seen == count, work


@pytest.mark.parametrize("failing", range(24))
def test_a_failed_batch_changes_no_counter(failing: int) -> None:
    """The batch is tried again; before that the counter is what it was before the batch."""
    policy = refill()
    before: list[int] = []
    after: list[int] = []

    class Looks(Policy):
        def on_batch(self, batch: Any, view: Any) -> None:
            before.append(policy._before)

        def on_batch_failed(self, batch: Any, view: Any) -> None:
            after.append(policy._prompt_batches)

    requests = [R(0, 3, 3), R(2, 5, 2), R(5, 4, 2)]
    done = play(*requests, stack=("fcfs", policy, Looks()), fails=(failing,), loops=4, split=True)
    assert after == [before[failing]] and set(done.ends.values()) == {"length"}


def test_a_boundary_without_a_batch_changes_no_counter() -> None:
    policy = refill()
    engine = engine_of(R(0, 3, 1), R(50, 3, 1), stack=("fcfs", policy), loops=4, split=True)
    counts = []
    while (record := engine.step()) is not None:
        if record.batch is None:
            counts.append(policy._prompt_batches)
    assert len(counts) and len(set(counts[1:])) <= 1


def beside_a_stream(stack: tuple[Any, ...], split: bool, output: int) -> list[tuple[set[str], bool]]:
    """An old decode beside short arrivals, one at each second: (work in each batch, whether the old one is in it)."""
    stream = [R(8 + k, 2, output, id=f"s{k}") for k in range(80)]
    done = play(R(0, 4, 120, id="old"), *stream, stack=stack, S=96, N=400, L=256, loops=4, split=split)
    number = next(number for number, name in done.ids.items() if name == "old")
    return [
        ({work for work, _ in work_of(record.batch)}, number in record.batch.numbers.tolist())
        for record in done.records
        if record.batch is not None and 10 < record.time_s < 88
    ]


STREAMS = [(("fcfs", "refill"), True), (("fcfs", "refill"), False), (("fcfs", "mixed"), True)]


@pytest.mark.parametrize("output", [1, 3])
@pytest.mark.parametrize(("stack", "split"), STREAMS)
def test_a_stream_of_short_arrivals_leaves_an_old_decode_eleven_loops_in_twelve(
    stack: tuple, split: bool, output: int
) -> None:
    """A decode's coda and prelude rank before the loop, so when the loop is due, the old decode is back in it: of any
    twelve batches with decode rows in the loop it is in eleven at least."""
    told = beside_a_stream(stack, split, output)
    mine = [old for works, old in told if "DECODE_RECURRENT" in works]
    windows = [sum(mine[at : at + 12]) for at in range(len(mine) - 11)]
    assert windows and min(windows) >= 11


@pytest.mark.parametrize("output", [1, 3])
@pytest.mark.parametrize(("stack", "split"), STREAMS)
def test_between_two_loops_of_decodes_one_prompt_batch_runs_at_most(stack: tuple, split: bool, output: int) -> None:
    """Decode is due after one prompt batch (`max_prefill_batches_before_decode` 1) while a decode is in the loop.

    At a token's end the old one passes its coda and its prelude, one batch each, before which a prompt batch may run,
    too. So no twelve batches in a row are without it, and it has a tenth of the batches at least.
    """
    told = beside_a_stream(stack, split, output)
    prompts = since = 0
    for works, old in told:
        prompts = 0 if "DECODE_RECURRENT" in works else prompts + bool(works & {"PROMPT_ATOMIC", "PROMPT_RECURRENT"})
        since = 0 if old else since + 1
        assert prompts <= 3 and since < 12
    assert sum(old for _, old in told) >= len(told) // 4


# -- restored work is selected again


@pytest.mark.parametrize("at", range(1, 18))
@pytest.mark.parametrize("more", ["refill", "no_refill", "mixed", ""])
@pytest.mark.parametrize("mode", ["yield", "offload"])
def test_work_restored_into_any_stage_is_selected_again(mode: str, more: str, at: int) -> None:
    """L is interrupted before each of its pieces (prelude and coda among them) and goes on with just that piece."""
    stack = by_priority(mode, *([more] if more else []))
    done = play(R(0, 8, 3, 9, id="L"), R(at, 4, 2, 0, id="H"), stack=stack, S=1, **SPLIT)
    assert forced(done) == 0 and len(story(done, "L")) == 18


# -- the budget; chunks whole or not at all


@pytest.mark.parametrize("stack", [("fcfs", "mixed"), ("fcfs", "refill"), ("fcfs",)])
@pytest.mark.parametrize("B", [1, 3, 4, 5, 7, 8])
def test_a_chunk_in_its_loops_runs_whole_or_not_at_all_within_the_budget(B: int, stack: tuple) -> None:
    """The audit compares each chunk with the size its prelude fixed, and each batch with the budget."""
    done = play(*[R(k, 3 * k + 2, 3) for k in range(5)], stack=stack, B=B, N=99, **SPLIT)
    for record in done.records:
        if record.batch is not None:
            assert int(record.batch.tokens.sum()) <= B
    for i in range(5):
        chunks: list[int] = []
        for _, work, _depth, tokens in story(done, f"R{i}"):
            if work == "PROMPT_PRELUDE":
                chunks.append(tokens)
            elif work == "PROMPT_RECURRENT":
                assert tokens == chunks[-1]
        assert sum(chunks) == 3 * i + 2


def test_two_chunks_that_fit_only_one_at_a_time_alternate_and_are_never_cut() -> None:
    # Budget 8, chunks of 5 each: the preludes run 5 + 3 tokens. So B's chunk is 3, and both are in the loop together.
    done = play(R(0, 5, 1, id="A"), R(0, 5, 1, id="B"), stack=("fcfs", "mixed"), B=8, **SPLIT)
    assert [tokens for _, work, _, tokens in story(done, "B") if work == "PROMPT_PRELUDE"] == [3, 2]


# -- what cannot be configured


def configured(stack: list[Any], **simulated: Any) -> Engine:
    engine = {"prompt": simulated.pop("prompt", "split")}
    cost = {"cost": {"constant": {"step_s": 1.0}}}
    return Engine.from_config({"engine": engine, "policies": stack, "executor": {"simulated": {**cost, **simulated}}})


@pytest.mark.parametrize("stack", [["mixed"], ["fcfs", "mixed"], ["fcfs", {"mixed": {"order": "decode_first"}}]])
def test_mixed_with_atomic_prompts_on_a_looped_model_is_an_error_of_one_line(stack: list[Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(stack, prompt="atomic", model={"loops": 4})
    text = str(caught.value)
    assert "\n" not in text and "mixed" in text and "engine.prompt" in text and "split" in text


def test_mixed_with_speculation_on_a_looped_model_is_an_error_of_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        configured(["mixed"], model={"loops": 4}, speculation={"acceptance": 0.7})
    assert "\n" not in str(caught.value) and "mixed" in str(caught.value) and "speculation" in str(caught.value)


@pytest.mark.parametrize("policy", ["refill", "no_refill"])
def test_policies_for_looped_models_refuse_a_dense_one_in_one_line(policy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(["fcfs", policy], prompt="atomic")
    assert "\n" not in str(caught.value) and policy in str(caught.value) and "looped" in str(caught.value)


def test_split_prompts_on_a_dense_model_are_an_error_of_one_line() -> None:
    with pytest.raises(ConfigError, match=r"engine\.prompt: found 'split', allowed: atomic") as caught:
        configured(["fcfs"], prompt="split")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"min_coda_batch_size": 0}, {"max_prefill_batches_before_decode": 0}, {"order": "x"}]
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EngineConfig.load({"policies": [{"refill": options}]}).build_policies()


# -- what refilling gains (theory-and-costs.md, 3)


def saturated(policy: str, pmf: list[float], width: int, tokens: int, seed: int = 0) -> float:
    """RECURRENT batches for each token of a row, with `width` requests that are all there from the start to the end."""
    simulated = {"cost": {"constant": {"step_s": 1.0}}, "model": {"loops": len(pmf), "exit": {"pmf": pmf}}}
    requests = [R(0, 1, tokens, id=f"{seed}.{k}") for k in range(width)]
    engine = engine_of(
        *requests, stack=("fcfs", policy), S=width, B=width, N=width * (tokens + 1), bs=1, L=tokens + 1,
        loops=len(pmf), simulated=simulated, seed=seed,
    )  # fmt: skip
    engine.stack._observers["on_boundary"].clear()  # the audit of each boundary would take most of the time
    loops = done = 0
    for record in engine.run():
        if record.batch is not None and len(record.batch) and record.batch.operation is Operation.RECURRENT:
            loops += 1
        done += sum(collected.delivered.sum() for collected in record.collected)
        if done > width * (tokens - tokens // 4):
            break  # before the first request ends, everybody is there
    return loops * width / (done - width)  # the first tokens came without a loop of their own


@pytest.mark.soak
@pytest.mark.parametrize(("pmf", "gain"), [([0.25] * 4, 1.60), ([0.1, 0.2, 0.3, 0.4], 1.333)])
def test_the_gain_of_refill_is_that_of_theory(pmf: list[float], gain: float) -> None:
    """E[max of 32 depths] / E[depth]: 4 loops a token for cohorts, E[depth] for a loop that is always full."""
    mean = sum((depth + 1) * share for depth, share in enumerate(pmf))
    cohorts, refilled = saturated("no_refill", pmf, 32, 120), saturated("refill", pmf, 32, 120)
    assert cohorts == pytest.approx(4.0, rel=0.01)
    assert refilled == pytest.approx(mean, rel=0.06)
    assert cohorts / refilled == pytest.approx(gain, rel=0.06)


def test_refill_gains_on_a_small_loop_too() -> None:
    pmf = [0.25] * 4
    cohorts, refilled = saturated("no_refill", pmf, 8, 24), saturated("refill", pmf, 8, 24)
    assert cohorts / refilled > 1.3


# -- nothing in particular: loads under pressure


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("more", ["refill", "no_refill", "mixed"])
def test_failing_batches_do_no_harm(more: str, mode: str) -> None:
    for seed in range(700, 703):
        requests, config = load(seed)
        config |= looped_settings(seed, 3)
        done = play(*requests, stack=by_priority(mode, more), split=True, fails=(seed % 7, seed % 11 + 9), **config)
        assert set(done.ends.values()) <= {"length", "cancelled", "error"} and forced(done) == 0
