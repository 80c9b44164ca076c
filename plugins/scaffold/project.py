"""Writes a project: each file of it is a template, a text file beside this module."""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from interlock.core import ConfigError
from interlock.plugins.scaffold.names import Names

POLICY = {
    "pyproject.toml": "pyproject.txt",
    "README.md": "readme.txt",
    ".gitignore": "gitignore.txt",
    ".github/workflows/ci.yml": "workflow.txt",
    "configs/{{name}}.yaml": "config.txt",
    "src/{{package}}/__init__.py": "init.txt",
    "src/{{package}}/policy.py": "policy.txt",
    "tests/test_installed.py": "test_installed.txt",
    "tests/test_policy.py": "test_policy.txt",
    "tests/test_conformance.py": "test_conformance.txt",
}
"""The files of a policy's project, each with its template. Both may hold `{{names}}`."""


def write_project(names: Names, folder: Path) -> list[Path]:
    """Write a policy's project into a folder that is new or empty; the files, relative to it.

    Raises ConfigError when something is there already, and when the folder cannot be written.
    """
    _refuse(folder)
    words = {
        "name": names.name,
        "title": names.title,
        "package": names.package,
        "distribution": names.distribution,
        "interlock": version("interlock"),
    }
    written = []
    try:
        for target, template in POLICY.items():
            path = Path(_fill(target, words))
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(_fill(_template(template), words), "utf-8")
            written.append(path)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}") from error
    return written


def _refuse(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"found the file {folder}, allowed: a new or an empty folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"folder {folder} is not empty, allowed: a new or an empty folder (--out DIR)")


def _template(name: str) -> str:
    return (files("interlock.plugins.scaffold") / "templates" / name).read_text("utf-8")


def _fill(text: str, words: dict[str, str]) -> str:
    """The text with each `{{word}}` replaced; `${{ word }}` of a workflow is none of ours."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: words[found[1]], text)
