"""What a configuration and a stack ask of a backend, said in one line where it is lacking."""

from __future__ import annotations

from collections.abc import Sequence

from interlock.core.config import EngineConfig
from interlock.core.errors import ConfigError
from interlock.core.executor import Executor
from interlock.core.policy import Policy


def num_blocks(config: EngineConfig, executor: Executor) -> int:
    """The size of the pool; `auto` is the executor's to say."""
    if isinstance(config.kv.num_blocks, int):
        return config.kv.num_blocks
    size = getattr(executor, "auto_blocks", None)
    if size is None:
        name = config.executor.name
        raise ConfigError(
            f"{config.origin}: kv.num_blocks: found 'auto', which executor {name!r} cannot size; allowed: a number"
        )
    return int(size(config.kv.block_size))


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
    longest = capabilities.max_model_len
    if longest is not None and config.engine.max_model_len > longest:
        raise ConfigError(
            f"{config.origin}: engine.max_model_len: found {config.engine.max_model_len}, "
            f"allowed: at most {longest}, the model's own"
        )
