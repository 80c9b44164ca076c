"""The digest: equal for equal decisions, different for different ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from interlock.core.batch import Batch
from interlock.plugins.run.digest import digest
from interlock.plugins.run.recorder import Recorder


def test_the_value_is_fixed(story: Any) -> None:
    # Pinned: it must be the same in every process, whatever PYTHONHASHSEED says.
    assert digest(story.two_requests()) == "6413b6e958a294bc914d1ade13d19713"


def test_an_empty_run_has_one() -> None:
    assert len(digest(Recorder())) == 32


@pytest.mark.parametrize("stretches", [[1] * 6, [2, 4], [3, 1, 2]])
def test_stretches_do_not_show(story: Any, another: Any, stretches: list[int]) -> None:
    assert digest(story.decoding([6])) == digest(another.decoding(stretches))


def test_host_times_do_not_show(story: Any, another: Any) -> None:
    recorder = another.two_requests()
    for step in recorder.steps:
        step.host_ns += 5
    assert digest(story.two_requests()) == digest(recorder)


@pytest.mark.parametrize("field", ["version", "step", "time_ns", "work", "computed", "emitted", "blocks", "slot"])
def test_every_fact_of_a_transition_shows(story: Any, another: Any, field: str) -> None:
    changed = another.two_requests()
    first = changed.transitions[0]
    changed.transitions[0] = first._replace(**{field: getattr(first, field) + 1})
    assert digest(story.two_requests()) != digest(changed)


def test_reasons_show(story: Any, another: Any) -> None:
    changed = another.two_requests()
    changed.transitions[1] = changed.transitions[1]._replace(reason="resumed")
    assert digest(story.two_requests()) != digest(changed)


@pytest.mark.parametrize("column", ["versions", "tokens", "start", "numbers"])
def test_members_of_a_batch_show(story: Any, another: Any, column: str) -> None:
    plain: Batch = story.batch(0, 0, [(0, 7, 4, 1), (1, 7, 9, 1)])
    changed = replace(plain, **{column: getattr(plain, column) + 1})
    assert digest(story.decoding([3], plain)) != digest(another.decoding([3], changed))


def test_emitted_tokens_show(story: Any, another: Any) -> None:
    changed = another.decoding([3])
    changed.steps[0].sampled[0][1, 0] += 1
    assert digest(story.decoding([3])) != digest(changed)
