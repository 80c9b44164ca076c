"""Scenarios as Hypothesis draws them: small, at the edges of blocks and budgets, and simpler when they shrink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from interlock.core import PreemptMode
from interlock.plugins.conformance.checks.lives import never_runs
from interlock.plugins.conformance.scenario import Faults, Scenario

FAMILIES = ("load", "claims", "dense", "cancels", "fails", "again", "refuses", "raises")
"""Kinds of scenario: any; any, victims left to the stack; dense models; somebody cancels; the four kinds of fault."""

_SIZES = (4, 1, 2, 3)
_MOST_REQUESTS = 6
_FEWEST = (1, 2, 3, 4)  # requests: more of them make more pressure, fewer are plainer


@st.composite
def scenarios(draw: st.DrawFn, shapes: Sequence[tuple[int, str]], family: str = "load") -> Scenario:
    """A scenario of a family, for a stack that accepts these shapes of model."""
    size = draw(st.sampled_from(_SIZES))
    requests = draw(_requests(size))
    if family == "cancels":
        requests[0] |= {draw(st.sampled_from(("cancel_at_step", "cancel_at"))): draw(st.integers(1, 12))}
        _one_way_to_leave(requests[0])
    lengths = [_length(request) + request.get("max_tokens", 1) for request in requests]
    longest = max(max(lengths) + draw(st.sampled_from((0, 1, 32))), 2)
    blocks = _blocks(draw, requests, longest, size)
    kinds = [shape for shape in shapes if family != "dense" or shape[0] == 1]
    loops, prompt = draw(st.sampled_from([kinds[0], *kinds]))
    loops = loops if loops == 1 else draw(st.integers(2, loops))
    engine = {**draw(_limits(requests)), "max_model_len": longest, "prompt": prompt}
    if family == "raises":
        engine["on_violation"] = "repair"
    mode = draw(st.sampled_from([None, None, *PreemptMode, PreemptMode.OFFLOAD])) if family != "claims" else None
    exits = tuple(draw(st.lists(st.integers(1, loops), min_size=1, max_size=4))) if loops > 1 else ()
    named = None if mode is None else str(mode.value)
    kv = {"num_blocks": blocks, "block_size": size, **draw(_memory())}
    return Scenario(tuple(requests), engine, kv, loops, exits, named, draw(_faults(family)))


def _one_way_to_leave(request: dict[str, Any]) -> None:
    """A request is cancelled by number or by time."""
    if "cancel_at" in request:
        request["cancel_at"] = float(request["cancel_at"])
        request.pop("cancel_at_step", None)


def _length(request: dict[str, Any]) -> int:
    prompt: int | list[int] = request["prompt"]
    return prompt if isinstance(prompt, int) else len(prompt)


def _blocks(draw: st.DrawFn, requests: list[dict[str, Any]], longest: int, size: int) -> int:
    """Enough for each alone, and little more, so that KV runs short; now and then not enough for one of them."""
    needs = sorted(blocks for request in requests if (blocks := _need(request, longest, size)) > 0) or [1]
    spare = draw(st.sampled_from((0, 0, 1, 2, 4, 64)))
    if len(needs) > 1 and draw(st.integers(0, 9)) == 9:
        return max(needs[-1] - 1, 1)
    return needs[-1] + spare


def _need(request: dict[str, Any], longest: int, size: int) -> int:
    """Blocks that a request needs at most; 0 for one that never runs."""
    if never_runs(request, longest, size, 1 << 30):
        return 0
    prompt = _length(request)
    output: int = min(request.get("max_tokens", longest), longest - prompt)
    return -(-(prompt + output - 1) // size)


@st.composite
def _requests(draw: st.DrawFn, size: int) -> list[dict[str, Any]]:
    count = draw(st.integers(draw(st.sampled_from(_FEWEST)), _MOST_REQUESTS))
    shared = draw(st.integers(0, 4)) * size
    requests = [draw(_request(number, size, shared)) for number in range(count)]
    if count > 1 and draw(st.integers(0, 19)) == 19:
        requests[-1]["id"] = requests[0]["id"]
    return requests


@st.composite
def _request(draw: st.DrawFn, number: int, size: int, shared: int) -> dict[str, Any]:
    length = max(draw(st.integers(0, 5)) * size + draw(st.sampled_from((1, 0, -1, 2))), 1)
    if draw(st.integers(0, 49)) == 49:
        length = 0
    # Ids that any model knows; past the shared part no two prompts have the same one in the same place.
    prompt = [1 + (at if at < shared else 37 * (number + 1) + at) % 250 for at in range(length)]
    own: dict[str, Any] = {
        "id": "abcdefgh"[number],
        "arrival": float(draw(st.sampled_from((0, 0, 1, 2, 3, 5, 8)))),
        "prompt": length if not shared and length else prompt,
        "max_tokens": draw(st.sampled_from((1, 2, 4, 7, 12))),
    }
    return {**own, **draw(_end(own["max_tokens"])), **draw(_standing()), **draw(_leaving())}


@st.composite
def _end(draw: st.DrawFn, most: int) -> dict[str, Any]:
    """By length, or by itself, perhaps past a least number of tokens."""
    kind = draw(st.sampled_from(("length", "length", "stop", "least")))
    if kind == "length":
        return {"ignore_eos": True}
    end: dict[str, Any] = {"output": draw(st.integers(1, most))}
    return end if kind == "stop" else {**end, "min_tokens": draw(st.integers(0, most))}


@st.composite
def _standing(draw: st.DrawFn) -> dict[str, Any]:
    """What policies may look at."""
    standing: dict[str, Any] = {"priority": draw(st.integers(0, 3)), "tenant": draw(st.sampled_from("ab"))}
    deadline = draw(st.sampled_from((None, None, 2.0, 9.0)))
    predicted = draw(st.sampled_from((None, None, 1, 4)))
    named = {"deadline_s": deadline, "predicted": predicted}
    return {**standing, **{name: value for name, value in named.items() if value is not None}}


@st.composite
def _leaving(draw: st.DrawFn) -> dict[str, Any]:
    """A caller who loses interest: at a time, at a boundary, or by a time-out."""
    if draw(st.integers(0, 7)) < 7:
        return {}
    how = draw(st.sampled_from(("cancel_at_step", "cancel_at", "timeout_s")))
    when = draw(st.integers(0, 16))
    return {how: when if how == "cancel_at_step" else float(max(when, 1))}


@st.composite
def _limits(draw: st.DrawFn, requests: list[dict[str, Any]]) -> dict[str, Any]:
    edge = max(max(_length(request) for request in requests), 2)
    budget = draw(st.sampled_from((64, 4, 8, edge - 1, edge, edge + 1)))
    return {
        "max_num_seqs": draw(st.integers(1, 4)),
        "max_num_batched_tokens": max(budget, 1),
        "max_repeat": draw(st.sampled_from((None, 1))),
        "bypass_limit": draw(st.sampled_from((0, 0, 1, 2))),
        "scan_limit": draw(st.sampled_from((64, 1))),
        "long_prefill_token_threshold": draw(st.sampled_from((0, 0, 3))),
    }


@st.composite
def _memory(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "reserve": draw(st.sampled_from(("prompt", "none", "full"))),
        "enable_prefix_caching": draw(st.booleans()),
        "salt_by_tenant": draw(st.booleans()),
        "watermark": draw(st.sampled_from((0.0, 0.0, 0.1))),
        "host_blocks": draw(st.sampled_from((64, 64, 0, 3))),
    }


def _faults(family: str) -> st.SearchStrategy[Faults]:
    first = 1 if family == "raises" else 0
    numbers = st.lists(st.integers(first, 12), min_size=1, max_size=4, unique=True).map(
        lambda some: tuple(sorted(some))
    )
    in_a_row = st.builds(lambda start, count: tuple(range(start, start + count)), st.integers(0, 8), st.integers(2, 3))
    kinds = {
        "fails": st.builds(Faults, fails=st.one_of(numbers, in_a_row)),
        "again": st.builds(Faults, again=numbers),
        "raises": st.builds(Faults, raises=numbers),
        "refuses": st.builds(Faults, refuses=st.integers(0, 8)),
    }
    return kinds.get(family, st.just(Faults()))
