"""Docs and drawings name only what there is: statuses, work keys, hooks, verbs, columns, keys, commands, options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from interlock.core import (
    Capability,
    Demand,
    DemandKind,
    Engine,
    EngineConfig,
    FinishReason,
    Offer,
    Operation,
    Plan,
    Policy,
    PreemptMode,
    RequestStatus,
    Retention,
    Victims,
    View,
    WorkKey,
)
from interlock.core.config import EngineSection, KVSection
from interlock.core.policy import EVENTS, HOOKS
from interlock.core.view import COLUMN_NAMES
from interlock.plugins.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = ("core", "policies", "executors", "plugins", "configs", "benchmarks")

LATER_COMMANDS = {"compare", "report", "export", "lab"}
"""Of the contract in design.md, and not built yet."""
CAPITALS = {"STACK", "CONFIG", "NAME", "VALUE", "FILE", "YAML", "PATH", "LABEL", "FORMAT", "ADDRESS", "TIMESTAMP"}
"""Placeholders, and a column of a public trace."""
OTHERS = {"git", "torch", "slo.attained", "prefill_s", "decode_s", "preempted_s", "transfer_s"}
"""A tool, a backend to come, keys of a summary, and columns whose names are put together."""
FACES: dict[str, type] = {
    "view": View, "offer": Offer, "plan": Plan, "victims": Victims, "retention": Retention, "demand": Demand,
    "Offer": Offer, "Plan": Plan, "Victims": Victims, "Retention": Retention, "View": View, "Engine": Engine,
    "Policy": Policy,
}  # fmt: skip
"""What stands before a dot in docs, and what it is."""
ENUMS: tuple[type[Enum], ...] = (
    Capability, DemandKind, FinishReason, Operation, PreemptMode, RequestStatus, WorkKey,
)  # fmt: skip
SECTIONS: dict[str, Any] = {"engine": EngineSection, "kv": KVSection}


# -- what there is


@cache
def members() -> frozenset[str]:
    """Statuses, work keys, operations, reasons, modes, capabilities."""
    return frozenset(member.name for kind in ENUMS for member in kind)


@cache
def source_words() -> frozenset[str]:
    """Every word that the code uses as a name or as a string, and every word of the packaged configurations."""
    words = {path.stem for top in CODE for path in (ROOT / top).rglob("*") if path.is_file()}
    for path in [path for top in CODE for path in (ROOT / top).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            words.update(_words_of(node))
    texts = [*(ROOT / "configs").glob("*.yaml"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    texts += [*(ROOT / "plugins" / "scaffold" / "templates").iterdir()]
    return frozenset(words.union(*(re.findall(r"\w+", path.read_text("utf-8")) for path in texts)))


def _words_of(node: ast.AST) -> Iterator[str]:
    for field in ("name", "id", "attr", "arg", "module"):
        value = getattr(node, field, None)
        if isinstance(value, str):
            yield from value.split(".")
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:  # no docstrings
        yield from re.findall(r"\w+", node.value)


def commands() -> dict[str, set[str]]:
    """The options of each command."""
    group: Any = typer.main.get_command(app)
    found: dict[str, set[str]] = {}
    for name, command in group.commands.items():
        parts = [command, *getattr(command, "commands", {}).values()]
        found[name] = {option for part in parts for each in part.params for option in each.opts}
    return found


# -- what the pages say


def text_of(page: Path) -> str:
    """A page's words."""
    return page.read_text("utf-8")


def spans(page: Path) -> list[str]:
    """Its inline code."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"^```.*?^```", "", text_of(page), flags=re.S | re.M))


def drawings(page: Path) -> list[str]:
    """Its fenced blocks that are no program, and indented ones."""
    return re.findall(r"^```(?:text)?\n(.*?)^```", text_of(page), re.S | re.M)


def code(page: Path) -> list[str]:
    """All of its code, inline and fenced."""
    return [*spans(page), *re.findall(r"^```\w*\n(.*?)^```", text_of(page), re.S | re.M)]


def ids(pages: Iterable[Path]) -> list[Any]:
    """Pages as parameters."""
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


every_page = pytest.mark.parametrize("page", ids(PAGES))


@every_page
def test_every_status_work_key_and_other_constant_exists(page: Path) -> None:
    capitals = [word for part in code(page) for word in re.findall(r"(?<![\w.$/-])[A-Z][A-Z_]{3,}(?![\w.(/])", part)]
    assert sorted(set(capitals) - members() - CAPITALS - module_constants()) == []


@cache
def module_constants() -> frozenset[str]:
    """Names of constants at the top of modules."""
    names: set[str] = set()
    for top in CODE:
        for path in (ROOT / top).rglob("*.py"):
            names.update(re.findall(r"^([A-Z][A-Z_]{3,})\b", path.read_text("utf-8"), re.M))
    return frozenset(names)


@every_page
def test_what_stands_behind_a_dot_exists(page: Path) -> None:
    wrong = []
    for part in code(page):
        for owner, name in re.findall(r"(?<![\w.])(\w+)\.(\w+)", part):
            face = FACES.get(owner)
            known = face is None or hasattr(face, name) or (face is View and name in COLUMN_NAMES)
            wrong += [] if known else [f"{owner}.{name}"]
    assert wrong == []


@every_page
def test_every_key_of_a_section_exists(page: Path) -> None:
    known = {name: set(section.model_fields) for name, section in SECTIONS.items()}
    for name, info in EngineConfig.model_fields.items():
        kind: Any = getattr(info.annotation, "__args__", (info.annotation,))[0]
        known.setdefault(name, set(getattr(kind, "model_fields", {})))
    wrong = []
    for part in spans(page):
        for section, key in re.findall(r"(?<![\w./])(engine|kv|workload|slo|measure|records)\.(\w+)", part):
            wrong += [] if key in known[section] or hasattr(Engine, key) else [f"{section}.{key}"]
    assert set(wrong) <= OTHERS


@every_page
def test_every_hook_and_event_has_its_arguments(page: Path) -> None:
    wrong = []
    for part in spans(page):
        for name, given in re.findall(r"(?<![\w.])(\w+)\(([^()]*)\)", part):
            if name in HOOKS + EVENTS:
                wanted = getattr(Policy, name).__code__.co_varnames[1 : getattr(Policy, name).__code__.co_argcount]
                wrong += [] if tuple(re.findall(r"\w+", given)) in (wanted, ()) else [part]
            elif name.startswith("on_") and name not in ("on_boundary", "on_stop"):
                wrong.append(part)
    assert wrong == []


@every_page
def test_every_command_and_option_exists(page: Path) -> None:
    there, wrong = commands(), []
    for part in code(page):
        for line in part.splitlines():
            for name, rest in re.findall(r"(?<![\w/.-])interlock ([a-z]+)([^|`]*)", line):
                if name not in there:
                    wrong += [] if name in LATER_COMMANDS else [line]
                    continue
                options = re.findall(r"(?<![\w-])--[a-z-]+", rest.split("#")[0])
                wrong += [f"{name} {option}" for option in options if option not in there[name] | {"--help"}]
    assert wrong == []


@every_page
def test_every_word_in_code_is_one_of_the_code(page: Path) -> None:
    """Whatever is written as one word in backquotes is a name that the code knows."""
    words = {part for part in spans(page) if re.fullmatch(r"[a-z_][a-z0-9_]*", part)}
    folders = {path.name for path in ROOT.iterdir()}
    assert sorted(words - source_words() - folders - LATER_COMMANDS - OTHERS) == []


@every_page
def test_every_word_in_a_drawing_is_one_of_the_code(page: Path) -> None:
    """Words with an underscore, and what looks like a hook."""
    words = {word for part in drawings(page) for word in re.findall(r"(?<![\w./-])[a-z]+_[a-z_]+(?![\w/-])", part)}
    assert sorted(words - source_words()) == []


@every_page
def test_every_file_that_is_named_exists(page: Path) -> None:
    tops = "core|policies|executors|plugins|configs|docs|tests|benchmarks|scripts"
    named = [part for part in spans(page) if re.fullmatch(rf"(?:{tops})/[\w./-]+", part)]
    assert [part for part in named if not (ROOT / part).exists()] == []


def test_the_scan_finds_what_is_wrong(tmp_path: Path) -> None:
    """A page of mistakes: each test above fails on it."""
    page = tmp_path / "page.md"
    page.write_text(
        "`PROMPT_ATOM` `view.priorty` `engine.max_seqs` `admit(offers, view)` `interlock chekc` `prefre`\n"
        "`core/absent.py`\n"
        "\n```text\nDECODE_ATOM on_arrivl\n```\n"
    )
    tests = [value for name, value in globals().items() if name.startswith(("test_every_", "test_what_"))]
    for test in tests:
        with pytest.raises(AssertionError):
            test(page)
