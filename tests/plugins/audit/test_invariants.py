"""Each invariant is broken on purpose, and the auditor names it with the rows concerned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pressure import by_priority, engine_of
from scenario import R

from interlock.core import Engine, RequestStatus, WorkKey
from interlock.plugins.audit import Audit, AuditError

SHARED = [1] * 8


class Scene:
    """An engine between two boundaries, and the rows of its requests by name. The auditor has seen each boundary."""

    def __init__(self, mode: str, steps: int, **more: Any) -> None:
        requests = [
            R(0, [*SHARED, 2], 9, 1, id="first"),
            R(0, [*SHARED, 3], 9, 1, id="second"),
            R(3, 6, 9, 0, id="urgent"),
            R(3, 5, 9, 1, id="third"),
            R(4, 5, 9, 1, id="fourth"),
        ]
        self.audit = Audit()
        options = {"S": 2, "N": 32, "B": 32, "caching": True, "host": 16, "observers": [self.audit], **more}
        self.engine: Engine = engine_of(*requests, stack=by_priority(mode, "mixed"), **options)
        for _ in range(steps):
            record = self.engine.step()
        assert record is not None
        self.record = record
        self.state, self.table, self.pool = self.engine.state, self.engine.state.table, self.engine.state.pool
        self.row = {entry.request.id: row for row, entry in self.state.entries.items()}

    def blocks(self, name: str) -> np.ndarray:
        """The part of the block table that a request holds; writing to it tampers."""
        row = self.row[name]
        return self.pool.table[self.table.holder[row], : self.table.blocks[row]]

    def found(self) -> dict[str, tuple[str, ...]]:
        """The requests of each invariant that the auditor names at the next boundary."""
        return {finding.invariant: finding.requests for finding in self.audit.audit(self.engine.view)}


def yielded() -> Scene:
    """`first` and `urgent` run, `second` has yielded its slot and kept its blocks, `third` and `fourth` wait."""
    return Scene("yield", 6)


def offloaded() -> Scene:
    """As `yielded`, with the blocks of `second` on the host."""
    return Scene("offload", 6)


def test_the_scenes_are_what_they_say() -> None:
    scene = yielded()
    assert scene.state.active.tolist() == [scene.row["first"], scene.row["urgent"]]
    assert list(scene.state.resident) == [scene.row["second"]]
    assert scene.state.waiting.rows.tolist() == [scene.row[name] for name in ("second", "third", "fourth")]
    assert scene.pool.references.max() == 2, "the prefix is shared"
    assert offloaded().table.host.max() == 3
    assert scene.found() == offloaded().found() == {}


def _set(column: str, name: str, value: Any) -> Callable[[Scene], None]:
    def tamper(scene: Scene) -> None:
        getattr(scene.table, column)[scene.row[name]] = value

    return tamper


def _free_row(column: str, value: Any) -> Callable[[Scene], None]:
    def tamper(scene: Scene) -> None:
        getattr(scene.table, column)[scene.table._free[0]] = value

    return tamper


def _steal_slot(scene: Scene) -> None:
    scene.table.slot[scene.row["urgent"]] = scene.table.slot[scene.row["first"]]


def _same_line(scene: Scene) -> None:
    scene.table.holder[scene.row["urgent"]] = scene.table.holder[scene.row["first"]]


def _twice_in_a_row(scene: Scene) -> None:
    mine = scene.blocks("first")
    scene.pool.references[mine[2]] -= 1
    scene.pool.references[mine[0]] += 1
    mine[2] = mine[0]


def _swap_queue(scene: Scene) -> None:
    rows = scene.state.waiting.rows
    rows[:2] = rows[1::-1].copy()


def _swap_kept(scene: Scene) -> None:
    rows = scene.state.waiting._indexes["priority"].rows
    rows[:2] = rows[1::-1].copy()


def _key_of(scene: Scene) -> int:
    return next(iter(scene.pool._index))


def _index_elsewhere(scene: Scene) -> None:
    scene.pool._index[_key_of(scene)] = int(scene.blocks("urgent")[-1])


def _requeue(scene: Scene) -> None:
    scene.pool._append(scene.blocks("urgent")[:1].copy())


def _listed_twice(scene: Scene) -> None:
    pool = scene.pool
    pool._queue[pool._tail - 1] = pool._queue[pool._tail - 2]


def _lose_a_block(scene: Scene) -> None:
    scene.pool.references[scene.pool.take(1)] = 0


def _drop_key(scene: Scene) -> None:
    del scene.pool._index[_key_of(scene)]


TAMPERED: dict[str, list[tuple[str, Callable[[], Scene], Callable[[Scene], Any], tuple[str, ...] | None]]] = {
    "rows": [
        ("a row without an owner holds nothing", yielded, _free_row("blocks", 1), ("",)),
        ("a row without an owner holds nothing", yielded, _free_row("slot", 1), ("",)),
        ("a row without an owner holds nothing", yielded, _free_row("status", 0), ("",)),
        (
            "rows with an owner are the rows with an entry",
            yielded,
            lambda s: s.state.entries.pop(s.row["third"]),
            ("",),
        ),
        ("live ids are the live rows", yielded, lambda s: s.state.rows.pop("third"), ("third",)),
        ("an active request holds a slot", yielded, _set("slot", "first", -1), ("first",)),
        ("a waiting request holds no slot", yielded, _set("slot", "third", 1), ("third",)),
        ("a slot has one owner", yielded, _steal_slot, ("first", "urgent")),
        ("owned and free slots are all slots", yielded, lambda s: s.state._slots.append(0), ("first",)),
        ("owned and free slots are all slots", yielded, _steal_slot, ()),
        ("work is pending exactly while a request lives", yielded, _set("work", "third", WorkKey.NONE), ("third",)),
        ("a chunk is under way exactly inside the loop", yielded, _set("chunk", "first", 3), ("first",)),
        ("a chunk is under way exactly inside the loop", yielded, _set("loop", "first", 1), ("first",)),
        ("in flight are the rows of tickets that are out", yielded, _set("in_flight", "first", 0), ("first",)),
        ("in flight are the rows of tickets that are out", yielded, _set("in_flight", "first", 2), ("first",)),
        ("a waiting request is not in flight", yielded, _set("in_flight", "third", 1), ("third",)),
        ("who runs or holds blocks has a line of the block table", yielded, _set("holder", "second", -1), ("second",)),
        ("a line of the block table has one owner", yielded, _same_line, ("first", "urgent")),
        ("a line of the block table has one owner", yielded, lambda s: s.pool._free_holders.pop(), ()),
        ("residents are the waiting rows that hold blocks", yielded, lambda s: s.state.resident.clear(), ("second",)),
    ],
    "host": [
        ("host copies belong to waiting rows without blocks", yielded, _set("host", "first", 1), ("first",)),
        ("host copies belong to waiting rows without blocks", offloaded, _set("blocks", "second", 1), ("second",)),
        ("the column `host` counts a row's host copies", offloaded, _set("host", "second", 2), ("second",)),
        ("a host block has one owner or is free", offloaded, lambda s: s.state._host.pop(), ("second",)),
        ("a host block has one owner or is free", yielded, lambda s: s.state._host.append(3), ()),
    ],
    "blocks": [
        ("a row's blocks are blocks of the pool", yielded, lambda s: s.blocks("urgent").fill(99), ("urgent",)),
        ("references are the holders", yielded, lambda s: np.add.at(s.pool.references, s.blocks("first")[-1], 1), None),
        ("references are the holders", yielded, _set("blocks", "urgent", 1), ()),
        ("a row holds a block once", yielded, _twice_in_a_row, ("first",)),
        ("the queue of free blocks is a set", yielded, _listed_twice, ()),
        ("a free block has no holder", yielded, _requeue, ("urgent",)),
        ("free, cached, used and fenced blocks are the pool", yielded, _lose_a_block, ()),
        ("free, cached, used and fenced blocks are the pool", yielded, lambda s: setattr(s.pool, "fenced", 1), ()),
        ("cached blocks are counted", yielded, lambda s: setattr(s.pool, "cached", 5), ()),
        ("computed tokens are within the context", yielded, _set("computed", "third", 6), ("third",)),
        ("computed tokens have blocks", yielded, _set("computed", "third", 1), ("third",)),
        ("computed tokens have blocks", yielded, _set("blocks", "first", 2), ("first",)),
        ("indexed blocks are published under their key", yielded, _index_elsewhere, ("urgent",)),
        ("indexed blocks are published under their key", yielded, lambda s: s.pool._published.fill(False), None),
        ("published blocks are in the prefix index", yielded, _drop_key, ("first", "second")),
    ],
    "order": [
        ("the queue is the waiting rows", yielded, _set("status", "third", RequestStatus.RECEIVING), ("third",)),
        ("the queue is in arrival order", yielded, _swap_queue, None),
        ("kept orders are the queue, sorted", yielded, _swap_kept, None),
        (
            "the active rows are those with status ACTIVE",
            yielded,
            lambda s: s.state.set_active(s.state.active[:1]),
            ("urgent",),
        ),
        (
            "active rows are in the order of their admission",
            yielded,
            lambda s: s.state.set_active(s.state.active[::-1].copy()),
            ("first", "urgent"),
        ),
        ("versions never fall", yielded, _set("version", "first", 0), ("first",)),
        ("a transition raises the version", yielded, _set("status", "first", 0), ("first",)),
        ("emitted tokens only grow", yielded, _set("emitted", "first", 0), ("first",)),
    ],
}
CASES = [case for cases in TAMPERED.values() for case in cases]


@pytest.mark.parametrize(("invariant", "scene", "tamper", "requests"), CASES, ids=[case[0] for case in CASES])
def test_what_is_tampered_with_is_named(
    invariant: str,
    scene: Callable[[], Scene],
    tamper: Callable[[Scene], Any],
    requests: tuple[str, ...] | None,
) -> None:
    at = scene()
    tamper(at)
    found = at.found()
    assert invariant in found
    assert requests is None or found[invariant] == requests


def test_nothing_follows_finished() -> None:
    scene = yielded()
    scene.engine.cancel("third")
    scene.state.entries[scene.row["third"]].seen_by_executor = True
    row = scene.row["third"]
    scene.table.status[row] = RequestStatus.FINISHED
    scene.table.version[row] += 1
    scene.found()
    scene.table.status[row] = RequestStatus.WAITING
    scene.table.version[row] += 1
    assert scene.found()["nothing follows FINISHED"] == ("third",)


def test_every_invariant_has_been_broken_here() -> None:
    """The names are those in the sources, and each has its case."""
    from pathlib import Path
    from re import findall

    import interlock.plugins.audit as package

    folder = Path(package.__path__[0])
    text = "".join((folder / f"{name}.py").read_text("utf-8") for name in ("ownership", "blocks", "order"))
    names = set(findall(r'broken\(\s*"([^"]+)"', text)) | set(findall(r'unless\([^"]*"([^"]+)"', text))
    assert names == {case[0] for case in CASES} | {"nothing follows FINISHED"}


def test_the_error_names_step_rows_and_requests() -> None:
    scene = yielded()
    _steal_slot(scene)
    with pytest.raises(
        AuditError, match=r"audit at step \d+, 5 s: 'a slot has one owner' does not hold for row"
    ) as error:
        scene.audit.on_boundary(scene.record)
    first, urgent = scene.row["first"], scene.row["urgent"]
    assert f"row {first} (request 'first'), row {urgent} (request 'urgent'): slots 0, 0" in str(error.value)
    assert error.value.exit_code == 1
