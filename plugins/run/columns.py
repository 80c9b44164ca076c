"""Arrow columns from NumPy: seconds from integer nanoseconds, lists from flat values, names from codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from interlock.plugins.run.outcomes import NEVER

Column: TypeAlias = "pa.Array[Any]"


def seconds(times_ns: np.ndarray | Sequence[int], optional: bool = False) -> Column:
    """Nanoseconds as float64 seconds; where `optional`, NEVER is null."""
    values = np.asarray(times_ns, np.int64)
    return pa.array(values / 1e9, pa.float64(), mask=values == NEVER if optional else None)


def floats(values: np.ndarray) -> Column:
    """float64; NaN is null."""
    return pa.array(values, pa.float64(), mask=np.isnan(values))


def ints(values: np.ndarray | Sequence[int], dtype: pa.DataType | None = None) -> Column:
    """int64, or another integer type."""
    return pa.array(np.asarray(values, np.int64), dtype or pa.int64())


def texts(values: Iterable[str | None]) -> Column:
    """Strings; None is null."""
    return pa.array(list(values), pa.string())


def names(codes: np.ndarray | Sequence[int], kind: type[IntEnum]) -> Column:
    """The names of enum members by their values, which count up from the lowest."""
    low = min(kind)
    indices = np.asarray(codes, np.int64) - low
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), [one.name for one in sorted(kind)]).cast(
        pa.string()
    )


def lists(offsets: np.ndarray, values: Column) -> Column:
    """Lists of consecutive values: list i is values[offsets[i]:offsets[i + 1]]."""
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values).cast(pa.list_(values.type))


def int_lists(values: Sequence[Sequence[int]]) -> Column:
    """Lists of int64."""
    return pa.array([list(one) for one in values], pa.list_(pa.int64()))


def structs(**fields: Column) -> Column:
    """Records of these fields."""
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields))
