"""Generated requests: their distributions, their seeds, and the closed loop."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interlock.core.config_workload import WorkloadSection
from interlock.core.feed import Arrival, Feed
from interlock.plugins.workload import build

ONE = {"constant": {"value": 1}}


def feed(seed: int = 0, base: Path = Path(), **generate: Any) -> Feed:
    options = {"count": 20_000, "arrivals": {"poisson": {"rate": 4.0}}, "prompt": ONE, "output": ONE, **generate}
    options = {key: value for key, value in options.items() if value is not None}
    section = WorkloadSection.model_validate_json(json.dumps({"generate": options}))
    return build(section, base=base, seed=seed, max_model_len=8192)


def arrivals(**options: Any) -> list[Arrival]:
    return [event for event in feed(**options).due(2**62, 0, []) if isinstance(event, Arrival)]


def prompts(length: dict[str, Any], **options: Any) -> np.ndarray:
    return np.array([one.request.prompt_tokens for one in arrivals(prompt=length, **options)])


@pytest.mark.parametrize(
    ("kind", "cv"),
    [
        ({"poisson": {"rate": 4.0}}, 1.0),
        ({"gamma": {"rate": 4.0, "cv": 2.5}}, 2.5),
        ({"gamma": {"rate": 4.0, "cv": 0.5}}, 0.5),
        ({"constant": {"rate": 4.0}}, 0.0),
    ],
)
def test_arrivals_have_their_rate_and_variation(kind: dict[str, Any], cv: float) -> None:
    gaps = np.diff([0] + [one.at_ns / 1e9 for one in arrivals(arrivals=kind)])
    assert np.mean(gaps) == pytest.approx(0.25, rel=0.1)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(cv, rel=0.1, abs=1e-6)
    assert gaps.min() >= 0


@pytest.mark.parametrize(
    ("length", "mean"),
    [
        ({"constant": {"value": 7}}, 7),
        ({"uniform": {"low": 10, "high": 20}}, 15),
        ({"exponential": {"mean": 300}}, 300),
        ({"geometric": {"mean": 128}}, 128),
        ({"lognormal": {"mean": 512, "sigma": 0.8}}, 512),
        ({"hyperexponential": {"probabilities": [0.9, 0.1], "means": [100, 1000]}}, 190),
    ],
)
def test_lengths_have_their_mean_and_are_whole_tokens(length: dict[str, Any], mean: float) -> None:
    found = prompts(length)
    assert np.mean(found) == pytest.approx(mean, rel=0.05)
    assert found.min() >= 1


def test_uniform_includes_both_ends() -> None:
    assert set(prompts({"uniform": {"low": 2, "high": 4}})) == {2, 3, 4}


def test_a_lognormal_has_its_sigma() -> None:
    assert np.std(np.log(prompts({"lognormal": {"mean": 5000, "sigma": 0.8}}))) == pytest.approx(0.8, rel=0.05)


def test_equal_seeds_give_equal_requests_and_other_seeds_others() -> None:
    length = {"geometric": {"mean": 50}}
    assert np.array_equal(prompts(length, seed=3), prompts(length, seed=3))
    assert not np.array_equal(prompts(length, seed=3), prompts(length, seed=4))


def test_one_purposes_draws_do_not_shift_anothers() -> None:
    times = [[one.at_ns for one in arrivals(prompt=length)] for length in (ONE, {"geometric": {"mean": 9}})]
    assert times[0] == times[1]
    both = arrivals(prompt={"geometric": {"mean": 50}}, output={"geometric": {"mean": 50}})
    pairs = [(one.request.prompt_tokens, one.output or 0) for one in both]
    assert abs(np.corrcoef(np.array(pairs).T)[0, 1]) < 0.05


def test_lengths_of_a_file_are_taken_in_order_and_again(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("arrival_s,prompt_tokens,output_tokens\n,10,1\n,20,2\n,30,3\n")
    found = arrivals(base=tmp_path, count=5, prompt=None, output=None, lengths={"path": "l.csv"})
    assert [(one.request.prompt_tokens, one.output) for one in found] == [(10, 1), (20, 2), (30, 3), (10, 1), (20, 2)]


def test_lengths_of_a_file_may_be_drawn_and_need_no_arrivals(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("prompt_tokens,output_tokens\n10,1\n20,2\n30,3\n")
    lengths = {"path": "l.csv", "sample": True}
    found = arrivals(base=tmp_path, count=300, prompt=None, output=None, lengths=lengths)
    pairs = [(one.request.prompt_tokens, one.output) for one in found]
    assert set(pairs) == {(10, 1), (20, 2), (30, 3)}
    assert pairs[:3] * 100 != pairs


def test_a_closed_loop_answers_each_finish_with_an_arrival() -> None:
    loop = feed(count=5, arrivals={"closed": {"concurrency": 2}})

    def ids(now_ns: int, finished: list[str]) -> list[tuple[str, int]]:
        events = loop.due(now_ns, 0, finished)
        return [(one.request.id, one.at_ns) for one in events if isinstance(one, Arrival)]

    assert loop.next_ns() == 0
    assert ids(0, []) == [("r0", 0), ("r1", 0)]
    assert (loop.next_ns(), loop.next_step()) == (None, None)
    assert ids(10, []) == []
    assert ids(20, ["r1"]) == [("r2", 20)]
    assert ids(30, ["r0", "r2"]) == [("r3", 30), ("r4", 30)]
    assert ids(40, ["r3", "r4"]) == []


def test_a_closed_loop_of_more_than_there_are_starts_them_all() -> None:
    assert len(feed(count=3, arrivals={"closed": {"concurrency": 9}}).due(0, 0, [])) == 3


def test_ten_thousand_requests_are_generated_in_a_fraction_of_a_second() -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        feed(count=10_000, prompt={"lognormal": {"mean": 512, "sigma": 0.8}}, output={"geometric": {"mean": 128}})
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.2
