"""What is installed, found by name and imported only when it is asked for.

Installing a package never activates it: nothing here imports a plugin that was not named. Everything of Interlock's
own registers through the same entry points as a stranger's.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from interlock.core.config_errors import one_line, show
from interlock.core.errors import ConfigError, MissingExtra, nearest

GROUPS = ("policies", "executors", "plugins", "drafters", "connectors")
"""The kinds of plugin. The entry-point group of each is `interlock.` and its name."""

_OURS = "interlock"
SINGULAR = {"policies": "policy", "executors": "executor", "plugins": "plugin"}
SINGULAR |= {"drafters": "drafter", "connectors": "connector"}


@dataclass(frozen=True, slots=True)
class Found:
    """A plugin's object and where it comes from.

    `kind` is `entry point`, `module` or `file`. `distribution` and `version` are empty for a file. `source_hash` is the
    first 16 hex digits of the SHA-256 of the source file, empty where there is none.
    """

    obj: Any
    name: str
    distribution: str
    version: str
    source_hash: str
    kind: str

    @property
    def source(self) -> str:
        """Whose it is, `lab-policies 1.2`, as errors say it; empty for a file's and for Interlock's own."""
        return f"{self.distribution} {self.version}" if self.distribution not in ("", _OURS) else ""


@dataclass(frozen=True, slots=True)
class Entry:
    """An installed plugin that is not imported yet."""

    group: str
    name: str
    distribution: str
    version: str
    _point: importlib.metadata.EntryPoint = field(repr=False)

    def load(self) -> Any:
        """Imports the plugin. Raises ConfigError, one line that names plugin and distribution, if that fails."""
        who = f"{SINGULAR[self.group]} {self.name!r} of {self.distribution} {self.version}"
        try:
            return self._point.load()
        except (Exception, SystemExit) as error:
            if isinstance(error, ModuleNotFoundError) and self._point.extras:
                raise MissingExtra(who, self._point.extras[0]) from None
            raise ConfigError(f"{who} cannot be imported: {_why(error)}") from error


def installed(group: str) -> list[Entry]:
    """Everything installed in a group, by name. Imports none of it. A name may come twice: `find` refuses those."""
    if group not in GROUPS:
        raise ConfigError(f"unknown group {show(group)}; allowed: {', '.join(GROUPS)}{nearest(group, GROUPS)}")
    points = importlib.metadata.entry_points(group=f"interlock.{group}")
    entries = [_entry(group, point) for point in points]
    return sorted(dict.fromkeys(entries), key=lambda entry: (entry.name, entry.distribution))


def find(group: str, name: str, *, base: Path | None = None) -> Found:
    """The plugin of a name: an entry point's, `package.module:Class`, or `path/file.py:Class`.

    A path is relative to `base`, the current folder unless given. Raises ConfigError, one line, when nothing has that
    name, when two distributions offer it, or when its import fails.
    """
    place, colon, attribute = name.rpartition(":")
    if colon and place.endswith(".py"):
        return _from_file(group, name, (base or Path.cwd()) / place, attribute)
    if colon:
        return _from_module(group, name, place, attribute)
    entry = _only(group, name)
    obj = entry.load()
    return Found(obj, name, entry.distribution, entry.version, source_hash(obj), "entry point")


def source_hash(obj: Any) -> str:
    """First 16 hex digits of the SHA-256 of the file that defines a class or function, empty where there is none."""
    try:
        path = inspect.getsourcefile(obj)
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16] if path else ""
    except (TypeError, OSError):
        return ""


def _entry(group: str, point: importlib.metadata.EntryPoint) -> Entry:
    dist = point.dist
    return Entry(group, point.name, dist.name if dist else "", dist.version if dist else "", point)


def _only(group: str, name: str) -> Entry:
    """The one entry of a name."""
    entries = installed(group)
    named = [entry for entry in entries if entry.name == name]
    if not named and name.endswith(".py"):
        raise ConfigError(f"{SINGULAR[group]} {show(name)}: found no class, allowed: {name}:Class")
    if not named:
        names = list(dict.fromkeys(entry.name for entry in entries))
        ways = ", ".join([*names, "package.module:Class", "path/file.py:Class"])
        raise ConfigError(f"unknown {SINGULAR[group]} {show(name)}; allowed: {ways}{nearest(name, names)}")
    if len(named) > 1:
        dists = " and ".join(entry.distribution for entry in named)
        raise ConfigError(f"{SINGULAR[group]} {name!r} is offered by {dists}, allowed: one distribution")
    return named[0]


def _from_module(group: str, name: str, module_name: str, attribute: str) -> Found:
    what = f"{SINGULAR[group]} {show(name)}"
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} cannot be imported: {_why(error)}") from error
    obj = _member(module, attribute, what)
    top = module_name.partition(".")[0]
    dists = importlib.metadata.packages_distributions().get(top, [])
    version = importlib.metadata.version(dists[0]) if dists else ""
    return Found(obj, name, dists[0] if dists else "", version, source_hash(obj), "module")


def _from_file(group: str, name: str, path: Path, attribute: str) -> Found:
    what = f"{SINGULAR[group]} {show(name)}"
    path = path.resolve()
    if not path.is_file():
        raise ConfigError(f"{what}: no such file: {path}")
    obj = _member(_file_module(path, what), attribute, what)
    return Found(obj, name, "", "", source_hash(obj), "file")


def _file_module(path: Path, what: str) -> ModuleType:
    """The module of a file. Its name is made from the whole path, so that it can clash with no other module."""
    name = f"interlock_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pydantic look the module of a class up by name while the class is being made.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"{what} cannot be imported: {_why(error)}") from error
    return module


def _member(module: ModuleType, attribute: str, what: str) -> Any:
    if not hasattr(module, attribute):
        names = [name for name, value in vars(module).items() if isinstance(value, type) and not name.startswith("_")]
        raise ConfigError(f"{what}: no {show(attribute)} in it; it has {', '.join(names)}{nearest(attribute, names)}")
    return getattr(module, attribute)


def _why(error: BaseException) -> str:
    if "__set_name__" in str(error) and error.__cause__ is not None:
        error = error.__cause__  # Python 3.11 wraps what a descriptor says about its name
    return f"{type(error).__name__}: {one_line(error)}"
