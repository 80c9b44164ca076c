"""Random small loads: short of slots, tokens or blocks, though each request fits alone."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from scenario import R

from .kit import ids

Load = tuple[list[dict[str, Any]], dict[str, Any]]

SHARED = ids(99, 32)
"""What half of all prompts begin with."""


@st.composite
def loads(draw: st.DrawFn, *, longest: int = 32, output: int = 12, most: int = 6, whole: bool = False) -> Load:
    """Requests and the engine's settings. `whole`: each prompt must fit into one batch."""
    size = draw(st.sampled_from([4, 1, 2, 7, 16]))
    requests = [draw(_request(longest, output)) for _ in range(draw(st.integers(3, most)))]
    lengths = [len(request["prompt"]) for request in requests]
    needs = [-(-(len(one["prompt"]) + one["max_tokens"] - 1) // size) for one in requests]
    budgets = [64, 5, 8, 13, 21]
    settings = {
        "bs": size,
        "N": max(needs) + draw(st.sampled_from([0, 1, 2, 3, 40])),
        "B": draw(st.sampled_from([budget for budget in budgets if not whole or budget >= max(lengths)])),
        "S": draw(st.sampled_from([2, 1, 3])),
        "reserve": draw(st.sampled_from(["prompt", "none", "full"])),
        "caching": draw(st.booleans()),
        "host": draw(st.sampled_from([4096, 3, 0])),
        "max_repeat": draw(st.sampled_from([None, 1])),
        "long_prefill_token_threshold": 0 if whole else draw(st.sampled_from([0, 4])),
        "bypass_limit": draw(st.sampled_from([0, 2])),
    }
    return requests, settings


@st.composite
def _request(draw: st.DrawFn, longest: int, output: int) -> dict[str, Any]:
    length, kept = draw(st.integers(1, longest)), draw(st.sampled_from([0, 8, 20]))
    prompt = (SHARED[:kept] + ids(draw(st.integers(0, 5)), longest))[:length]
    leaves = {"cancel_at": float(draw(st.integers(0, 30)))} if draw(st.integers(0, 7)) == 7 else {}
    arrival = draw(st.integers(0, 10))
    priority = draw(st.sampled_from([0, 1])) if arrival > 3 else 2
    own = {"ignore_eos": False, "seed": draw(st.integers(0, 2)), **leaves}
    return R(arrival, prompt, draw(st.sampled_from([output, output - 1, 3, 1])), priority, **own)
