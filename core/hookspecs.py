"""The hooks and events as pluggy specifications. Policies implement any of them by overriding `Policy`'s methods.

Observers (trace, audit, metrics, progress) are plugins that implement `on_start`, `on_boundary` and `on_stop`.
"""

from __future__ import annotations

import pluggy

# pluggy compares the names of arguments alone; their types stand on the methods of `Policy`, where authors see them.

hookspec = pluggy.HookspecMarker("interlock")


@hookspec
def admit(offer, view):  # type: ignore[no-untyped-def]
    """Policies. Before a plan, when somebody may enter or has newly arrived. May edit `offer`, nothing else."""


@hookspec
def select(plan, view):  # type: ignore[no-untyped-def]
    """Policies. After `admit`, at each boundary with pending work. May edit `plan`, nothing else."""


@hookspec
def preempt(victims, demand, view):  # type: ignore[no-untyped-def]
    """Policies. Once for each requester that is short of a slot or of blocks. May edit `victims`, nothing else."""


@hookspec
def release(retention, view):  # type: ignore[no-untyped-def]
    """Policies. When finished rows retire, before their blocks are given back. May edit `retention`, nothing else."""


@hookspec
def on_start(view):  # type: ignore[no-untyped-def]
    """Policies and observers. Once, before the first boundary."""


@hookspec
def on_arrival(rows, view):  # type: ignore[no-untyped-def]
    """Policies. Rows that became WAITING at this boundary."""


@hookspec
def on_admitted(rows, view):  # type: ignore[no-untyped-def]
    """Policies. Rows that were given a slot, first or resumed, after commit."""


@hookspec
def on_batch(batch, view):  # type: ignore[no-untyped-def]
    """Policies. The committed batch."""


@hookspec
def on_result(rows, computed, emitted, view):  # type: ignore[no-untyped-def]
    """Policies. After a result is applied: tokens newly valid and newly delivered for each row."""


@hookspec
def on_preempted(rows, modes, view):  # type: ignore[no-untyped-def]
    """Policies. Rows that gave way, with their modes, after commit."""


@hookspec
def on_finished(rows, view):  # type: ignore[no-untyped-def]
    """Policies. Rows that reached FINISHED."""


@hookspec
def on_retired(rows, view):  # type: ignore[no-untyped-def]
    """Policies. Rows whose resources are given back; they are reset after this."""


@hookspec
def on_batch_failed(batch, view):  # type: ignore[no-untyped-def]
    """Policies. A batch that the executor failed, after its rows were restored."""


@hookspec
def on_boundary(record):  # type: ignore[no-untyped-def]
    """Observers. After each boundary is applied. `record` is a `BoundaryRecord`."""


@hookspec
def on_stop():  # type: ignore[no-untyped-def]
    """Observers. Once, when the run ends, also when it ends by an error."""
