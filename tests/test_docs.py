"""The documentation is complete where it claims to be, its code runs, and its links lead somewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import interlock.core
from interlock.core import Capability, Demand, DemandKind, Offer, Plan, PreemptMode, Retention, Victims, View
from interlock.core.claims import Claim
from interlock.core.policy import EVENTS, HOOKS
from interlock.core.view import COLUMN_NAMES
from interlock.plugins.testing import Boundary

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "configs" / "data" / "README.md", *DOCS]
POLICIES = (ROOT / "docs" / "policies.md").read_text("utf-8")
BOTH = POLICIES + (ROOT / "docs" / "design.md").read_text("utf-8")


def named(word: str, text: str) -> bool:
    """Whether the word stands somewhere in backquotes or code, on its own."""
    return (
        re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", "".join(re.findall(r"`[^`]+`|```.*?```", text, re.S)))
        is not None
    )


def attributes() -> list[str]:
    """What a view has, columns included."""
    return sorted({*COLUMN_NAMES, *(name for name in vars(View) if not name.startswith("_"))})


@pytest.mark.parametrize("name", [*HOOKS, *EVENTS, "on_boundary", "on_stop"])
def test_every_hook_and_event_is_in_the_authors_page(name: str) -> None:
    assert re.search(rf"`{name}\([^)]*\)`", POLICIES)


@pytest.mark.parametrize("name", attributes())
def test_every_attribute_of_a_view_is_in_the_authors_page(name: str) -> None:
    assert re.search(rf"`(view\.)?{name}(\([^)]*\))?`", POLICIES)


@pytest.mark.parametrize("name", sorted(interlock.core.__all__))
def test_every_public_name_is_documented(name: str) -> None:
    assert named(name, BOTH)


@pytest.mark.parametrize("claim", [each.__name__ for each in Claim.__subclasses__()])
def test_every_claim_is_in_the_authors_page(claim: str) -> None:
    assert named(claim, POLICIES)


def verbs() -> list[str]:
    """What a policy may do with a proposal, as `Offer.hold`."""
    core = {"mode_of", "stands_above", "groups"}  # the core reads a proposal with these
    return [
        f"{face.__name__}.{name}"
        for face in (Offer, Plan, Victims, Retention)
        for name, value in vars(face).items()
        if callable(value) and not name.startswith("_") and name not in core
    ] + ["Proposal.rows", "Proposal.sort_by", "Proposal.reorder"]


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_is_in_the_authors_page(verb: str) -> None:
    name = verb.split(".")[1]
    assert re.search(rf"`(\.)?{name}(\([^`]*\))?`", POLICIES)


@pytest.mark.parametrize("name", [*Demand._fields, *DemandKind.__members__, *PreemptMode.__members__])
def test_every_word_of_giving_way_is_in_the_authors_page(name: str) -> None:
    assert named(name, POLICIES)


@pytest.mark.parametrize("name", list(Capability.__members__))
def test_every_capability_is_in_the_authors_page(name: str) -> None:
    assert named(name, POLICIES)


@pytest.mark.parametrize("name", ["Options", "reads", "requires", "refuses", "claims", "column", "options"])
def test_every_declaration_of_a_policy_is_in_the_authors_page(name: str) -> None:
    assert named(name, POLICIES)


@pytest.mark.parametrize("name", [*Boundary.__dataclass_fields__, "tokens"])
def test_every_answer_of_the_test_kit_is_in_the_authors_page(name: str) -> None:
    assert named(name, POLICIES)


def test_its_examples_are_those_that_are_tested() -> None:
    """Five whole policies, word for word those of `tests/policies/examples.py`."""
    told = POLICIES[POLICIES.index("\n## Five examples") :]
    blocks = "\n".join(re.findall(r"^```python\n(.*?)^```", told[: told.index("\n## Errors")], re.S | re.M))
    tested = ast.parse((ROOT / "tests" / "policies" / "examples.py").read_text("utf-8"))
    classes = {node.name: ast.dump(node) for node in tested.body if isinstance(node, ast.ClassDef)}
    shown = {node.name: ast.dump(node) for node in ast.parse(blocks).body if isinstance(node, ast.ClassDef)}
    assert len(shown) == 5
    assert {name: classes.get(name) for name in shown} == shown


def test_its_python_runs() -> None:
    """The blocks of the authors' page build on each other."""
    names: dict[str, object] = {"__name__": "docs"}
    blocks = re.findall(r"^```python\n(.*?)^```", POLICIES, re.S | re.M)
    assert len(blocks) >= 12
    for block in blocks:
        exec(compile(block, "docs/policies.md", "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_its_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text("utf-8"))
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


def test_the_decisions_are_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    told = (folder / "README.md").read_text("utf-8")
    assert [page.name for page in folder.glob("0*.md") if f"({page.name})" not in told] == []
