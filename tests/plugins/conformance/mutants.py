"""For each check of the suite, something broken that it must catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from interlock.core import Policy
from interlock.core.policy import PolicyOptions
from interlock.plugins.conformance.executor import STACK
from interlock.plugins.conformance.subject import Member, Subject

from . import broken_parts as parts
from . import broken_policies as policies

Broken = Callable[[pytest.MonkeyPatch], None] | type[Policy]


class Mutant(NamedTuple):
    """What is broken, and the stack that it is in; a policy stands alone, but for what comes before or after it."""

    check: str
    broken: Broken
    stack: str = STACK

    def subject(self) -> Subject:
        """The stack under test."""
        if not isinstance(self.broken, type):
            return Subject.named(self.stack)
        own = self.broken
        name = f"{own.__module__}:{own.__qualname__}"
        options = own.Options()
        assert isinstance(options, PolicyOptions)
        return Subject([Member(name, own, {name: {}}, options)])

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Break a part of the engine, where that is what is broken."""
        if not isinstance(self.broken, type):
            self.broken(monkeypatch)


UNIVERSAL = [
    Mutant("members", parts.twice_in_the_batch),
    Mutant("budget", parts.a_token_too_many),
    Mutant("positions", parts.a_token_skipped),
    Mutant("operations", parts.another_work),
    Mutant("samples", parts.says_in_the_middle),
    Mutant("kv", parts.colliding_keys),
    Mutant("slots", parts.slots_leak),
    Mutant("queue", parts.lost_from_the_list),
    Mutant("references", parts.shared_twice),
    Mutant("pool", parts.cached_told_as_used),
    Mutant("host copies", parts.host_leaks),
    Mutant("lifecycle", parts.untold_preemption),
    Mutant("versions", parts.versions_begin_anew),
    Mutant("one end", parts.told_twice),
    Mutant("cancels", parts.cancels_only_the_active),
    Mutant("rejections", parts.last_token_charged),
    Mutant("rejections", parts.too_large_accepted),
    Mutant("tokens once", parts.last_token_lost),
    Mutant("served alone", parts.tokens_of_the_crowd),
    Mutant("metrics", parts.time_charged_twice),
    Mutant("tallies", parts.counted_twice),
    Mutant("drains unaided", policies.HoldsForever),
    Mutant("nothing left", parts.holders_leak),
    Mutant("ends in time", policies.AlwaysLater),
    Mutant("no empty suspension", parts.requester_left_out),
    Mutant("one formula", parts.a_block_too_many),
    Mutant("rules", policies.Nonsense),
    Mutant("no errors", policies.Raises),
    Mutant("reads", policies.ReadsMore),
    Mutant("hooks change nothing", policies.CountsInHooks),
    Mutant("deterministic", policies.Dice),
    Mutant("independent engines", policies.SharedTurns),
    Mutant("stretches", parts.arrivals_unseen),
    Mutant("kept decisions", policies.KeepsTime),
    Mutant("repair", policies.BehavesUnderRaise),
    Mutant("failed batches", parts.ended_at_once),
    Mutant("stale results", parts.stale_applied),
    Mutant("refused blocks", parts.half_undone),
    Mutant("raising neighbour", parts.uncounted),
]

CLAIMS = [
    Mutant("ArrivalOrder()", policies.LastFirst),
    Mutant("BoundedOvertaking(times=0)", policies.LastFirst),
    Mutant("NoPriorityInversion()", policies.LowestFirst),
    Mutant("DisplacesOnlyLower()", policies.Upwards),
    Mutant("NeverPreempts()", policies.Upwards),
    Mutant("WorkConserving()", policies.Rests),
    Mutant("BoundedBypass(times=0)", policies.ClaimsTooMuch),
    Mutant("StarvationBound(steps=1)", policies.ClaimsTooMuch),
    Mutant("DecodeGap(steps=0)", policies.ClaimsTooMuch),
    Mutant("BoundedPrompts(batches=0)", policies.ClaimsTooMuch),
    Mutant("DecodesFirst()", policies.PromptsFirst),
    Mutant("Cohorts()", policies.Refills),
]

EXECUTORS = [
    Mutant("ticket order", parts.one_ticket),
    Mutant("result shapes", parts.no_minus_one),
    Mutant("result shapes", parts.ends_before_it_begins),
    Mutant("idle collect", parts.remembers_the_last),
    Mutant("step cost", parts.costs_nothing),
    Mutant("token positions", parts.old_owner),
    Mutant("token positions", parts.tokens_of_the_crowd),
    Mutant("suspend and resume", parts.forgets_when_suspended),
]
