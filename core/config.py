"""The configuration of an engine and its run: read, checked to the last option, and ready to build from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import PrivateAttr, field_validator

from interlock.core.config_draft import DEFAULT_EXECUTOR, DEFAULT_POLICIES, Draft
from interlock.core.config_errors import Invalid, one_line, show, validate
from interlock.core.config_schema import json_schema
from interlock.core.config_sections import EngineSection, KVSection, MeasureSection, RecordsSection, Section, SLOSection
from interlock.core.config_stack import (
    ExecutorSpec,
    PluginSpec,
    PolicySpec,
    check,
    parse_options,
    plain,
    plugin_class,
)
from interlock.core.config_workload import WorkloadSection
from interlock.core.errors import ConfigError, InterlockError
from interlock.core.registry import find
from interlock.core.yamlfile import KeyPath

if TYPE_CHECKING:
    from interlock.core.executor import Executor
    from interlock.core.feed import Feed
    from interlock.core.policy import Policy
    from interlock.core.text import Tokenizer

__all__ = [
    "EngineConfig",
    "EngineSection",
    "ExecutorSpec",
    "KVSection",
    "MeasureSection",
    "PluginSpec",
    "PolicySpec",
    "RecordsSection",
    "SLOSection",
    "WorkloadSection",
    "parse_stack",
]

_POLICIES = tuple(PolicySpec(name=name) for item in DEFAULT_POLICIES for name in item)
_EXECUTOR = ExecutorSpec(name="simulated", options=DEFAULT_EXECUTOR["simulated"])


class EngineConfig(Section):
    """All that determines a run. Immutable; make one with `load`. Two are equal when they resolve to the same."""

    shows_nulls = False

    name: str | None = None
    engine: EngineSection = EngineSection()
    kv: KVSection = KVSection()
    policies: tuple[PolicySpec, ...] = _POLICIES
    executor: ExecutorSpec = _EXECUTOR
    plugins: tuple[PluginSpec, ...] = ()
    workload: WorkloadSection | None = None
    slo: SLOSection = SLOSection()
    measure: MeasureSection = MeasureSection()
    records: RecordsSection = RecordsSection()

    _base: Path = PrivateAttr(default_factory=Path.cwd)
    _origin: str = PrivateAttr(default="configuration")

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str | None) -> str | None:
        if name is not None and (not name.isprintable() or "/" in name or "\\" in name or name.strip(". ") == ""):
            raise ValueError(f"found {show(name)}, allowed: text that can name a folder")
        return name

    @classmethod
    def load(
        cls,
        source: str | Path | Mapping[str, Any],
        *,
        overrides: Sequence[str] = (),
        policy: str | None = None,
        seed: int | None = None,
    ) -> EngineConfig:
        """Reads and checks a configuration: a path, the name of a packaged one, or a mapping.

        `overrides` are `a.b.0.c=YAML` as `--set` takes them, `policy` a STACK that replaces the policies, `seed` the
        `engine.seed`, applied in the order policy, overrides, seed. Policies, executor and plugins are imported, their
        options checked. Raises ConfigError: one line that names file and line or option, key, found, allowed.
        """
        draft = Draft.read(source)
        if policy is not None:
            draft.put_stack(policy)
        for override in overrides:
            draft.set(override)
        if seed is not None:
            draft.put(("engine", "seed"), seed, "--seed")
        try:
            config = validate(cls, {**draft.data, **_specs(draft)})
        except Invalid as error:
            raise draft.error(error.path, error.message) from None
        config._base, config._origin = draft.base, draft.document.name
        return config

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON Schema of a configuration file, with the options of all that is installed. Imports all of it."""
        return json_schema(cls)

    @property
    def base(self) -> Path:
        """The folder that relative paths in the configuration are relative to."""
        return self._base

    @property
    def origin(self) -> str:
        """What errors call the configuration: its path, or `configuration` for a mapping."""
        return self._origin

    def resolved(self) -> dict[str, Any]:
        """Plain values with defaults filled in and absolute paths. Loading them gives an equal configuration."""
        return cast("dict[str, Any]", plain(self, self.base))

    def build_policies(self) -> list[Policy]:
        """New instances of the stack's policies, in order."""
        return [self._policy(spec, ("policies", i)) for i, spec in enumerate(self.policies)]

    def build_executor(self) -> Executor:
        """A new executor, not started."""
        return cast("Executor", self._build("executors", self.executor, ("executor",), self.base))

    def build_plugins(self) -> list[Any]:
        """New instances of the observers, in order. One without an `Options` model is made without arguments."""
        return [self._build("plugins", spec, ("plugins", i)) for i, spec in enumerate(self.plugins)]

    def build_feed(self, tokenizer: Tokenizer | None = None) -> Feed:
        """The workload's requests, from their start; `tokenizer` is for those that are text.

        Raises ConfigError when there is no workload, or text and no tokenizer.
        """
        if self.workload is None:
            sources = ", ".join(["trace", "generate", "requests"])
            raise ConfigError(f"{self.origin}: workload: missing, allowed: a mapping with exactly one of {sources}")
        build = find("plugins", "workload").obj
        seed = self.engine.seed if self.workload.seed is None else self.workload.seed
        length = self.engine.max_model_len
        try:
            feed = build(self.workload, base=self.base, seed=seed, max_model_len=length, tokenizer=tokenizer)
        except Invalid as error:
            raise ConfigError(f"{self.origin}: {error}") from None
        return cast("Feed", feed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EngineConfig) and self.resolved() == other.resolved()

    __hash__ = None  # type: ignore[assignment]  # equality looks at nested dicts, and a base class is hashable

    def _policy(self, spec: PluginSpec, path: KeyPath) -> Policy:
        """A policy that knows its name and whose it is. Raises ConfigError when it cannot be made."""
        source = find("policies", spec.name, base=self.base).source
        whose = f"policy {spec.name!r}" + (f" of {source}" if source else "")
        try:
            policy = cast("Policy", self._build("policies", spec, path))
        except InterlockError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {one_line(error)}"
            raise ConfigError(f"{self.origin}: {whose} cannot be made: {why}") from error
        if not hasattr(policy, "_table"):
            raise ConfigError(
                f"{self.origin}: {whose} cannot be made: its __init__ does not call super().__init__(options)"
            )
        policy.name, policy.distribution = spec.name.rsplit(":", 1)[-1].lower(), source
        return policy

    def _build(self, group: str, spec: PluginSpec, path: KeyPath, *extra: Any) -> Any:
        try:
            cls = plugin_class(group, find(group, spec.name, base=self.base))
            options = parse_options(cls, spec.options, (*path, spec.name))
        except Invalid as error:
            raise ConfigError(f"{self.origin}: {error}") from None
        return cls(*extra) if options is None else cls(options, *extra)


def parse_stack(stack: str, *, base: Path | None = None) -> tuple[PolicySpec, ...]:
    """A STACK (`a+b`, inline YAML, a YAML file) as checked specs. Names of files are relative to `base`, or here.

    Raises ConfigError, one line.
    """
    draft = Draft.read({})
    draft.put_stack(stack, base)
    try:
        return tuple(PolicySpec(**spec) for spec in _specs(draft)["policies"])
    except Invalid as error:
        raise draft.error(error.path, error.message) from None


def _specs(draft: Draft) -> dict[str, Any]:
    """The plugins of a draft, found and checked, as the fields of their specs."""
    specs: dict[str, Any] = {}
    for key in ("policies", "plugins"):
        items = draft.data.get(key, [])
        checked = [check(key, item, (key, index), draft.base) for index, item in enumerate(items)]
        specs[key] = [{"name": name, "options": options} for name, options in checked]
    name, options = check("executors", draft.data["executor"], ("executor",), draft.base)
    return {**specs, "executor": {"name": name, "options": options}}
