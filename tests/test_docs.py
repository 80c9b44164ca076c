"""The documentation is complete where it claims to be, its code runs, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import interlock.core
from interlock.core import View
from interlock.core.claims import Claim
from interlock.core.policy import EVENTS, HOOKS
from interlock.core.view import COLUMN_NAMES

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


def test_its_python_runs() -> None:
    """The blocks of the authors' page build on each other."""
    names: dict[str, object] = {"__name__": "docs"}
    blocks = re.findall(r"^```python\n(.*?)^```", POLICIES, re.S | re.M)
    assert len(blocks) >= 5
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
