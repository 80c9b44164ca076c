"""From pydantic's several lines to our one: where, what was found, what is allowed, and what was perhaps meant.

What is allowed is read from the type at the offending place, so the words are the same for our sections and for the
options of third-party policies, executors and plugins.
"""

from __future__ import annotations

import json
import reprlib
import types
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from interlock.core.errors import ConfigError, nearest
from interlock.core.yamlfile import KeyPath

M = TypeVar("M", bound=BaseModel)
Alternative: TypeAlias = tuple[Any, tuple[Any, ...]]  # a type and the constraints on it

MAX_INT, MAX_SEED = 2**31 - 1, 2**63 - 1
"""The largest count and seed a configuration may hold; not worth a word in an error unless they are passed."""

MAX_KEYS_TOLD = 6

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 80
_SPOKEN = {"literal_error", "enum", "finite_number", "int_from_float", "greater_than_equal", "greater_than"}
_SPOKEN |= {"less_than_equal", "less_than", "string_too_short"}


class Invalid(ConfigError):
    """Data that does not fit its model: the key path within the data, and one line of what is wrong there."""

    def __init__(self, path: KeyPath, message: str) -> None:
        super().__init__(f"{dotted(path)}: {message}" if path else message)
        self.path, self.message = path, message


def validate(model: type[M], data: Mapping[str, Any]) -> M:
    """Plain YAML values as a model, strictly: no text for a number, no truth value for a count. Raises Invalid.

    It goes by JSON because strict JSON is strict about exactly that, while lists still become tuples and text an enum.
    """
    try:
        return model.model_validate_json(json.dumps(data, default=_plain_number), strict=True)
    except ValidationError as error:
        raise explain(model, data, error) from None
    except ConfigError as error:  # of a validator that knows better words than pydantic
        raise Invalid((), str(error)) from None


def _plain_number(value: object) -> Any:
    """What a mapping from Python may hold beside plain values: numbers and arrays of NumPy."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise Invalid((), f"found {show(value)}, allowed: plain values")


def explain(model: type[BaseModel], data: Mapping[str, Any], error: ValidationError) -> Invalid:
    """The most telling of pydantic's errors: the deepest, and at one depth an unknown key before a missing one."""
    rank = {"extra_forbidden": 0, "missing": 2}
    found = [(_data_path(data, detail), detail) for detail in error.errors(include_url=False)]
    path, detail = min(found, key=lambda item: (-len(item[0]), rank.get(item[1]["type"], 1)))
    return Invalid(path, _message(model, data, path, detail))


def show(value: object) -> str:
    """A value found in a configuration, as an error prints it: text quoted, one line, at most 80 characters."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = _SHORT.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def one_line(error: object) -> str:
    """The text of an error on one line."""
    return " ".join(str(error).split())


def dotted(path: KeyPath) -> str:
    """A key path as `--set` takes it."""
    return ".".join(str(key) for key in path)


def unknown(word: str, allowed: Iterable[str]) -> str:
    """The words for a key that nobody knows."""
    names = list(allowed)
    return f"unknown key; allowed: {', '.join(names) or 'none'}{nearest(word, names)}"


def describe(tp: Any, constraints: Sequence[Any] = (), found: object = None) -> str:
    """In words, what a type allows."""
    words = [_one(kind, limits, found) for kind, limits in alternatives(tp, constraints)]
    return _join(list(dict.fromkeys(word for part in words for word in part)))


def alternatives(tp: Any, constraints: Sequence[Any] = ()) -> list[Alternative]:
    """The types a value may have, each with its constraints: unions and annotations taken apart."""
    origin = get_origin(tp)
    if origin is Annotated:
        inner, *more = get_args(tp)
        return alternatives(inner, (*constraints, *_flat(more)))
    if origin in (Union, types.UnionType):
        return [found for member in get_args(tp) for found in alternatives(member, constraints)]
    return [(tp, tuple(constraints))]


def _flat(metadata: Iterable[Any]) -> list[Any]:
    return [one for item in metadata for one in (item.metadata if isinstance(item, FieldInfo) else [item])]


def _data_path(data: object, detail: Any) -> KeyPath:
    """pydantic's location without the names of union members, which are no keys of the data."""
    path: list[str | int] = []
    for key in detail["loc"]:
        if (isinstance(data, Mapping) and key in data) or (
            isinstance(data, list) and isinstance(key, int) and key < len(data)
        ):
            data = data[key]
            path.append(key)
    return (*path, str(detail["loc"][-1])) if detail["type"] == "missing" else tuple(path)


def _message(model: type[BaseModel], data: Any, path: KeyPath, detail: Any) -> str:
    kind = detail["type"]
    if kind == "extra_forbidden":
        return unknown(str(path[-1]), _keys(_types_at(model, path[:-1])))
    here = _types_at(model, path)
    if kind == "missing":
        return f"missing, allowed: {describe(_union(here))}"
    if kind == "json_invalid":
        return "found text that is not Unicode, allowed: text"
    value = _value_at(data, path)
    if kind in ("value_error", "assertion_error"):
        text = one_line(detail["ctx"]["error"])
        return text if text.startswith("found ") else f"found {show(value)}: {text}"
    if here and (kind in _SPOKEN or kind.endswith("_type")):
        allowed = describe(_union(here), found=value)
        hint = nearest(value, _words(here)) if isinstance(value, str) else ""
        return f"found {show(value)}, allowed: {allowed}{hint}"
    return f"found {show(value)}: {one_line(detail['msg'])}"


def _union(found: list[Alternative]) -> Any:
    annotated = [Annotated[(kind, *limits)] if limits else kind for kind, limits in found]
    return Union[tuple(annotated)]  # noqa: UP007


def _value_at(data: Any, path: KeyPath) -> Any:
    for key in path:
        data = data[key]
    return data


def _types_at(model: type[BaseModel], path: KeyPath) -> list[Alternative]:
    found: list[Alternative] = [(model, ())]
    for key in path:
        found = [child for kind, _ in found for child in _child(kind, key)]
    return found


def _child(kind: Any, key: str | int) -> list[Alternative]:
    """The types of what lies at a key of a model, a mapping or a list."""
    if _is_model(kind):
        fields = {info.alias or name: info for name, info in kind.model_fields.items()}
        return alternatives(fields[key].annotation, _flat(fields[key].metadata)) if key in fields else []
    args = get_args(kind)
    if not args:
        return []
    if isinstance(key, int):
        item = args[key] if get_origin(kind) is tuple and Ellipsis not in args and key < len(args) else args[0]
        return alternatives(item)
    return alternatives(args[-1])


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _keys(found: list[Alternative]) -> list[str]:
    models = [kind for kind, _ in found if _is_model(kind)]
    return list(dict.fromkeys(info.alias or name for kind in models for name, info in kind.model_fields.items()))


def _words(found: list[Alternative]) -> list[str]:
    """The words among what is allowed, for the nearest match."""
    words: list[Any] = []
    for kind, _ in found:
        origin: Any = get_origin(kind)
        if origin is Literal:
            words += get_args(kind)
        elif isinstance(kind, type) and issubclass(kind, Enum):
            words += [member.value for member in kind]
    return [word for word in words if isinstance(word, str)]


_PLAIN: dict[Any, str] = {type(None): "null", bool: "true or false", str: "text", Path: "a path", Any: "any value"}


def _one(kind: Any, limits: Sequence[Any], found: object) -> list[str]:
    if kind in (int, float):
        return [("an integer" if kind is int else "a number") + _bounds(limits, found)]
    if kind in _PLAIN:
        return [_PLAIN[kind]]
    origin: Any = get_origin(kind)
    if origin is Literal:
        return [show(word) for word in get_args(kind)]
    if _is_model(kind):
        keys = _keys([(kind, ())])
        return [f"a mapping with {' or '.join(keys)}" if 0 < len(keys) <= MAX_KEYS_TOLD else "a mapping"]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [show(member.value) for member in kind]
    if origin in (list, tuple) or (isinstance(origin, type) and issubclass(origin, Sequence)):
        return [f"a list, each {describe(get_args(kind)[0])}"]
    if origin is dict or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return ["a mapping"]
    return [getattr(kind, "__name__", str(kind))]


def _bounds(limits: Sequence[Any], found: object) -> str:
    """The limits of a number in words; a limit that only keeps counts within 32 bits is told to who passes it."""
    words = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    bounds = [(word, getattr(limit, name, None)) for name, word in words.items() for limit in limits]
    big = isinstance(found, int | float) and found > MAX_INT
    told = [f"{word} {bound}" for word, bound in bounds if bound is not None and (big or bound < MAX_INT)]
    return " " + " and ".join(told) if told else ""


def _join(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else "nothing"
