"""The steps of a run as flat arrays: tables, latencies and digest are computed from them without a loop over tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from interlock.core.work import IS_PROMPT
from interlock.plugins.run.steps import Step


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Every token that reached its request, by request and then by time: request number, engine time, token id."""

    numbers: np.ndarray
    times_ns: np.ndarray
    tokens: np.ndarray

    def gaps_ns(self) -> tuple[np.ndarray, np.ndarray]:
        """(request number, gap) between consecutive deliveries of a request; tokens delivered together are one."""
        gaps = np.diff(self.times_ns)
        real = (self.numbers[1:] == self.numbers[:-1]) & (gaps > 0)
        return self.numbers[1:][real], gaps[real]


@dataclass(frozen=True)
class Flat:
    """Members of all steps one after another (length m), ends of all batches (length e), and where each step begins.

    `member_at` and `end_at` have one entry more than there are steps. The members of a repeated step stand once.
    `sampled` has the tokens of each step, run by run.
    """

    member_at: np.ndarray
    end_at: np.ndarray
    numbers: np.ndarray
    versions: np.ndarray
    work: np.ndarray
    start: np.ndarray
    tokens: np.ndarray
    delivered: np.ndarray
    ends: np.ndarray
    sampled: np.ndarray

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Flat:
        """Lay these steps out flat."""
        all_of = [np.ones(len(s.numbers), bool) if s.delivered is None else s.delivered for s in steps]
        return cls(
            member_at=_offsets([len(step.numbers) for step in steps]),
            end_at=_offsets([step.repeat for step in steps]),
            numbers=_joined((step.numbers for step in steps), np.int64),
            versions=_joined((step.versions for step in steps), np.int64),
            work=_joined((step.work for step in steps), np.int8),
            start=_joined((step.start for step in steps), np.int64),
            tokens=_joined((step.tokens for step in steps), np.int64),
            delivered=_joined(all_of, np.bool_),
            ends=_joined((piece for step in steps for piece in step.ends), np.int64),
            sampled=_joined((piece.ravel() for step in steps for piece in step.sampled), np.int32),
        )

    @cached_property
    def sizes(self) -> np.ndarray:
        """Members of each step."""
        return np.diff(self.member_at)

    @cached_property
    def repeats(self) -> np.ndarray:
        """Batches of each step."""
        return np.diff(self.end_at)

    @cached_property
    def is_prompt(self) -> np.ndarray:
        """Which members run prompt work."""
        return np.asarray(IS_PROMPT[self.work])

    def per_step(self, values: np.ndarray) -> np.ndarray:
        """Sums of integer member values over each step, int64."""
        sums = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return np.diff(sums[self.member_at])

    @cached_property
    def deliveries(self) -> Deliveries:
        """The delivered tokens, each batch's on its own whether or not it was submitted in a stretch."""
        cells = self.sizes * self.repeats
        step = np.repeat(np.arange(len(cells)), cells)
        within = np.arange(len(step)) - np.repeat(_offsets(cells)[:-1], cells)
        member = self.member_at[step] + within % self.sizes[step]
        got = self.delivered[member]
        step, within, member = step[got], within[got], member[got]
        times = self.ends[self.end_at[step] + within // self.sizes[step]]
        numbers = self.numbers[member]
        order = np.argsort(numbers, kind="stable")
        return Deliveries(numbers[order], times[order], self.sampled[got][order])


def _offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, np.int64))])


def _joined(parts: Iterable[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    pieces = list(parts)
    return np.concatenate(pieces).astype(dtype, copy=False) if pieces else np.empty(0, dtype)
