"""The names of a new plugin: of the entry point, the class, the package and the distribution."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass

import interlock.core
from interlock.core import ConfigError, claims
from interlock.core.config_errors import show
from interlock.core.registry import installed

_ALLOWED = "a lower-case letter, then up to 39 lower-case letters, digits and single underscores between them"
_FORM = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST = 40


@dataclass(frozen=True, slots=True)
class Names:
    """`short_first` names the entry point; the others follow from it."""

    name: str

    @property
    def title(self) -> str:
        """Of the class: `ShortFirst`."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @property
    def package(self) -> str:
        """What Python imports: `interlock_short_first`."""
        return f"interlock_{self.name}"

    @property
    def distribution(self) -> str:
        """What pip installs: `interlock-short-first`."""
        return f"interlock-{self.name.replace('_', '-')}"

    @classmethod
    def of_policy(cls, name: str) -> Names:
        """Names for a new policy. Raises ConfigError, one line, for a name that cannot be or is taken."""
        names = cls(name)
        if len(name) > _LONGEST or not _FORM.fullmatch(name):
            raise ConfigError(f"policy name: found {show(name)}, allowed: {_ALLOWED}{_meant(name)}")
        if keyword.iskeyword(names.title) or names.title in _taken_classes():
            raise ConfigError(f"policy name: found {show(name)}, whose class {names.title} has a name that is taken")
        for entry in installed("policies"):
            if entry.name == name:
                source = f"{entry.distribution} {entry.version}"
                raise ConfigError(f"policy name: found {show(name)}, which {source} offers already")
        return names


def _taken_classes() -> set[str]:
    """What a policy's module imports by name."""
    return {*interlock.core.__all__, *(name for name in vars(claims) if name[0].isupper()), "Field", "Iterable"}


def _meant(name: str) -> str:
    """The nearest name that could be: `Short-First` was meant as `short_first`."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    snake = re.sub(r"[^a-z0-9]+", "_", snake).strip("_")[:_LONGEST].rstrip("_")
    return f"; did you mean {snake!r}?" if _FORM.fullmatch(snake) else ""
