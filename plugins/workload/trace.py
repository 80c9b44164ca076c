"""Recorded requests, replayed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from interlock.core.config_errors import MAX_INT
from interlock.core.config_workload import LengthsFile, Predict, Trace, WorkloadSection
from interlock.plugins.workload.feeds import Source
from interlock.plugins.workload.layouts import Layout, kept, recognise
from interlock.plugins.workload.prefixes import BLOCK, Prefixes
from interlock.plugins.workload.tables import Table, numbers, open_rows
from interlock.plugins.workload.truth import seen_max_tokens, seen_prediction

log = structlog.get_logger("interlock")


def traced_requests(workload: WorkloadSection, base: Path, seed: int) -> Source:
    """The columns of `workload.trace`, in the order of arrival; requests of one time keep the order of the file."""
    options = workload.trace
    assert options is not None
    layout, table = _read(base / options.path, options.limit)
    arrival = layout.seconds(table, layout.arrival) / options.speedup
    prompt, output = _lengths(layout, table)
    prediction = seen_prediction(workload, output, seed, _predicted(workload, table))
    order = np.argsort(arrival, kind="stable")
    prefixes = _prefixes(layout, table, prompt)
    return Source(
        arrival[order],
        prompt[order],
        output[order],
        seen_max_tokens(workload, output)[order],
        prediction[order],
        priority=_optional(table, "priority", order, low=-MAX_INT, empty=0),
        deadline_s=_optional(table, "deadline_s", order, low=0, whole=False, empty=np.nan),
        tenant=_tenants(table, order),
        prefixes=None if prefixes is None else prefixes.take(order),
        metadata=_metadata(options, table, order),
    )


def read_lengths(options: LengthsFile, base: Path) -> tuple[np.ndarray, np.ndarray]:
    """Prompt and output tokens of a file, int64, in its order. Its arrivals may be empty or not there at all."""
    layout, table = _read(base / options.path, None, arrivals=False)
    return _lengths(layout, table)


def _read(path: Path, limit: int | None, *, arrivals: bool = True) -> tuple[Layout, Table]:
    """The first `limit` requests of a file."""
    rows = open_rows(path)
    layout, failed = recognise(rows, arrivals=arrivals), list[int]()
    table = rows.table(islice(kept(layout, rows, failed), limit))
    if failed:
        log.warning("failed requests of the trace are left out", path=str(path), count=len(failed))
    return layout, table


def _lengths(layout: Layout, table: Table) -> tuple[np.ndarray, np.ndarray]:
    prompt = numbers(table, layout.prompt, low=0)
    return prompt.astype(np.int64), numbers(table, layout.output, low=1).astype(np.int64)


def _optional(table: Table, column: str, order: np.ndarray, **limits: Any) -> np.ndarray | None:
    return np.asarray(numbers(table, column, **limits)[order]) if column in table.columns else None


def _tenants(table: Table, order: np.ndarray) -> Sequence[str] | None:
    if "tenant" not in table.columns:
        return None
    tenants = ["" if value is None else str(value) for value in table.columns["tenant"]]
    return [tenants[i] for i in order.tolist()]


def _metadata(options: Trace, table: Table, order: np.ndarray) -> dict[str, Sequence[Any]]:
    columns = {key: table.column(name, f"columns.{key}") for key, name in options.columns.items()}
    return {key: [values[i] for i in order.tolist()] for key, values in columns.items()}


def _predicted(workload: WorkloadSection, table: Table) -> np.ndarray | None:
    """The column that predicts, int64, -1 where it is empty."""
    if not isinstance(workload.predict, Predict) or workload.predict.column is None:
        return None
    column = workload.predict.column
    table.column(column, "predict.column")
    return np.asarray(np.rint(numbers(table, column, low=0, whole=False, empty=-1)), np.int64)


def _prefixes(layout: Layout, table: Table, prompt: np.ndarray) -> Prefixes | None:
    if layout.prefix not in table.columns:
        return None
    ids = [value.split() if isinstance(value, str) else value for value in table.columns[layout.prefix]]
    ids = [[] if value is None else value if isinstance(value, list) else [value] for value in ids]
    counts = np.array([len(value) for value in ids])
    blocks = -(-prompt // BLOCK)
    if (counts > blocks).any():
        i = int(np.argmax(counts > blocks))
        raise table.error(i, layout.prefix, f"at most {blocks[i]} ids, one per {BLOCK} tokens of the prompt")
    try:
        return Prefixes(np.array(list(chain.from_iterable(ids)), np.int64), counts)
    except (ValueError, TypeError, OverflowError):
        bad = next(i for i, value in enumerate(ids) if not all(_is_id(one) for one in value))
        raise table.error(bad, layout.prefix, "integers of 64 bits") from None


def _is_id(value: Any) -> bool:
    try:
        np.array([value], np.int64)
    except (ValueError, TypeError, OverflowError):
        return False
    return True
