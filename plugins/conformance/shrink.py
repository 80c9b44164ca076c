"""Makes a scenario that fails smaller and plainer, as long as it fails the same check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from interlock.plugins.conformance.scenario import Faults, Scenario

MOST = 600  # scenarios that are tried
_NEEDED = ("id", "arrival", "prompt", "max_tokens", "ignore_eos")
_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "prompt", "on_violation")
_MEMORY = ("num_blocks", "block_size")


def shrunk(scenario: Scenario, fails: Callable[[Scenario], bool], most: int = MOST) -> Scenario:
    """The smallest scenario found within `most` tries that still fails. A fixed order, no clock, no dice."""
    tries = 0
    while True:
        for smaller in _smaller(scenario):
            tries += 1
            if tries > most:
                return scenario
            if fails(smaller):
                scenario = smaller
                break
        else:
            return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios that are a step smaller, the largest steps first."""
    requests = scenario.requests
    if len(requests) > 1:
        for at in range(len(requests) - 1, -1, -1):
            yield replace(scenario, requests=requests[:at] + requests[at + 1 :])
    if scenario.mode is not None:
        yield replace(scenario, mode=None)
    for faults in _fewer(scenario.faults):
        yield replace(scenario, faults=faults)
    yield from _plainer(scenario)
    for at in range(len(requests)):
        for own in _request(requests[at]):
            yield replace(scenario, requests=(*requests[:at], own, *requests[at + 1 :]))
    if len(scenario.exits) > 1:
        yield replace(scenario, exits=scenario.exits[:1])


def _fewer(faults: Faults) -> Iterator[Faults]:
    for name in ("fails", "again", "raises"):
        numbers = getattr(faults, name)
        for at in range(len(numbers) if len(numbers) > 1 else 0):
            yield replace(faults, **{name: numbers[:at] + numbers[at + 1 :]})


def _plainer(scenario: Scenario) -> Iterator[Scenario]:
    """One setting less."""
    for name in scenario.engine:
        if name not in _LIMITS:
            yield replace(scenario, engine=_without(scenario.engine, name))
    for name in scenario.kv:
        if name not in _MEMORY:
            yield replace(scenario, kv=_without(scenario.kv, name))
    if scenario.kv.get("enable_prefix_caching"):
        yield replace(scenario, kv={**scenario.kv, "enable_prefix_caching": False})


def _request(own: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One key less, or a smaller number."""
    for name in own:
        if name == "output" and "min_tokens" not in own:
            yield {**_without(own, name), "ignore_eos": True}
        elif name not in _NEEDED and name != "output":
            yield _without(own, name)
    if not isinstance(own["prompt"], int) and own["prompt"]:
        yield {**own, "prompt": len(own["prompt"])}
    for name, least in (("max_tokens", max(own.get("output", 1), own.get("min_tokens", 1), 1)), ("arrival", 0)):
        for value in _numbers(own[name], least):
            yield {**own, name: type(own[name])(value)}
    for length in _numbers(own["prompt"] if isinstance(own["prompt"], int) else len(own["prompt"]), 1):
        yield {**own, "prompt": length if isinstance(own["prompt"], int) else own["prompt"][:length]}
    for name in ("priority", "cancel_at_step"):
        for value in _numbers(own.get(name, 0), 0):
            yield {**own, name: value}


def _numbers(value: float, least: int) -> list[int]:
    """Smaller numbers, the least first."""
    smaller = [least, int(value) // 2, int(value) - 1]
    return [each for each in dict.fromkeys(smaller) if least <= each < value]


def _without(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != name}
