"""Checks of how the policies use their hooks: what they read, and that they change nothing."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

from interlock.core import Engine, Policy, View
from interlock.core.policy import HOOKS
from interlock.plugins.conformance.checks.base import Check
from interlock.plugins.conformance.finding import Finding
from interlock.plugins.conformance.run import Run
from interlock.plugins.conformance.subject import Subject

CONSTANT = frozenset({"capacity", "limits"})
"""Facts of the engine that a policy may always read."""

Call = Callable[..., None]


def around_hooks(engine: Engine, wrap: Callable[[Policy, str, Call], Call]) -> None:
    """Put `wrap` around each hook of each policy."""
    calls = engine.stack._calls
    for hook in HOOKS:
        calls[hook] = [(policy, wrap(policy, hook, method)) for policy, method in calls[hook]]


class _Names:
    """A face of a view, or of a policy's columns, that notes which names are asked for."""

    def __init__(self, inner: Any, seen: set[str]) -> None:
        self._inner, self._seen = inner, seen

    def __getattr__(self, name: str) -> Any:
        if name == "of":
            return lambda policy: _Names(self._inner.of(policy), self._seen)
        self._seen.add(name)
        return getattr(self._inner, name)


class Reads(Check):
    """What the edits depend on."""

    name = "reads"
    rule = "A hook reads no more of the view than its policy says in `reads`."

    def skip(self, subject: Subject) -> str | None:
        """Where nobody says what it reads."""
        hooks = [(member.build(), hook) for member in subject.members for hook in member.cls.hooks() if hook in HOOKS]
        if all(policy.reads_of(hook) is None for policy, hook in hooks):
            return "no policy says what it reads, which means everything"
        return None

    def end(self, run: Run) -> Iterable[Finding]:
        """A run with views that take notes."""
        seen: dict[tuple[Policy, str], set[str]] = {}
        run.again(
            prepare=lambda engine: around_hooks(engine, lambda policy, hook, call: _noting(seen, policy, hook, call))
        )
        for (policy, hook), names in seen.items():
            said = policy.reads_of(hook)
            more = sorted(names - CONSTANT - said) if said is not None else []
            if more:
                right = f"reads names {', '.join(more)}, too."
                yield self.found(f"{policy.name}.{hook} reads {', '.join(sorted(names))}.", right)


def _noting(seen: dict[tuple[Policy, str], set[str]], policy: Policy, hook: str, call: Call) -> Call:
    names = seen.setdefault((policy, hook), set())

    def noted(proposal: Any, *arguments: Any) -> None:
        *rest, view = arguments
        for verb in ("sort_by", "limit"):
            if hasattr(proposal, verb):
                setattr(proposal, verb, _named(names, getattr(proposal, verb)))
        try:
            call(proposal, *rest, _Names(view, names))
        finally:
            for verb in ("sort_by", "limit"):
                vars(proposal).pop(verb, None)

    return noted


def _named(names: set[str], verb: Call) -> Call:
    """A verb that notes the columns it is given by name."""

    def noted(*keys: Any, **options: Any) -> None:
        names.update(str(key).lstrip("-") for key in (*keys, options.get("per")) if isinstance(key, str))
        verb(*keys, **options)

    return noted


class HooksChangeNothing(Check):
    """Hooks and the policy's own state."""

    name = "hooks change nothing"
    rule = "The four hooks leave the policy's own state as it is, since a plan may be refused; events change it."

    def end(self, run: Run) -> Iterable[Finding]:
        """A run in which each policy is compared with itself before and after each call."""
        changed: dict[tuple[str, str], tuple[int, str]] = {}

        def wrap(policy: Policy, hook: str, call: Call) -> Call:
            def compared(*arguments: Any) -> None:
                before = _state(policy)
                call(*arguments)
                names = sorted(name for name, value in _state(policy).items() if before.get(name) != value)
                view = arguments[-1]
                if names and isinstance(view, View):
                    changed.setdefault((policy.name, hook), (view.step, ", ".join(names)))

            return compared

        run.again(prepare=lambda engine: around_hooks(engine, wrap))
        for (policy, hook), (step, names) in changed.items():
            yield self.found(f"{policy}.{hook} changed {names}.", "it changes in events only.", step)


def _state(policy: Policy) -> dict[str, bytes]:
    """The attributes and columns of a policy, as bytes to compare."""
    attributes = {name: value for name, value in vars(policy).items() if name not in ("_table", "_in_event", "options")}
    if policy._table is not None:
        attributes |= {f"column {name}": policy._table.policy_columns[policy.name, name] for name in policy.columns()}
    return {name: _bytes(value) for name, value in attributes.items()}


def _bytes(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:  # what cannot be pickled is told apart by its identity
        return str(id(value)).encode()


CHECKS: tuple[type[Check], ...] = (Reads, HooksChangeNothing)
