"""A configuration while it is being put together: a file, then the command line's edits, each error with its origin."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interlock.core.config_errors import Invalid, dotted, show
from interlock.core.config_stack import absolute_name, as_item, as_items, plain, read_stack
from interlock.core.errors import ConfigError, nearest
from interlock.core.yamlfile import Document, KeyPath, read_file, read_inline

DEFAULT_POLICIES: tuple[dict[str, Any], ...] = ({"fcfs": {}}, {"mixed": {}})
DEFAULT_EXECUTOR: dict[str, Any] = {"simulated": {"cost": {"roofline": {"model": "llama-3-8b", "device": "a100-80gb"}}}}


class Draft:
    """Plain data with stacks in one spelling (lists of one-key mappings), and who said what."""

    def __init__(self, document: Document, base: Path) -> None:
        self.document, self.base = document, base
        self.labels: list[tuple[KeyPath, str]] = []
        if not isinstance(document.data, dict):
            raise self.error((), f"found {show(document.data)}, allowed: a mapping")
        self.data: dict[str, Any] = {key: value for key, value in document.data.items() if value is not None}
        self.data.setdefault("policies", list(DEFAULT_POLICIES))
        self.data.setdefault("executor", DEFAULT_EXECUTOR)
        self._spell()

    @classmethod
    def read(cls, source: str | Path | Mapping[str, Any]) -> Draft:
        """From a path, the name of a packaged configuration, or a mapping (whose folder is the current one)."""
        if isinstance(source, Mapping):
            return cls(Document("configuration", plain(source, Path.cwd())), Path.cwd())
        path = _locate(source)
        return cls(read_file(path), path.parent.resolve())

    def set(self, override: str) -> None:
        """Applies `KEY=VALUE` as `--set` takes it. A relative Python file among policies is the current folder's."""
        key, equals, text = override.partition("=")
        label = f"--set {key}"
        if not equals or not key:
            raise ConfigError(f"--set: found {show(override)}, allowed: KEY=VALUE")
        value, path = read_inline(text, label), _split(key, self.data)
        if path[0] == "policies" and len(path) < 3:
            value = _from_here(value)
        self.put(path, value, label)

    def put(self, path: KeyPath, value: Any, label: str) -> None:
        """Puts a value at a key path; errors there will begin with `label`."""
        self.labels.append((path, label))
        try:
            self.data = _put(self.data, path, value, ())
        except Invalid as error:
            raise self.error(error.path, error.message) from None
        self._spell()

    def put_stack(self, text: str, base: Path | None = None) -> None:
        """Replaces the policies by a STACK, relative to `base` or the current folder."""
        label = f"--policy {show(text)}"
        self.labels.append((("policies",), label))
        try:
            self.data["policies"] = read_stack(text, base or Path.cwd())
        except Invalid as error:
            raise self.error(error.path, error.message) from None
        except ConfigError as error:
            raise ConfigError(f"{label}: {error}") from None

    def error(self, path: KeyPath, message: str) -> ConfigError:
        """The one-line error at a key path: the command line's if it set that, else the file's with its line."""
        label = self._label(path)
        if label is not None:
            same = label == f"--set {dotted(path)}" or not path
            return ConfigError(f"{label}: {message}" if same else f"{label}: {dotted(path)}: {message}")
        prefix = f"{dotted(path)}: " if path else ""
        return ConfigError(f"{self.document.where(path)}: {prefix}{message}")

    def _label(self, path: KeyPath) -> str | None:
        """Which option of the command line set what is at the path, or else something within it."""
        for start, label in reversed(self.labels):
            if path[: len(start)] == start:
                return label
        inside = [label for start, label in self.labels if path and start[: len(path)] == path]
        return inside[-1] if inside else None

    def _spell(self) -> None:
        try:
            for key in ("policies", "plugins"):
                if key in self.data:
                    self.data[key] = as_items(self.data[key], key)
            self.data["executor"] = as_item(self.data.get("executor", DEFAULT_EXECUTOR), "executor")
        except Invalid as error:
            raise self.error(error.path, error.message) from None


def packaged() -> dict[str, Path]:
    """The configurations that Interlock brings along, by name."""
    folder = Path(str(importlib.resources.files("interlock.configs")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _locate(source: str | Path) -> Path:
    path, names = Path(source), packaged()
    if path.is_file() or str(source) not in names:
        if path.exists() and not path.is_dir():
            return path
        found = "a folder" if path.is_dir() else "no such file"
        hint = nearest(str(source), names)
        raise ConfigError(
            f"{source}: found {found}, allowed: a YAML file, or a packaged one ({', '.join(names)}){hint}"
        )
    return names[str(source)]


def _split(key: str, data: Any) -> KeyPath:
    """A dotted key as a path. Where the data has a key with dots in it, the longest such key is meant."""
    parts, path = key.split("."), []
    while parts:
        size = 1
        if isinstance(data, dict):
            joined = [n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in data]
            size = joined[0] if joined else 1
        step: str | int = ".".join(parts[:size])
        if isinstance(data, list) and str(step).isdecimal():
            step = int(step)
        path.append(step)
        data, parts = _get(data, step), parts[size:]
    return tuple(path)


def _get(data: Any, step: str | int) -> Any:
    if isinstance(data, dict):
        return data.get(step)
    return data[step] if isinstance(data, list) and isinstance(step, int) and step < len(data) else None


def _put(data: Any, path: KeyPath, value: Any, done: KeyPath) -> Any:
    """A copy of the data with the value at the path. What an alias of YAML shares is not changed elsewhere."""
    if not path:
        return value
    step = path[0]
    if isinstance(data, list):
        if not isinstance(step, int) or step >= len(data):
            allowed = f"0 to {len(data) - 1}" if data else "none, the list is empty"
            raise Invalid((*done, step), f"found item {show(step)}, allowed: {allowed}")
        return [_put(item, path[1:], value, (*done, step)) if i == step else item for i, item in enumerate(data)]
    if data is not None and not isinstance(data, dict):
        raise Invalid(done, f"found {show(data)}, allowed: a mapping, to set {show(step)} in it")
    return {**(data or {}), step: _put((data or {}).get(step), path[1:], value, (*done, step))}


def _from_here(value: Any) -> Any:
    """A stack or an item of one in which the names of Python files are absolute, seen from the current folder."""
    if isinstance(value, str):
        return "+".join(absolute_name(name.strip(), Path.cwd()) for name in value.split("+"))
    if isinstance(value, list):
        return [_from_here(item) for item in value]
    if isinstance(value, dict):
        return {absolute_name(name, Path.cwd()): options for name, options in value.items()}
    return value
