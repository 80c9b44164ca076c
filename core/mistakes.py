"""Mistakes of a policy's author that would otherwise stay silent or say too little: each becomes one line."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import FrozenInstanceError

from pydantic import ValidationError

from interlock.core.config_errors import show
from interlock.core.errors import ConfigError, nearest
from interlock.core.policy import EVENTS, HOOKS, Policy, column
from interlock.core.view import COLUMN_NAMES, View

_OTHERS = ("claims", "reads", "requires", "refuses", "Options")
_NEAR, _NEARER = 0.8, 0.85  # of two words: `admitt` is near `admit`


def refuse_mistakes(policy: Policy) -> None:
    """Raise ConfigError for hooks and events that could not be called as they are, and for what nobody would call."""
    for hook in policy.hooks():
        _check_method(policy, hook)
        _check_signature(policy, hook)
    _check_spelling(policy)


def refuse_wrong_reads(policies: Iterable[Policy]) -> None:
    """Raise ConfigError for a name in `reads` that nothing has: what depends on it would be told wrongly."""
    policies = tuple(policies)
    known = {*COLUMN_NAMES, *(name for name in dir(View) if not name.startswith("_"))}
    known |= {name for policy in policies for name in policy.columns()}
    for policy in policies:
        for name in _reads(policy):
            if name not in known:
                raise ConfigError(
                    f"policy {policy.title}: reads: found {show(name)}, allowed: "
                    f"a column or an attribute of View{nearest(str(name), known)}"
                )


def read_only(error: Exception) -> str:
    """What a policy tried to change that it may only read, in words; empty for any other error."""
    text = str(error)
    if isinstance(error, ValidationError):
        frozen = [detail for detail in error.errors() if detail["type"] == "frozen_instance"]
        return f"{error.title}.{frozen[0]['loc'][0]} cannot be set" if frozen else ""
    marks = ("read-only", "WRITEABLE", "has no deleter", "has no setter")
    if isinstance(error, FrozenInstanceError) or any(mark in text for mark in marks):
        return text if isinstance(error, ValueError | AttributeError) else ""
    return ""


def _check_method(policy: Policy, hook: str) -> None:
    method = getattr(policy, hook)
    what = f"policy {policy.title}: {type(policy).__name__}.{hook}"
    if not callable(method):
        raise ConfigError(f"{what} is not a method; allowed: ({', '.join(_wanted(hook))})")
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise ConfigError(f"{what} is async; allowed: a plain method")
    if inspect.isgeneratorfunction(method):
        raise ConfigError(f"{what} is a generator; allowed: a plain method, without yield")


def _check_signature(policy: Policy, hook: str) -> None:
    given = list(inspect.signature(getattr(policy, hook)).parameters)
    wanted = _wanted(hook)
    if given != wanted:
        raise ConfigError(
            f"policy {policy.title}: {type(policy).__name__}.{hook} takes ({', '.join(given)}); "
            f"allowed: ({', '.join(wanted)})"
        )


def _wanted(hook: str) -> list[str]:
    return list(inspect.signature(getattr(Policy, hook)).parameters)[1:]


def _check_spelling(policy: Policy) -> None:
    """Refuse a method that looks like a hook but is none, and an attribute that looks like one of the declarations."""
    bases = type(policy).__mro__[: type(policy).__mro__.index(Policy)]
    for name, value in [item for base in bases for item in vars(base).items()]:
        if name.startswith("on_") and name not in EVENTS:
            raise ConfigError(f"policy {policy.title}: no event {name!r}{nearest(name, EVENTS)}")
        if name.startswith("_") or name in dir(Policy) or isinstance(value, column):
            continue
        if callable(value) and _is_near(name, HOOKS, _NEAR):
            raise ConfigError(f"policy {policy.title}: no hook {name!r}{nearest(name, HOOKS)}")
        if _is_near(name, _OTHERS, _NEARER):
            raise ConfigError(f"policy {policy.title}: no {name!r}{nearest(name, _OTHERS)}")


def _is_near(name: str, words: Iterable[str], least: float) -> bool:
    return any(difflib.SequenceMatcher(None, name, word).ratio() > least for word in words)


def _reads(policy: Policy) -> list[object]:
    """All names in `reads`; raises ConfigError when it has another form."""
    reads: object = policy.reads
    parts: list[object] = [reads]
    if isinstance(reads, Mapping):
        for hook in reads:
            if hook not in HOOKS:
                raise ConfigError(f"policy {policy.title}: reads: no hook {show(hook)}{nearest(str(hook), HOOKS)}")
        parts = list(reads.values())
    for part in parts:
        if part is not None and not isinstance(part, set | frozenset):
            allowed = "a set of names, or a dict of such sets by hook"
            raise ConfigError(f"policy {policy.title}: reads: found {show(part)}, allowed: {allowed}")
    return [name for part in parts if isinstance(part, set | frozenset) for name in sorted(part, key=str)]
