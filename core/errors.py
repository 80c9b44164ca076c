"""What can go wrong, one class per kind. Each knows the exit code of the command that meets it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InterlockError(Exception):
    """Base of every error that Interlock raises on purpose."""

    exit_code = 3


class ConfigError(InterlockError):
    """The configuration or the command is wrong. The message is one line: where, what was found, what is allowed."""

    exit_code = 2


class MissingExtra(ConfigError):
    """A command needs an optional dependency that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra '{extra}': pip install 'interlock[{extra}]'")


class PolicyViolation(InterlockError):
    """A policy's edit, or the plan that came of it, broke a rule. Nothing of the plan was committed."""

    exit_code = 1

    def __init__(
        self,
        rule: str,
        detail: str,
        *,
        plugin: str = "core",
        hook: str = "",
        request: str = "",
        distribution: str = "",
    ) -> None:
        self.rule, self.plugin, self.hook, self.request = rule, plugin, hook, request
        where = plugin + (f".{hook}" if hook else "") + (f" of {distribution}" if distribution else "")
        whom = f" (request {request!r})" if request else ""
        super().__init__(f"{where} broke rule '{rule}'{whom}: {detail}")


class HookError(PolicyViolation):
    """A hook or event of a policy raised."""

    def __init__(self, plugin: str, hook: str, error: BaseException, distribution: str = "") -> None:
        detail = f"{type(error).__name__}: {error}"
        super().__init__("hooks do not raise", detail, plugin=plugin, hook=hook, distribution=distribution)


class LivelockError(InterlockError):
    """Runnable requests remain and nothing makes progress."""

    exit_code = 1


class ExecutorError(InterlockError):
    """The executor failed, or answered something that its protocol does not allow."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """The phrase "; did you mean 'x'?" for the closest allowed word, or nothing."""
    close = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
