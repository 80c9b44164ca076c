"""One boundary of a real engine, for authors' unit tests.

from interlock.plugins.testing import boundary

turn = boundary(
    active=[{"id": "long", "prompt": 64, "priority": 1}],
    waiting=[{"id": "urgent", "prompt": 8, "priority": 0}],
    stack=["fcfs", Priority(), "mixed"],
    max_num_seqs=1,
)
assert turn.preempted == ["long"] and turn.batch == [("urgent", 8)]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from interlock.core import (
    BoundaryRecord,
    ConfigError,
    Engine,
    EngineConfig,
    LivelockError,
    Policy,
    PreemptMode,
    Request,
)
from interlock.core.config_sections import KVSection
from interlock.plugins.testing.actors import Actor, as_actor
from interlock.plugins.testing.scene import Scene, Watch

StackItem = str | Policy | type[Policy] | Mapping[str, Any]
_STEP_S = 1e-9  # of a batch: setting the scene takes next to no time
_PAUSE_S = 1.0  # between the latest arrival and the boundary


@dataclass(frozen=True)
class Boundary:
    """What one boundary decided, by request ids.

    * `order`: the waiting requests in the order in which the stack offered them, rejected and held ones included
    * `walk`: active and offered requests in the order of the plan
    * `batch`: who runs how many tokens, in batch order
    * `admitted`: who was given a slot; `preempted`: who gave way, `modes` how
    * `rejected`: who ended with which reason, at the door or by a policy
    * `waits`: why each of those still waiting waits (slot, blocks, tokens, held, limit, order)
    * `record`: the boundary as observers see it; `engine`: as it is afterwards, to look closer or to go on
    """

    order: list[str]
    walk: list[str]
    batch: list[tuple[str, int]]
    admitted: list[str]
    preempted: list[str]
    modes: dict[str, PreemptMode]
    rejected: dict[str, str]
    waits: dict[str, str]
    record: BoundaryRecord = field(repr=False)
    engine: Engine = field(repr=False)

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of each request in the batch."""
        return dict(self.batch)


def boundary(
    waiting: Sequence[Request | Mapping[str, Any]] = (),
    active: Sequence[Request | Mapping[str, Any]] = (),
    stack: StackItem | Sequence[StackItem] = ("fcfs", "mixed"),
    *,
    now: float | None = None,
    **limits: Any,
) -> Boundary:
    """Run one boundary of an engine in which these requests wait and those are active, and say what it decided.

    A request is a `Request` or a mapping of its fields (`id` and `prompt` needed; of the sampling parameters
    `max_tokens`, `min_tokens`, `stop_token_ids`, `ignore_eos`), with `output` for where the simulated model ends. An
    active one says how far it is: `emitted` tokens (at least 1, the default) for one that decodes, or `computed`
    tokens of its prompt (at least 1) for one that is still in it. One without an
    arrival arrives at 0; active ones were admitted in the order of their list.
    `stack` is a policy or several: instances, classes, names, or mappings of a name to options. `limits` are keys of
    the sections `engine` and `kv` of a configuration. `now` is the engine time of the boundary in seconds, one second
    after the latest arrival unless given.

    The active ones are brought there by the engine itself, at the time of the latest arrival among them, with the
    policies listening to every event but not asked: their hooks are called for this one boundary. Raises ConfigError
    for a scene that cannot be, and what the boundary raises.
    """
    cast, crowd = [as_actor(each, acts=True) for each in active], [as_actor(each, acts=False) for each in waiting]
    start_s = max([actor.arrival for actor in cast], default=0.0)
    latest_s = max([start_s, *(actor.arrival for actor in crowd)])
    time_s = latest_s + _PAUSE_S if now is None else now
    if time_s < latest_s or (cast and time_s <= start_s):
        raise ConfigError(f"boundary: now: found {time_s}, allowed: later than the arrivals, the latest is {latest_s}")
    config = _config(limits)
    engine = Engine(config, _policies(stack), config.build_executor())
    _set_scene(engine, cast, start_s)
    for actor in crowd:
        engine.submit(actor.request, output=actor.output)
    engine.clock.advance_to(round(time_s * 1e9))
    names = {entry.number: entry.request.id for entry in engine.state.entries.values()}
    with Watch(engine) as watch:
        try:
            engine.step()
        except LivelockError:  # nobody runs: that is for the caller to judge
            engine.waits.note(engine.lifecycle.record, None, engine.planner)
    return _told(engine, engine.lifecycle.record, watch, names)


def _config(limits: Mapping[str, Any]) -> EngineConfig:
    sections: dict[str, dict[str, Any]] = {"engine": {"max_repeat": 1}, "kv": {}}
    for key, value in limits.items():
        sections["kv" if key in KVSection.model_fields else "engine"][key] = value
    return EngineConfig.load({**sections, "executor": {"simulated": {"cost": {"constant": {"step_s": _STEP_S}}}}})


def _policies(stack: StackItem | Sequence[StackItem]) -> list[Policy]:
    items = [stack] if isinstance(stack, str | Policy | type | Mapping) else stack
    return [policy for item in items for policy in _built(item)]


def _built(item: StackItem) -> list[Policy]:
    if isinstance(item, Policy):
        return [item]
    if isinstance(item, type):
        return [item()]
    return EngineConfig.load({"policies": item}).build_policies()


def _set_scene(engine: Engine, cast: Sequence[Actor], start_s: float) -> None:
    """Bring the active requests to where they are to be; their last results are out when this ends."""
    if not cast:
        return
    engine.clock.advance_to(round(start_s * 1e9))
    for actor in cast:
        engine.submit(actor.request, output=actor.output)
    with Scene(engine, cast) as scene:
        try:
            while not scene.set:
                scene.note(engine.step())
        except LivelockError:
            raise scene.impossible() from None


def _told(engine: Engine, record: BoundaryRecord, watch: Watch, names: dict[int, str]) -> Boundary:
    names = names | {each.request: each.request_id for each in record.transitions}
    batch = record.batch
    return Boundary(
        order=watch.order,
        walk=watch.walk,
        batch=[]
        if batch is None
        else [(names[n], t) for n, t in zip(batch.numbers.tolist(), batch.tokens.tolist(), strict=True)],
        admitted=[names[number] for number in record.admitted],
        preempted=[names[each.request] for each in record.preempted],
        modes={names[each.request]: each.mode for each in record.preempted},
        rejected={each.request_id: each.reject_reason for each in record.outcomes if each.reject_reason is not None},
        waits={names[each.request]: each.reason for each in record.waits},
        record=record,
        engine=engine,
    )
