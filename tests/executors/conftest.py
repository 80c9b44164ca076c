"""A batch builder for the tests of the simulated executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from interlock.core.batch import Batch
from interlock.core.request import Request
from interlock.core.work import OPERATION_OF, WorkKey

MakeBatch = Callable[..., Batch]


def _make_batch(
    rows: Sequence[tuple[WorkKey, int, int]],
    *,
    new: Mapping[int, tuple[int, Request]] | None = None,
    at: Sequence[int] | None = None,
    samples: Sequence[bool] | None = None,
    loop: Sequence[int] | None = None,
    **fields: Any,
) -> Batch:
    """A batch of (work key, start, tokens) per row, in table rows `at` (0, 1, ... unless given)."""
    n = len(rows)
    work, start, tokens = zip(*rows, strict=True)
    return Batch(
        **{"step": 0, "operation": OPERATION_OF[work[0]], "start_ns": 0} | fields,
        rows=np.arange(n, dtype=np.intp) if at is None else np.asarray(at, np.intp),
        versions=np.zeros(n, np.int64),
        numbers=np.arange(n, dtype=np.int64),
        work=np.asarray(work, np.int8),
        start=np.asarray(start, np.int64),
        tokens=np.asarray(tokens, np.int64),
        samples=np.ones(n, bool) if samples is None else np.asarray(samples, bool),
        loop=np.zeros(n, np.int64) if loop is None else np.asarray(loop, np.int64),
        holders=np.arange(n, dtype=np.intp),
        block_table=np.zeros((n, 1), np.int32),
        context=np.zeros((n, 1), np.int32),
        new=new or {},
    )


@pytest.fixture(scope="session")
def make_batch() -> MakeBatch:
    """See `_make_batch`."""
    return _make_batch
