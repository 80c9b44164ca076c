"""Reads a model's config.json field by field, with errors of one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Fields:
    """The configuration of one model. A field that is null counts as missing."""

    def __init__(self, config: Mapping[str, Any], model_type: str) -> None:
        self._config = config
        self._where = f"{model_type} config"
        self.only("model_type", model_type)

    def whole(self, *names: str, default: int | None = None) -> int:
        """A positive integer, under the first of these names that is there."""
        value = self._first(names, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{self._where}: {names[0]} is {value!r}, it must be a positive integer")
        return value

    def even(self, name: str, default: int | None = None) -> int:
        """A positive even integer."""
        value = self.whole(name, default=default)
        if value % 2:
            raise ValueError(f"{self._where}: {name} is {value}, it must be even")
        return value

    def divisor(self, *names: str, of: int, called: str, default: int | None = None) -> int:
        """A positive integer that divides `of`, which errors name as `called`."""
        value = self.whole(*names, default=default)
        if of % value:
            raise ValueError(f"{self._where}: {names[0]} is {value}, it must divide {called}, {of}")
        return value

    def real(self, *names: str, default: float | None = None) -> float:
        """A positive number, under the first of these names that is there."""
        value = self._first(names, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise ValueError(f"{self._where}: {names[0]} is {value!r}, it must be a positive number")
        return float(value)

    def flag(self, *names: str, default: bool) -> bool:
        """A truth value, under the first of these names that is there."""
        value = self._first(names, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self._where}: {names[0]} is {value!r}, it must be true or false")
        return value

    def only(self, name: str, *supported: Any, default: Any = None) -> None:
        """Refuse a value that this implementation does not run."""
        value = self._first((name,), default)
        if value not in supported:
            raise ValueError(f"{self._where}: {name} is {value!r}, supported is {' or '.join(map(repr, supported))}")

    def only_in(self, name: str, supported: Any) -> None:
        """Refuse a list that holds anything else."""
        value = self._config.get(name) or []
        if any(one != supported for one in value):
            raise ValueError(f"{self._where}: {name} is {value!r}, supported is {supported!r} throughout")

    def rope_base(self, default: float) -> float:
        """The base of the rotary embedding, in either of the two forms that configurations have; no scaling."""
        rope = self._config.get("rope_parameters") or self._config.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise ValueError(f"{self._where}: rope type is {kind!r}, supported is 'default'")
        return float(rope.get("rope_theta") or self.real("rope_theta", default=default))

    def eos(self) -> tuple[int, ...]:
        """`eos_token_id`: none, one or several."""
        value = self._config.get("eos_token_id")
        return () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)

    def _first(self, names: tuple[str, ...], default: Any) -> Any:
        for name in names:
            if self._config.get(name) is not None:
                return self._config[name]
        if default is None:
            raise ValueError(f"{self._where}: {names[0]} is missing")
        return default
