"""Prompt chunks and decode tokens in one batch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scenario import R, engine_of, play

from interlock.core import WorkKey
from interlock.core.claims import DecodesFirst, WorkConserving
from interlock.plugins.testing import boundary
from interlock.policies.mixed import Mixed

ACTIVE = [{"id": "p", "prompt": 20, "computed": 4}, {"id": "d", "prompt": 5}, {"id": "e", "prompt": 6}]


def test_prompts_and_decodes_share_a_batch() -> None:
    told = boundary(active=ACTIVE, waiting=[{"id": "new", "prompt": 7}], stack="mixed")
    assert told.batch == [("p", 16), ("d", 1), ("e", 1), ("new", 7)]


def test_without_it_they_do_not() -> None:
    assert boundary(active=ACTIVE, stack="fcfs").batch == [("p", 16)]


def test_rows_are_served_in_the_order_of_their_admission() -> None:
    """A long prompt may take the whole budget."""
    told = boundary(active=ACTIVE, stack="mixed", max_num_batched_tokens=8)
    assert told.batch == [("p", 8)]


def test_decodes_first_are_never_delayed_by_a_prompt() -> None:
    told = boundary(
        active=ACTIVE, waiting=[{"id": "new", "prompt": 7}], stack=Mixed(order="decode_first"), max_num_batched_tokens=8
    )
    assert told.batch == [("d", 1), ("e", 1), ("p", 6)]
    assert told.waits == {"new": "tokens"}


def test_prompts_keep_their_order_among_themselves() -> None:
    active = [
        {"id": "p", "prompt": 9, "computed": 4},
        {"id": "q", "prompt": 9, "computed": 2},
        {"id": "d", "prompt": 5},
    ]
    told = boundary(active=active, waiting=[{"id": "n", "prompt": 3}], stack=["fcfs", Mixed(order="decode_first")])
    assert told.batch == [("d", 1), ("p", 5), ("q", 7), ("n", 3)]


def test_a_threshold_cuts_chunks() -> None:
    told = boundary(active=ACTIVE, waiting=[{"id": "n", "prompt": 30}], stack="mixed", long_prefill_token_threshold=5)
    assert told.batch == [("p", 5), ("d", 1), ("e", 1), ("n", 5)]


def test_with_decodes_first_no_active_request_misses_a_token() -> None:
    """A budget of 4 beside two decodes and a prompt of 20: a token a step, whatever else there is to do."""
    run = play(R(0, 2, 12), R(0, 2, 12), R(2, 20, 2), stack=["fcfs", {"mixed": {"order": "decode_first"}}], B=4)
    for name in ("R0", "R1"):
        steps = [step for step in sorted(run.ran(name)) if step >= run.first_token(name)]
        assert steps == list(range(steps[0], steps[0] + 12))


@pytest.mark.parametrize("order", ["admission", "decode_first"])
@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 16), st.integers(1, 8)), min_size=1, max_size=7), st.data())
def test_whatever_can_run_does(order: str, entries: list[Any], data: Any) -> None:
    """The claim: with blocks for all, a batch leaves budget only when everybody active runs all that is pending."""
    budget, slots = data.draw(st.sampled_from([4, 9, 64])), data.draw(st.integers(1, 4))
    engine = engine_of(
        *[R(*entry) for entry in entries], stack=["fcfs", {"mixed": {"order": order}}], B=budget, S=slots, N=64
    )
    for record in engine.run():
        state = engine.state
        if record.batch is None:
            assert not len(state.active) and not len(state.waiting)
        elif record.batch.tokens.sum() < budget:
            pending = dict(zip(state.active.tolist(), state.pending(state.active).tolist(), strict=True))
            assert dict(zip(record.batch.rows.tolist(), record.batch.tokens.tolist(), strict=True)) == pending
            assert not len(state.waiting) or not state.free_slots


def test_a_batch_holds_both_kinds_of_work() -> None:
    kinds: set[frozenset[int]] = set()
    for record in engine_of(R(0, 4, 4), R(1, 9, 3), stack=["mixed"]).run():
        if record.batch is not None:
            kinds.add(frozenset(record.batch.work.tolist()))
    assert frozenset({int(WorkKey.PROMPT_ATOMIC), int(WorkKey.DECODE_ATOMIC)}) in kinds


def test_its_claims_and_options() -> None:
    assert tuple(Mixed().claims()) == (WorkConserving(),) and "select" in Mixed.hooks()
    assert tuple(Mixed(order="decode_first").claims()) == (WorkConserving(), DecodesFirst())
    with pytest.raises(ValidationError):
        Mixed(order="shortest")
