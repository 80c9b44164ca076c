"""Small configurations in an empty folder, and an engine that does as it is told."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog

from interlock.core.record import BoundaryRecord, Outcome, Transition
from interlock.core.request import FinishReason, RequestStatus

POLICY = '''
from interlock.core.claims import NeverPreempts
from interlock.core.executor import Capability
from interlock.core.policy import Policy, PolicyOptions

class Mine(Policy):
    """First come, first served, with options for the looks of it."""

    class Options(PolicyOptions):
        depth: int = 3
        label: str = "no"

    requires = {Capability.STEP_COST}

    def claims(self):
        yield NeverPreempts()

    def admit(self, offer, view):
        offer.sort_by("arrival")
'''

CONFIG = """
policies: [{./mine.py:Mine: {depth: 4}}]
executor: {simulated: {cost: {constant: {step_s: 1.0}}}}
workload:
  requests:
    - {id: a, arrival: 0.0, prompt: 4, output: 3}
    - {id: b, arrival: 1.0, prompt: 2, output: 1}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder with `small.yaml` and `mine.py`; logging is as it was afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "mine.py").write_text(POLICY)
    (tmp_path / "small.yaml").write_text(CONFIG)
    yield tmp_path
    structlog.reset_defaults()


class FakeEngine:
    """Rejects one request at the door, then does `act`."""

    act: Callable[[FakeEngine], None] = staticmethod(lambda engine: None)
    executor = None

    def __init__(self, config: Any, observers: list[Any]) -> None:
        self.config, self.observers = config, observers
        self.stats = SimpleNamespace(
            scheduler_ns=1000, violations=0, protections=0, rescues={"forced": 0, "repaired": 0}, now_ns=0
        )

    @classmethod
    def from_config(cls, config: Any, observers: list[Any]) -> FakeEngine:
        """The engine of any configuration."""
        return cls(config, observers)

    def run(self) -> Iterator[BoundaryRecord]:
        """Two boundaries, with `act` between them."""
        names = {"number": 0, "request_id": "a", "tenant": "", "priority": 0, "arrival_ns": 0, "finished_ns": 0}
        times = dict.fromkeys(("admitted_ns", "first_token_ns", "last_token_ns", "deadline_ns"))
        parts = dict.fromkeys(("queue_ns", "prefill_ns", "decode_ns", "preempted_ns", "transfer_ns"), 0)
        counts = dict.fromkeys(("cached_tokens", "recomputed_tokens", "preemptions", "bypasses", "overtaken"), 0)
        ends = {
            "finish_reason": FinishReason.REJECTED,
            "reject_reason": "too long",
            "output_ids": np.empty(0, np.int32),
        }
        outcome = Outcome(**names, **times, **parts, **counts, **ends, prompt_tokens=4, predicted_tokens=-1)
        gone = Transition(0, 0, 0, "a", -1, 0, None, RequestStatus.FINISHED, "rejected", -1, 0, 0, 0, -1)
        yield self.tell(BoundaryRecord(0, 0, transitions=[gone], outcomes=[outcome]))
        type(self).act(self)
        yield self.tell(BoundaryRecord(1, 1_000_000_000))

    def stop(self) -> None:
        """Nothing is to be released."""

    def tell(self, record: BoundaryRecord) -> BoundaryRecord:
        """Tell the observers of a boundary."""
        for observer in self.observers:
            if hasattr(observer, "on_boundary"):
                observer.on_boundary(record)
        return record


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type[FakeEngine]:
    """Runs use this class instead of the engine; set its `act`."""

    class Fake(FakeEngine):
        pass

    monkeypatch.setitem(sys.modules, "interlock.core.engine", SimpleNamespace(Engine=Fake))
    return Fake


@pytest.fixture
def interrupt() -> Callable[[Any], None]:
    """An `act`: what a terminal does on Ctrl-C."""
    return lambda engine: os.kill(os.getpid(), signal.SIGINT)
