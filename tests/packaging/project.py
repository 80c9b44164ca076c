"""The checkout as the packaging tests see it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("core", "policies", "executors", "plugins", "configs")
_NOT_OURS = {".git", ".venv", "build", "dist", "runs", "__pycache__", ".hypothesis"}


def pyproject() -> dict[str, Any]:
    """pyproject.toml, read."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def files(suffix: str = "") -> Iterator[Path]:
    """The project's own files, those of environments, caches and builds left out."""
    for path in sorted(ROOT.rglob(f"*{suffix}")):
        parts = path.relative_to(ROOT).parts
        generated = any(part in _NOT_OURS or part.endswith((".egg-info", "_cache")) for part in parts)
        if path.is_file() and not path.is_symlink() and not generated and "typings" not in parts:
            yield path


def sources(top: str) -> Iterator[Path]:
    """The Python files of one of the package folders."""
    return (path for path in sorted((ROOT / top).rglob("*.py")) if "__pycache__" not in path.parts)
