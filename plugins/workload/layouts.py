"""The columns of traces: our own, and those of the public ones as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from interlock.core.errors import ConfigError
from interlock.plugins.workload.tables import Numbered, Rows, Table, numbers

MAX_SECONDS = 9e9
"""Later than this, a time in nanoseconds does not fit in 64 bits."""


def _seconds(table: Table, column: str) -> np.ndarray:
    return numbers(table, column, low=0, high=MAX_SECONDS, whole=False)


def _milliseconds(table: Table, column: str) -> np.ndarray:
    return numbers(table, column, low=0, high=MAX_SECONDS * 1000, whole=False) / 1000


def _instants(table: Table, column: str) -> np.ndarray:
    """Dates with times, as seconds since the first of them."""
    texts = [str(value).removesuffix("Z").removesuffix("+00:00").strip() for value in table.columns[column]]
    try:
        times = np.array(texts, "datetime64[ns]")
    except ValueError:
        times = np.array([_instant(text) for text in texts])
    if np.isnat(times).any():
        raise table.error(int(np.argmax(np.isnat(times))), column, "a time like 2023-11-16 18:17:03.9799600")
    return np.asarray((times - times.min()).astype(np.int64) / 1e9)


def _instant(text: str) -> np.datetime64:
    try:
        return np.datetime64(text, "ns")
    except ValueError:
        return np.datetime64("NaT", "ns")


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns mean what. With `failures`, a row of 0 output tokens is a failed request, not one to replay."""

    arrival: str
    prompt: str
    output: str
    prefix: str
    seconds: Callable[[Table, str], np.ndarray] = _seconds
    failures: bool = False

    @property
    def lengths(self) -> set[str]:
        """The columns that even a file without arrivals has."""
        return {self.prompt, self.output}

    def is_failure(self, rows: Rows) -> Callable[[Numbered], bool]:
        """Whether a row is a failed request."""
        place = rows.header.index(self.output)
        return lambda numbered: self.failures and str(numbered[1][place]).strip() in ("0", "0.0")


# In this order: ours, Azure's, BurstGPT's, Mooncake's.
LAYOUTS = (
    Layout("arrival_s", "prompt_tokens", "output_tokens", "prefix_hash_ids"),
    Layout("TIMESTAMP", "ContextTokens", "GeneratedTokens", "", _instants),
    Layout("Timestamp", "Request tokens", "Response tokens", "", failures=True),
    Layout("timestamp", "input_length", "output_length", "hash_ids", _milliseconds),
)


def recognise(rows: Rows, *, arrivals: bool = True) -> Layout:
    """The layout of a file by its header. Raises ConfigError that names what is missing of the likeliest one."""
    likeliest = max(LAYOUTS, key=lambda layout: len(_needed(layout, arrivals) & set(rows.header)))
    missing = _needed(likeliest, arrivals) - set(rows.header)
    if missing:
        found = ", ".join(rows.header)[:200] or "none"
        names = "; ".join(f"{layout.arrival}, {layout.prompt}, {layout.output}" for layout in LAYOUTS)
        raise ConfigError(
            f"{rows.name}:1: missing {', '.join(sorted(missing))}: found columns {found}, allowed: {names}"
        )
    return likeliest


def _needed(layout: Layout, arrivals: bool) -> set[str]:
    return layout.lengths | ({layout.arrival} if arrivals else set())


def kept(layout: Layout, rows: Rows, failed: list[int]) -> Iterator[Numbered]:
    """The rows that are requests; the lines of the others are added to `failed`."""
    is_failure = layout.is_failure(rows)
    for numbered in rows.rows:
        if is_failure(numbered):
            failed.append(numbered[0])
        else:
            yield numbered
