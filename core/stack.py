"""The stack of policies, and the typed face of the plugin manager. The rest of the core never touches pluggy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pluggy
import structlog

from interlock.core import hookspecs
from interlock.core.errors import ConfigError, HookError, InterlockError, PolicyViolation
from interlock.core.mistakes import read_only, refuse_mistakes, refuse_wrong_reads
from interlock.core.policy import EVENTS, HOOKS, Policy
from interlock.core.proposals import Proposal
from interlock.core.table import RequestTable

log = structlog.get_logger("interlock")
_LOG_EVERY = 10.0  # seconds between two log lines about one plugin and rule
OBSERVED = ("on_start", "on_boundary", "on_stop")


class _Manager(pluggy.PluginManager):
    """Collects what a policy overrides and what an observer defines, without decorators."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        wanted = plugin.hooks() if isinstance(plugin, Policy) else OBSERVED
        if name in wanted and callable(getattr(plugin, name, None)):
            return {}
        return None


class Stack:
    """Policies in the order of the configuration, each editing a proposal in turn, and observers.

    Under `repair`, an invalid edit or a raising hook undoes that hook's edits, is counted, and is logged at a limited
    rate.
    """

    def __init__(self, policies: Sequence[Policy], observers: Iterable[object], *, repair: bool, warn_s: float) -> None:
        self.policies = tuple(policies)
        self.repair, self._warn_ns = repair, int(warn_s * 1e9)
        self.violations = 0
        self.hook_ns: dict[str, int] = {}
        self._deferred: PolicyViolation | None = None
        self._logged: dict[tuple[str, str], float] = {}
        manager = _Manager("interlock")
        manager.add_hookspecs(hookspecs)
        for policy in self.policies:
            self._register(manager, policy, policy.name)
        refuse_wrong_reads(self.policies)
        observers = tuple(observers)
        for number, observer in enumerate(observers):
            self._register(manager, observer, f"{type(observer).__name__}-{number}")
        self._calls: dict[str, list[tuple[Policy, Callable[..., None]]]] = {
            name: [(policy, getattr(policy, name)) for policy in self.policies if name in policy.hooks()]
            for name in HOOKS + EVENTS
        }
        self._observers: dict[str, list[Callable[..., None]]] = {
            name: [getattr(item, name) for item in observers if callable(getattr(item, name, None))]
            for name in OBSERVED
        }

    @staticmethod
    def _register(manager: pluggy.PluginManager, plugin: object, name: str) -> None:
        """Refuse two plugins of one name, and hooks whose arguments are not those of the specification."""
        if manager.has_plugin(name):
            raise ConfigError(f"policies: {name!r} is in the stack twice")
        if isinstance(plugin, Policy):
            refuse_mistakes(plugin)
        try:
            manager.register(plugin, name)
        except pluggy.PluginValidationError as error:
            raise ConfigError(f"plugin {name!r}: {' '.join(str(error).split())}") from None

    def attach(self, table: RequestTable) -> None:
        """Give the policies their columns."""
        for policy in self.policies:
            policy._table = table
            for name, declared in policy.columns().items():
                table.add_policy_column(policy.name, name, declared.dtype, declared.initial)

    def implements(self, hook: str) -> bool:
        """Whether any policy has this hook or event."""
        return bool(self._calls[hook])

    def reads(self, hook: str) -> frozenset[str] | None:
        """What the stack's edits in this hook depend on; None for everything."""
        found: set[str] = set()
        for policy, _ in self._calls[hook]:
            names = policy.reads_of(hook)
            if names is None:
                return None
            found |= names
        return frozenset(found)

    def author_of(self, hook: str) -> str:
        """The last policy that implements this hook, for reports; empty when none does."""
        return self._calls[hook][-1][0].name if self._calls[hook] else ""

    def edit(self, hook: str, proposal: Proposal, *arguments: Any, defer: bool = False) -> None:
        """Let each policy that implements `hook` edit the proposal in turn.

        Under `raise` the first error is raised; with `defer`, that hook's edits are undone and the error waits for
        `raise_deferred`, for stages that cannot stop half-way.
        """
        for policy, method in self._calls[hook]:
            before = dict(vars(proposal)) if self.repair or defer else None
            started = time.perf_counter_ns()
            try:
                method(proposal, *arguments)
            except Exception as error:
                self._failed(policy, hook, error, defer=defer)
                assert before is not None
                vars(proposal).update(before)
            self._timed(policy, hook, started)

    def tell(self, event: str, *arguments: Any) -> None:
        """An event, to each policy that listens. Policies' columns are writable while it runs.

        Events are told in the middle of stages that must be completed, so an error waits for `raise_deferred`.
        """
        for policy, method in self._calls[event]:
            started = time.perf_counter_ns()
            policy._in_event = True
            try:
                method(*arguments)
            except Exception as error:
                self._failed(policy, event, error, defer=True)
            finally:
                policy._in_event = False
            self._timed(policy, event, started)

    def observe(self, event: str, *arguments: Any) -> None:
        """An event, to each observer. All are told before the first error is raised."""
        failed: InterlockError | None = None
        for method in self._observers[event]:
            try:
                method(*arguments)
            except InterlockError as error:
                failed = failed or error  # an observer that stops the run on purpose says why itself
            except Exception as error:
                owner = getattr(method, "__self__", method)
                failed = failed or HookError(type(owner).__name__, event, error)
                failed.__cause__ = failed.__cause__ or error
        if failed is not None:
            raise failed

    def raise_deferred(self) -> None:
        """Raise the first error of events and of hooks that could not stop their stage."""
        error, self._deferred = self._deferred, None
        if error is not None:
            raise error

    @property
    def observed(self) -> bool:
        """Whether anybody looks at boundaries."""
        return bool(self._observers["on_boundary"])

    def _failed(self, policy: Policy, hook: str, error: Exception, *, defer: bool) -> None:
        """Raise, or `defer`, or under `repair` count and log; the caller undoes."""
        named = _named(policy, hook, error)
        if self.repair:
            self.count(named)
        elif not defer:
            raise named from error
        elif self._deferred is None:
            named.__cause__ = error
            self._deferred = named

    def count(self, violation: PolicyViolation) -> None:
        """One violation that was repaired: counted, and logged at a limited rate with plugin and rule."""
        self.violations += 1
        key, now = (violation.plugin, violation.rule), time.monotonic()
        if now - self._logged.get(key, -_LOG_EVERY) >= _LOG_EVERY:
            self._logged[key] = now
            log.warning(
                "repaired", plugin=violation.plugin, hook=violation.hook, rule=violation.rule, detail=str(violation)
            )

    def _timed(self, policy: Policy, hook: str, started: int) -> None:
        spent = time.perf_counter_ns() - started
        name = f"{policy.name}.{hook}"
        self.hook_ns[name] = self.hook_ns.get(name, 0) + spent
        if spent > self._warn_ns:
            key, now = (name, "slow"), time.monotonic()
            if now - self._logged.get(key, -_LOG_EVERY) >= _LOG_EVERY:
                self._logged[key] = now
                log.warning("slow hook", hook=name, seconds=round(spent / 1e9, 4), limit=self._warn_ns / 1e9)


def _named(policy: Policy, hook: str, error: Exception) -> PolicyViolation:
    """The error with plugin, distribution and hook."""
    where = {"plugin": policy.name, "hook": hook, "distribution": policy.distribution}
    if isinstance(error, PolicyViolation) and not isinstance(error, HookError):
        return PolicyViolation(error.rule, _detail(error), request=error.request, **where)
    changed = read_only(error)
    if changed:
        return PolicyViolation("views are read-only", changed, **where)
    return HookError(policy.name, hook, error, policy.distribution)


def _detail(error: PolicyViolation) -> str:
    """The message of a violation without the prefix that a proposal could not fill in."""
    return str(error).split(": ", 1)[-1]
