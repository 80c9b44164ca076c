"""Plugins as a configuration names them: a policy stack, an executor, observers. Names, options, and their checks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from interlock.core.config_errors import Invalid, show, unknown, validate
from interlock.core.config_sections import Section
from interlock.core.errors import ConfigError
from interlock.core.registry import SINGULAR, Found, find
from interlock.core.yamlfile import KeyPath, read_file, read_inline


class PluginSpec(Section):
    """A plugin's name and its options as plain values; once loaded, with defaults filled in and absolute paths."""

    name: str
    options: dict[str, Any] = {}

    def plain(self) -> dict[str, Any]:
        """As a configuration writes it."""
        return {self.name: self.options}


class PolicySpec(PluginSpec):
    """One policy of the stack."""


class ExecutorSpec(PluginSpec):
    """The executor."""


def as_items(value: Any, key: str) -> list[dict[str, Any]]:
    """A stack in any of its spellings as a list of one-key mappings. Raises Invalid with the key path under `key`.

    Spelled `a`, `a+b`, `{a: options}` or a list of names and such mappings; null is the empty list.
    """
    if value is None:
        return []
    if isinstance(value, str):
        return [_item(name.strip(), (key,)) for name in value.split("+")]
    if isinstance(value, list):
        return [_item(item, (key, index)) for index, item in enumerate(value)]
    return [_item(value, (key,))]


def as_item(value: Any, key: str) -> dict[str, Any]:
    """One plugin, `name` or `{name: options}`, as a one-key mapping. Raises Invalid."""
    return _item(value, (key,))


def read_stack(text: str, base: Path) -> list[dict[str, Any]]:
    """A STACK of the command line: `a+b`, inline YAML, or a YAML file with a list or a mapping with `policies`.

    Names of Python files become absolute, so that the stack means the same in any folder: relative to `base`, or to
    the YAML file that names them. Raises ConfigError or Invalid.
    """
    stripped = text.strip()
    if stripped.endswith((".yaml", ".yml")):
        path = (base / stripped).resolve()
        value, base = read_file(path, stripped).data, path.parent
    elif stripped.startswith(("[", "{")):
        value = read_inline(stripped, "inline YAML")
    else:
        value = stripped
    if isinstance(value, dict) and "policies" in value:
        value = value["policies"]
    return [
        {absolute_name(name, base): options} for item in as_items(value, "policies") for name, options in item.items()
    ]


def absolute_name(name: str, base: Path) -> str:
    """`path/file.py:Class` with an absolute path; any other name as it is."""
    place, colon, attribute = name.rpartition(":")
    return f"{(base / place).resolve()}:{attribute}" if colon and place.endswith(".py") else name


def check(group: str, item: Mapping[str, Any], path: KeyPath, base: Path) -> tuple[str, dict[str, Any]]:
    """Name and options of a plugin, found and checked; defaults filled in, paths absolute. Raises Invalid."""
    ((name, options),) = item.items()
    at = (*path, name)
    try:
        found = find(group, name, base=base)
    except ConfigError as error:
        raise Invalid(at, str(error)) from error
    whose = f" ({SINGULAR[group]} {name!r} of {found.source})" if found.source else ""
    try:
        model = parse_options(plugin_class(group, found), options, at)
    except Invalid as error:
        raise Invalid(error.path, error.message + whose) from error
    except ConfigError as error:
        raise Invalid(at, str(error) + whose) from error
    return absolute_name(name, base), plain(model, base) if model is not None else {}


def plugin_class(group: str, found: Found) -> type[Any]:
    """The class behind a plugin's name. Raises ConfigError when it is something else."""
    from interlock.core.policy import Policy, PolicyOptions  # not needed to read a configuration without policies

    if not isinstance(found.obj, type):
        raise ConfigError(f"found a {type(found.obj).__name__}, allowed: a class")
    if group == "policies" and not issubclass(found.obj, Policy):
        raise ConfigError(f"found the class {found.obj.__name__}, allowed: a subclass of interlock.core.Policy")
    options = getattr(found.obj, "Options", None)
    if group == "policies" and not (isinstance(options, type) and issubclass(options, PolicyOptions)):
        raise ConfigError(
            f"{found.obj.__name__}.Options: found {show(options)}, allowed: a subclass of interlock.core.PolicyOptions"
        )
    return found.obj


def parse_options(cls: type[Any], options: Any, path: KeyPath) -> BaseModel | None:
    """A plugin's options by its `Options` model; None for a plugin that has none. Raises Invalid."""
    options = {} if options is None else options
    if not isinstance(options, Mapping):
        raise Invalid(path, f"found {show(options)}, allowed: a mapping of options")
    model: type[BaseModel] | None = getattr(cls, "Options", None)
    _refuse_unknown(model, options, path)
    if model is None:
        return None
    for where, value in _floats(options, path):
        if math.isnan(value):
            raise Invalid(where, "found nan, allowed: a number")
    try:
        return validate(model, options)
    except Invalid as error:
        raise Invalid((*path, *error.path), error.message) from None


def _refuse_unknown(model: type[BaseModel] | None, options: Mapping[str, Any], path: KeyPath) -> None:
    """An option that would be ignored: pydantic's habit, unless a model forbids it."""
    if model is not None and model.model_config.get("extra", "ignore") != "ignore":
        return
    fields = {} if model is None else model.model_fields
    known = [info.alias or name for name, info in fields.items()]
    for key in options:
        if key not in known and key not in fields:
            raise Invalid((*path, key), unknown(key, known))


def plain(value: Any, base: Path) -> Any:
    """A validated value as plain YAML values. A path becomes absolute: that is what makes a field of type Path one.

    Keys that are null by default and by value are left out, so that a choice between keys stays the choice it was.
    """
    if isinstance(value, PluginSpec):
        return value.plain()
    if isinstance(value, BaseModel):
        return _plain_model(value, base)
    if isinstance(value, Path):
        return str((base / value).resolve())
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(plain(key, base)): plain(item, base) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, base) for item in value]
    return value


def _plain_model(model: BaseModel, base: Path) -> dict[str, Any]:
    shows_nulls = getattr(model, "shows_nulls", False)
    return {
        info.alias or name: plain(value, base)
        for name, info in type(model).model_fields.items()
        if (value := getattr(model, name)) is not None or info.default is not None or shows_nulls
    }


def _item(value: Any, path: KeyPath) -> dict[str, Any]:
    if isinstance(value, str) and value:
        return {value: {}}
    if isinstance(value, dict) and len(value) == 1:
        return value
    raise Invalid(path, f"found {show(value)}, allowed: a name, or a mapping of one name to its options")


def _floats(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, float]]:
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, Mapping | list):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in pairs:
            yield from _floats(item, (*path, key))
