"""A scenario: the limits, the memory, the model, the requests and the faults of one small run, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

_SHOW = "interlock.plugins.conformance.show:Show"
MODE = "interlock.plugins.conformance.modes:GivesWayAs"


@dataclass(frozen=True)
class Faults:
    """What goes wrong outside the policies.

    `fails`: numbers of the submissions that the executor fails. `again`: numbers of those whose result it hands out a
    second time, with a later one. `refuses`: how many takings of blocks succeed before the allocator refuses once.
    `raises`: calls, counted over all hooks, at which a policy beside the stack raises.
    """

    fails: tuple[int, ...] = ()
    again: tuple[int, ...] = ()
    refuses: int | None = None
    raises: tuple[int, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As a configuration writes it, what is not there left out."""
        named = {"fails": list(self.fails), "again": list(self.again), "raises": list(self.raises)}
        plain: dict[str, Any] = {name: value for name, value in named.items() if value}
        return plain if self.refuses is None else {**plain, "refuses": self.refuses}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """The inverse of `plain`."""
        lists = {name: tuple(plain[name]) for name in ("fails", "again", "raises") if name in plain}
        return cls(**lists, refuses=plain.get("refuses"))


@dataclass(frozen=True)
class Scenario:
    """One small run.

    * `engine`, `kv`: the sections of a configuration; `requests`: the entries of `workload.requests`
    * `loops` and `exits`: depth of the model, 1 for a dense one, and the depths at which decodes leave it in turn
    * `mode`: how whoever gives way does so, whatever the stack says; None leaves it to the stack
    """

    requests: tuple[Mapping[str, Any], ...]
    engine: Mapping[str, Any] = field(default_factory=dict)
    kv: Mapping[str, Any] = field(default_factory=dict)
    loops: int = 1
    exits: tuple[int, ...] = ()
    mode: str | None = None
    faults: Faults = Faults()

    @property
    def longest(self) -> int:
        """`max_model_len`."""
        return int(self.engine.get("max_model_len", 8192))

    def with_engine(self, **changes: Any) -> Scenario:
        """The same with other keys of the section `engine`."""
        return replace(self, engine={**self.engine, **changes})

    @property
    def work(self) -> int:
        """Batches in which all requests would run one after the other, a token and a loop at a time."""
        return sum(self._tokens(request) for request in self.requests) * (1 if self.loops == 1 else self.loops + 2)

    def _tokens(self, request: Mapping[str, Any]) -> int:
        prompt = request["prompt"]
        length = prompt if isinstance(prompt, int) else len(prompt)
        return int(length + max(request.get("max_tokens", 1), request.get("output", 1)))

    @property
    def bound(self) -> int:
        """Batches within which a request that fits alone is to end after it arrived.

        All that everybody has to run, once for each request that may take the blocks of all others meanwhile, and the
        batches that a cancellation by number or a failed batch waits for.
        """
        awaited = max((request.get("cancel_at_step", 0) for request in self.requests), default=0)
        return self.work * (len(self.requests) + 1) + awaited + len(self.faults.fails)

    def config(self, stack: list[dict[str, Any]], executor: dict[str, Any]) -> dict[str, Any]:
        """A configuration that `interlock run` accepts, the faults aside."""
        policies = stack if self.mode is None else [*stack, {MODE: {"mode": self.mode}}]
        return {
            "engine": dict(self.engine),
            "kv": dict(self.kv),
            "policies": policies,
            "executor": executor,
            "workload": {"max_tokens": "context", "requests": [dict(request) for request in self.requests]},
        }

    def shown(self, stack: list[dict[str, Any]], executor: dict[str, Any], check: str, file: str) -> dict[str, Any]:
        """The configuration with an observer that repeats `check` at the end of the run. `file`: where it will be."""
        looped = {"loops": self.loops, "exits": list(self.exits)} if self.loops > 1 else {}
        faults = {"faults": self.faults.plain()} if self.faults.plain() else {}
        options = {"check": check, "file": file, **looped, **faults}
        return {**self.config(stack, executor), "plugins": [{_SHOW: options}]}

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> tuple[Self, list[dict[str, Any]], dict[str, Any]]:
        """The inverse of `shown`, for plain values of a file: the scenario, the stack, and the executor's section."""
        stack, mode = list(config["policies"]), None
        if MODE in stack[-1]:
            mode = str(stack.pop()[MODE]["mode"])
        shows: list[dict[str, Any]] = [item[_SHOW] for item in config.get("plugins", []) if _SHOW in item]
        told = shows[0] if shows else {}
        scenario = cls(
            tuple(config["workload"]["requests"]), config["engine"], config["kv"], told.get("loops", 1),
            tuple(told.get("exits", ())), mode, Faults.read(told.get("faults", {})),
        )  # fmt: skip
        return scenario, stack, dict(config["executor"])
