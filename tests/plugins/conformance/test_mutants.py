"""The suite is tested by what it must catch: each check has a mutant, and no mutant survives."""

from __future__ import annotations

import pytest

from interlock.core import claims
from interlock.plugins.conformance.checks import universal
from interlock.plugins.conformance.claims import CHECK_OF
from interlock.plugins.conformance.executor import executor_checks
from interlock.plugins.conformance.suite import Suite, Verdict

from . import mutants
from .mutants import Mutant

_EXAMPLES = 150  # at most: a mutant is dead at the first that fails


def _verdict(mutant: Mutant, *, executors: bool = False) -> Verdict:
    suite = Suite(mutant.subject(), _EXAMPLES, checks=executor_checks() if executors else [], shrinks=False)
    suite.checks = [check for check in suite.checks if check.name.split(" of ")[0] == mutant.check]
    (verdict,) = suite.verdicts()
    return verdict


def _name(mutant: Mutant) -> str:
    return f"{mutant.check}-{mutant.broken.__name__}"


@pytest.mark.parametrize("mutant", mutants.UNIVERSAL + mutants.CLAIMS, ids=_name)
def test_a_check_catches_its_mutant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.patch(monkeypatch)
    verdict = _verdict(mutant)
    assert verdict.status == "fail" and verdict.finding is not None, f"{_name(mutant)} survived"
    assert verdict.finding.rule and verdict.finding.seen and verdict.finding.right


@pytest.mark.parametrize("mutant", mutants.EXECUTORS, ids=_name)
def test_an_executor_check_catches_its_mutant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.patch(monkeypatch)
    verdict = _verdict(mutant, executors=True)
    assert verdict.status == "fail" and verdict.finding is not None, f"{_name(mutant)} survived"


def test_every_check_has_a_mutant() -> None:
    every = {check.name for check in (*universal(), *executor_checks())}
    assert every == {mutant.check for mutant in mutants.UNIVERSAL + mutants.EXECUTORS}
    assert len(mutants.UNIVERSAL + mutants.CLAIMS + mutants.EXECUTORS) >= 25


def test_every_claim_has_a_check_and_a_mutant() -> None:
    known = {value for value in vars(claims).values() if isinstance(value, type) and issubclass(value, claims.Claim)}
    assert set(CHECK_OF) == known - {claims.Claim}
    assert {claim.__name__ for claim in CHECK_OF} == {mutant.check.partition("(")[0] for mutant in mutants.CLAIMS}
