"""Random small workloads under pressure drain, invariants hold at every boundary, outputs are those served alone."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from scenario import MIXED, URGENT, R, play

STACKS = [
    ("fcfs",),
    MIXED,
    URGENT,
    ("priority",),
    ("fcfs", {"mixed": {"order": "decode_first"}}),
    ({"priority": {"aging": 0.5}}, "mixed"),
]
SETTINGS = settings(derandomize=True, deadline=None, max_examples=120, database=None)


@st.composite
def prompts(draw: Any) -> int | list[int]:
    """A length, or token ids of a tiny alphabet, so that prefixes are often shared."""
    if draw(st.booleans()):
        return draw(st.integers(1, 14))
    return [1] * draw(st.integers(0, 9)) + draw(st.lists(st.integers(1, 2), min_size=1, max_size=5))


@st.composite
def requests(draw: Any) -> dict[str, Any]:
    """A request of at most 6 blocks of 4 tokens."""
    more: dict[str, Any] = {}
    cancel = draw(st.none() | st.integers(0, 15))
    if cancel is not None and draw(st.booleans()):
        more["cancel_at"] = float(cancel)
    if draw(st.integers(0, 5)) == 0:
        more["timeout_s"] = float(draw(st.integers(1, 20)))
    says = draw(st.none() | st.integers(1, 9))
    return R(
        draw(st.integers(0, 8)), draw(prompts()), draw(st.integers(1, 9)), draw(st.integers(0, 3)), says=says, **more
    )


@st.composite
def engines(draw: Any) -> dict[str, Any]:
    """Settings that are short of blocks, of slots, or of tokens."""
    return {
        "N": draw(st.integers(6, 14)),
        "S": draw(st.integers(1, 5)),
        "B": draw(st.integers(1, 20)),
        "bs": 4,
        "reserve": draw(st.sampled_from(["none", "prompt", "full"])),
        "caching": draw(st.booleans()),
        "stack": draw(st.sampled_from(STACKS)),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 3, 8])),
        "bypass_limit": draw(st.sampled_from([0, 0, 1, 3])),
        "max_preemptions": draw(st.sampled_from([1, 8])),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.2])),
        "scan_limit": draw(st.sampled_from([0, 1, 64])),
    }


@SETTINGS
@given(st.lists(requests(), min_size=1, max_size=9), engines())
def test_every_workload_drains_with_one_end_each_and_its_own_output(
    entries: list[dict[str, Any]], config: dict[str, Any]
) -> None:
    run = play(*entries, **config)
    assert len(run.ends) == len(entries)
    for i, entry in enumerate(entries):
        allowed = (
            {"stop", "length"}
            | ({"cancelled"} if "cancel_at" in entry else set())
            | ({"timeout"} if "timeout_s" in entry else set())
        )
        assert run.ends[f"R{i}"] in allowed, "everybody fits alone"


@SETTINGS
@given(st.lists(requests(), min_size=1, max_size=7), engines(), st.sets(st.integers(0, 30), max_size=3))
def test_every_workload_drains_beside_failing_batches(
    entries: list[dict[str, Any]], config: dict[str, Any], fails: set[int]
) -> None:
    run = play(*entries, **config, fails=fails)
    assert set(run.ends.values()) <= {"stop", "length", "cancelled", "timeout", "error"}


@SETTINGS
@given(st.lists(requests(), min_size=1, max_size=7), engines(), st.sampled_from([2, 5, None]))
def test_stretches_end_as_single_steps_do(
    entries: list[dict[str, Any]], config: dict[str, Any], repeat: int | None
) -> None:
    def ended(longest: int | None) -> Any:
        run = play(*entries, **config, max_repeat=longest)
        moves = [tuple(move) for record in run.records for move in record.transitions]
        return moves, {name: (outcome.finished_ns, run.output(name)) for name, outcome in run.outcomes.items()}

    assert ended(1) == ended(repeat)


@SETTINGS
@given(st.lists(requests(), min_size=2, max_size=8), engines())
def test_fewest_victims_and_no_preemption_by_equals(entries: list[dict[str, Any]], config: dict[str, Any]) -> None:
    config = {**config, "stack": URGENT}
    run = play(*[{**entry, "priority": 1} for entry in entries], **config)
    assert all(victim.demand == "growth" for record in run.records for victim in record.preempted)
    if config["reserve"] == "full":
        assert not run.preempted, "what is promised in full is never taken back for growth"
