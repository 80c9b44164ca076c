"""A policy: one class, of which every overridden method is a registered hook or event."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np
from pydantic import BaseModel, ConfigDict

from interlock.core.errors import ConfigError
from interlock.core.executor import Capability
from interlock.core.table import COLUMNS, RequestTable, read_only

if TYPE_CHECKING:
    from interlock.core.batch import Batch
    from interlock.core.claims import Claim
    from interlock.core.config_sections import EngineSection
    from interlock.core.executor import Capabilities
    from interlock.core.proposals import Demand, Offer, Plan, Retention, Victims
    from interlock.core.view import View

HOOKS = ("admit", "select", "preempt", "release")
EVENTS = (
    "on_start",
    "on_arrival",
    "on_admitted",
    "on_batch",
    "on_result",
    "on_preempted",
    "on_finished",
    "on_retired",
    "on_batch_failed",
)


class PolicyOptions(BaseModel):
    """Base of a policy's options: typed, unknown keys refused, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class column:
    """A column that a policy adds to the request table: `level = column(np.int8, initial=0)`.

    `self.level` is the whole array, `view.capacity` long. It is writable in events and read-only in hooks, since a
    plan may be refused. Others read it as `view.of(policy_name).level`.
    """

    def __init__(self, dtype: Any, initial: Any = 0) -> None:
        self.dtype, self.initial = np.dtype(dtype), initial
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        from interlock.core.view import COLUMN_NAMES, View

        if name in COLUMNS or name in COLUMN_NAMES or hasattr(View, name):
            raise TypeError(f"{owner.__name__}.{name}: views have a column or an attribute of this name already")
        self.name = name

    @overload
    def __get__(self, policy: None, owner: type) -> column: ...
    @overload
    def __get__(self, policy: Policy, owner: type) -> np.ndarray: ...
    def __get__(self, policy: Policy | None, owner: type) -> column | np.ndarray:
        if policy is None:
            return self
        if policy._table is None:
            raise ConfigError(f"{policy.name}.{self.name}: a policy's columns exist once an engine has loaded it")
        array = policy._table.policy_columns[policy.name, self.name]
        return array if policy._in_event else read_only(array)


class Policy:
    """Base class. A subclass overrides any subset of the four hooks and the events; what is left alone is never called.

    Each hook is called at most once per boundary (`preempt` once per requester that is short of something). The core's
    defaults are arrival order for admission, prompts before decodes, and latest admitted gives way first, so one
    method is a complete policy. Hooks edit the proposal that they are given and change nothing else; only events
    change the policy's own state.

    * `Options`: a `PolicyOptions` subclass, the YAML keys of this policy
    * `reads`: what the edits depend on, as names of columns (the policy's own, too) and of attributes of `View`, or a
      dict of such sets by hook; None, the default, means everything
    * `requires`: capabilities that the backend must have
    """

    class Options(PolicyOptions):
        """No options."""

    reads: ClassVar[frozenset[str] | set[str] | Mapping[str, set[str]] | None] = None
    requires: ClassVar[frozenset[Capability] | set[Capability]] = frozenset()
    name: str = ""
    distribution: str = ""  # with its version; empty for a policy of a file, of a test, and for Interlock's own

    def __init__(self, options: PolicyOptions | None = None, **values: Any) -> None:
        """Options as an instance of `Options`, or as keywords."""
        self.options: Any = options if options is not None else self.Options(**values)
        self.name = self.name or type(self).__name__.lower()
        self._table: RequestTable | None = None
        self._in_event = False

    @property
    def title(self) -> str:
        """Name and distribution, as errors say them."""
        return f"{self.name!r} of {self.distribution}" if self.distribution else repr(self.name)

    @classmethod
    def hooks(cls) -> tuple[str, ...]:
        """Names of the hooks and events that this class overrides."""
        return tuple(name for name in HOOKS + EVENTS if getattr(cls, name) is not getattr(Policy, name))

    @classmethod
    def columns(cls) -> dict[str, column]:
        """The columns that this class adds."""
        found = {}
        for base in reversed(cls.__mro__):
            found.update({name: value for name, value in vars(base).items() if isinstance(value, column)})
        return found

    def reads_of(self, hook: str) -> frozenset[str] | None:
        """What this hook's edits depend on; None for everything."""
        if self.reads is None:
            return None
        if isinstance(self.reads, Mapping):
            return frozenset(self.reads[hook]) if hook in self.reads else None
        return frozenset(self.reads)

    def refuses(self, limits: EngineSection, capabilities: Capabilities) -> str | None:
        """Why this policy, with these options, cannot serve an engine with these limits; None when it can.

        Asked once, when the engine is built; what it says becomes a one-line configuration error.
        """
        return None

    def claims(self) -> Iterable[Claim]:
        """What this policy, with these options, promises (see `interlock.core.claims`)."""
        return ()

    # -- hooks

    def admit(self, offer: Offer, view: View) -> None:
        """Who may enter, in which order. `offer.rows`: the waiting rows."""

    def select(self, plan: Plan, view: View) -> None:
        """What runs next, how much of it, what may share a batch.

        `plan.rows`: active rows with pending work in the order of their admission, then the offered ones.
        """

    def preempt(self, victims: Victims, demand: Demand, view: View) -> None:
        """Who gives way to `demand.row`, and how.

        `victims.rows`: holders that yielded, then active rows, latest admitted first.
        """

    def release(self, retention: Retention, view: View) -> None:
        """What finished requests leave for reuse. `retention.rows`: rows that retire at this boundary."""

    # -- events

    def on_start(self, view: View) -> None:
        """The engine is ready; no request has arrived."""

    def on_arrival(self, rows: np.ndarray, view: View) -> None:
        """These rows are new and WAITING."""

    def on_admitted(self, rows: np.ndarray, view: View) -> None:
        """These rows were given a slot, for the first time or again."""

    def on_batch(self, batch: Batch, view: View) -> None:
        """This batch was committed."""

    def on_result(self, rows: np.ndarray, computed: np.ndarray, emitted: np.ndarray, view: View) -> None:
        """For each row: tokens newly valid, tokens newly delivered. A stretch of steps is told once, with sums."""

    def on_preempted(self, rows: np.ndarray, modes: np.ndarray, view: View) -> None:
        """These rows gave way; `modes` holds a `PreemptMode` for each."""

    def on_finished(self, rows: np.ndarray, view: View) -> None:
        """The callers of these rows have their answers; the rows are still readable."""

    def on_retired(self, rows: np.ndarray, view: View) -> None:
        """Nothing touches the resources of these rows any more; their columns are reset after this."""

    def on_batch_failed(self, batch: Batch, view: View) -> None:
        """The executor failed this batch; its rows are as they were before it."""


for _name in HOOKS + EVENTS:
    assert isinstance(getattr(Policy, _name), types.FunctionType)
