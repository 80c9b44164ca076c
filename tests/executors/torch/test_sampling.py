"""How tokens are chosen from logits: by the rule, by the row's own random numbers, and within the request's limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pressure import MODES, by_priority, run
from scenario import R

from interlock.core import Request, SamplingParams
from interlock.core.hashing import splitmix64
from interlock.executors.torch.rows import Rows
from interlock.executors.torch.sampling import choose

from .answers import agree
from .conftest import Family
from .kit import EOS, engine_of, ids, reasons, save_dense

EVERY_WAY = {"temperature": 0.9, "top_p": 0.95, "top_k": 60}


def known(*sampling: SamplingParams, eos: tuple[int, ...] = ()) -> Rows:
    """A row for each of these, after prompts of 10 tokens."""
    rows = Rows(eos, seed=0)
    for row, params in enumerate(sampling):
        rows.add(row, row, Request(f"r{row}", 10, params), None)
    return rows


def chosen(logits: np.ndarray, rows: Rows, positions: np.ndarray) -> list[int]:
    """What is chosen, row by row."""
    tokens: list[int] = choose(torch.from_numpy(logits.copy()), np.arange(len(logits)), positions, rows).tolist()
    return tokens


# -- the rule


def by_the_rule(logits: np.ndarray, params: SamplingParams, position: int) -> int:
    """One row in NumPy: temperature, top-k, top-p, then the inverse of the cumulative probability."""
    assert params.seed is not None
    seed = splitmix64(np.array([params.seed], np.uint64))
    uniform = float(splitmix64(seed + np.uint64(position))[0] >> np.uint64(11)) / 2**53
    order = np.argsort(-logits, kind="stable")
    weights = np.exp((logits[order] - logits.max()) / params.temperature)
    if params.top_k:
        weights[params.top_k :] = 0
    share = weights / weights.sum()
    kept = np.where(np.cumsum(share) - share < params.top_p, share, 0.0)
    reached = np.cumsum(kept)
    return int(order[min(np.searchsorted(reached, uniform * reached[-1], side="right"), np.count_nonzero(kept) - 1)])


PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0.2, 3),
    top_k=st.sampled_from([0, 0, 1, 2, 7, 49, 50, 51, 1000]),
    top_p=st.sampled_from([1.0, 1.0, 0.01, 0.5, 0.9, 0.999]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=40)
@given(params=st.lists(PARAMS, min_size=1, max_size=9), seed=st.integers(0, 2**32 - 1))
def test_every_row_is_drawn_by_the_rule(params: list[SamplingParams], seed: int) -> None:
    dice = np.random.default_rng(seed)
    logits, positions = dice.normal(0, 2, (len(params), 50)), dice.integers(10, 90, len(params))
    expected = [by_the_rule(*row) for row in zip(logits, params, positions.tolist(), strict=True)]
    assert chosen(logits, known(*params), positions) == expected


def test_ties_are_ranked_by_token_id() -> None:
    logits = np.zeros((100, 8))
    params = [SamplingParams(temperature=1.0, top_k=3, seed=seed) for seed in range(100)]
    assert set(chosen(logits, known(*params), np.full(100, 10))) == {0, 1, 2}


@pytest.mark.parametrize(
    "params", [{}, {"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-9}], ids=["zero", "top_k", "top_p", "cold"]
)
def test_four_ways_to_say_greedy(params: dict[str, Any]) -> None:
    logits = np.random.default_rng(0).normal(size=(20, 50))
    way = {"temperature": 0.0 if not params else 1.0, **params}
    rows = known(*[SamplingParams(seed=seed, **way) for seed in range(20)])
    assert chosen(logits, rows, np.full(20, 11)) == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("params", "kept"),
    [({}, 8), ({"temperature": 2.0}, 8), ({"top_k": 5}, 5), ({"top_p": 0.8}, 4), ({"top_k": 5, "top_p": 0.99}, 5)],
)
def test_draws_have_the_distribution_that_was_asked_for(params: dict[str, Any], kept: int) -> None:
    """Pearson's chi-square over 4000 draws of as many requests: 24.3 is the 99.9 % quantile at 7 degrees of freedom."""
    count, logits = 4000, np.log(np.array([0.05, 0.4, 0.1, 0.02, 0.2, 0.03, 0.15, 0.05]))
    way = SamplingParams(**{"temperature": 1.0, **params})
    rows = known(*[SamplingParams(seed=seed, temperature=way.temperature, top_k=way.top_k, top_p=way.top_p)
                   for seed in range(count)])  # fmt: skip
    share = np.exp(logits / way.temperature) / np.exp(logits / way.temperature).sum()
    share[np.argsort(-share, kind="stable")[kept:]] = 0
    share /= share.sum()
    found = np.bincount(chosen(np.tile(logits, (count, 1)), rows, np.full(count, 10)), minlength=8)
    assert (found[share == 0] == 0).all() and (share > 0).sum() == kept
    expected = count * share[share > 0]
    assert ((found[share > 0] - expected) ** 2 / expected).sum() < 24.3


def test_a_rows_draws_at_its_positions_are_independent() -> None:
    """Pairs of draws one after the other, over 16 cells of 250: 37.7 is the 99.9 % quantile at 15 degrees."""
    rows = known(SamplingParams(temperature=1.0, seed=5))
    at = np.arange(4001)
    quarter = (4 * rows.uniform(np.zeros(4001, int), at)).astype(int)
    found = np.bincount(4 * quarter[:-1] + quarter[1:], minlength=16)
    assert ((found - 250) ** 2 / 250).sum() < 37.7


# -- a request's own random numbers

COMPANY = [R(at, ids(10 + at, 4 + at), 9, at % 3, temperature=0.5 * (at % 2)) for at in range(5)]


def said(request: dict[str, Any], *others: dict[str, Any], **config: Any) -> list[int]:
    """The answer of a request, served with others, in float64."""
    options = {"dtype": "float64"}
    return run(engine_of(request, *others, options=options, **config)).output("R0")


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-ouro", "tiny-huginn"])
def test_a_sampled_answer_does_not_depend_on_company(model: str) -> None:
    request = R(2, ids(1, 9), 12, 1, seed=3, **EVERY_WAY)
    stack = ("fcfs", "mixed") if model == "tiny-llama" else ("fcfs", "refill")
    alone = said(request, model=model, stack=stack, S=1)
    assert said(request, *COMPANY, model=model, stack=stack) == alone
    assert said(request, *COMPANY, model=model, stack=stack, B=7, S=3, bs=1) == alone
    assert said({**request, "seed": 4}, model=model, stack=stack) != alone
    assert said({**request, "temperature": 0.0}, model=model, stack=stack) != alone


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-ouro", "tiny-huginn"])
@pytest.mark.parametrize("mode", MODES)
def test_nor_on_who_takes_its_slot(model: str, mode: str) -> None:
    request = R(0, ids(1, 9), 12, 1, seed=3, **EVERY_WAY)
    stack = by_priority(mode, "mixed" if model == "tiny-llama" else "refill")
    alone = said(request, model=model, stack=stack)
    config = {"model": model, "stack": stack, "S": 1, "options": {"dtype": "float64"}}
    urgent = [R(at, ids(at, 5), 3, 0, temperature=1.0) for at in ((4, 9) if model == "tiny-llama" else (17, 45))]
    done = run(engine_of(request, *urgent, **config))
    assert done.output("R0") == alone
    assert done.outcomes["R0"].preemptions == 2 and "resumed" in reasons(done)


def test_stretches_draw_the_same() -> None:
    request = R(0, ids(1, 9), 40, seed=3, **EVERY_WAY)
    assert said(request, max_repeat=1) == said(request, max_repeat=None) == said(request, R(3, ids(2, 5), 9))


def test_without_a_seed_the_engines_seed_and_the_requests_number_decide() -> None:
    requests = [R(0, ids(1, 9), 12, temperature=1.0) for _ in range(2)]
    one, again, other = (run(engine_of(*requests, seed=seed)) for seed in (1, 1, 2))
    assert one.output("R0") == again.output("R0") and one.output("R1") == again.output("R1")
    assert len({tuple(done.output(name)) for done in (one, other) for name in ("R0", "R1")}) == 4


def test_a_cold_request_beside_a_hot_one_is_greedy(families: dict[str, Family]) -> None:
    llama = families["llama"]
    requests = [R(0, ids(at, 8), 12, temperature=1.5 * (at % 2), seed=at) for at in range(4)]
    done = run(engine_of(*requests, model=llama.folder))
    for at in (0, 2):
        agree(done.output(f"R{at}"), llama.theirs.greedy(ids(at, 8), 12, ends=False))
    for at in (1, 3):
        assert done.output(f"R{at}") != llama.theirs.greedy(ids(at, 8), 12, ends=False).tokens


# -- where an answer ends

PROMPT = ids(1, 9)
"""Its greedy answer ends at the fourth token."""


def ended(family: Family, **request: Any) -> tuple[list[int], str]:
    """The answer to a fixed prompt, and why it ended."""
    done = run(engine_of(R(0, PROMPT, 24, **{"ignore_eos": False, **request}), model=family.folder))
    return done.output("R0"), done.ends["R0"]


@pytest.fixture
def llama(families: dict[str, Family]) -> Family:
    """A model with 21 end tokens."""
    return families["llama"]


def test_any_of_several_end_tokens_ends_it(llama: Family) -> None:
    requests = [R(0, ids(seed, 8), 24, ignore_eos=False) for seed in range(12)]
    done = run(engine_of(*requests, model=llama.folder, S=12))
    last = [done.output(name)[-1] for name in done.outcomes if done.ends[name] == "stop"]
    assert len(set(last)) > 2 and set(last) <= {*EOS}
    assert all(not {*EOS} & {*done.output(name)[:-1]} for name in done.outcomes)


def test_end_tokens_are_words_to_who_ignores_them(llama: Family) -> None:
    expected = llama.theirs.greedy(PROMPT, 24, ends=False)
    tokens, why = ended(llama, ignore_eos=True)
    agree(tokens, expected)
    assert why == "length" and {*EOS} & {*tokens[:-1]}


@pytest.mark.parametrize("least", [1, 5, 11, 24])
def test_end_tokens_do_not_stand_before_min_tokens(least: int, llama: Family) -> None:
    given = torch.tensor([PROMPT])
    options = {"max_new_tokens": 24, "min_new_tokens": least - 1, "do_sample": False, "pad_token_id": 0}
    expected = llama.theirs.model.generate(given, attention_mask=torch.ones_like(given), **options)[0, 9:].tolist()
    tokens, why = ended(llama, min_tokens=least - 1)
    assert tokens == expected and len(tokens) >= least
    assert why == ("stop" if tokens[-1] in EOS else "length")


def test_a_stop_token_ends_it_where_it_first_stands(llama: Family) -> None:
    endless = llama.theirs.greedy(PROMPT, 24, ends=False).tokens
    stop = endless[6]
    tokens, why = ended(llama, ignore_eos=True, stop_token_ids=[stop, 499])
    assert (tokens, why) == (endless[: endless.index(stop) + 1], "stop")


@pytest.mark.parametrize("repeat", [1, None])
def test_a_stop_token_before_min_tokens_is_never_said(repeat: int | None, llama: Family) -> None:
    endless = llama.theirs.greedy(PROMPT, 24, ends=False).tokens
    request = R(0, PROMPT, 24, ignore_eos=True, stop_token_ids=[endless[2]], min_tokens=9)
    done = run(engine_of(request, model=llama.folder, max_repeat=repeat))
    assert done.output("R0")[:2] == endless[:2] and endless[2] not in done.output("R0")[:9]
    assert len(done.output("R0")) >= 9


@pytest.mark.parametrize("repeat", [1, None])
@pytest.mark.parametrize("output", [1, 2, 9, 24, 40])
@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_a_length_that_is_known_beforehand_is_kept(heat: float, output: int, repeat: int | None, llama: Family) -> None:
    request = R(0, PROMPT, 24, says=output, temperature=heat)
    done = run(engine_of(request, R(1, ids(1, 5), 30), model=llama.folder, max_repeat=repeat))
    tokens = done.output("R0")
    assert len(tokens) == min(output, 24) and not {*EOS} & {*tokens[:-1]}
    assert done.ends["R0"] == ("stop" if output <= 24 else "length")
    assert (tokens[-1] == EOS[0]) == (output <= 24)


def test_stop_tokens_wait_for_a_known_length_too(llama: Family) -> None:
    free = run(engine_of(R(0, PROMPT, 24, says=20), model=llama.folder)).output("R0")
    done = run(engine_of(R(0, PROMPT, 24, says=20, stop_token_ids=[free[4]]), model=llama.folder))
    assert len(done.output("R0")) == 20 and free[4] not in done.output("R0")


def test_a_model_without_end_tokens_goes_on_to_the_length(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = save_dense(tmp_path_factory.mktemp("endless"), "llama", eos_token_id=None)
    done = run(engine_of(R(0, PROMPT, 24, says=5), model=folder))
    assert len(done.output("R0")) == 24 and done.ends["R0"] == "length"


# -- what callers may not say


def beside(**params: Any) -> tuple[str, str, bool]:
    """How a request with these parameters ends, and another beside it, and whether that said what it says alone."""
    good = Request("good", ids(2, 5), SamplingParams(max_tokens=6, ignore_eos=True))
    bad = Request("bad", ids(1, 5), SamplingParams(**{"max_tokens": 6, "temperature": 1.0, "seed": 1, **params}))
    answers = []
    for requests in ([good], [bad, good]):
        engine = engine_of()
        handles = [engine.submit(request) for request in requests]
        for _ in engine.run():
            pass
        answers.append(handles[-1].token_ids)
    outcome = handles[0].result()
    why = str(outcome.finish_reason) + (f": {outcome.reject_reason}" if outcome.reject_reason else "")
    return why, str(handles[1].finish_reason), answers[0] == answers[1]


@pytest.mark.parametrize(
    "params",
    [
        {"top_p": 0.0}, {"top_p": -1.0}, {"top_p": 1.5}, {"top_p": float("nan")}, {"temperature": -1.0},
        {"temperature": float("nan")}, {"temperature": float("inf")}, {"top_k": -3}, {"min_tokens": -1},
    ],
    ids=str,
)  # fmt: skip
def test_parameters_that_are_none_are_refused_at_the_door(params: dict[str, Any]) -> None:
    ((name, value),) = params.items()
    why, other, same = beside(**params)
    assert why.startswith(f"rejected: bad_sampling: {name} is {value!r}, allowed: ")
    assert other == "length" and same


@pytest.mark.parametrize("stop", [512, 9999, -1])
def test_a_stop_token_that_the_model_does_not_know_harms_nobody(stop: int) -> None:
    why, other, same = beside(stop_token_ids=(stop,), min_tokens=3)
    assert why == "length" or why.startswith("rejected: ")
    assert other == "length" and same
