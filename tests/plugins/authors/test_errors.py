"""What an author meets: one line for each mistake, which names the plugin and the distribution it came from."""

from __future__ import annotations

import pytest

from interlock.plugins.cli.main import invoke

from .conftest import Install

ADMIT = "\n    def admit(self, offer, view): "
REFUSED = {
    "a hook that is misspelt": (
        "def admitt(self, offer, view): ...",
        "policy 'mine' of lab-one 1.2: no hook 'admitt'; did you mean 'admit'?",
    ),
    "another hook that is misspelt": (
        "def preemp(self, victims, demand, view): ...",
        "policy 'mine' of lab-one 1.2: no hook 'preemp'; did you mean 'preempt'?",
    ),
    "an event that is misspelt": (
        "def on_arrivals(self, rows, view): ...",
        "policy 'mine' of lab-one 1.2: no event 'on_arrivals'; did you mean 'on_arrival'?",
    ),
    "claims that are misspelt": (
        "def claim(self): ...",
        "policy 'mine' of lab-one 1.2: no 'claim'; did you mean 'claims'?",
    ),
    "reads that are misspelt": (
        "read = {'priority'}",
        "policy 'mine' of lab-one 1.2: no 'read'; did you mean 'reads'?",
    ),
    "options that are misspelt": (
        "class Option(PolicyOptions): ...",
        "policy 'mine' of lab-one 1.2: no 'Option'; did you mean 'Options'?",
    ),
    "an argument of another name": (
        "def admit(self, offers, view): ...",
        "policy 'mine' of lab-one 1.2: Mine.admit takes (offers, view); allowed: (offer, view)",
    ),
    "an argument too few": (
        "def select(self, plan): ...",
        "policy 'mine' of lab-one 1.2: Mine.select takes (plan); allowed: (plan, view)",
    ),
    "an event's argument too many": (
        "def on_start(self, view, more): ...",
        "policy 'mine' of lab-one 1.2: Mine.on_start takes (view, more); allowed: (view)",
    ),
    "a hook that is no method": (
        "admit = 3",
        "policy 'mine' of lab-one 1.2: Mine.admit is not a method; allowed: (offer, view)",
    ),
    "a hook that would never be awaited": (
        "async def admit(self, offer, view): ...",
        "policy 'mine' of lab-one 1.2: Mine.admit is async; allowed: a plain method",
    ),
    "reads of nothing that there is": (
        "reads = {'priorty'}",
        "policy 'mine' of lab-one 1.2: reads: found 'priorty', allowed: "
        "a column or an attribute of View; did you mean 'priority'?",
    ),
    "a constructor that takes no options": (
        "def __init__(self): ...",
        "policy 'mine' of lab-one 1.2 cannot be made: "
        "TypeError: Mine.__init__() takes 1 positional argument but 2 were given",
    ),
    "a constructor that raises": (
        "def __init__(self, options): 1 / 0",
        "policy 'mine' of lab-one 1.2 cannot be made: ZeroDivisionError: division by zero",
    ),
    "a capability that the executor lacks": (
        "requires = {Capability.LOOPED}",
        "policy 'mine' of lab-one 1.2 requires looped, which executor 'simulated' lacks",
    ),
    "a policy that refuses": (
        "def refuses(self, limits, capabilities): return 'engine.max_num_seqs: found 64, allowed: 8'",
        "policy 'mine' of lab-one 1.2: engine.max_num_seqs: found 64, allowed: 8",
    ),
}
"""By what is wrong: the body of the policy, and the line, which follows where the policy was named."""

BROKEN = {
    "import absent_module_x": "ModuleNotFoundError: No module named 'absent_module_x'",
    "class Mine(:": "SyntaxError: invalid syntax (lab_one_mine.py, line 7)",
    "raise RuntimeError('first\\nsecond')": "RuntimeError: first second",
    "raise SystemExit(3)": "SystemExit: 3",
    "Other = 1": "AttributeError: module 'lab_one_mine' has no attribute 'Mine'",
    "class Mine(Policy):\n    priority = column(np.int64)": (
        "TypeError: Mine.priority: views have a column or an attribute of this name already"
    ),
}
"""Module by module: why its import fails."""

MUTATIONS = [
    "view.now = 3",
    "view.priority[:] = 3",
    "view.priority.sort()",
    "view.priority.flags.writeable = True",
    "view.arrival[0] = 1.0",
    "view.waiting[0] = 1",
    "view.limits.max_num_seqs = 1",
    "view.request(int(offer.rows[0])).priority = 4",
    "offer.rows[0] = 1",
    "self.level[0] = 1",
    "view.of('mine').level[0] = 1",
    "del view.now",
]


def line(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """The one line that a run of `small.yaml` fails with."""
    assert invoke(["run", "small.yaml", "--out", "out", "--quiet", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1, err
    return err.strip()


@pytest.mark.parametrize("what", REFUSED)
def test_a_class_that_cannot_be_a_policy(install: Install, capsys: pytest.CaptureFixture[str], what: str) -> None:
    body, told = REFUSED[what]
    install("lab-one", mine=f"class Mine(Policy):\n    {body}\n")
    assert line(capsys, 2, "--policy", "mine").endswith(f": {told}")


@pytest.mark.parametrize("source", BROKEN)
def test_a_plugin_that_fails_to_import(install: Install, capsys: pytest.CaptureFixture[str], source: str) -> None:
    install("lab-one", mine=source + "\n")
    told = f"policy 'mine' of lab-one 1.2 cannot be imported: {BROKEN[source]}"
    assert line(capsys, 2, "--policy", "fcfs+mine") == f"interlock: --policy 'fcfs+mine': policies.1.mine: {told}"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("{share: x}", "share: found 'x', allowed: a number of at least 0.0 and of at most 1.0"),
        ("{share: 2.0}", "share: found 2.0, allowed: a number of at least 0.0 and of at most 1.0"),
        ("{share: true}", "share: found true, allowed: a number of at least 0.0 and of at most 1.0"),
        ("{shares: 0.5}", "shares: unknown key; allowed: share, preempt; did you mean 'share'?"),
        ("{preempt: yeld}", "preempt: found 'yeld', allowed: \"yield\", \"offload\"; did you mean 'yield'?"),
        ("[1]", "found [1], allowed: a mapping of options"),
    ],
)
def test_options_of_a_wrong_type(install: Install, capsys: pytest.CaptureFixture[str], options: str, told: str) -> None:
    source = "from typing import Literal\nclass Mine(Policy):\n    class Options(PolicyOptions):\n"
    source += (
        "        share: float = Field(0.5, ge=0.0, le=1.0)\n        preempt: Literal['yield', 'offload'] = 'yield'\n"
    )
    install("lab-one", mine=source)
    found = line(capsys, 2, "--policy", f"[{{mine: {options}}}]")
    assert "policies.0.mine" in found and "of lab-one 1.2" in found
    assert told.split(", allowed")[0] in found


def test_options_that_are_no_options(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("lab-one", mine="class Mine(Policy):\n    class Options:\n        share = 1\n")
    found = line(capsys, 2, "--policy", "mine")
    assert "policy 'mine' of lab-one 1.2" in found
    assert "Mine.Options" in found and "allowed: a subclass of interlock.core.PolicyOptions" in found


@pytest.mark.parametrize("source", ["class Mine: ...", "Mine = Policy()", "def Mine(): ..."])
def test_an_object_that_is_no_policy(install: Install, capsys: pytest.CaptureFixture[str], source: str) -> None:
    install("lab-one", mine=source + "\n")
    found = line(capsys, 2, "--policy", "mine")
    assert "'mine' of lab-one 1.2" in found and ", allowed: a " in found


def test_one_name_of_two_distributions(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("lab-one", "lab-two"):
        install(name, mine="class Mine(Policy): ...\n")
    told = "policy 'mine' is offered by lab-one and lab-two, allowed: one distribution"
    assert line(capsys, 2, "--policy", "mine").endswith(told)
    assert invoke(["run", "small.yaml", "--policy", "fcfs", "--quiet"]) == 0  # who does not ask for it is not bothered


def test_a_name_of_ours_is_not_taken_over(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("lab-one", fcfs="class Mine(Policy): ...\n")
    assert "policy 'fcfs' is offered by interlock and lab-one" in line(capsys, 2, "--policy", "fcfs")


def test_a_name_that_nobody_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert line(capsys, 2, "--policy", "fcsf").endswith("did you mean 'fcfs'?")


@pytest.mark.parametrize("edit", MUTATIONS)
def test_a_policy_that_changes_what_it_may_only_read(
    install: Install, capsys: pytest.CaptureFixture[str], edit: str
) -> None:
    install("lab-one", mine=f"class Mine(Policy):\n    level = column(np.int64){ADMIT}{edit}\n")
    found = line(capsys, 1, "--policy", "mine")
    assert found.startswith("interlock: mine.admit of lab-one 1.2 broke rule 'views are read-only'"), found
    assert len(found) < 200, "no essay"


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ("raise ValueError('first\\nsecond')", "broke rule 'hooks do not raise': ValueError: first second"),
        ("view.predictd", "AttributeError: a view has no 'predictd'; did you mean 'predicted'?"),
        ("offer.sort_by('prioritty')", "no column is called 'prioritty'; did you mean 'priority'?"),
        ("offer.sort_by(np.zeros(3))", "a key has shape (3,); allowed: view.capacity = "),
        ("offer.hold(view.priority)", "a mask is an array of bool, not of int"),
        ("offer.limit(-1)", "limit is a whole number of at least 0, found -1"),
        ("offer.cap(1)", "AttributeError: 'Offer' object has no attribute 'cap'"),
    ],
)
def test_a_hook_that_goes_wrong(install: Install, capsys: pytest.CaptureFixture[str], edit: str, told: str) -> None:
    install("lab-one", mine=f"class Mine(Policy):{ADMIT}{edit}\n")
    found = line(capsys, 1, "--policy", "mine")
    assert "mine.admit of lab-one 1.2" in found and told in found


def test_an_event_that_goes_wrong(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("lab-one", mine="class Mine(Policy):\n    def on_result(self, rows, computed, emitted, view): 1 / 0\n")
    found = line(capsys, 1, "--policy", "mine")
    assert "mine.on_result of lab-one 1.2 broke rule 'hooks do not raise': ZeroDivisionError" in found


def test_a_file_has_no_distribution(capsys: pytest.CaptureFixture[str], here: object) -> None:
    with open("own.py", "w") as file:
        file.write("from interlock.core import Policy\nclass Own(Policy):\n    def admitt(self, offer, view): ...\n")
    assert "policy 'own': no hook 'admitt'" in line(capsys, 2, "--policy", "./own.py:Own")
