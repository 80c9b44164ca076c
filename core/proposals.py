"""What policies edit. Every edit is checked when it is made and changes only the proposal.

A key or a mask is an array over the table (`view.capacity` long) or aligned with `proposal.rows`; any other length is
an error. Restrictions only add up. Edits replace arrays and never write into them, so that a proposal can be put back
to where it was before a hook.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from interlock.core.errors import PolicyViolation, nearest
from interlock.core.executor import Capabilities
from interlock.core.request import PreemptMode
from interlock.core.table import CONSTANT, read_only
from interlock.core.view import View
from interlock.core.work import DEFAULT_ORDER, OPERATION_OF, WorkKey

Key = Any  # a column's name ("-priority" descends) or an array


class Ordering:
    """Rows in a default order, and the sort keys laid over it. Resolved only when somebody looks."""

    __slots__ = ("base", "keys", "spec")

    def __init__(self, base: np.ndarray, spec: str = "", keys: tuple[np.ndarray, ...] = ()) -> None:
        self.base = base
        self.spec = spec  # the one column name that gives the whole order, if that is all there is
        self.keys = keys  # table-long or aligned with base, most significant first

    def resolve(self, view: View) -> np.ndarray:
        """The rows in order."""
        if self.spec:
            kept = view._kept_order(self.spec, self.base)
            if kept is not None:
                return kept
        if not self.keys or len(self.base) < 2:
            return self.base
        columns = [key if len(key) == len(self.base) else key[self.base] for key in reversed(self.keys)]
        return np.asarray(
            self.base[np.lexsort(columns)] if len(columns) > 1 else self.base[np.argsort(columns[0], kind="stable")]
        )


class Proposal:
    """Base of what policies edit: candidates in an order."""

    rule = "a proposal's edits are valid"

    def __init__(self, rows: np.ndarray, view: View) -> None:
        self._view = view
        self._order = Ordering(rows)
        self._resolved: np.ndarray | None = None
        self._first_key: np.ndarray | None = None  # standing: the first key of the last sort_by, table-long

    @property
    def rows(self) -> np.ndarray:
        """The candidates, in the order left by the policies before. intp, shape (n,), read-only."""
        if self._resolved is None:
            rows = self._order.resolve(self._view)
            self._resolved = rows if isinstance(rows.base, memoryview) else read_only(rows)
        return self._resolved

    def sort_by(self, *keys: Key) -> None:
        """Order by ascending keys, the first the most significant; equal rows keep their order. NaN is an error."""
        if not keys:
            raise self._wrong("sort_by needs a key")
        arrays = tuple(self._key(key) for key in keys)
        constant = len(keys) == 1 and isinstance(keys[0], str) and keys[0].lstrip("-") in CONSTANT
        untouched = not self._order.keys and not self._order.spec
        aligned = any(len(array) != self._view.capacity for array in arrays + self._order.keys)
        if aligned and not untouched:
            self._order = Ordering(self.rows, keys=arrays)
        else:
            spec = str(keys[0]) if constant and untouched else ""
            self._order = Ordering(self._order.base, spec, arrays + self._order.keys)
        self._resolved = None
        self._first_key = arrays[0] if len(arrays[0]) == self._view.capacity else None

    def reorder(self, rows: np.ndarray) -> None:
        """This order, a permutation of `rows`."""
        rows = np.asarray(rows)
        if (
            rows.dtype.kind not in "iu"
            or rows.shape != self.rows.shape
            or not np.array_equal(np.sort(rows), np.sort(self.rows))
        ):
            raise self._wrong("reorder takes a permutation of proposal.rows")
        self._order, self._resolved, self._first_key = Ordering(rows.astype(np.intp)), None, None

    # -- checks

    def _wrong(self, detail: str) -> PolicyViolation:
        return PolicyViolation(self.rule, detail, plugin="", hook="")

    def _key(self, key: Key) -> np.ndarray:
        if isinstance(key, str):
            column = self._view._column_named(key.lstrip("-"))
            if column is None:
                raise self._wrong(f"no column is called {key!r}{nearest(key.lstrip('-'), self._view._column_names())}")
            key = (
                -column.astype(np.int64 if column.dtype.kind in "iu" else np.float64) if key.startswith("-") else column
            )
        array = self._sized(key, "key")
        if array.dtype.kind not in "biuf":
            raise self._wrong(f"a key is an array of numbers, not of {array.dtype}")
        if array.dtype.kind == "f" and np.isnan(array).any():
            bad = self.rows[np.isnan(array if len(array) != self._view.capacity else array[self.rows])]
            if len(bad):
                raise PolicyViolation(self.rule, "a key is NaN", request=self._view.request(int(bad[0])).id)
        return array

    def _sized(self, value: Any, what: str) -> np.ndarray:
        array = np.asarray(value)
        if array.ndim != 1 or len(array) not in (self._view.capacity, len(self.rows)):
            raise self._wrong(
                f"a {what} has shape {array.shape}; allowed: view.capacity = {self._view.capacity} "
                f"or len(rows) = {len(self.rows)}"
            )
        return array

    def _mask(self, mask: Any) -> np.ndarray:
        """As bool over the table, true only for candidates."""
        array = self._sized(mask, "mask")
        if array.dtype != np.bool_:
            raise self._wrong(f"a mask is an array of bool, not of {array.dtype}")
        whole = np.zeros(self._view.capacity, bool)
        rows = self.rows
        whole[rows] = array[rows] if len(array) == self._view.capacity else array
        return whole

    def _amount(self, value: Any, what: str) -> np.ndarray:
        """A count that is not negative, as int64 over the table."""
        array = np.asarray(value)
        if array.dtype.kind not in "iu" or (array < 0).any():
            raise self._wrong(f"{what} is a whole number of at least 0, found {np.array2string(array, threshold=4)}")
        if array.ndim == 0:
            return np.full(self._view.capacity, int(array), np.int64)
        array = self._sized(array, what)
        if len(array) == self._view.capacity:
            return array.astype(np.int64)
        whole = np.zeros(self._view.capacity, np.int64)
        whole[self.rows] = array
        return whole


class Limit(NamedTuple):
    """At most `rows` entries and `tokens` prompt tokens, in all or for each value of a column."""

    rows: int | np.ndarray | None
    tokens: int | None
    codes: np.ndarray | None
    by: str = ""


class Offer(Proposal):
    """The waiting rows, in arrival order until policies change it."""

    rule = "an offer's edits are valid"

    def __init__(self, rows: np.ndarray, view: View) -> None:
        super().__init__(rows, view)
        self.held: np.ndarray | None = None
        self.until: np.ndarray | None = None  # engine seconds, inf: no time
        self.limits: tuple[Limit, ...] = ()
        self.rejected: tuple[tuple[np.ndarray, str], ...] = ()

    def hold(self, mask: Any, until: float | np.ndarray | None = None) -> None:
        """These rows do not enter at this boundary. `until` (engine seconds) says when to ask again at the latest."""
        chosen = self._mask(mask)
        when = np.full(self._view.capacity, np.inf)
        if until is not None:
            value = np.asarray(until, np.float64)
            if np.isnan(value).any():
                raise self._wrong("hold until NaN")
            when[chosen] = value if value.ndim == 0 else self._spread(self._sized(value, "time"))[chosen]
        if self.held is None or self.until is None:
            self.held, self.until = chosen, np.where(chosen, when, -np.inf)
        else:
            self.until = np.where(chosen, np.maximum(self.until, when), self.until)
            self.held = self.held | chosen

    def limit(self, n: int | np.ndarray | None, tokens: int | None = None, per: str | None = None) -> None:
        """At most `n` rows, and at most `tokens` tokens of their context, enter at this boundary.

        With `per`, a column's name: so many for each of its values; `n` may then be an array indexed by the value.
        """
        count = n if n is None else np.asarray(n)
        for value, what in ((count, "limit"), (tokens, "limit of tokens")):
            if value is not None and (np.asarray(value).dtype.kind not in "iu" or (np.asarray(value) < 0).any()):
                raise self._wrong(f"{what} is a whole number of at least 0, found {value}")
        if (count is not None and count.ndim > 1) or np.ndim(tokens or 0):
            raise self._wrong("a limit is a number, or with `per` an array of one dimension")
        codes = None
        if per is not None:
            codes = self._view._column_named(per)
            if codes is None or codes.dtype.kind not in "iu":
                raise self._wrong(
                    f"limit per {per!r}: no such column of whole numbers{nearest(per, self._view._column_names())}"
                )
        elif count is not None and count.ndim:
            raise self._wrong("an array of limits needs `per`")
        plain = count if count is None or count.ndim else int(count)
        self.limits = (*self.limits, Limit(plain, None if tokens is None else int(tokens), codes))

    def reject(self, mask: Any, reason: str) -> None:
        """These rows end here, with this reason. Only rows that were never admitted."""
        chosen = self._mask(mask)
        if not isinstance(reason, str) or not reason:
            raise self._wrong("reject needs a reason")
        admitted = np.flatnonzero(chosen & (self._view._table.admitted_ns >= 0))
        if len(admitted):
            raise PolicyViolation(
                self.rule, "only rows never admitted can be rejected", request=self._view.request(int(admitted[0])).id
            )
        self.rejected = (*self.rejected, (chosen, reason))

    def _spread(self, array: np.ndarray) -> np.ndarray:
        if len(array) == self._view.capacity:
            return array
        whole = np.full(self._view.capacity, np.inf)
        whole[self.rows] = array
        return whole


class Plan(Proposal):
    """Active rows with pending work in the order of their admission, then the offered ones."""

    rule = "a plan's edits are valid"

    def __init__(
        self, rows: np.ndarray, view: View, capabilities: Capabilities, known: dict[Any, Any] | None = None
    ) -> None:
        """`known`: groups that `prefer` has checked before, kept from boundary to boundary."""
        super().__init__(rows, view)
        self._capabilities = capabilities
        self._known = {} if known is None else known
        self.caps: np.ndarray | None = None
        self.total: int | None = None
        self.parts: tuple[tuple[np.ndarray, int], ...] = ()
        self.dropped: np.ndarray | None = None
        self.preferred: tuple[tuple[WorkKey, ...], ...] = ()

    def cap(self, mask: Any, tokens: int | np.ndarray) -> None:
        """These rows run at most so many tokens each; 0: none."""
        chosen = self._mask(mask)
        amount = np.where(chosen, self._amount(tokens, "a cap"), np.iinfo(np.int64).max)
        self.caps = amount if self.caps is None else np.minimum(self.caps, amount)

    def budget(self, tokens: int, mask: Any = None) -> None:
        """The batch, or these rows together, run at most so many tokens."""
        count = np.asarray(tokens)
        if count.ndim or count.dtype.kind not in "iu" or count < 0:
            raise self._wrong(f"a budget is a whole number of at least 0, found {tokens!r}")
        if mask is None:
            self.total = int(count) if self.total is None else min(self.total, int(count))
        else:
            self.parts = (*self.parts, (self._mask(mask), int(count)))

    def drop(self, mask: Any) -> None:
        """These rows do not run at this boundary; offered ones do not enter."""
        chosen = self._mask(mask)
        self.dropped = chosen if self.dropped is None else self.dropped | chosen

    def prefer(self, *groups: WorkKey | Iterable[WorkKey]) -> None:
        """The first group that yields a batch runs. A group is a work key, or several of one operation that may mix."""
        kept = all(isinstance(group, WorkKey | tuple) for group in groups)
        known = self._known.get(groups) if kept else None
        if known is None:
            known = tuple(self._group(group) for group in groups)
            named = [key for group in known for key in group]
            if len(named) != len(set(named)):
                raise self._wrong("prefer names a work key twice")
            if kept:
                self._known[groups] = known
        self.preferred = known

    def _group(self, group: WorkKey | Iterable[WorkKey]) -> tuple[WorkKey, ...]:
        try:
            keys = (WorkKey(group),) if isinstance(group, int | np.integer) else tuple(WorkKey(key) for key in group)
        except (ValueError, TypeError):
            raise self._wrong(f"a group is a WorkKey or several, found {group!r}") from None
        if not keys or WorkKey.NONE in keys:
            raise self._wrong(f"a group is a WorkKey or several, found {group!r}")
        if len({OPERATION_OF[key] for key in keys}) > 1:
            raise self._wrong(
                f"{', '.join(key.name for key in keys)} run as different operations and cannot share a batch"
            )
        if not self._capabilities.can_mix(frozenset(keys)):
            raise self._wrong(f"the executor cannot mix {', '.join(key.name for key in keys)} in a batch")
        return keys

    def groups(self) -> tuple[tuple[WorkKey, ...], ...]:
        """All groups in the order in which they are tried."""
        named = {key for group in self.preferred for key in group}
        return self.preferred + tuple((key,) for key in DEFAULT_ORDER if key not in named)


class DemandKind(StrEnum):
    """What a requester is short of: a slot; blocks, for a candidate; blocks, for a row that grows."""

    SLOT = "slot"
    ADMISSION = "admission"
    GROWTH = "growth"


class Demand(NamedTuple):
    """The row that asks, what for, and how many blocks it lacks."""

    row: int
    kind: DemandKind
    blocks: int


class Victims(Proposal):
    """Who could give way: holders that yielded, then active rows, latest admitted first."""

    rule = "victims' edits are valid"

    def __init__(self, rows: np.ndarray, view: View) -> None:
        super().__init__(rows, view)
        self.protected: np.ndarray | None = None
        self.uses: tuple[tuple[np.ndarray | None, PreemptMode], ...] = ()

    def protect(self, mask: Any) -> None:
        """These rows do not give way."""
        chosen = self._mask(mask)
        self.protected = chosen if self.protected is None else self.protected | chosen

    def use(self, mode: PreemptMode | str, mask: Any = None) -> None:
        """How these rows, or all, give way. The last one set holds."""
        try:
            chosen = PreemptMode(mode)
        except ValueError:
            raise self._wrong(f"no preemption mode {mode!r}; allowed: {', '.join(PreemptMode)}") from None
        self.uses = ((None, chosen),) if mask is None else (*self.uses, (self._mask(mask), chosen))

    def mode_of(self, row: int) -> PreemptMode:
        """How this row gives way."""
        for mask, mode in reversed(self.uses):
            if mask is None or mask[row]:
                return PreemptMode(mode)
        return PreemptMode.RECOMPUTE

    def stands_above(self, requester: int) -> np.ndarray | None:
        """Over the table: which rows the requester stands above, None if no key gives standing."""
        key = self._first_key
        return None if key is None else np.asarray(key < key[requester])


class Retention(Proposal):
    """Rows that retire at this boundary, in batch order: the order in which their blocks are given back."""

    rule = "a retention's edits are valid"

    def __init__(self, rows: np.ndarray, view: View) -> None:
        super().__init__(rows, view)
        self.kept: tuple[tuple[np.ndarray, np.ndarray, float], ...] = ()
        self.forgotten: np.ndarray | None = None

    def keep(self, mask: Any, weight: float | np.ndarray, until: float | None = None) -> None:
        """The cached blocks of these rows stay longer than those of a smaller weight, at most until this engine second.

        They are taken after all blocks that nobody keeps; of two policies that keep a row's blocks, the first holds.
        """
        chosen = self._mask(mask)
        value = np.asarray(weight, np.float64)
        if np.isnan(value).any() or (until is not None and np.isnan(until)):
            raise self._wrong("keep with NaN")
        whole = np.full(self._view.capacity, float(value)) if value.ndim == 0 else np.zeros(self._view.capacity)
        if value.ndim:
            sized = self._sized(value, "weight")
            whole[self.rows] = sized[self.rows] if len(sized) == self._view.capacity else sized
        self.kept = (*self.kept, (chosen, whole, np.inf if until is None else float(until)))

    def drop(self, mask: Any) -> None:
        """Nothing of these rows may be hit any more."""
        chosen = self._mask(mask)
        self.forgotten = chosen if self.forgotten is None else self.forgotten | chosen
