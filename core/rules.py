"""The safety rules. Each check is a vector operation over the drafted plan and names the rule and the request.

The core builds plans so that they hold; the rules are what makes that a fact and not a hope. A broken one raises
`PolicyViolation` before anything has changed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from interlock.core.draft import Draft
from interlock.core.errors import PolicyViolation
from interlock.core.executor import Capabilities
from interlock.core.proposals import DemandKind
from interlock.core.request import RequestStatus
from interlock.core.state import State
from interlock.core.work import OPERATION_OF, WorkKey


class Broken(PolicyViolation):
    """A rule that a plan breaks, with the rows that break it."""

    def __init__(self, rule: str, detail: str, rows: np.ndarray, state: State) -> None:
        self.rows = tuple(int(row) for row in rows)
        entry = state.entries.get(self.rows[0]) if self.rows else None
        super().__init__(rule, detail, request=entry.request.id if entry else "")


def check(draft: Draft, rows: np.ndarray, tokens: np.ndarray, state: State, capabilities: Capabilities) -> None:
    """Raise `Broken` at the first rule that the plan breaks. rows, tokens: the batch, in order."""
    _membership(rows, draft, state)
    _batch(rows, tokens, draft, state)
    _operation(rows, draft, state, capabilities)
    if draft.victims or draft.entrants:
        _slots(draft, state)
        _victims(rows, draft, state)


def check_again(draft: Draft, rows: np.ndarray, versions: np.ndarray, state: State) -> None:
    """The rules for a decision that was checked before and is repeated.

    Every transition raises a version, so rows with the versions of then have the status, slot and work of then.
    """
    same = state.table.version[rows] == versions
    _require(same, "what runs is active", lambda: "it changed since the decision was made", rows, state)
    alone = state.table.in_flight[rows] == 0
    _require(alone, "nothing in flight is selected again", lambda: "a ticket of this row is out", rows, state)


def _require(holds: np.ndarray, rule: str, detail: Callable[[], str], rows: np.ndarray, state: State) -> None:
    if not holds.all():
        raise Broken(rule, detail(), rows[~holds], state)


def _batch(rows: np.ndarray, tokens: np.ndarray, draft: Draft, state: State) -> None:
    limits, table = state.limits, state.table
    if len(rows) > limits.max_num_seqs:
        detail = f"{len(rows)} rows, max_num_seqs {limits.max_num_seqs}"
        raise Broken("at most max_num_seqs rows run", detail, rows[limits.max_num_seqs :], state)
    total = int(tokens.sum())
    if total > limits.max_num_batched_tokens:
        detail = f"{total} tokens, budget {limits.max_num_batched_tokens}"
        raise Broken("the token budget holds", detail, rows[np.cumsum(tokens) > limits.max_num_batched_tokens], state)
    if total > draft.limits.total:
        raise Broken("the plan's own budgets hold", f"{total} tokens of {draft.limits.total}", rows, state)
    for mask, most in draft.limits.parts:
        inside = mask[rows]
        if int(tokens[inside].sum()) > most:
            raise Broken("the plan's own budgets hold", f"{tokens[inside].sum()} tokens of {most}", rows[inside], state)
    pending = state.pending(rows)
    size = state.pool.block_size
    hits = {one.row: len(one.hits) * size for one in draft.entrants if len(one.hits) and not table.host[one.row]}
    if hits:
        pending = pending - np.array([hits.get(row, 0) for row in rows.tolist()])
    within = (tokens > 0) & (tokens <= pending)
    _require(
        within,
        "tokens are positive and within what is pending",
        lambda: f"{tokens[~within]} of {pending[~within]}",
        rows,
        state,
    )
    alone = table.in_flight[rows] == 0
    _require(alone, "nothing in flight is selected again", lambda: "a ticket of this row is out", rows, state)


def _membership(rows: np.ndarray, draft: Draft, state: State) -> None:
    table = state.table
    entering = np.array([entrant.row for entrant in draft.entrants], np.intp)
    for named in (rows, entering):
        exists = (named >= 0) & (named < table.capacity)
        _require(exists, "rows exist", lambda: f"the table has {table.capacity}", named, state)
    if len(set(entering.tolist())) < len(entering):
        raise Broken("a row enters once", "it is named twice", entering[np.bincount(entering)[entering] > 1], state)
    if len(rows) > 1 and np.bincount(rows).max() > 1:
        raise Broken("rows are unique", "a row stands in the batch twice", rows[np.bincount(rows)[rows] > 1], state)
    active = table.status[rows] == RequestStatus.ACTIVE
    if draft.entrants:
        waiting = table.status[entering] == RequestStatus.WAITING
        _require(waiting, "only waiting rows enter", lambda: "its status is another", entering, state)
        active |= np.isin(rows, entering)
    _require(active, "what runs is active", lambda: "its status is another", rows, state)
    if draft.victims:
        out = ~np.isin(rows, [victim.row for victim in draft.victims])
        _require(out, "a victim is not in this batch", lambda: "it gave way", rows, state)


def _operation(rows: np.ndarray, draft: Draft, state: State, capabilities: Capabilities) -> None:
    work = state.table.work[rows]
    inside = draft.limits.group[work] & (work != WorkKey.NONE)
    _require(inside, "a row runs its pending work", lambda: f"work {work[~inside]}", rows, state)
    operations = {OPERATION_OF[key] for key in draft.group}
    if len(operations) > 1 or not capabilities.can_mix(frozenset(draft.group)):
        names = ", ".join(key.name for key in draft.group)
        raise Broken("a batch has one operation, and mixes what the executor can", names, rows, state)


def _slots(draft: Draft, state: State) -> None:
    gone = sum(state.table.slot[victim.row] >= 0 for victim in draft.victims)
    if len(draft.entrants) > state.free_slots + gone:
        rows = np.array([entrant.row for entrant in draft.entrants])
        detail = f"{len(rows)} enter, {state.free_slots + gone} slots are free"
        raise Broken("slots never exceed max_num_seqs", detail, rows[state.free_slots + gone :], state)


def _victims(rows: np.ndarray, draft: Draft, state: State) -> None:
    if not draft.victims:
        return
    victims = np.array([victim.row for victim in draft.victims])
    entering = np.isin(victims, [entrant.row for entrant in draft.entrants])
    _require(~entering, "a victim is not the requester", lambda: "it enters, too", victims, state)
    table = state.table
    holds = (table.status[victims] == RequestStatus.ACTIVE) | (
        (table.status[victims] == RequestStatus.WAITING) & (table.blocks[victims] > 0)
    )
    _require(
        holds, "a victim is active, or has yielded and holds blocks", lambda: "it has nothing to give", victims, state
    )
    _standing(draft, state)
    idle = table.in_flight[victims] == 0
    _require(idle, "a victim is not in flight", lambda: "a ticket of this row is out", victims, state)
    if len(np.unique(victims)) != len(victims):
        raise Broken("a row gives way once", "it is named twice", victims, state)


def _standing(draft: Draft, state: State) -> None:
    """For a slot or for admission, the requester stands above an active victim (docs/design.md, Standing)."""
    for victim in draft.victims:
        active = state.table.slot[victim.row] >= 0
        if not active or victim.demand is DemandKind.GROWTH or _is_rescue(victim.requester, state):
            continue
        above = draft.standing.get(victim.requester)
        if above is None or not above[victim.row]:
            detail = "no key of the policies puts the requester above it"
            raise Broken("the requester stands above an active victim", detail, np.array([victim.row]), state)


def _is_rescue(requester: int, state: State) -> bool:
    return state.rescued is not None and requester == state.rescued
