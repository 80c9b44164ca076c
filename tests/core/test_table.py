"""The request table: columns that grow, faces that cannot be written, versions that are never reset."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.table import COLUMNS, CONSTANT, INTERNAL, SECONDS, RequestTable, read_only


def test_a_new_table_holds_nobody() -> None:
    table = RequestTable(capacity=4)
    assert len(table) == 0 and table.capacity == 4
    for name, (dtype, initial) in COLUMNS.items():
        column = getattr(table, name)
        assert column.dtype == np.dtype(dtype) and column.tolist() == [initial] * 4


@given(st.integers(2, 9), st.integers(0, 60))
def test_rows_are_distinct_and_one_at_least_is_always_free(capacity: int, count: int) -> None:
    """So an array over the table is never as long as an array over some of its rows."""
    table = RequestTable(capacity)
    rows = [table.new_row() for _ in range(count)]
    assert len(set(rows)) == count == len(table)
    assert all(0 <= row < table.capacity for row in rows)
    assert table.capacity > count


def test_growing_keeps_what_is_there_and_fills_the_rest() -> None:
    table = RequestTable(capacity=2)
    table.add_policy_column("mlfq", "level", np.int8, 3)
    row = table.new_row()
    table.priority[row], table.version[row], table.policy_columns["mlfq", "level"][row] = 7, 5, 1
    generation = table.generation
    while table.capacity == 2:
        table.new_row()
    assert table.generation > generation
    assert (table.priority[row], table.version[row], table.policy_columns["mlfq", "level"][row]) == (7, 5, 1)
    new = [r for r in range(table.capacity) if r != row]
    for name, (dtype, initial) in COLUMNS.items():
        column = getattr(table, name)
        assert len(column) == table.capacity and column.dtype == np.dtype(dtype)
        assert (column[new] == initial).all()
    assert table.policy_columns["mlfq", "level"][new].tolist() == [3] * len(new)
    assert table.policy_columns["mlfq", "level"].dtype == np.int8


def test_a_freed_row_is_as_new_but_for_its_version() -> None:
    table = RequestTable(capacity=4)
    table.add_policy_column("p", "level", np.int64, -1)
    row = table.new_row()
    for name, (dtype, _) in COLUMNS.items():
        getattr(table, name)[row] = np.array(3).astype(dtype)
    table.policy_columns["p", "level"][row] = 9
    table.free_rows(np.array([row]))
    assert len(table) == 0 and table.policy_columns["p", "level"][row] == -1
    for name, (_, initial) in COLUMNS.items():
        assert getattr(table, name)[row] == (4 if name == "version" else initial)


@given(st.lists(st.booleans(), max_size=80))
def test_versions_never_fall(moves: list[bool]) -> None:
    """Whoever owns the row, and through growth: (row, version) stays unique for ever."""
    table, held, seen = RequestTable(capacity=2), [], set[tuple[int, int]]()
    for comes in moves:
        if comes or not held:
            row = table.new_row()
            table.version[row] += 1
            assert (row, int(table.version[row])) not in seen
            seen.add((row, int(table.version[row])))
            held.append(row)
        else:
            row = held.pop(0)
            before = int(table.version[row])
            table.free_rows(np.array([row]))
            assert table.version[row] > before


def test_a_read_only_face_cannot_be_written_nor_made_writable() -> None:
    base = np.arange(4)
    face = read_only(base)
    base[0] = 9
    assert face[0] == 9  # the same memory
    with pytest.raises(ValueError, match="read-only"):
        face[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        face.flags.writeable = True
    for derived in (face[:2], face.view(), face.reshape(2, 2), np.asarray(face), face.T):
        with pytest.raises(ValueError, match="WRITEABLE"):
            derived.flags.writeable = True
    walk = face.base
    while walk is not None:
        assert walk is not base
        assert not (isinstance(walk, np.ndarray) and walk.flags.writeable)
        assert not (isinstance(walk, memoryview) and not walk.readonly)
        walk = getattr(walk, "base", None)


def test_columns_named_elsewhere_are_there() -> None:
    assert set(COLUMNS) >= INTERNAL and set(COLUMNS) >= set(SECONDS.values())
    assert set(COLUMNS) | set(SECONDS) >= CONSTANT
    assert all(hasattr(RequestTable(2), name) for name in COLUMNS)
