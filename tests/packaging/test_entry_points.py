"""What pyproject.toml registers can be found, loaded and used."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

import pytest

from interlock.core import Policy
from interlock.core.registry import GROUPS, find, installed

from .project import ROOT, pyproject


def declared() -> Iterator[tuple[str, str, str]]:
    """Group, name and target of each entry point in a group of ours."""
    for group, points in pyproject()["project"]["entry-points"].items():
        if not group.startswith("interlock."):
            continue
        for name, target in points.items():
            yield group.removeprefix("interlock."), name, target


@pytest.mark.parametrize(("group", "name", "target"), list(declared()))
def test_an_entry_point_loads(group: str, name: str, target: str) -> None:
    module, attribute = target.split(" ")[0].split(":")  # an extra may stand behind it
    assert find(group, name).obj is getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize(("group", "name", "target"), list(declared()))
def test_the_registry_lists_it(group: str, name: str, target: str) -> None:
    assert group in GROUPS
    ours = [entry for entry in installed(group) if entry.name == name]
    assert [entry.distribution for entry in ours] == ["interlock"]


def test_every_policy_is_registered() -> None:
    """All but bases that other policies share."""
    registered = {target for group, _, target in declared() if group == "policies"}
    found, bases = set(), set()
    for path in (ROOT / "policies").glob("[!_]*.py"):
        module = importlib.import_module(f"interlock.policies.{path.stem}")
        for name, value in vars(module).items():
            own = inspect.isclass(value) and value.__module__ == module.__name__
            if own and issubclass(value, Policy) and not name.startswith("_"):
                found.add(f"{module.__name__}:{name}")
                bases |= {f"{base.__module__}:{base.__name__}" for base in value.__mro__[1:]}
    assert registered <= found
    assert found - registered <= bases


def test_the_command_is_installed() -> None:
    module, attribute = pyproject()["project"]["scripts"]["interlock"].split(":")
    assert callable(getattr(importlib.import_module(module), attribute))
