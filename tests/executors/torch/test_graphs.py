"""Recorded decode steps: padded to few sizes, and nothing of it is seen. The recorder here runs again instead."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from interlock.executors.torch.graphs import DecodeGraphs, _padded
from interlock.executors.torch.inputs import Inputs
from interlock.executors.torch.paged import Paged

PAGES = 8


class Again:
    """Records by running the function again into the tensor of the first time, as a graph's replay does."""

    def __init__(self) -> None:
        self.recorded = 0

    def record(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        self.recorded += 1
        result = run()

        def replay() -> None:
            result.copy_(run())

        return replay, result


def inputs(rows: int, context: int) -> Inputs:
    """Rows that decode a token each, row i at position context + i."""
    at = torch.arange(rows)
    paged = Paged(
        torch.arange(rows + 1, dtype=torch.int32),
        (context + 1 + at).int(),
        torch.arange(rows * 3, dtype=torch.int32).view(rows, 3),
        at * 7,
        1,
        context + rows,
    )
    return Inputs(at + 100, context + at, at, np.arange(rows), paged)


def told(given: Inputs) -> Tensor:
    """A row's own inputs, all of them, as its result."""
    paged = given.paged
    columns = [given.ids, given.positions, paged.context.long(), paged.slots, paged.table[:, :3].sum(1)]
    return torch.stack(columns, 1)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9, 13])
def test_a_padded_batch_gives_each_row_what_it_would_get_alone(rows: int) -> None:
    graphs = DecodeGraphs(told, Again(), max_rows=16, pages=PAGES, max_model_len=2048)
    for context in (4, 90):
        given = inputs(rows, context)
        assert torch.equal(graphs(given), told(given))


def test_padding_has_no_context_and_writes_nowhere() -> None:
    seen: list[Inputs] = []

    def spy(given: Inputs) -> Tensor:
        seen.append(given)
        return told(given)

    graphs = DecodeGraphs(spy, Again(), max_rows=16, pages=PAGES, max_model_len=2048)
    graphs(inputs(8, 4))
    graphs(inputs(5, 4))
    padded = seen[-1].paged
    assert len(padded.context) == 8
    assert padded.context[5:].tolist() == [0, 0, 0]
    assert padded.slots[5:].tolist() == [-1, -1, -1]


def test_a_size_is_recorded_once_and_for_contexts_up_to_a_depth() -> None:
    recorder = Again()
    graphs = DecodeGraphs(told, recorder, max_rows=16, pages=PAGES, max_model_len=4096)
    for rows, context in ((3, 5), (4, 900), (4, 1000)):
        graphs(inputs(rows, context))
    assert recorder.recorded == 1
    graphs(inputs(4, 1500))
    assert recorder.recorded == 2


def test_sizes_are_few_and_none_is_beyond_the_slots() -> None:
    assert [_padded(rows) for rows in (1, 2, 3, 8, 9, 17, 65, 130, 300)] == [1, 2, 4, 8, 16, 24, 72, 144, 320]
    recorder = Again()
    DecodeGraphs(told, recorder, max_rows=12, pages=PAGES, max_model_len=64)(inputs(12, 4))
    assert recorder.recorded == 1
