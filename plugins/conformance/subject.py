"""What is tested: a stack of policies and an executor, from which engines are built by the thousand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from interlock.core import ConfigError, Engine, EngineConfig, Executor, Policy, PreemptMode
from interlock.core.claims import Claim
from interlock.core.config import parse_stack
from interlock.core.config_errors import Invalid, validate
from interlock.core.config_sections import EngineSection, KVSection
from interlock.core.config_stack import parse_options
from interlock.core.config_workload import WorkloadSection
from interlock.core.registry import find
from interlock.plugins.conformance.faults import Faulty, NextDoor
from interlock.plugins.conformance.memory import Memory
from interlock.plugins.conformance.modes import GivesWayAs
from interlock.plugins.conformance.scenario import Scenario

_PATIENT_S = 1e6  # how long a hook takes says nothing on a machine that runs tests
SHAPES = ((1, "atomic"), (3, "atomic"), (3, "split"))
"""Depth of the model and kind of prompt that a stack may accept or refuse."""


@dataclass(frozen=True)
class Member:
    """One policy of the stack, ready to be made again and again."""

    name: str
    cls: type[Policy]
    plain: dict[str, Any]
    options: Any

    def build(self) -> Policy:
        """A new instance, named as the engine names it."""
        policy = self.cls(self.options)
        policy.name = self.name.rsplit(":", 1)[-1].lower()
        return policy


class Subject:
    """A stack and an executor. Raises ConfigError where the stack accepts no kind of model."""

    def __init__(
        self, members: Sequence[Member], executor: str = "simulated", options: Mapping[str, Any] | None = None
    ):
        self.members, self.executor_name = tuple(members), executor
        self.executor_options = dict(options or {})
        self._config = EngineConfig.load({"policies": [], "executor": {executor: self.executor_options}})
        self._feed = find("plugins", "workload").obj
        self._executor_class = find("executors", executor, base=self._config.base).obj
        self.refusals: dict[tuple[int, str], str] = {}
        self.shapes = tuple(shape for shape in SHAPES if self._accepts(*shape))
        if not self.shapes:
            raise ConfigError(next(iter(self.refusals.values())))

    @classmethod
    def named(
        cls, stack: str | list[Any], executor: str | Mapping[str, Any] = "simulated", base: Path | None = None
    ) -> Subject:
        """A STACK as the command line takes it, and an executor by name, or with its options."""
        text = stack if isinstance(stack, str) else json.dumps(stack)
        config = EngineConfig.load({"policies": [spec.plain() for spec in parse_stack(text, base=base)]})
        built = zip(config.policies, config.build_policies(), strict=True)
        members = [Member(spec.name, type(policy), spec.plain(), policy.options) for spec, policy in built]
        name, options = (executor, {}) if isinstance(executor, str) else next(iter(executor.items()))
        return cls(members, name, options)

    @classmethod
    def of(cls, *policies: type[Policy] | str) -> Subject:
        """A stack of classes and names, in this order."""
        members: list[Member] = []
        for policy in policies:
            if isinstance(policy, str):
                members += cls.named(policy).members
            else:
                name = f"{policy.__module__}:{policy.__qualname__}"
                members.append(Member(name, policy, {name: {}}, policy.Options()))
        return cls(members)

    @property
    def stack(self) -> list[dict[str, Any]]:
        """The stack as a configuration writes it."""
        return [member.plain for member in self.members]

    @property
    def title(self) -> str:
        """The stack in a few words."""
        return "+".join(member.name.rsplit("/", 1)[-1] for member in self.members)

    def prefix(self, length: int) -> Subject:
        """The first policies of the stack alone."""
        return Subject(self.members[:length], self.executor_name, self.executor_options)

    def claims(self) -> list[tuple[int, str, Claim]]:
        """What each policy claims: its place in the stack, its name, the claim."""
        made = [(at, member, member.build()) for at, member in enumerate(self.members)]
        return [(at, member.name, claim) for at, member, policy in made for claim in policy.claims()]

    def expected(self) -> dict[str, str]:
        """Checks that the policies say they fail, with the reason (`Policy.expected_failures`)."""
        expected: dict[str, str] = {}
        for member in self.members:
            expected.update(getattr(member.cls, "expected_failures", {}))
        return expected

    def section(self, scenario: Scenario) -> dict[str, Any]:
        """The section `executor` of this scenario's configuration. Raises ConfigError for a depth that it has not."""
        own = getattr(self._executor_class, "conformance", None)
        options: Mapping[str, Any] | None = self.executor_options if scenario.loops == 1 else None
        if own is not None:
            options = own(self.executor_options, scenario.loops, scenario.exits)
        if options is None:
            raise ConfigError(f"executor {self.executor_name!r} has no model of depth {scenario.loops}")
        return {self.executor_name: dict(options)}

    def engine(
        self, scenario: Scenario, observers: Iterable[object] = (), stack: Sequence[Policy] | None = None
    ) -> Engine:
        """An engine that will run the scenario. Raises ConfigError when the stack refuses its settings."""
        config = self._configured(scenario)
        assert config.workload is not None
        policies = [member.build() for member in self.members] if stack is None else list(stack)
        if scenario.mode is not None and stack is None:
            policies.append(GivesWayAs(GivesWayAs.Options(mode=PreemptMode(scenario.mode))))
        if scenario.faults.raises:
            policies.append(NextDoor(scenario.faults.raises))
        executor = Memory(Faulty(_executor(json.dumps(self.section(scenario)))(), scenario.faults))
        limits = config.engine
        feed = self._feed(config.workload, base=config.base, seed=limits.seed, max_model_len=limits.max_model_len)
        return Engine(config, policies, executor, feed=feed, observers=observers)

    def _configured(self, scenario: Scenario) -> EngineConfig:
        workload = {"max_tokens": "context", "requests": list(scenario.requests)}
        try:
            sections = {
                "engine": EngineSection(**{"hook_warn_s": _PATIENT_S, **scenario.engine}),
                "kv": KVSection(**scenario.kv),
                "workload": validate(WorkloadSection, workload),
            }
        except Invalid as error:
            raise ConfigError(str(error)) from None
        return self._config.model_copy(update=sections)

    def _accepts(self, loops: int, prompt: str) -> bool:
        scenario = Scenario(({"prompt": 1, "max_tokens": 1},), {"prompt": prompt, "max_model_len": 8}, {}, loops)
        try:
            self.engine(scenario)
        except ConfigError as error:
            self.refusals[loops, prompt] = str(error).removeprefix("configuration: ")
            return False
        return True


@lru_cache(maxsize=256)
def _executor(section: str) -> Callable[[], Executor]:
    """Makes executors of this section of a configuration. Kept: names cost a walk over what is installed."""
    config = EngineConfig.load({"executor": json.loads(section)})
    cls = find("executors", config.executor.name, base=config.base).obj
    options = parse_options(cls, config.executor.options, ("executor", config.executor.name))
    return partial(cls, config.base) if options is None else partial(cls, options, config.base)


@lru_cache(maxsize=64)
def plain_subject(executor: str, options: str) -> Subject:
    """No policies, and an executor whose options are given as JSON."""
    return Subject((), executor, json.loads(options))
