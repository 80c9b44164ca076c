"""YAML as the configuration means it: the scalars of YAML 1.2, no key twice, and the line of everything.

PyYAML speaks YAML 1.1, where `no` is false, `1e-3` is text and `12:30` is 750. So PyYAML only splits the text into
events here; what a plain scalar means is decided by the 1.2 core schema below. Mapping keys are always text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from interlock.core.errors import ConfigError

Key: TypeAlias = str | int
KeyPath: TypeAlias = tuple[Key, ...]

MAX_DEPTH = 64

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INF = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = re.compile(r"\.(nan|NaN|NAN)")

# The parser in C is ten times as fast, and PyYAML may be built without it.
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Document:
    """What a YAML text says: plain values, and the line (from 1) at which each key path begins."""

    name: str
    data: Any
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def where(self, path: KeyPath = ()) -> str:
        """`name:line` of a key path, or of the nearest thing around it whose line is known; else the name."""
        for end in range(len(path), 0 if path else -1, -1):
            if path[:end] in self.lines:
                return f"{self.name}:{self.lines[path[:end]]}"
        return self.name


def read_file(path: Path, name: str | None = None) -> Document:
    """The one YAML document in a file. `name` is what errors call it, the path unless given.

    Raises ConfigError, one line, when the file is missing, is no UTF-8 text, is empty, or is broken YAML.
    """
    name = str(path) if name is None else name
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{name}:{line}: not text: found a byte that is not UTF-8, allowed: YAML in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror or error}") from None
    document = read_text(text, name)
    if document.data is None:
        raise ConfigError(f"{name}:1: found nothing, allowed: a YAML document that is not empty")
    return document


def read_text(text: str, name: str) -> Document:
    """The one YAML document in a text; an empty text is null. Raises ConfigError, one line."""
    try:
        return _Builder(text, name).document()
    except yaml.YAMLError as error:
        raise ConfigError(_broken(error, text, name)) from None


def read_inline(text: str, name: str) -> Any:
    """The value of YAML on a command line, whose errors need no line number. Raises ConfigError, one line."""
    try:
        return read_text(text, name).data
    except ConfigError as error:
        raise ConfigError(name + re.sub(r"^:\d+", "", str(error)[len(name) :])) from None


def scalar(text: str) -> Any:
    """What a plain scalar means in the core schema of YAML 1.2. Raises ValueError for an integer of absurd length."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INF.fullmatch(text) or _NAN.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def dumps(data: Any) -> str:
    """YAML of plain values that means the same to this module and to readers of YAML 1.1."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120)


class _Builder:
    """Turns the events of one document into plain values."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.events: Iterator[Any] = iter(yaml.parse(text, Loader=_Parser))
        self.lines: dict[KeyPath, int] = {}
        self.anchors: dict[str, Any] = {}

    def document(self) -> Document:
        """The whole document. Another one after it is refused."""
        next(self.events)
        if isinstance(next(self.events), yaml.StreamEndEvent):
            return Document(self.name, None)
        data = self.value(next(self.events), ())
        next(self.events)
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise self.error(after, "found a second document, allowed: one")
        return Document(self.name, data, self.lines)

    def value(self, event: Any, path: KeyPath) -> Any:
        """The value that begins with this event. Consumes its events."""
        if len(path) > MAX_DEPTH:
            raise self.error(event, f"nested too deep, allowed: {MAX_DEPTH} levels")
        if path not in self.lines:
            self.lines[path] = _line(event)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        if isinstance(event, yaml.ScalarEvent):
            return self.anchored(event, self.scalar(event))
        self.check_tag(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.anchored(event, self.sequence(path))
        return self.anchored(event, self.mapping(path))

    def sequence(self, path: KeyPath) -> list[Any]:
        """The items up to the end of the sequence."""
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.value(event, (*path, len(items))))
        return items

    def mapping(self, path: KeyPath) -> dict[str, Any]:
        """The pairs up to the end of the mapping. A key that comes twice is refused."""
        pairs: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self.error(event, "found a key that is not plain text, allowed: text")
            key = str(event.value)
            if key in pairs:
                dotted = ".".join(map(str, (*path, key)))
                first = self.lines[(*path, key)]
                raise self.error(
                    event, f"{dotted}: found the key {key[:80]!r} twice, allowed: once (also in line {first})"
                )
            self.lines[(*path, key)] = _line(event)
            pairs[key] = self.value(next(self.events), (*path, key))
        return pairs

    def scalar(self, event: Any) -> Any:
        """A plain scalar by the core schema; a quoted or block one is text."""
        self.check_tag(event)
        if not event.implicit[0]:
            return event.value
        try:
            return scalar(event.value)
        except ValueError:
            raise self.error(event, f"found a number of {len(event.value)} digits, allowed: at most 4300") from None

    def alias(self, event: Any) -> Any:
        """The value of an anchor that is complete. PyYAML does not look whether an alias has one."""
        if event.anchor not in self.anchors:
            raise self.error(event, f"found the alias *{event.anchor}, allowed: an anchor defined before it")
        return self.anchors[event.anchor]

    def anchored(self, event: Any, value: Any) -> Any:
        """Remembers an anchor only when its value is complete, so that nothing can contain itself."""
        if event.anchor is not None:
            self.anchors[event.anchor] = value
        return value

    def check_tag(self, event: Any) -> None:
        """Tags are how YAML names types, and a configuration has none beyond its plain values."""
        if event.tag is not None and event.tag not in ("!", "tag:yaml.org,2002:str"):
            raise self.error(event, f"found the tag {event.tag[:80]!r}, allowed: no tags")

    def error(self, event: Any, message: str) -> ConfigError:
        """A one-line error at an event."""
        return ConfigError(f"{self.name}:{_line(event)}: {message}")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _broken(error: yaml.YAMLError, text: str, name: str) -> str:
    mark: Any = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        problem = getattr(error, "problem", None) or getattr(error, "context", None) or "cannot be parsed"
        return f"{name}:{mark.line + 1}: broken YAML: {problem}"
    # Only a character that YAML does not allow has a position and no mark.
    position = getattr(error, "position", None)
    line = text[:position].count("\n") + 1 if isinstance(position, int) else 1
    return f"{name}:{line}: not text: found a control character, allowed: printable text"


class _Dumper(yaml.SafeDumper):
    """Quotes every text that either version of YAML would take for something else; writes no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern in (("null", _NULL), ("bool", _BOOL), ("int", _INT), ("int", _BASED), ("float", _FLOAT)):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern.pattern})$"), None)
