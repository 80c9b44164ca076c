"""The requests of a scene as a test writes them down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from interlock.core import ConfigError, Request, SamplingParams
from interlock.core.errors import nearest

_MAX_TOKENS = 16  # where neither output nor max_tokens is said
_REQUEST = ("id", "prompt", "arrival", "priority", "tenant", "deadline_s", "timeout_s", "predicted", "metadata")
_SAMPLING = ("max_tokens", "min_tokens", "stop_token_ids", "ignore_eos")
_PROGRESS = ("computed", "emitted")


@dataclass(frozen=True)
class Actor:
    """A request, where the simulated model ends it, and its valid tokens of context when the boundary begins."""

    request: Request
    output: int | None = None
    goal: int = 0

    @property
    def arrival(self) -> float:
        """Engine seconds."""
        return self.request.arrival or 0.0


def as_actor(spec: Request | Mapping[str, Any], *, acts: bool) -> Actor:
    """A request as `boundary` takes it; `acts`: it is an active one. Raises ConfigError, one line."""
    if isinstance(spec, Request):
        request = spec if spec.arrival is not None else replace(spec, arrival=0.0)
        return Actor(request, None, _goal(request, {}) if acts else 0)
    known = (*_REQUEST, *_SAMPLING, "output", *(_PROGRESS if acts else ()))
    for key in spec:
        if key not in known:
            raise ConfigError(
                f"boundary: unknown key {key!r} of a request, allowed: {', '.join(known)}{nearest(str(key), known)}"
            )
    for key in ("id", "prompt"):
        if key not in spec:
            raise ConfigError(f"boundary: request {spec.get('id', '?')!r}: {key} is missing")
    sampling = {"max_tokens": spec.get("output", _MAX_TOKENS), **{key: spec[key] for key in _SAMPLING if key in spec}}
    fields = {"arrival": 0.0, **{key: spec[key] for key in _REQUEST if key in spec}}
    request = Request(**fields, sampling=SamplingParams(**sampling))
    return Actor(request, spec.get("output"), _goal(request, spec) if acts else 0)


def _goal(request: Request, spec: Mapping[str, Any]) -> int:
    """Valid tokens of context of an active request."""
    prompt, where = request.prompt_tokens, f"boundary: active request {request.id!r}"
    computed, emitted = spec.get("computed"), spec.get("emitted")
    if not emitted and computed is not None:
        if not 1 <= computed < prompt:
            raise ConfigError(
                f"{where}: computed: found {computed}, allowed: 1 to {prompt - 1} while nothing is emitted"
            )
        return int(computed)
    emitted = 1 if emitted is None else emitted
    last = min(each for each in (request.sampling.max_tokens, spec.get("output"), emitted + 1) if each is not None) - 1
    if not 1 <= emitted <= last:
        raise ConfigError(f"{where}: emitted: found {emitted}, allowed: at least 1 and fewer than it ends with")
    if computed not in (None, prompt + emitted - 1):
        raise ConfigError(
            f"{where}: computed: found {computed}, allowed: {prompt + emitted - 1} with {emitted} tokens emitted"
        )
    return int(prompt + emitted - 1)
