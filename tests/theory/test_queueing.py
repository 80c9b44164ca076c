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
    """Serve prompts of one token, whose first step gives their first token: a length is a number of steps."""
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
CONSTANT = {"constant": {"step_s": STEP}}


def loaded(random: np.random.Generator, rate: float, work_s: np.ndarray) -> np.ndarray:
    """Poisson arrivals, stretched so that the sample offers exactly the load that its rate stands for."""
    times = np.cumsum(random.exponential(1 / rate, len(work_s)))
    return np.round(times * (len(work_s) / rate) / times[-1], 9)


def nanoseconds(times: np.ndarray) -> list[int]:
    return np.round(times * 1e9).astype(int).tolist()


@pytest.mark.parametrize("draw", [deterministic, uniform, geometric, hyper])
def test_fcfs_is_lindleys_recursion(draw: Draw) -> None:
    """W(n+1) = max(W(n) + S(n) - A(n), 0), to the nanosecond: so all of the theory of FCFS holds."""
    random = np.random.default_rng(1)
    lengths, times = draw(random, 300), poisson(random, 0.8, 300)
    outcomes = serve(times, lengths, CONSTANT)
    free, expected = 0, []
    for at, steps in zip(nanoseconds(times), lengths.tolist(), strict=True):
        begin = max(at, free)
        expected.append(begin - at)
        free = begin + steps * round(STEP * 1e9)
    assert [outcome.queue_ns for outcome in outcomes] == expected


@pytest.mark.soak
@pytest.mark.parametrize(("draw", "exact"), [(deterministic, 1.1667), (uniform, 1.5556), (geometric, 2.3333)])
def test_fcfs_is_pollaczek_khinchine(draw: Draw, exact: float) -> None:
    """rho 0.7, one second each on average: W = lambda E[S^2] / (2 (1 - rho))."""
    random = np.random.default_rng(2)
    lengths = draw(random, 15_000)
    seconds = lengths * STEP
    seen = float(waits(serve(loaded(random, 0.7, seconds), lengths, CONSTANT)).mean())
    formula = 0.7 * float((seconds**2).mean()) / (2 * (1 - 0.7 * float(seconds.mean())))
    assert formula == pytest.approx(exact, rel=0.1), "lengths are whole steps, their moments those of the sample"
    assert seen == pytest.approx(formula, rel=0.12)


def test_a_prefill_engine_is_m_d_1() -> None:
    """DistServe: D 0.13 s, 4 requests a second: D + R D^2 / (2 (1 - R D)) = 0.2004 s."""
    random, ones = np.random.default_rng(4), np.ones(2_000, int)
    outcomes = serve(loaded(random, 4.0, ones), ones, {"constant": {"step_s": 0.13}})
    assert stays(outcomes).mean() == pytest.approx(0.2004, rel=0.05)


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
    return loaded(random, float(rates.sum()), lengths), lengths, kinds


def test_priority_without_displacement_takes_the_smallest_number_when_the_slot_is_free() -> None:
    """The sample path of non-preemptive priorities, to the nanosecond."""
    times, lengths, kinds = classes(np.random.default_rng(5), 400)
    outcomes = serve(times, lengths, CONSTANT, stack=[Priority(displace=False), "mixed"], priorities=kinds)
    arrivals, free, begins = nanoseconds(times), 0, dict[int, int]()
    while len(begins) < len(lengths):
        left = [i for i in range(len(lengths)) if i not in begins]
        free = max(free, min(arrivals[i] for i in left))
        chosen = min((i for i in left if arrivals[i] <= free), key=lambda i: (kinds[i], i))
        begins[chosen] = free
        free += int(lengths[chosen]) * round(STEP * 1e9)
    assert [outcome.admitted_ns for outcome in outcomes] == [begins[i] for i in range(len(lengths))]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("preempt", "exact"), [(None, (1.52941, 3.28758, 9.77778)), ("yield", (0.58824, 2.41830, 12.22222))]
)
def test_priorities_are_cobham_and_preemptive_resume(preempt: str | None, exact: tuple[float, ...]) -> None:
    """Cobham 1954; T_k = E[S_k] / (1 - s_(k-1)) + R_k / ((1 - s_(k-1)) (1 - s_k)), at most a step more to give way."""
    times, lengths, kinds = classes(np.random.default_rng(6), 15_000)
    stack = [Priority(preempt=preempt), "mixed"]
    stay = stays(serve(times, lengths, CONSTANT, stack=stack, priorities=kinds))
    for kind, tolerance in ((0, 0.05), (1, 0.08), (2, 0.2)):
        assert stay[kinds == kind].mean() == pytest.approx(exact[kind], rel=tolerance), kind


@pytest.mark.soak
@pytest.mark.parametrize(("draw", "exact"), [(uniform, 1.98394), (geometric, 1.87457)])
def test_srpt_is_schrage_miller(draw: Draw, exact: float) -> None:
    """rho 0.7. An arrival waits for the boundary: half a step more. (It reads what moves: each step is a boundary.)"""
    random = np.random.default_rng(7)
    lengths = draw(random, 2_500)
    stay = stays(serve(loaded(random, 0.7, lengths), lengths, CONSTANT, stack=[Srpt(), "mixed"]))
    assert stay.mean() == pytest.approx(exact + STEP / 2, rel=0.12)


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
    pytest.param(0.010, 0.0, 10_000, 12.0, 1.2800, id="M/G/inf"),
    pytest.param(0.0, 0.001, 10_000, 6.25, 0.6400, id="processor sharing"),
    pytest.param(0.008, 0.0001, 10_000, 40.0, 2.1246, id="batching"),
    pytest.param(0.010, 0.0, 8, 5.0, 1.6461, id="M/M/8"),
    pytest.param(0.008, 0.00025, 32, 12.5, 1.7812, id="capped"),
]


def linear(d0: float, d1: float) -> dict[str, Any]:
    """A prompt of one token costs what a decode costs."""
    return {"linear": {"base_s": d0, "prefill_token_s": d1, "decode_token_s": d1}}


@pytest.mark.parametrize(("d0", "d1", "cap", "rate", "exact"), CASES)
def test_the_formulas_give_the_worked_numbers(d0: float, d1: float, cap: int, rate: float, exact: float) -> None:
    assert chain(rate, 128, d0, d1, cap) == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize(("d0", "d1", "cap", "rate", "exact"), CASES)
def test_continuous_batching_is_its_own_sample_path(d0: float, d1: float, cap: int, rate: float, exact: float) -> None:
    """Step by step: who is there joins while there is room, and n of them take d0 + d1 n. To the nanosecond."""
    random = np.random.default_rng(8)
    lengths, times = np.minimum(random.geometric(1 / 64, 250), 4000), poisson(random, 2 * rate, 250)
    outcomes = serve(times, lengths, linear(d0, d1), slots=min(cap, 256))
    arrivals, left, ends = nanoseconds(times), lengths.tolist(), [0] * 250
    now, coming, running = 0, 0, list[int]()
    while coming < 250 or running:
        while coming < 250 and arrivals[coming] <= now and len(running) < cap:
            running.append(coming)
            coming += 1
        if not running:
            now = arrivals[coming]
            continue
        now += round((d0 + d1 * len(running)) * 1e9)
        for i in running:
            left[i] -= 1
            ends[i] = now
        running = [i for i in running if left[i]]
    assert [outcome.finished_ns for outcome in outcomes] == ends


@pytest.mark.soak
@pytest.mark.parametrize(("d0", "d1", "cap", "rate", "exact"), CASES)
@pytest.mark.parametrize("draw", ["geometric", "uniform", "fixed"])
def test_continuous_batching_is_a_birth_death_chain(
    draw: str, d0: float, d1: float, cap: int, rate: float, exact: float
) -> None:
    """Lengths of mean 128; without a cap their distribution does not matter. Half a step more for the boundary."""
    if draw != "geometric" and cap < 10_000:
        pytest.skip("insensitive without a cap only")
    random, count = np.random.default_rng(9), 8_000
    draws = {"geometric": random.geometric(1 / 128, count), "uniform": random.integers(1, 256, count)}
    lengths = np.minimum(draws.get(draw, np.full(count, 128)), 4000)
    stay = stays(serve(loaded(random, rate, lengths), lengths, linear(d0, d1), slots=min(cap, 1024)))
    half = (d0 + d1 * min(rate * exact, cap)) / 2
    assert stay.mean() == pytest.approx(exact + half, rel=0.1)


# -- iteration-level over request-level batching


class RequestLevel(Policy):
    """The next batch is formed when the last one has ended altogether."""

    def admit(self, offer: Offer, view: View) -> None:
        if len(view.active):
            offer.hold(np.ones(len(offer.rows), bool))


@pytest.mark.parametrize(("slots", "exact", "count"), [(4, 1.595, 160), (8, 1.772, 240), (32, 1.932, 960)])
def test_refilling_each_step_gains_the_longest_over_the_mean(slots: int, exact: float, count: int) -> None:
    """Saturated, constant step, lengths uniform on 1..128: E[max of B] / E[length]."""
    values, lengths = np.arange(1, 129), np.random.default_rng(10).integers(1, 129, count)
    longest = float((values * ((values / 128) ** slots - ((values - 1) / 128) ** slots)).sum())
    assert longest / 64.5 == pytest.approx(exact, abs=1e-3)

    def makespan(stack: list[Any]) -> float:
        outcomes = serve(np.zeros(count), lengths, {"constant": {"step_s": 1.0}}, slots=slots, stack=stack)
        return max(outcome.finished_ns for outcome in outcomes) / 1e9

    refilled, whole = makespan(["fcfs", "mixed"]), makespan(["fcfs", RequestLevel(), "mixed"])
    groups = lengths.reshape(-1, slots).max(axis=1)
    assert whole == float(groups.sum()), "each batch runs as long as its longest"
    assert math.ceil(lengths.sum() / slots) <= refilled <= math.ceil(lengths.sum() / slots) + 128
    assert whole / refilled == pytest.approx(exact, rel=0.1)
