"""Verdicts, counter-examples, and the files that show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock.core import ConfigError, EngineConfig
from interlock.core.yamlfile import read_file
from interlock.plugins.conformance import report
from interlock.plugins.conformance.front import suite_of
from interlock.plugins.conformance.repeat import repeat
from interlock.plugins.conformance.scenario import Faults, Scenario
from interlock.plugins.conformance.shrink import shrunk
from interlock.plugins.conformance.subject import Subject
from interlock.plugins.conformance.suite import Suite, Verdict

from . import broken_policies as policies


def only(subject: Subject, *names: str, examples: int = 40) -> list[Verdict]:
    return list(Suite(subject, examples, frozenset(names)).verdicts())


@pytest.mark.parametrize("stack", ["fcfs", "fcfs+priority+mixed", "refill", "no_refill"])
def test_stacks_of_ours_pass_a_few_examples(stack: str) -> None:
    verdicts = list(suite_of(stack, None, 4).verdicts())
    assert [report.paragraph(verdict) for verdict in verdicts if not verdict.good] == []
    assert {verdict.status for verdict in verdicts} <= {"pass", "skip", "lost"}


@pytest.mark.soak
@pytest.mark.parametrize("stack", ["fcfs", "priority", "mixed", "refill", "no_refill", "fcfs+priority+mixed"])
def test_stacks_of_ours_pass(stack: str) -> None:
    assert [report.paragraph(verdict) for verdict in suite_of(stack).verdicts() if not verdict.good] == []


def test_an_executor_passes() -> None:
    verdicts = list(suite_of("executor:simulated", None, 4).verdicts())
    assert {verdict.status for verdict in verdicts} == {"pass"}


def test_the_same_twice() -> None:
    one, two = (only(Subject.of(policies.LowestFirst), "NoPriorityInversion() of " + NAME) for _ in range(2))
    assert one[0].scenario == two[0].scenario and str(one[0].finding) == str(two[0].finding)


NAME = f"{policies.__name__}:LowestFirst"


def test_a_failure_is_shown_by_its_file(tmp_path: Path) -> None:
    subject = Subject.of(policies.LowestFirst)
    (verdict,) = only(subject, f"NoPriorityInversion() of {NAME}")
    report.write_scenario(verdict, subject, tmp_path)
    config = EngineConfig.load(Path(verdict.file))
    assert config.workload is not None and config.workload.requests is not None
    assert len(config.workload.requests) == 2, "one that enters, and one that should have"
    scenario, stack, executor = Scenario.read(read_file(Path(verdict.file)).data)
    found = repeat(stack, executor, scenario, verdict.check.name)
    assert found == verdict.finding
    assert verdict.file in report.paragraph(verdict) and "Right:" in report.paragraph(verdict)


def test_a_scenario_survives_its_file() -> None:
    scenario = Scenario(
        ({"id": "a", "arrival": 0.0, "prompt": [1, 2], "max_tokens": 2},), {"max_num_seqs": 1}, {"num_blocks": 4}, 3,
        (1, 2), "yield", Faults((1, 2), (3,), 4, (5,)),
    )  # fmt: skip
    stack, section = [{"fcfs": {}}], Subject.of("fcfs").section(scenario)
    told = report._plain(scenario.shown(stack, section, "members", "here.yaml"))
    again, its_stack, executor = Scenario.read(told)
    assert (again, its_stack, executor) == (scenario, stack, section)
    assert Subject.named("fcfs", executor).section(again) == section


def test_expected_failures_are_strict() -> None:
    (late,) = only(Subject.of(policies.HonestlyLate), "drains unaided")
    assert (late.status, late.reason) == ("expected", "it holds whoever is not alone")
    (modest,) = only(Subject.of(policies.FalselyModest), "members", examples=3)
    assert modest.status == "fail" and "and passes" in modest.reason and modest.finding is None
    assert "it is expected to fail (it does not), and passes" in report.paragraph(modest)


def test_a_claim_that_a_later_policy_undoes_is_lost_to_it() -> None:
    verdicts = only(Subject.of("fcfs", "mixed", policies.LastFirst), "ArrivalOrder() of fcfs")
    assert [verdict.status for verdict in verdicts] == ["lost"] and verdicts[0].good
    assert verdicts[0].reason == f"fcfs claims it, and it is lost to {policies.__name__}:LastFirst"


def test_a_false_claim_is_not_lost() -> None:
    name = f"ArrivalOrder() of {policies.__name__}:LastFirst"
    (verdict,) = only(Subject.of(policies.LastFirst, "mixed"), name)
    assert verdict.status == "fail"


def test_what_does_not_apply_is_skipped_with_the_reason() -> None:
    verdicts = {
        verdict.check.name: verdict for verdict in only(Subject.named("refill"), "stretches", "reads", examples=2)
    }
    assert verdicts["stretches"].status == "skip" and "looped" in verdicts["stretches"].reason
    (reads,) = only(Subject.of(policies.Dice), "reads", examples=2)
    assert reads.status == "skip" and "no policy says what it reads" in reads.reason


def test_a_stack_that_serves_no_model_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="requires speculation"):
        Subject.of(policies.NeedsDrafts)


def test_shrinking_removes_what_does_not_matter() -> None:
    requests = tuple({"id": name, "arrival": 3.0, "prompt": [5, 6, 7], "max_tokens": 4} for name in "abc")
    scenario = Scenario(
        requests, {"max_num_seqs": 2, "bypass_limit": 1}, {"num_blocks": 9, "watermark": 0.1}, mode="yield"
    )
    small = shrunk(scenario, lambda one: any(request["max_tokens"] > 1 for request in one.requests))
    assert len(small.requests) == 1 and small.mode is None
    assert (small.engine, small.kv) == ({"max_num_seqs": 2}, {"num_blocks": 9})
    assert small.requests[0] == {"id": "a", "arrival": 0.0, "prompt": 1, "max_tokens": 2}
