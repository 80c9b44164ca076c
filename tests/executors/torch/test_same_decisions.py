"""A real model and a simulated one decide the same: recorded on one and replayed on the other, either way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pressure import MODES, by_priority
from scenario import MIXED, R

from interlock.plugins.cli.main import invoke

from .kit import COST, GIVES_WAY, ids, limits_of
from .loads import Load, loads

TRACE = [3, 1, 2, 2]
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dense": (
        {"simulated": {**COST}},
        {"torch": {"model": "tiny-llama", "device": "cpu", **COST}},
    ),
    "looped": (
        {"simulated": {"model": {"loops": 3, "exit": {"trace": TRACE}}, **COST}},
        {"torch": {"model": "tiny-ouro", "device": "cpu", "exit": {"trace": TRACE}, **COST}},
    ),
}
ENDS = ("request_id", "finish_reason", "first_token_s", "finished_s", "output_tokens", "recomputed_tokens")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def decide_the_same(kind: str, requests: list[dict[str, Any]], stack: tuple[Any, ...], **limits: Any) -> dict[str, int]:
    """Record on either, replay on the other; ends and their times are the same, too. Returns preemptions by mode."""
    engine, kv = limits_of(**limits)
    config = {"engine": engine, "kv": kv, "policies": list(stack), "workload": {"requests": requests}}
    told = []
    for recorded, replayed in (PAIRS[kind], PAIRS[kind][::-1]):
        Path("run.yaml").write_text(yaml.safe_dump({**config, "executor": recorded}))
        assert invoke(["run", "run.yaml", "--out", "out", "--quiet", "--overwrite"]) == 0
        assert invoke(["replay", "out", "--set", f"executor={json.dumps(replayed)}"]) == 0
        told.append(pq.read_table("out/requests.parquet", columns=list(ENDS)).to_pylist())
    assert told[0] == told[1]
    preemptions: dict[str, int] = json.loads(Path("out/summary.json").read_text())["preemptions"]
    return preemptions


@st.composite
def ending(draw: st.DrawFn, **sizes: Any) -> Load:
    """Loads whose answers end where it is said, or at their length before that."""
    requests, limits = draw(loads(**sizes))
    known = [{**request, **draw(_end(request["max_tokens"]))} for request in requests]
    return known, limits


@st.composite
def _end(draw: st.DrawFn, most: int) -> dict[str, Any]:
    least = draw(st.sampled_from([0, 0, 0, 3]))
    return {
        "output": draw(st.integers(1, most + 2)),
        "ignore_eos": draw(st.integers(0, 9)) == 9,
        "min_tokens": min(least, most),
    }


STACKS = [
    MIXED,
    ("fcfs",),
    *[by_priority(mode) for mode in MODES],
    *[("fcfs", *by_priority(mode, "mixed"), {GIVES_WAY: {"mode": mode}}) for mode in MODES],
]
LOOPED = [
    ("fcfs", "refill"),
    ("fcfs", "no_refill"),
    *[("fcfs", *by_priority(mode, "refill"), {GIVES_WAY: {"mode": mode}}) for mode in MODES],
]


@settings(max_examples=4)
@given(load=ending(), stack=st.sampled_from(STACKS))
def test_dense_models_decide_the_same(load: Load, stack: tuple[Any, ...]) -> None:
    decide_the_same("dense", load[0], stack, L=64, **load[1])


@settings(max_examples=3)
@given(load=ending(longest=20, output=7, most=5), stack=st.sampled_from([*LOOPED, ("fcfs", "mixed")]))
def test_looped_models_decide_the_same(load: Load, stack: tuple[Any, ...]) -> None:
    split = {"split": True} if "mixed" in stack else {}
    decide_the_same("looped", load[0], stack, L=64, **split, **load[1])


LOW = [R(0, ids(1, 9), 9, 2, says=8), R(0, ids(2, 14), 20, 1, says=14), R(1, ids(3, 7), 20, 1, says=20)]
DENSE_HIGH = [R(6, ids(4, 6), 8, says=8), R(9, ids(5, 11), 5, says=5)]
LOOPED_HIGH = [R(21, ids(4, 6), 8, says=8), R(43, ids(5, 11), 5, says=5)]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_dense_models_take_slots_alike(mode: str, caching: bool) -> None:
    stack = by_priority(mode, "mixed")
    assert decide_the_same("dense", [*LOW, *DENSE_HIGH], stack, S=2, caching=caching)[mode] >= 2


@pytest.mark.parametrize("mode", ["offload", "recompute"])
def test_dense_models_grow_alike(mode: str) -> None:
    stack = (*MIXED, {GIVES_WAY: {"mode": mode}})
    assert decide_the_same("dense", [*LOW, *DENSE_HIGH], stack, bs=2, N=19, reserve="none")[mode] >= 2


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_looped_models_take_slots_alike(mode: str, split: bool) -> None:
    stack = ("fcfs", *by_priority(mode, "mixed" if split else "refill"))
    assert decide_the_same("looped", [*LOW, *LOOPED_HIGH], stack, S=2, split=split)[mode] >= 2


@pytest.mark.parametrize("mode", ["offload", "recompute"])
def test_looped_models_grow_alike(mode: str) -> None:
    stack = ("fcfs", "refill", {GIVES_WAY: {"mode": mode}})
    assert decide_the_same("looped", [*LOW, *LOOPED_HIGH], stack, bs=2, N=19, reserve="none")[mode] >= 2


def test_looped_models_find_the_same_prefixes() -> None:
    """What left the loop early is nobody's prefix: not even its own request finds it when it computes again."""
    shared = ids(9, 16)
    requests = [R(9 * at, shared + ids(at, 5), 8, 3 - at, says=6) for at in range(4)]
    stack = ("fcfs", *by_priority("recompute", "refill"))
    assert decide_the_same("looped", requests, stack, S=2, caching=True)["recompute"] >= 1


def test_a_model_that_ends_elsewhere_is_noticed() -> None:
    """So that the tests above can fail: one answer is a token shorter on the real model."""
    Path("run.yaml").write_text(
        yaml.safe_dump({"executor": PAIRS["dense"][0], "policies": ["fcfs"], "workload": {"requests": LOW}})
    )
    assert invoke(["run", "run.yaml", "--out", "out", "--quiet"]) == 0
    real = f"executor={json.dumps(PAIRS['dense'][1])}"
    assert invoke(["replay", "out", "--set", real]) == 0
    assert invoke(["replay", "out", "--set", real, "--set", "workload.requests.1.output=13"]) == 1


@pytest.mark.soak
@settings(max_examples=150)
@given(load=ending(most=9), stack=st.sampled_from(STACKS))
def test_dense_models_decide_the_same_for_many(load: Load, stack: tuple[Any, ...]) -> None:
    decide_the_same("dense", load[0], stack, L=64, **load[1])


@pytest.mark.soak
@settings(max_examples=150)
@given(load=ending(longest=20, output=7, most=7), stack=st.sampled_from([*LOOPED, ("fcfs", "mixed")]))
def test_looped_models_decide_the_same_for_many(load: Load, stack: tuple[Any, ...]) -> None:
    split = {"split": True} if "mixed" in stack else {}
    decide_the_same("looped", load[0], stack, L=64, **split, **load[1])
