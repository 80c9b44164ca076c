"""`--profile`: where the host's time went, function by function and hook by hook."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from interlock.core.policy import Policy
from interlock.core.registry import find

if TYPE_CHECKING:
    from interlock.core.config import EngineConfig

STATS, HOOKS = "profile.pstats", "hooks.txt"


class HookTime(NamedTuple):
    """What the calls of one hook took."""

    policy: str
    hook: str
    calls: int
    seconds: float


@contextmanager
def profiled(folder: Path, config: EngineConfig) -> Iterator[None]:
    """Profile what runs while this is open, and leave profile.pstats and hooks.txt in `folder`."""
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        yield
    finally:
        profiler.disable()
        profiler.dump_stats(folder / STATS)
        stats: Any = pstats.Stats(profiler)
        (folder / HOOKS).write_text(hook_table(hook_times(stats, config)), "utf-8")


def hook_times(stats: Any, config: EngineConfig) -> list[HookTime]:
    """The hooks and events of the configured policies that were called, the longest first."""
    found = []
    for spec in config.policies:
        policy: type[Policy] = find("policies", spec.name, base=config.base).obj
        for hook in policy.hooks():
            # A wrapped hook is some callable without code of its own, and not in the profile by this name.
            code = getattr(getattr(policy, hook), "__code__", None)
            row = code and stats.stats.get((code.co_filename, code.co_firstlineno, code.co_name))
            if row:
                found.append(HookTime(spec.name, hook, row[1], row[3]))
    return sorted(found, key=lambda one: -one.seconds)


def hook_table(times: list[HookTime]) -> str:
    """Aligned text: policy, hook, calls, seconds in all, microseconds per call."""
    width = max([len("policy"), *(len(one.policy) for one in times)])
    lines = [f"{'policy':{width}}  {'hook':15}  {'calls':>9}  {'seconds':>9}  {'us/call':>9}"]
    for one in times:
        each = one.seconds / one.calls * 1e6
        lines.append(f"{one.policy:{width}}  {one.hook:15}  {one.calls:>9}  {one.seconds:>9.4f}  {each:>9.2f}")
    return "\n".join(lines) + "\n"
