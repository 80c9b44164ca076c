"""summary.json, against values worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from interlock.core.config import EngineConfig
from interlock.core.record import Preempted
from interlock.core.request import FinishReason, PreemptMode
from interlock.plugins.run.recorder import Recorder
from interlock.plugins.run.summary import Ran, lengths_known, slo, spread, summary, window

SECOND = 1_000_000_000
KEYS = (
    "requests tokens ttft_s tpot_s itl_s e2e_s queue_s throughput preemptions preemptions_by_reason rescues "
    "protections slo fairness lengths_known steps makespan_s wall_s scheduler_s violations digest versions"
)


def summarise(recorder: Recorder, **sections: Any) -> dict[str, Any]:
    """The summary of a run under a configuration with these sections."""
    config = EngineConfig(**sections)
    return summary(recorder, config, Ran(wall_s=2.0, scheduler_ns=SECOND // 2, violations=1, forced=3), {})


def test_the_keys_are_the_documented_ones_and_survive_json(story: Any) -> None:
    for recorder in (Recorder(), story.two_requests()):
        numbers = summarise(recorder)
        assert " ".join(numbers) == KEYS
        assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers


def test_numbers_of_two_requests(story: Any) -> None:
    numbers = summarise(story.two_requests())
    assert numbers["requests"] == {
        "submitted": 2, "finished": 2, "cancelled": 0, "rejected": 0, "timed_out": 0, "failed": 0,
    }  # fmt: skip
    assert numbers["tokens"] == {"prompt": 6, "cached": 0, "output": 4, "recomputed": 0}
    assert numbers["ttft_s"] == {"mean": 1.5, "p50": 1.5, "p90": 1.9, "p99": pytest.approx(1.99), "max": 2.0}
    assert numbers["tpot_s"] == dict.fromkeys(("mean", "p50", "p90", "p99", "max"), 1.5)
    assert (numbers["itl_s"]["mean"], numbers["itl_s"]["max"]) == (1.5, 2.0)
    assert (numbers["e2e_s"]["mean"], numbers["queue_s"]["mean"]) == (3.0, 0.5)
    assert numbers["throughput"] == {"requests_per_s": 0.5, "output_tokens_per_s": 1.0}
    assert (numbers["steps"], numbers["makespan_s"]) == (4, 4.0)
    assert (numbers["wall_s"], numbers["scheduler_s"], numbers["violations"]) == (2.0, 0.5, 1)
    assert numbers["rescues"] == {"forced": 3, "repaired": 0}


def test_a_stretch_counts_as_its_batches(story: Any) -> None:
    assert summarise(story.decoding([4, 2]))["steps"] == 6


def test_percentiles_interpolate_and_ignore_what_is_undefined() -> None:
    found = spread(np.array([4.0, np.nan, 1.0, 3.0, 2.0]))
    assert found == {"mean": 2.5, "p50": 2.5, "p90": pytest.approx(3.7), "p99": pytest.approx(3.97), "max": 4.0}
    assert spread(np.array([np.nan])) == dict.fromkeys(("mean", "p50", "p90", "p99", "max"))


def mixed_ends(story: Any) -> Recorder:
    """Two answers (ttft 1 and 3), a rejection, a cancellation, a timeout, a failure; four seconds in all."""
    ends = {2: FinishReason.REJECTED, 3: FinishReason.CANCELLED, 4: FinishReason.TIMEOUT, 5: FinishReason.ERROR}
    answers = [story.outcome(0, 0, 4, [1, 4]), story.outcome(1, 0, 3, [3])]
    others = [story.outcome(number, 1, 2, finish_reason=reason) for number, reason in ends.items()]
    story.boundary(0, 4, outcomes=[*answers, *others])
    return story.recorder


def test_goodput_counts_a_rejection_as_a_miss_and_a_cancellation_not_at_all(story: Any) -> None:
    found = summarise(mixed_ends(story), slo={"ttft_s": 1.0, "tpot_s": 3.0})
    assert found["slo"] == {"attained": 1 / 5, "goodput_rps": 1 / 4}
    assert summarise(story.recorder, slo={"ttft_s": 3.0, "tpot_s": 3.0})["slo"]["attained"] == 2 / 5
    assert summarise(story.recorder, slo={"ttft_s": 1.0, "tpot_s": 2.9})["slo"]["attained"] == 0.0
    assert found["requests"] | {"submitted": 0} == {
        "submitted": 0, "finished": 2, "cancelled": 1, "rejected": 1, "timed_out": 1, "failed": 1,
    }  # fmt: skip


def test_latencies_are_those_of_answers(story: Any) -> None:
    assert summarise(mixed_ends(story))["e2e_s"]["mean"] == 3.5


def test_one_token_has_no_tpot_to_miss(story: Any) -> None:
    story.boundary(0, 3, outcomes=[story.outcome(0, 0, 3, [3])])
    assert summarise(story.recorder, slo={"ttft_s": None, "tpot_s": 0.001})["slo"]["attained"] == 1.0


def test_without_any_objective_nothing_is_attained_or_missed(story: Any) -> None:
    numbers = summarise(mixed_ends(story), slo={"ttft_s": None, "tpot_s": None})
    assert numbers["slo"] == {"attained": None, "goodput_rps": None}
    assert slo(story.recorder.outcomes, np.ones(6, bool), None) == {"attained": None, "goodput_rps": None}


def test_a_missed_deadline_is_a_missed_objective(story: Any) -> None:
    ends = [story.outcome(n, 0, 2, [1], deadline_ns=limit * SECOND) for n, limit in enumerate((1, 2))]
    story.boundary(0, 2, outcomes=ends)
    assert summarise(story.recorder, slo={"ttft_s": None, "tpot_s": None})["slo"]["attained"] == 0.5


def test_warm_up_and_cool_down(story: Any) -> None:
    story.boundary(0, 20, outcomes=[story.outcome(n, 10 + n, 12 + 2 * n, [11 + 2 * n]) for n in range(4)])
    outcomes = story.recorder.outcomes
    assert window(outcomes, 0, 0).tolist() == [True] * 4
    assert window(outcomes, 1, 0).tolist() == [False, True, True, True]
    assert window(outcomes, 0.5, 0.5).tolist() == [False, True, True, False]
    numbers = summarise(story.recorder, measure={"warmup_s": 0.5, "cooldown_s": 0.5}, slo={"ttft_s": 2.0})
    assert (numbers["ttft_s"]["mean"], numbers["ttft_s"]["max"]) == (2.5, 3.0)
    # Requests 1 and 2 count: from 11 to 16, and one of them meets its objective.
    assert numbers["slo"] == {"attained": 0.5, "goodput_rps": 1 / 5}
    assert numbers["requests"]["finished"] == 4


def test_preemptions_by_mode_and_by_reason(story: Any) -> None:
    gone = [Preempted(0, PreemptMode.YIELD, "slot"), Preempted(1, PreemptMode.RECOMPUTE, "growth")]
    story.boundary(0, 0, preempted=[*gone, Preempted(1, PreemptMode.RECOMPUTE, "admission")])
    numbers = summarise(story.recorder)
    assert numbers["preemptions"] == {"yield": 1, "offload": 0, "recompute": 2}
    assert numbers["preemptions_by_reason"] == {"slot": 1, "admission": 1, "growth": 1}


@pytest.mark.parametrize(
    ("workload", "known"),
    [
        ({"max_tokens": "output"}, True),
        ({"max_tokens": "context"}, False),
        ({"max_tokens": 64, "predict": "none"}, False),
        ({"max_tokens": 64, "predict": "oracle"}, True),
        ({"max_tokens": 64, "predict": {"noisy": {"sigma": 0.5}}}, False),
    ],
)
def test_lengths_known(workload: dict[str, Any], known: bool) -> None:
    requests = [{"id": "a", "prompt": 3, "output": 2}]
    assert lengths_known(EngineConfig(workload={"requests": tuple(requests), **workload})) is known
