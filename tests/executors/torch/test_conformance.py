"""The conformance suite on the torch executor: stacks of ours, and the executor itself."""

from __future__ import annotations

import pytest

from interlock.plugins.conformance import report
from interlock.plugins.conformance.front import suite_of

FEW, MANY = 2, 60
STACKS = ("fcfs+mixed", "fcfs+priority", "fcfs+refill")
MORE = (*STACKS, "fcfs", "priority", "no_refill", "fcfs+priority+mixed", "fcfs+priority+refill")


def failures(what: str, executor: str | None, examples: int) -> list[str]:
    """What the report says of every check that is not good."""
    suite = suite_of(what, executor, examples)
    suite.shrinks = examples > FEW  # the claim that `priority` takes from `fcfs` would be shrunk, too
    verdicts = list(suite.verdicts())
    assert verdicts and {verdict.status for verdict in verdicts} <= {"pass", "skip", "lost", "fail"}
    return [report.paragraph(verdict) for verdict in verdicts if not verdict.good]


@pytest.mark.parametrize("stack", STACKS)
def test_stacks_pass_a_few_examples(stack: str) -> None:
    assert failures(stack, "torch", FEW) == []


def test_the_executor_passes() -> None:
    verdicts = list(suite_of("executor:torch", None, FEW).verdicts())
    assert {verdict.check.name: verdict.status for verdict in verdicts if verdict.status != "pass"} == {}


@pytest.mark.soak
@pytest.mark.parametrize("stack", MORE)
def test_stacks_pass(stack: str) -> None:
    assert failures(stack, "torch", MANY) == []


@pytest.mark.soak
@pytest.mark.parametrize("model", ["tiny-llama", "tiny-qwen", "tiny-ouro", "tiny-huginn"])
def test_every_model_passes(model: str) -> None:
    stack = "fcfs+mixed" if model in ("tiny-llama", "tiny-qwen") else "fcfs+refill"
    assert failures(stack, f"{{torch: {{model: {model}}}}}", MANY) == []


@pytest.mark.soak
@pytest.mark.parametrize("model", ["tiny-llama", "tiny-qwen"])
def test_the_executor_passes_with(model: str) -> None:
    assert failures(f"executor:{{torch: {{model: {model}}}}}", None, MANY) == []
