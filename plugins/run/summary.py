"""summary.json: a run in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from interlock.core.request import FinishReason, PreemptMode
from interlock.plugins.run.digest import digest
from interlock.plugins.run.fairness import fairness
from interlock.plugins.run.outcomes import COMPLETED, NEVER, Outcomes
from interlock.plugins.run.steps import count

if TYPE_CHECKING:
    from interlock.core.config import EngineConfig
    from interlock.plugins.run.recorder import Recorder

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Ran:
    """What only the one who ran the engine knows: its counters and the time by the host's clock."""

    wall_s: float = 0.0
    scheduler_ns: int = 0
    violations: int = 0
    protections: int = 0
    forced: int = 0
    repaired: int = 0


def summary(recorder: Recorder, config: EngineConfig, ran: Ran, versions: dict[str, Any]) -> dict[str, Any]:
    """All of summary.json. Numbers are Python's own; what is undefined (a percentile of nothing) is None."""
    outcomes = recorder.outcomes
    measured = window(outcomes, config.measure.warmup_s, config.measure.cooldown_s)
    return {
        "requests": _requests(recorder),
        **_rejections(recorder),
        "tokens": _tokens(outcomes),
        **_latencies(recorder, measured),
        "throughput": _throughput(outcomes),
        **_preemptions(recorder),
        "rescues": {"forced": ran.forced, "repaired": ran.repaired},
        "protections": ran.protections,
        "slo": slo(outcomes, measured, config.slo),
        "fairness": fairness(recorder),
        "lengths_known": lengths_known(config),
        "steps": count(recorder.steps),
        "makespan_s": makespan_ns(outcomes) / 1e9,
        "wall_s": ran.wall_s,
        "scheduler_s": ran.scheduler_ns / 1e9,
        "violations": ran.violations,
        "digest": digest(recorder),
        "versions": versions,
    }


def _rejections(recorder: Recorder) -> dict[str, dict[str, int]]:
    """How many were rejected for which reason, the most frequent first; nothing where nobody was."""
    reasons = Counter(str(one.reject_reason).partition(":")[0] for one in recorder.finished if one.reject_reason)
    return {"rejections": dict(reasons.most_common())} if reasons else {}


def window(outcomes: Outcomes, warmup_s: float, cooldown_s: float) -> np.ndarray:
    """Which requests count in latencies and goodput, bool: those that arrive in neither end of the arrivals."""
    if not len(outcomes):
        return np.zeros(0, bool)
    first, last = outcomes.arrival.min(), outcomes.arrival.max()
    late_enough = outcomes.arrival >= first + round(warmup_s * 1e9)
    return np.asarray(late_enough & (outcomes.arrival <= last - round(cooldown_s * 1e9)))


def makespan_ns(outcomes: Outcomes, which: np.ndarray | None = None) -> int:
    """First arrival to last end of these requests (None: all); 0 without any."""
    chosen = np.ones(len(outcomes), bool) if which is None else which
    return int(outcomes.ended[chosen].max() - outcomes.arrival[chosen].min()) if chosen.any() else 0


def spread(values: np.ndarray) -> dict[str, float | None]:
    """Mean, percentiles (linear interpolation) and maximum of the values that are not NaN; None without any."""
    values = values[~np.isnan(values)]
    names = ["mean", *(f"p{p}" for p in PERCENTILES), "max"]
    if not len(values):
        return dict.fromkeys(names)
    numbers = [values.mean(), *np.percentile(values, PERCENTILES), values.max()]
    return {name: float(number) for name, number in zip(names, numbers, strict=True)}


def slo(outcomes: Outcomes, measured: np.ndarray, objectives: Any) -> dict[str, float | None]:
    """The share of requests that meet every objective, their own deadline included, among those that the caller did
    not cancel; and their number over the makespan. None when there is no objective at all.
    """
    counted = measured & ~outcomes.ended_with(FinishReason.CANCELLED)
    has_deadline = outcomes.deadline != NEVER
    limits = (None, None) if objectives is None else (objectives.ttft_s, objectives.tpot_s)
    if not counted.any() or (limits == (None, None) and not has_deadline.any()):
        return {"attained": None, "goodput_rps": None}
    good = counted & outcomes.completed & (outcomes.deadline_met | ~has_deadline)
    for values, limit in zip((outcomes.ttft_s, outcomes.tpot_s), limits, strict=True):
        if limit is not None:
            good &= ~(values > limit)  # NaN, a latency that this request has not got, is within every limit
    return {
        "attained": float(good.sum() / counted.sum()),
        "goodput_rps": _rate(good.sum(), makespan_ns(outcomes, measured)),
    }


def lengths_known(config: EngineConfig) -> bool:
    """Whether policies saw true output lengths, as `max_tokens` or as a prediction."""
    workload = config.workload
    return workload is not None and (workload.max_tokens == "output" or workload.predict == "oracle")


def _requests(recorder: Recorder) -> dict[str, int]:
    ends = Counter(one.finish_reason for one in recorder.finished)
    return {
        "submitted": sum(one.from_status is None for one in recorder.transitions),
        "finished": sum(ends[reason] for reason in COMPLETED),
        "cancelled": ends[FinishReason.CANCELLED],
        "rejected": ends[FinishReason.REJECTED],
        "timed_out": ends[FinishReason.TIMEOUT],
        "failed": ends[FinishReason.ERROR],
    }


def _tokens(outcomes: Outcomes) -> dict[str, int]:
    return {
        "prompt": sum(one.prompt_tokens for one in outcomes.all),
        "cached": sum(one.cached_tokens for one in outcomes.all),
        "output": int(outcomes.output_tokens.sum()),
        "recomputed": sum(one.recomputed_tokens for one in outcomes.all),
    }


def _latencies(recorder: Recorder, measured: np.ndarray) -> dict[str, dict[str, float | None]]:
    outcomes = recorder.outcomes
    counted = measured & outcomes.completed
    numbers, gaps = recorder.flat.deliveries.gaps_ns()
    at, there = outcomes.index_of(numbers)
    there[there] = counted[at[there]]
    return {
        "ttft_s": spread(outcomes.ttft_s[counted]),
        "tpot_s": spread(outcomes.tpot_s[counted]),
        "itl_s": spread(gaps[there] / 1e9),
        "e2e_s": spread(outcomes.e2e_s[counted]),
        "queue_s": spread(outcomes.intervals["queue"][counted] / 1e9),
    }


def _throughput(outcomes: Outcomes) -> dict[str, float | None]:
    makespan = makespan_ns(outcomes)
    return {
        "requests_per_s": _rate(outcomes.completed.sum(), makespan),
        "output_tokens_per_s": _rate(outcomes.output_tokens.sum(), makespan),
    }


def _rate(count: Any, makespan: int) -> float | None:
    return float(count / (makespan / 1e9)) if makespan else None


def _preemptions(recorder: Recorder) -> dict[str, dict[str, int]]:
    modes = Counter(one.mode for one in recorder.preempted)
    demands = Counter(one.demand for one in recorder.preempted)
    return {
        "preemptions": {str(mode): modes[mode] for mode in PreemptMode},
        "preemptions_by_reason": {name: demands[name] for name in ("slot", "admission", "growth")},
    }
