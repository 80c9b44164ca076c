"""What a configuration and a stack ask of a backend, said in one line where it is lacking."""

from __future__ import annotations

from collections.abc import Sequence

from interlock.core.config import EngineConfig, EngineSection
from interlock.core.errors import ConfigError
from interlock.core.executor import Executor
from interlock.core.policy import Policy

_DEFAULT_LENGTH = EngineSection().max_model_len


def fitted(config: EngineConfig, executor: Executor) -> EngineConfig:
    """The configuration with what it leaves to the backend: `kv.num_blocks: auto`, and a default context length.

    A `max_model_len` that is the default is cut to the model's own; another that is beyond it is refused. Where no
    prefix can be shared there is no prefix caching.
    """
    longest = executor.capabilities.max_model_len or config.engine.max_model_len
    if longest < config.engine.max_model_len == _DEFAULT_LENGTH:
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"max_model_len": longest})})
    elif longest < config.engine.max_model_len:
        raise ConfigError(
            f"{config.origin}: engine.max_model_len: found {config.engine.max_model_len}, "
            f"allowed: at most {longest}, the model's own"
        )
    kv: dict[str, object] = {}
    if not isinstance(config.kv.num_blocks, int):
        kv["num_blocks"] = _auto_blocks(config, executor)
    if not executor.capabilities.shares_prefixes:
        kv["enable_prefix_caching"] = False
    return config.model_copy(update={"kv": config.kv.model_copy(update=kv)}) if kv else config


def _auto_blocks(config: EngineConfig, executor: Executor) -> int:
    size = getattr(executor, "auto_blocks", None)
    if size is None:
        name = config.executor.name
        raise ConfigError(
            f"{config.origin}: kv.num_blocks: found 'auto', which executor {name!r} cannot size; allowed: a number"
        )
    return int(size(config.kv.block_size, config.engine))


def refuse_what_is_missing(config: EngineConfig, policies: Sequence[Policy], executor: Executor) -> None:
    """One line for what this engine or this backend cannot do."""
    capabilities = executor.capabilities
    for policy in policies:
        lacking = sorted(str(need) for need in policy.requires if need not in capabilities.features)
        if lacking:
            raise ConfigError(
                f"{config.origin}: policy {policy.title} requires {', '.join(lacking)}, "
                f"which executor {config.executor.name!r} lacks"
            )
    if config.engine.pipeline_depth != 1:
        raise ConfigError(f"{config.origin}: engine.pipeline_depth: found {config.engine.pipeline_depth}, allowed: 1")
    if config.engine.prompt == "split" and capabilities.loops == 1:
        raise ConfigError(
            f"{config.origin}: engine.prompt: found 'split', allowed: atomic, since the model is not looped"
        )
    for policy in policies:
        try:
            why = policy.refuses(config.engine, capabilities)
        except Exception as error:
            what = f"refuses raised {type(error).__name__}: {error}"
            raise ConfigError(f"{config.origin}: policy {policy.title}: {what}") from error
        if why is not None:
            raise ConfigError(f"{config.origin}: policy {policy.title}: {why}")
