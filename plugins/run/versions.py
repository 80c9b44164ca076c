"""What produced a run: enough to obtain the same one again."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from interlock.core.registry import find

if TYPE_CHECKING:
    from interlock.core.config import EngineConfig


def versions(config: EngineConfig) -> dict[str, Any]:
    """The `versions` of a summary. Reads the workload's file and the policies' sources."""
    return {
        "interlock": version("interlock"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "policies": list(_policies(config)),
        "trace": _trace(config),
        "platform": platform.platform(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _policies(config: EngineConfig) -> Iterator[dict[str, str]]:
    for spec in config.policies:
        found = find("policies", spec.name, base=config.base)
        yield {
            "name": spec.name,
            "distribution": found.distribution,
            "version": found.version,
            "source_hash": found.source_hash,
        }


def _trace(config: EngineConfig) -> str | None:
    """The hash of the file that the workload comes from, None when it comes from none."""
    path = _path(config.resolved().get("workload"))
    return blake2b(path.read_bytes(), digest_size=16).hexdigest() if path and path.is_file() else None


def _path(workload: Any) -> Path | None:
    for source in ("trace", "lengths"):
        section = _find(workload, source)
        if isinstance(section, dict) and isinstance(section.get("path"), str):
            return Path(section["path"])
    return None


def _find(section: Any, key: str) -> Any:
    """The value of `key` in a section or in the sections below it."""
    if not isinstance(section, dict):
        return None
    if key in section:
        return section[key]
    return next((found for value in section.values() if (found := _find(value, key)) is not None), None)
