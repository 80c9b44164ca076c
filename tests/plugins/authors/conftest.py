"""Distributions installed as pip would: a folder on the path with modules and metadata."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

HEAD = """
from __future__ import annotations
import numpy as np
from pydantic import Field
from interlock.core import Capability, Policy, PolicyOptions, column
from interlock.core.claims import NeverPreempts
"""
SMALL = """
executor: {simulated: {cost: {constant: {step_s: 1.0}}}}
workload: {requests: [{id: a, arrival: 0.0, prompt: 4, output: 3}, {id: b, arrival: 1.0, prompt: 2, output: 1}]}
"""
Install = Callable[..., Path]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder with `small.yaml`; what was imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "small.yaml").write_text(SMALL)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("lab_"):
            del sys.modules[name]
    structlog.reset_defaults()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install("lab-one", mine="class Mine(Policy): ...")`: a distribution, version 1.2, with a policy of that name."""

    def make(distribution: str, group: str = "policies", **sources: str) -> Path:
        site, module = tmp_path / f"site-{distribution}", distribution.replace("-", "_")
        info = site / f"{module}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        points = [f"{name} = {module}_{name}:Mine\n" for name in sources]
        (info / "entry_points.txt").write_text(f"[interlock.{group}]\n{''.join(points)}")
        for name, source in sources.items():
            (site / f"{module}_{name}.py").write_text(HEAD + source)
        monkeypatch.syspath_prepend(str(site))
        return site

    return make
