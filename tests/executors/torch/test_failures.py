"""A batch that fails counts for nothing: its rows are tried again, and say what they would have said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from pressure import by_priority, run
from scenario import MIXED, Play, R

from interlock.executors.torch.models.dense import DenseModel
from interlock.executors.torch.models.huginn import Huginn
from interlock.executors.torch.models.ouro import Ouro

from .kit import engine_of, ids

EARLY = {"dtype": "float64", "exit": {"threshold": 0.5, "min_loops": 1}}
LOST = RuntimeError("the device is lost\nand this line is nobody's")


class Failing:
    """Calls of one method of a class, by number from 0, that raise: before the method has run, or when it has."""

    def __init__(self, at: set[int], late: bool, error: Exception) -> None:
        self.at, self.late, self.error = at, late, error
        self.calls = 0

    @contextmanager
    def patched(self, cls: type, name: str) -> Iterator[Failing]:
        """While this lasts."""
        with pytest.MonkeyPatch.context() as patch:
            method = getattr(cls, name)
            patch.setattr(cls, name, lambda this, *given: self._call(method, this, *given))
            yield self

    def _call(self, method: Any, *given: Any) -> Any:
        number, self.calls = self.calls, self.calls + 1
        result = method(*given) if self.late or number not in self.at else None
        if number in self.at:
            raise self.error
        return result


def failing(cls: type, name: str, *at: int, late: bool = False, error: Exception = LOST) -> Any:
    """These calls of a method fail."""
    return Failing(set(at), late, error).patched(cls, name)


def answers(done: Play) -> dict[str, list[int]]:
    """What everybody says."""
    return {name: done.output(name) for name in done.outcomes}


DENSE = [R(0, ids(1, 9), 12, 1), R(1, ids(2, 14), 12, 0), R(5, ids(3, 6), 8, 0, seed=1, temperature=1.0)]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("at", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("method", ["states", "logits"])
def test_a_dense_batch_is_tried_again(method: str, at: int, late: bool) -> None:
    """The later calls are inside of stretches, whose first runs are then lost, too."""
    config = {"stack": by_priority("offload", "mixed"), "S": 2, "B": 8, "options": {"dtype": "float64"}}
    good = answers(run(engine_of(*DENSE, **config)))
    with failing(DenseModel, method, at, late=late) as failures:
        assert answers(run(engine_of(*DENSE, **config))) == good
    assert failures.calls > at


@pytest.mark.parametrize("caching", [False, True])
def test_prefixes_that_a_failed_batch_promised_are_not_there(caching: bool) -> None:
    shared = ids(9, 16)
    requests = [R(0, shared + ids(at, 3), 5) for at in range(3)]
    good = answers(run(engine_of(*requests)))
    for at in (0, 1):
        with failing(DenseModel, "states", at):
            assert answers(run(engine_of(*requests, B=24, caching=caching))) == good


LOOPED = [R(0, ids(1, 9), 4, 1, seed=1), R(1, ids(2, 14), 4, 0, seed=2), R(11, ids(3, 6), 3, 0, seed=3)]
MODELS = {"tiny-ouro": Ouro, "tiny-huginn": Huginn}


def looped(model: str, split: bool) -> dict[str, list[int]]:
    """What the three say, one of whom gives way."""
    stack = ("fcfs", *by_priority("yield", "mixed" if split else "refill"))
    return answers(run(engine_of(*LOOPED, model=model, stack=stack, S=2, B=8, split=split, options=EARLY)))


good = cache(looped)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("method", ["prelude", "recurrent", "coda", "logits"])
@pytest.mark.parametrize("model", MODELS)
def test_a_looped_batch_is_tried_again(model: str, method: str, split: bool) -> None:
    """Wherever in the loop it fails: no depth is lost, no exit is counted twice, no carried row is a loop ahead."""
    for at, late in ((0, True), (3, False), (11, True)):
        with failing(MODELS[model], method, at, late=late) as failures:
            assert looped(model, split) == good(model, split), (at, late)
        assert failures.calls > at or method != "recurrent"


def test_who_fails_twice_ends_with_the_error_and_the_others_go_on() -> None:
    requests = [R(0, ids(1, 9), 6), R(3, ids(2, 5), 6)]
    good = answers(run(engine_of(*requests)))
    with failing(DenseModel, "states", 0, 1):
        done = run(engine_of(*requests))
    assert done.ends == {"R0": "error", "R1": "length"}
    assert done.output("R1") == good["R1"] and done.output("R0") == []
    assert done.outcomes["R0"].reject_reason == f"RuntimeError: {LOST}"


@pytest.mark.parametrize("error", [MemoryError("not so much"), IndexError("9 of 8"), KeyError("x"), ValueError("no")])
def test_whatever_a_model_raises_is_a_failure_of_its_batch(error: Exception) -> None:
    good = answers(run(engine_of(*DENSE, stack=MIXED)))
    with failing(DenseModel, "states", 1, error=error):
        assert answers(run(engine_of(*DENSE, stack=MIXED))) == good
