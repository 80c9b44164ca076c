"""The check finds what an implementation can get wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from interlock.executors.torch.attention.check import check, example
from interlock.executors.torch.attention.reference import Reference
from interlock.executors.torch.paged import Layer, Paged

ROWS = [(1, 0), (1, 21), (6, 10)]


class Unscaled(Reference):
    """Forgets the scale."""

    def attend(self, query: Tensor, layer: Layer, paged: Paged, scale: float) -> Tensor:
        return super().attend(query, layer, paged, 1.0)


class OneTooFar(Reference):
    """Reads one slot past each context."""

    def attend(self, query: Tensor, layer: Layer, paged: Paged, scale: float) -> Tensor:
        return super().attend(query, layer, replace(paged, context=paged.context + 1), scale)


class NoPrefix(Reference):
    """Knows causal attention only."""

    def attend(self, query: Tensor, layer: Layer, paged: Paged, scale: float) -> Tensor:
        return super().attend(query, layer, replace(paged, prefix=None), scale)


class KeysOnly(Reference):
    """Stores no values."""

    def write(self, layer: Layer, key: Tensor, value: Tensor, paged: Paged) -> None:
        layer.keys.view(-1, *key.shape[1:])[paged.slots[1:]] = key[1:]


class Doubled(Reference):
    """Answers in another type."""

    def attend(self, query: Tensor, layer: Layer, paged: Paged, scale: float) -> Tensor:
        return super().attend(query, layer, paged, scale).double()


def test_the_reference_passes() -> None:
    check(Reference(), example(ROWS, prefix=[0, 3, 9]), tolerance=0.0)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Unscaled, "Unscaled is off by"),
        (OneTooFar, "OneTooFar is off by nan"),
        (NoPrefix, "NoPrefix is off by"),
        (KeysOnly, "KeysOnly wrote other values than the reference"),
        (Doubled, "torch.float64"),
    ],
)
def test_a_broken_implementation_is_found_out(broken: type[Reference], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(broken(), example(ROWS, prefix=[0, 3, 9]))


def test_the_example_is_left_as_it_was() -> None:
    given = example(ROWS)
    before = [cache.clone() for cache in given.layer]
    check(Reference(), given)
    for cache, old in zip(given.layer, before, strict=True):
        assert torch.equal(cache.isnan(), old.isnan())
