"""The universal checks, which hold for every policy. `universal` lists them."""

from __future__ import annotations

from interlock.plugins.conformance.checks.base import Check
from interlock.plugins.conformance.checks.batches import CHECKS as BATCHES
from interlock.plugins.conformance.checks.delivery import CHECKS as DELIVERY
from interlock.plugins.conformance.checks.faulty import CHECKS as FAULTY
from interlock.plugins.conformance.checks.hooks import CHECKS as HOOKS
from interlock.plugins.conformance.checks.lives import CHECKS as LIVES
from interlock.plugins.conformance.checks.progress import CHECKS as PROGRESS
from interlock.plugins.conformance.checks.resources import CHECKS as RESOURCES
from interlock.plugins.conformance.checks.twins import CHECKS as TWINS

__all__ = ["Check", "universal"]


def universal() -> list[Check]:
    """One of each, in the order of the report."""
    every = (*BATCHES, *RESOURCES, *LIVES, *DELIVERY, *PROGRESS, *HOOKS, *TWINS, *FAULTY)
    return [check() for check in every]
