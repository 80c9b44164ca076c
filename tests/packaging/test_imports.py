"""Imports point one way: everything imports the core, and the core imports nothing but itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from .project import ROOT, TOPS, files, sources

ALLOWED = {
    "core": {"core"},
    "policies": {"core", "policies"},
    "executors": {"core", "executors"},
    "plugins": {"core", "plugins"},
    "configs": {"configs"},
}
OPTIONAL = {"pytest", "hypothesis", "torch", "transformers", "triton"}


def imported(path: Path, *, at_load: bool = False) -> Iterator[str]:
    """What a file imports, anywhere in it or (`at_load`) as soon as it is imported itself; `.` for relative imports."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in tree.body if at_load else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." if node.level else node.module or ""


@pytest.mark.parametrize("top", TOPS)
def test_imports_point_one_way(top: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(top)
        for name in imported(path)
        if name == "." or (name.startswith("interlock.") and name.split(".")[1] not in ALLOWED[top])
    ]
    assert wrong == []


def test_executors_do_not_import_each_other() -> None:
    """But for the cost models, which are nobody's own."""
    wrong = []
    for path in sources("executors"):
        own = path.relative_to(ROOT / "executors").parts[0]
        for name in imported(path):
            parts = name.split(".")
            if parts[:2] == ["interlock", "executors"] and len(parts) > 2 and parts[2] not in (own, "costs"):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def test_nobody_imports_by_the_folder_s_name() -> None:
    """`import core` works by accident where the checkout is the current folder, and nowhere else."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files(".py")
        for name in imported(path)
        if name.split(".")[0] in TOPS
    ]
    assert wrong == []


@pytest.mark.parametrize("top", ["core", "policies"])
def test_importing_needs_no_extra(top: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(top)
        for name in imported(path, at_load=True)
        if name.split(".")[0] in OPTIONAL
    ]
    assert wrong == []
