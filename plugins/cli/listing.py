"""`interlock list`: what is installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from interlock.core.registry import Entry, Found

GROUPS = ("policies", "executors", "plugins")
LATER = ("drafters", "connectors")  # shown where something is installed
OBSERVED = ("on_start", "on_boundary", "on_stop")
UNWRAPPED = 10_000


class Row(NamedTuple):
    """One installed plugin: its name, where it comes from, and named facts about it."""

    name: str
    source: str
    facts: list[tuple[str, str]]


def list_() -> None:
    """List the installed policies, executors and plugins."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = UNWRAPPED
    for group in GROUPS + LATER:
        found = list(rows(group))
        if found or group in GROUPS:
            _print(console, group, found)


def rows(group: str) -> Iterator[Row]:
    """What is installed in a group, by name. What cannot be used says why instead."""
    from interlock.core.errors import ConfigError
    from interlock.core.registry import find, installed

    for entry in installed(group):
        try:
            facts = _FACTS.get(group, option_facts)(_class(group, find(group, entry.name)))
        except ConfigError as error:
            facts = [("error", " ".join(str(error).split()))]
        yield Row(entry.name, _source(entry), facts)


def _class(group: str, found: Found) -> Any:
    """The plugin's object; of a policy, a class that is one."""
    from interlock.core.config_stack import plugin_class

    return plugin_class(group, found) if group == "policies" else found.obj


def policy_facts(policy: Any) -> list[tuple[str, str]]:
    """Hooks, options with their defaults, claims under those defaults, required capabilities."""
    return [
        *_known("hooks", ", ".join(policy.hooks())),
        *option_facts(policy),
        *_known("claims", _claims(policy)),
        *_known("requires", ", ".join(sorted(map(str, policy.requires)))),
    ]


def observer_facts(plugin: Any) -> list[tuple[str, str]]:
    """What an observer listens to, and its options with their defaults."""
    hooks = [name for name in OBSERVED if callable(getattr(plugin, name, None))]
    return [*_known("hooks", ", ".join(hooks)), *option_facts(plugin)]


def option_facts(plugin: Any) -> list[tuple[str, str]]:
    """The options of a plugin with their defaults, where it has an `Options` model."""
    fields = getattr(getattr(plugin, "Options", None), "model_fields", {})
    return _known("options", ", ".join(_option(name, field) for name, field in fields.items()))


_FACTS: dict[str, Callable[[Any], list[tuple[str, str]]]] = {"policies": policy_facts, "plugins": observer_facts}


def _option(name: str, field: Any) -> str:
    if field.is_required():
        return f"{name} (required)"
    return f"{name}={_plain(field.get_default(call_default_factory=True))}"


def _plain(default: Any) -> str:
    """A default as a configuration would write it, on one line."""
    from interlock.core.yamlfile import dumps

    if hasattr(default, "model_dump"):
        default = default.model_dump(mode="json", exclude_none=True)
    text = json.dumps(getattr(default, "value", default), default=str)
    return text if isinstance(default, dict | list) else dumps(json.loads(text)).split("\n")[0]


def _claims(policy: Any) -> str:
    try:
        return ", ".join(map(repr, policy().claims()))
    except Exception as error:  # a claim may need an option that has no default
        return f"depend on options ({type(error).__name__})"


def _known(name: str, value: str) -> list[tuple[str, str]]:
    return [(name, value)] if value else []


def _source(entry: Entry) -> str:
    return f"{entry.distribution} {entry.version}"


def _print(console: Any, group: str, found: list[Row]) -> None:
    """Print one group. Off a terminal nothing is wrapped, so that grep finds every name as it is written."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for row in found:
        facts = [Text.assemble((key, "red" if key == "error" else "cyan"), f" {value}") for key, value in row.facts]
        table.add_row(Text(row.name), Text(row.source), Text("\n").join(facts))
    with console.capture() as captured:
        console.print(Text(group, style="bold underline"))
        console.print(table if found else "none")
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())
