"""Requests written out: every key reaches its request, and cancellations come when they are due."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interlock.core import Engine
from interlock.core.config import EngineConfig
from interlock.core.config_workload import WorkloadSection
from interlock.core.errors import ConfigError
from interlock.core.feed import Arrival, Cancel, Feed
from interlock.core.request import Request, SamplingParams
from interlock.plugins.run.recorder import Recorder
from interlock.plugins.workload import build

SAYS = """
from interlock.executors.simulated.executor import Simulated

class Says(Simulated):
    class tokenizer:
        @staticmethod
        def encode(text):
            return [ord(one) for one in text]
"""


def feed(*entries: dict[str, Any], **workload: Any) -> Feed:
    section = WorkloadSection.model_validate_json(json.dumps({"requests": entries, **workload}))
    return build(section, base=Path(), seed=0, max_model_len=8192)


def only(entry: dict[str, Any], **workload: Any) -> Arrival:
    (event,) = feed(entry, **workload).due(2**62, 0, [])
    assert isinstance(event, Arrival)
    return event


def names(events: Any) -> list[str]:
    return [f"cancel {one.request_id}" if isinstance(one, Cancel) else one.request.id for one in events]


def test_every_key_reaches_the_request() -> None:
    sampling = {
        "max_tokens": 9,
        "min_tokens": 1,
        "stop_token_ids": [4, 5],
        "ignore_eos": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "seed": 8,
    }
    mine = {"id": "a", "priority": -2, "tenant": "x", "deadline_s": 9.0, "timeout_s": 30.0}
    found = only({**mine, **sampling, "arrival": 1.5, "prompt": 12, "output": 5, "predicted": 6})
    assert (found.at_ns, found.output) == (1_500_000_000, 5)
    params = SamplingParams(**{**sampling, "stop_token_ids": (4, 5)})
    assert found.request == Request(prompt=12, sampling=params, arrival=1.5, predicted=6, **mine)


def test_a_prompt_may_be_token_ids_and_an_id_its_place_in_the_list() -> None:
    found = only({"prompt": [7, 8, 9]}).request
    assert found.id == "r0"
    assert found.prompt_tokens == 3
    assert np.array_equal(found.prompt_ids(), [7, 8, 9])


def test_text_is_refused_in_one_line_that_names_its_key() -> None:
    mapping = {"policies": [], "workload": {"requests": [{"prompt": 1}, {"text": "hello"}]}}
    with pytest.raises(ConfigError) as caught:
        EngineConfig.load(mapping).build_feed()
    where = "configuration: workload.requests.1.text: "
    assert str(caught.value) == f"{where}found text, allowed: prompt, because the executor has no tokenizer"


class Letters:
    """A token for each letter."""

    def encode(self, text: str) -> np.ndarray:
        return np.array([ord(one) for one in text], np.int32)

    def decode(self, ids: Any) -> str:
        return "".join(map(chr, ids))


def test_text_is_encoded_by_the_executor_s_tokenizer() -> None:
    mapping = {"policies": [], "workload": {"requests": [{"text": "hé"}, {"text": ""}]}}
    found = EngineConfig.load(mapping).build_feed(Letters()).due(0, 0, [])
    first, second = (one.request for one in found if isinstance(one, Arrival))
    assert first.prompt_ids().tolist() == [104, 233]
    assert second.prompt_tokens == 0, "which the engine rejects as an empty prompt"


def test_an_engine_takes_the_tokenizer_of_its_executor(tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text(SAYS)
    mapping = {"policies": [], "executor": f"{tmp_path}/says.py:Says", "workload": {"requests": [{"text": "hello"}]}}
    recorder = Recorder()
    list(Engine.from_config(mapping, observers=[recorder]).run())
    assert [one.prompt_tokens for one in recorder.finished] == [5]


def test_max_tokens_is_the_workloads_unless_the_request_has_its_own() -> None:
    entry = {"prompt": 1, "output": 5}
    assert only(entry).request.sampling.max_tokens == 5
    assert only(entry, max_tokens=70).request.sampling.max_tokens == 70
    assert only(entry, max_tokens="context").request.sampling.max_tokens is None
    assert only({**entry, "max_tokens": 3}, max_tokens="context").request.sampling.max_tokens == 3
    assert only({"prompt": 1}).request.sampling.max_tokens is None
    assert only({"prompt": 1}).output is None


def test_a_prediction_is_the_workloads_unless_the_request_has_its_own() -> None:
    entry = {"prompt": 1, "output": 5}
    assert only(entry).request.predicted == -1
    assert only(entry, predict="oracle").request.predicted == 5
    assert only({**entry, "predicted": 8}, predict="oracle").request.predicted == 8
    assert only({"prompt": 1}, predict={"noisy": {"sigma": 1.0}}).request.predicted == -1, "no output, no truth"


def test_events_come_by_time_and_at_one_time_arrivals_come_first() -> None:
    entries = [{"id": "a", "prompt": 1, "arrival": 2.0}, {"id": "b", "prompt": 1, "arrival": 1.0, "cancel_at": 2.0}]
    found = feed(*entries)
    assert found.next_ns() == 1_000_000_000
    assert names(found.due(1_000_000_000, 0, [])) == ["b"]
    assert found.next_ns() == 2_000_000_000
    assert names(found.due(1_999_999_999, 1, [])) == []
    assert names(found.due(2_000_000_000, 2, [])) == ["a", "cancel b"]
    assert found.next_ns() is None


def test_a_cancellation_may_name_a_boundary() -> None:
    found = feed({"id": "a", "prompt": 1, "cancel_at_step": 3})
    assert (found.next_ns(), found.next_step()) == (0, 3)
    assert names(found.due(0, 0, [])) == ["a"]
    assert names(found.due(99, 2, [])) == []
    assert names(found.due(99, 3, [])) == ["cancel a"]
    assert found.next_step() is None


def test_the_cancellation_of_a_finished_request_is_forgotten() -> None:
    found = feed({"id": "a", "prompt": 1, "cancel_at": 9.0}, {"id": "b", "prompt": 1, "cancel_at_step": 9})
    assert names(found.due(0, 0, [])) == ["a", "b"]
    assert names(found.due(1, 1, ["a", "b"])) == []
    assert (found.next_ns(), found.next_step()) == (None, None)


def test_an_id_used_again_keeps_its_own_cancellation() -> None:
    first = {"id": "a", "prompt": 1, "cancel_at": 9.0}
    found = feed(first, {**first, "arrival": 2.0, "cancel_at": 5.0})
    assert names(found.due(0, 0, [])) == ["a"]
    assert names(found.due(2_000_000_000, 1, ["a"])) == ["a"]
    assert found.next_ns() == 5_000_000_000
    assert names(found.due(9_000_000_000, 2, [])) == ["cancel a"]
