"""Files of columns: CSV, JSON lines and Parquet read alike, each row knowing its line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from interlock.core.config_errors import MAX_INT, one_line, show
from interlock.core.errors import ConfigError, nearest

Row: TypeAlias = Sequence[Any]
Numbered: TypeAlias = tuple[int, Row]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns by name, and the line of each row. A value that is not there is the empty text or None."""

    name: str
    columns: dict[str, Sequence[Any]]
    lines: list[int]

    def __len__(self) -> int:
        return len(self.lines)

    def error(self, i: int, column: str, allowed: str) -> ConfigError:
        """The one-line error of a malformed value in row i."""
        place = f"row {self.lines[i]}" if self.name.endswith(".parquet") else str(self.lines[i])
        return ConfigError(f"{self.name}:{place}: {column}: found {show(self.columns[column][i])}, allowed: {allowed}")

    def column(self, name: str, key: str) -> Sequence[Any]:
        """A column that the configuration names at `key`."""
        if name not in self.columns:
            known = f"allowed: {', '.join(self.columns)}{nearest(name, self.columns)}"
            raise ConfigError(f"{self.name}: {key}: found the column {show(name)}, {known}")
        return self.columns[name]


@dataclass(frozen=True, slots=True)
class Rows:
    """The header of a file, and its rows with their lines, read as they are asked for."""

    name: str
    header: list[str]
    rows: Iterator[Numbered]

    def table(self, rows: Iterable[Numbered]) -> Table:
        """These rows as columns. Raises ConfigError when there is none."""
        numbered = list(rows)
        if not numbered:
            raise ConfigError(f"{self.name}: found no rows, allowed: at least one")
        columns = zip(*(row for _, row in numbered), strict=True)
        return Table(self.name, dict(zip(self.header, columns, strict=True)), [line for line, _ in numbered])


def open_rows(path: Path) -> Rows:
    """The rows of a file by its ending. Raises ConfigError, one line, when it is missing or no such file."""
    readers: dict[str, Callable[[Path], Rows]] = {
        ".csv": _csv,
        ".jsonl": _json_lines,
        ".ndjson": _json_lines,
        ".parquet": _parquet,
    }
    if path.suffix.lower() not in readers:
        raise ConfigError(f"{path}: found the ending {path.suffix!r}, allowed: {', '.join(readers)}")
    if not path.is_file():
        raise ConfigError(f"{path}: found no such file, allowed: a trace")
    return readers[path.suffix.lower()](path)


def numbers(
    table: Table, column: str, *, low: float, high: float = MAX_INT, whole: bool = True, empty: float | None = None
) -> np.ndarray:
    """A column as float64. `empty` stands for a value that is not there; without it each row must have one."""
    values = table.columns[column]
    if empty is not None:
        values = [empty if value is None or value == "" else value for value in values]
    array = _floats(values)
    # A value that stands for one that is not there need not be in range: it may be NaN.
    fine = np.isfinite(array) & (array >= low) & (array <= high)
    if whole:
        fine &= array == np.rint(array)
    if empty is not None:
        fine |= np.array([value is None or value == "" for value in table.columns[column]])
    if not fine.all():
        raise table.error(int(np.argmin(fine)), column, _range(low, high, whole))
    return array


def _floats(values: Sequence[Any]) -> np.ndarray:
    """As numbers; NaN for what is none."""
    if not any(isinstance(value, bool) for value in values):
        try:
            return np.array(values, np.float64)
        except (ValueError, TypeError, OverflowError):
            pass  # row by row, then
    return np.array([_float(value) for value in values])


def _float(value: Any) -> float:
    try:
        return float("nan") if isinstance(value, bool) else float(value)
    except (ValueError, TypeError, OverflowError):
        return float("nan")


def _range(low: float, high: float, whole: bool) -> str:
    kind = "an integer" if whole else "a number"
    at_least = f" of at least {low:g}" if low > -MAX_INT else ""
    return f"{kind}{at_least}" + (f" and at most {high:g}" if high != MAX_INT else "")


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: found a byte that is not UTF-8, allowed: text in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None


def _csv(path: Path) -> Rows:
    reader = csv.reader(io.StringIO(_text(path), newline=""))
    header = [name.strip() for name in next(reader, [])]
    if len(set(header)) != len(header) or not header:
        raise ConfigError(f"{path}:1: found the header {show(header)}, allowed: column names, each once")
    return Rows(str(path), header, _csv_rows(path, reader, len(header)))


def _csv_rows(path: Path, reader: Any, width: int) -> Iterator[Numbered]:
    try:
        for row in reader:
            if len(row) == width:
                yield reader.line_num, row
            elif row:  # a blank line is no row
                raise ConfigError(f"{path}:{reader.line_num}: found {len(row)} fields, allowed: {width}")
    except csv.Error as error:
        raise ConfigError(f"{path}:{reader.line_num}: broken CSV: {error}") from None


def _json_lines(path: Path) -> Rows:
    objects = [(n, _object(path, n, line)) for n, line in enumerate(_text(path).split("\n"), 1) if line.strip()]
    header = list(dict.fromkeys(key for _, value in objects for key in value))
    return Rows(str(path), header, ((n, [value.get(key) for key in header]) for n, value in objects))


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}:{number}: broken JSON: {one_line(error)}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}:{number}: found {show(value)}, allowed: an object")
    return value


def _parquet(path: Path) -> Rows:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{path}: not Parquet: {one_line(error)}") from None
    columns = [column.to_pylist() for column in table.columns]
    return Rows(str(path), table.column_names, ((n, row) for n, row in enumerate(zip(*columns, strict=True), 1)))
