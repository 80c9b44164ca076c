"""`interlock list` tells all of what is installed; installing activates nothing, and loading is lazy and by name."""

from __future__ import annotations

import re
import sys

import pytest

from interlock.core import EngineConfig
from interlock.core.registry import GROUPS, find, installed
from interlock.plugins.cli.main import invoke

from .conftest import Install

POLICY = """
class Mine(Policy):
    class Options(PolicyOptions):
        depth: int = 3
        label: str = "no"
        least: int
    requires = {Capability.STEP_COST, Capability.VIRTUAL_TIME}
    def claims(self): return [NeverPreempts()]
    def admit(self, offer, view): ...
    def on_finished(self, rows, view): ...
"""
OBSERVER = """
class Mine:
    def on_start(self, view): ...
    def on_boundary(self, record): ...
"""


def listed(capsys: pytest.CaptureFixture[str], name: str) -> list[str]:
    """The lines about one plugin, without the indentation of those that follow the first."""
    assert invoke(["list"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    start = next(i for i, text in enumerate(lines) if re.match(rf"{name} ", text))
    stop = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith(" ")), len(lines))
    return [re.sub(r"  +", "  ", text.strip()) for text in lines[start:stop]]


def test_a_policy_is_listed_with_all_that_it_says(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("lab-one", mine=POLICY.replace("        least: int\n", ""))
    assert listed(capsys, "mine") == [
        "mine  lab-one 1.2  hooks admit, on_finished",
        "options depth=3, label='no'",
        "claims NeverPreempts()",
        "requires step_cost, virtual_time",
    ]


def test_an_option_without_a_default_is_required(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("lab-one", mine=POLICY)
    told = listed(capsys, "mine")
    assert "options depth=3, label='no', least (required)" in told
    assert "claims depend on options (ValidationError)" in told


def test_an_observer_is_listed_with_its_hooks(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("lab-one", "plugins", watch=OBSERVER)
    assert listed(capsys, "watch") == ["watch  lab-one 1.2  hooks on_start, on_boundary"]


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_is_listed_where_something_is_installed(
    install: Install, capsys: pytest.CaptureFixture[str], group: str
) -> None:
    install("lab-one", group, thing="class Mine(Policy): ...\n")
    assert listed(capsys, "thing")[0].startswith("thing  lab-one 1.2")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import absent_module_x", "cannot be imported: ModuleNotFoundError: No module named 'absent_module_x'"),
        ("class Mine: ...", "found the class Mine, allowed: a subclass of interlock.core.Policy"),
        ("Mine = 3", "found a int, allowed: a class"),
    ],
)
def test_what_cannot_be_used_says_why_and_the_rest_is_listed(
    install: Install, capsys: pytest.CaptureFixture[str], source: str, told: str
) -> None:
    install("lab-one", mine=source + "\n")
    (first,) = listed(capsys, "mine")
    assert first.startswith("mine  lab-one 1.2  error ") and told in first
    assert listed(capsys, "fcfs")[0].startswith("fcfs  interlock ")


def test_two_of_one_name_are_both_listed_and_said_to_clash(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("lab-one", "lab-two"):
        install(name, mine="class Mine(Policy): ...\n")
    assert invoke(["list"]) == 0
    out = capsys.readouterr().out
    clash = "error policy 'mine' is offered by lab-one and lab-two, allowed: one distribution"
    assert [re.sub(r"  +", "  ", text) for text in out.splitlines() if text.startswith("mine ")] == [
        f"mine  lab-one 1.2  {clash}",
        f"mine  lab-two 1.2  {clash}",
    ]


def test_installing_activates_nothing(install: Install) -> None:
    """A policy and an observer that nobody names are not even imported, whatever their import would do."""
    install("lab-one", mine="raise SystemExit('imported')\n")
    install("lab-two", "plugins", watch="raise SystemExit('imported')\n")
    assert invoke(["run", "small.yaml", "--quiet", "--out", "out"]) == 0
    assert invoke(["run", "small.yaml", "--policy", "fcfs+mixed", "--quiet", "--out", "other"]) == 0
    assert [policy.name for policy in EngineConfig.load("small.yaml").policies] == ["fcfs", "mixed"]
    assert not {"lab_one_mine", "lab_two_watch"} & set(sys.modules)


def test_only_what_is_named_is_imported(install: Install) -> None:
    install("lab-one", mine="class Mine(Policy): ...\n", other="raise SystemExit('imported')\n")
    assert {entry.name for entry in installed("policies")} >= {"mine", "other"}
    assert "lab_one_mine" not in sys.modules
    assert find("policies", "mine").distribution == "lab-one"
    assert "lab_one_mine" in sys.modules and "lab_one_other" not in sys.modules
