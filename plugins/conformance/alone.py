"""What requests say when they are served alone, by an engine without policies and with room for everything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from interlock.plugins.conformance.run import Run
from interlock.plugins.conformance.scenario import Scenario
from interlock.plugins.conformance.subject import Subject, plain_subject

_KEPT = ("id", "prompt", "max_tokens", "min_tokens", "ignore_eos", "output", "stop_token_ids")
_MOST = 4096  # answers that are remembered
_said: dict[str, list[int]] = {}


def alone(subject: Subject, scenario: Scenario, requests: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """The answers of these requests, served one after the other. Each request and model is asked once."""
    own = [{key: request[key] for key in _KEPT if key in request} for request in requests]
    keys = [json.dumps([one, scenario.longest, scenario.loops, subject.section(scenario)]) for one in own]
    if len(_said) > _MOST:
        _said.clear()
    fresh = {one["id"]: (one, key) for one, key in zip(own, keys, strict=True) if key not in _said}
    if fresh:
        _ask(subject, scenario, list(fresh.values()))
    return [_said[key] for key in keys]


def _ask(subject: Subject, scenario: Scenario, asked: Sequence[tuple[dict[str, Any], str]]) -> None:
    engine = {"max_model_len": scenario.longest, "max_num_seqs": 1}
    kv = {"num_blocks": scenario.longest, "block_size": 1, "enable_prefix_caching": False}
    serial = Scenario(tuple(one for one, _ in asked), engine, kv, scenario.loops, scenario.exits)
    run = Run(plain_subject(subject.executor_name, json.dumps(subject.executor_options)), serial).play()
    answers = {outcome.request_id: outcome.output_ids.tolist() for outcome in run.outcomes.values()}
    _said.update({key: answers.get(one["id"], []) for one, key in asked})
