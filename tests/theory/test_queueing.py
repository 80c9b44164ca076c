"""The engine against queueing theory: one slot is an M/G/1 queue, continuous batching a birth-death chain.

Seeds are fixed. A tolerance is about three standard errors of the run; where a sample path can be computed, it is
compared exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from interlock.core import Engine, EngineConfig, Offer, Outcome, Policy, Request, SamplingParams, View
from interlock.core.feed import Arrival
from interlock.policies.priority import Priority
from tests.policies.examples import Srpt

Draw = Callable[[np.random.Generator, int], np.ndarray]


class Listed:
    """A feed of arrivals in order."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self.arrivals, self.at = arrivals, 0

    def next_ns(self) -> int | None:
        return self.arrivals[self.at].at_ns if self.at < len(self.arrivals) else None

    def next_step(self) -> int | None:
        return None

    def due(self, now_ns: int, step: int, finished: Sequence[str]) -> Sequence[Arrival]:
        first = self.at
        while self.at < len(self.arrivals) and self.arrivals[self.at].at_ns <= now_ns:
            self.at += 1
        return self.arrivals[first : self.at]


def serve(
    times_s: np.ndarray,
    lengths: np.ndarray,
    cost: dict[str, Any],
    *,
    slots: int = 1,
    stack: Sequence[Any] = ("fcfs", "mixed"),
    priorities: np.ndarray | None = None,
) -> list[Outcome]:
    """Serve prompts of one token, whose first step gives their first token: a length is a number of steps. By number."""
    config = EngineConfig.load(
        {
            "engine": {"max_num_seqs": slots, "max_num_batched_tokens": max(slots, 16), "max_model_len": 4096},
            "kv": {"num_blocks": 1 << 16, "block_size": 64, "enable_prefix_caching": False},
            "executor": {"simulated": {"cost": cost}},
        }
    )
    kinds = np.zeros(len(lengths), int) if priorities is None else priorities
    arrivals = [
        Arrival(
            Request(str(i), [7], SamplingParams(max_tokens=n, ignore_eos=True), priority=p, predicted=n), round(t * 1e9)
        )
        for i, (t, n, p) in enumerate(zip(times_s.tolist(), lengths.tolist(), kinds.tolist(), strict=True))
    ]
    names = [item for item in stack if isinstance(item, str)]
    built = iter(EngineConfig.load({"policies": names}).build_policies() if names else [])
    policies = [next(built) if isinstance(item, str) else item for item in stack]
    engine = Engine(config, policies, config.build_executor(), feed=Listed(arrivals))
    outcomes = [outcome for record in engine.run() for outcome in record.outcomes]
    assert len(outcomes) == len(lengths)
    return sorted(outcomes, key=lambda outcome: outcome.number)


def poisson(random: np.random.Generator, rate: float, count: int) -> np.ndarray:
    return np.round(np.cumsum(random.exponential(1 / rate, count)), 9)


def waits(outcomes: Sequence[Outcome]) -> np.ndarray:
    return np.array([outcome.queue_ns for outcome in outcomes]) / 1e9


def stays(outcomes: Sequence[Outcome]) -> np.ndarray:
    return np.array([outcome.finished_ns - outcome.arrival_ns for outcome in outcomes]) / 1e9


def deterministic(random: np.random.Generator, count: int) -> np.ndarray:
    return np.full(count, 50)


def uniform(random: np.random.Generator, count: int) -> np.ndarray:
    return random.integers(1, 100, count)


def geometric(random: np.random.Generator, count: int) -> np.ndarray:
    return np.minimum(random.geometric(1 / 50, count), 2000)


def hyper(random: np.random.Generator, count: int) -> np.ndarray:
    means = np.where(random.random(count) < 0.9, 25.0, 275.0)
    return np.minimum(random.geometric(1 / means), 4000)


# -- one slot: M/G/1


STEP = 0.02  # 50 steps are one second


def moments(lengths: np.ndarray) -> tuple[float, float]:
    seconds = lengths * STEP
    return float(seconds.mean()), float((seconds**2).mean())


@pytest.mark.parametrize("draw", [deterministic, uniform, geometric, hyper])
def test_fcfs_is_lindleys_recursion(draw: Draw) -> None:
    """W(n+1) = max(W(n) + S(n) - A(n), 0), to the nanosecond."""
    random = np.random.default_rng(1)
    lengths, times = draw(random, 800), poisson(random, 0.8, 800)
    outcomes = serve(times, lengths, {"constant": {"step_s": STEP}})
    free, expected = 0, []
    for at, steps in zip(np.round(times * 1e9).astype(int).tolist(), lengths.tolist(), strict=True):
        begin = max(at, free)
        expected.append(begin - at)
        free = begin + steps * round(STEP * 1e9)
    assert [outcome.queue_ns for outcome in outcomes] == expected


@pytest.mark.parametrize(
    ("draw", "exact", "tolerance"), [(deterministic, 1.1667, 0.06), (uniform, 1.5556, 0.08), (geometric, 2.3333, 0.1)]
)
def test_fcfs_is_pollaczek_khinchine(draw: Draw, exact: float, tolerance: float) -> None:
    """rho 0.7, one second each on average: W = lambda E[S^2] / (2 (1 - rho))."""
    random = np.random.default_rng(2)
    lengths, times = draw(random, 15_000), poisson(random, 0.7, 15_000)
    seen = float(waits(serve(times, lengths, {"constant": {"step_s": STEP}})).mean())
    mean, square = moments(draw(np.random.default_rng(3), 1_000_000))
    formula = 0.7 * square / (2 * (1 - 0.7 * mean))
    assert formula == pytest.approx(exact, rel=0.03), "lengths are whole steps"
    assert seen == pytest.approx(formula, rel=tolerance)


def test_a_prefill_engine_is_m_d_1() -> None:
    """DistServe: D 0.13 s, 4 requests a second: D + R D^2 / (2 (1 - R D)) = 0.2004 s."""
    random = np.random.default_rng(4)
    outcomes = serve(poisson(random, 4.0, 15_000), np.ones(15_000, int), {"constant": {"step_s": 0.13}})
    assert stays(outcomes).mean() == pytest.approx(0.2004, rel=0.03)


def test_time_per_token_by_order() -> None:
    """Fu et al. 2024, figure 1: lengths 10, 2, 1, served alone; seconds per token 6.667, and 1.267 by length."""
    lengths, times = np.array([10, 2, 1]), np.zeros(3)
    for stack, exact in ((["fcfs"], 6.667), ([Srpt()], 1.267)):
        outcomes = serve(times, lengths, {"constant": {"step_s": 1.0}}, stack=stack)
        assert float((stays(outcomes) / lengths).mean()) == pytest.approx(exact, abs=5e-4)


def classes(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arrivals, lengths in steps of 20 ms, and classes: (0.3, 0.5), (0.4, 1), (0.1, 2), exponential."""
    rates, means = np.array([0.3, 0.4, 0.1]), np.array([0.5, 1.0, 2.0])
    kinds = random.choice(3, count, p=rates / rates.sum())
    lengths = np.minimum(random.geometric(STEP / means[kinds]), 4000)
    return poisson(random, float(rates.sum()), count), lengths, kinds


def test_priority_without_displacement_is_cobham() -> None:
    """Non-preemptive priorities, Cobham 1954: T = 1.52941, 3.28758, 9.77778."""
    times, lengths, kinds = classes(np.random.default_rng(5), 15_000)
    stack = [Priority(displace=False), "mixed"]
    stay = stays(serve(times, lengths, {"constant": {"step_s": STEP}}, stack=stack, priorities=kinds))
    for kind, exact, tolerance in ((0, 1.52941, 0.06), (1, 3.28758, 0.09), (2, 9.77778, 0.2)):
        assert stay[kinds == kind].mean() == pytest.approx(exact, rel=tolerance), kind


@pytest.mark.soak
def test_priority_with_yields_is_preemptive_resume() -> None:
    """T_k = E[S_k] / (1 - s_(k-1)) + R_k / ((1 - s_(k-1)) (1 - s_k)): 0.58824, 2.41830, 12.22222."""
    times, lengths, kinds = classes(np.random.default_rng(6), 60_000)
    stack = [Priority(preempt="yield"), "mixed"]
    stay = stays(serve(times, lengths, {"constant": {"step_s": STEP}}, stack=stack, priorities=kinds))
    for kind, exact, tolerance in ((0, 0.58824, 0.05), (1, 2.41830, 0.08), (2, 12.22222, 0.2)):
        assert stay[kinds == kind].mean() == pytest.approx(exact, rel=tolerance), kind


@pytest.mark.soak
def test_srpt_is_schrage_miller() -> None:
    """rho 0.7: uniform 1.98394, exponential 1.87457."""
    for draw, exact in ((uniform, 1.98394), (geometric, 1.87457)):
        random = np.random.default_rng(7)
        lengths, times = draw(random, 40_000), poisson(random, 0.7, 40_000)
        stay = stays(serve(times, lengths, {"constant": {"step_s": STEP}}, stack=[Srpt(), "mixed"]))
        assert stay.mean() == pytest.approx(exact + STEP / 2, rel=0.05)


# -- continuous batching: n running cost d0 + d1 n


def chain(rate: float, mean: float, d0: float, d1: float, cap: int) -> float:
    """E[T] of the birth-death chain with completion rate b / (m (d0 + d1 b)), b = min(n, cap)."""
    weight, total, people, n = 1.0, 1.0, 0.0, 0
    while n < 5000 and (n < 50 or weight > 1e-15 * total):
        n += 1
        b = min(n, cap)
        weight *= rate * mean * (d0 + d1 * b) / b
        total += weight
        people += n * weight
    return people / total / rate


CASES = [
    (0.010, 0.0, 10_000, 12.0, 1.2800),
    (0.0, 0.001, 10_000, 6.25, 0.6400),
    (0.008, 0.0001, 10_000, 40.0, 2.1246),
    (0.010, 0.0, 8, 5.0, 1.6461),
    (0.008, 0.00025, 32, 12.5, 1.7812),
]


@pytest.mark.parametrize(("d0", "d1", "cap", "rate", "exact"), CASES)
def test_the_formulas_give_the_worked_numbers(d0: float, d1: float, cap: int, rate: float, exact: float) -> None:
    assert chain(rate, 128, d0, d1, cap) == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize(
    ("d0", "d1", "cap", "rate", "exact"), CASES, ids=["M/G/inf", "PS", "batching", "M/M/8", "capped"]
)
def test_continuous_batching_is_a_birth_death_chain(d0: float, d1: float, cap: int, rate: float, exact: float) -> None:
    """Geometric lengths of mean 128. An arrival waits for the boundary: half a step more, at the size it meets."""
    random, count = np.random.default_rng(8), 6_000
    lengths, times = np.minimum(random.geometric(1 / 128, count), 4000), poisson(random, rate, count)
    # A prompt of one token costs what a decode costs.
    cost = {"linear": {"base_s": d0, "prefill_token_s": d1, "decode_token_s": d1}}
    stay = stays(serve(times, lengths, cost, slots=min(cap, 512)))
    running = rate * exact
    half = (d0 + d1 * min(running, cap)) / 2
    assert stay.mean() == pytest.approx(exact + half, rel=0.08)


@pytest.mark.parametrize("draw", ["fixed", "uniform", "two"])
def test_without_a_cap_it_is_insensitive_to_the_distribution(draw: str) -> None:
    """1 ms n at rho 0.8 is processor sharing: 0.64 s for every distribution of mean 128."""
    random, count = np.random.default_rng(9), 6_000
    lengths = {
        "fixed": np.full(count, 128),
        "uniform": random.integers(1, 256, count),
        "two": np.where(random.random(count) < 0.9, 100, 380),
    }[draw]
    cost = {"linear": {"prefill_token_s": 0.001, "decode_token_s": 0.001}}
    stay = stays(serve(poisson(random, 6.25, count), lengths, cost, slots=512))
    assert stay.mean() == pytest.approx(0.64, rel=0.08)


# -- iteration-level over request-level batching


class RequestLevel(Policy):
    """The next batch is formed when the last one has ended altogether."""

    def admit(self, offer: Offer, view: View) -> None:
        if len(view.active):
            offer.limit(0)


@pytest.mark.parametrize(("slots", "exact"), [(4, 1.595), (8, 1.772), (16, 1.875), (32, 1.932)])
def test_refilling_each_step_gains_the_longest_over_the_mean(slots: int, exact: float) -> None:
    """Saturated, constant step, lengths uniform on 1..128: E[max of B] / E[length]."""
    count = 100 * slots
    lengths = np.random.default_rng(10).integers(1, 129, count)
    values = np.arange(1, 129)
    longest = float((values * ((values / 128) ** slots - ((values - 1) / 128) ** slots)).sum())
    assert longest / 64.5 == pytest.approx(exact, abs=1e-3)

    def makespan(stack: list[Any]) -> float:
        outcomes = serve(np.zeros(count), lengths, {"constant": {"step_s": 1.0}}, slots=slots, stack=stack)
        return max(outcome.finished_ns for outcome in outcomes) / 1e9

    refilled, whole = makespan(["fcfs", "mixed"]), makespan(["fcfs", RequestLevel(), "mixed"])
    groups = lengths.reshape(-1, slots).max(axis=1)
    assert whole == pytest.approx(float(groups.sum())), "each batch runs as long as its longest"
    assert refilled >= math.ceil(lengths.sum() / slots)
    assert whole / refilled == pytest.approx(exact, rel=0.05)
