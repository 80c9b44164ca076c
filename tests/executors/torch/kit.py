"""Engines on the torch executor, from compact descriptions.

As `scenario` and `pressure` of tests/core: `run(engine_of(R(0, prompt, 5), R(2, other, 7), bs=4, N=8))` runs two
requests to the end, audited at every boundary. Each batch takes one second of virtual time. KV that nobody may read is
NaN throughout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from paged_run import tiny_model
from pressure import FullAudit, _again
from safetensors.torch import save_file
from scenario import MIXED, Play, _configured

from interlock.core import BoundaryRecord, Engine
from interlock.core.config_errors import validate
from interlock.core.config_sections import EngineSection, KVSection
from interlock.core.config_workload import WorkloadSection
from interlock.core.feed import Arrival, Cancel, Feed
from interlock.executors.torch.executor import Torch
from interlock.executors.torch.models.tiny import init_weights
from interlock.plugins import workload

from .poison import Poisoned
from .saved import model_of

COST = {"cost": {"constant": {"step_s": 1.0}}}
VOCABULARY = 500
EOS = tuple(range(3, VOCABULARY, 24))
"""So many that answers of some twenty tokens end by themselves about as often as not."""
GIVES_WAY = "interlock.plugins.conformance.modes:GivesWayAs"
"""A policy that says the mode of preemption, whoever gives way."""


def ids(seed: int, count: int) -> list[int]:
    """A random prompt without end tokens."""
    drawn = np.random.default_rng(seed).choice(np.setdiff1d(np.arange(1, VOCABULARY), EOS), count)
    return [int(one) for one in drawn]


def save_dense(folder: Path, family: str, **changes: Any) -> Path:
    """A small model with grouped heads and many end tokens."""
    model = model_of(family, **{"vocab_size": VOCABULARY, "eos_token_id": list(EOS), **changes})
    init_weights(model, 7)
    model.save_pretrained(folder)
    return folder


def save_looped(folder: Path, name: str, **changes: Any) -> Path:
    """A tiny looped model as a Hugging Face folder, its configuration changed by `changes`."""
    model = tiny_model(name, torch.float32, **changes)
    (folder / "config.json").write_text(json.dumps(model.config))
    save_file(dict(model.named_parameters()), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


class Audited(FullAudit):
    """As `FullAudit`. What failed is not banked, so that what was is forgotten then."""

    def on_boundary(self, record: BoundaryRecord) -> None:
        """The invariants of a boundary."""
        if any(one.result.error is not None for one in record.collected):
            self.banked.clear()
        super().on_boundary(record)


class WithMetadata:
    """A feed whose requests carry metadata, by id."""

    def __init__(self, inner: Feed, metadata: Mapping[str, Mapping[str, Any]]) -> None:
        self.inner, self.metadata = inner, metadata

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def due(self, now_ns: int, step: int, finished: Sequence[str]) -> Sequence[Arrival | Cancel]:
        """As the feed has them, and what their callers say."""
        return [self._told(event) for event in self.inner.due(now_ns, step, finished)]

    def _told(self, event: Arrival | Cancel) -> Arrival | Cancel:
        if isinstance(event, Cancel):
            return event
        return replace(event, request=replace(event.request, metadata=self.metadata.get(event.request.id, {})))


def limits_of(
    *,
    bs: int = 4,
    N: int = 64,
    B: int = 64,
    S: int = 8,
    L: int = 128,
    reserve: str = "prompt",
    caching: bool = False,
    host: int = 4096,
    split: bool = False,
    **limits: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections `engine` and `kv`: block size, blocks, token budget, slots, longest request, and so on."""
    prompt = "split" if split else "atomic"
    engine = {"max_num_seqs": S, "max_num_batched_tokens": B, "max_model_len": L, "prompt": prompt, **limits}
    kv = {"num_blocks": N, "block_size": bs, "enable_prefix_caching": caching, "reserve": reserve, "host_blocks": host}
    return engine, kv


def engine_of(
    *requests: dict[str, Any],
    model: str | Path = "tiny-llama",
    stack: Sequence[Any] = MIXED,
    options: Mapping[str, Any] | None = None,
    poisoned: bool = True,
    **limits: Any,
) -> Engine:
    """An engine under audit. `options`: further ones of the executor; `limits` as in `limits_of`.

    A request may have `metadata`.
    """
    entries = [{"id": f"R{i}", **request} for i, request in enumerate(requests)]
    metadata = {entry["id"]: entry.pop("metadata", {}) for entry in entries}
    config, prototypes = _configured(json.dumps(list(stack)))
    engine_section, kv = limits_of(**limits)
    section = validate(WorkloadSection, {"requests": entries})
    sections = {"engine": EngineSection(**engine_section), "kv": KVSection(**kv), "workload": section}
    config = config.model_copy(update=sections)
    inner = Torch({"model": str(model), "device": "cpu", **COST, **(options or {})})
    executor, audit = Poisoned(inner, poisoned), Audited()
    feed = workload.build(section, base=config.base, seed=config.engine.seed, max_model_len=config.engine.max_model_len)
    policies = [_again(policy) for policy in prototypes]
    engine = Engine(config, policies, executor, feed=WithMetadata(feed, metadata), observers=[audit])
    executor.engine = audit.engine = engine
    engine.audit = audit  # type: ignore[attr-defined]
    return engine


def reasons(done: Play) -> set[str]:
    """Why anybody changed status or resources in a run."""
    return {move.reason for record in done.records for move in record.transitions}


def depths(done: Play, name: str) -> dict[int, int]:
    """By output position, the loops that each token ran that a request was seen to decode."""
    number = next(number for number, other in done.ids.items() if other == name)
    left: dict[int, int] = {}
    for record in done.records:
        for batch, result in ((one.batch, one.result) for one in record.collected):
            if result.exits is None or number not in batch.numbers:
                continue
            (at,) = np.flatnonzero(batch.numbers == number)
            if result.exits[at] and not batch.is_prompt[at]:
                prompt = done.outcomes[name].prompt_tokens
                left[int(batch.start[at]) + 1 - prompt] = int(batch.loop[at]) + 1
    return left
