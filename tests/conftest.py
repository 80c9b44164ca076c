"""What all tests share: how Hypothesis searches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

# The same examples in each run, and a failure that anybody can repeat from its output alone.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
# `make soak`: new examples in each run, and many more of them.
settings.register_profile(
    "soak", max_examples=2000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")


@pytest.fixture(autouse=True)
def _logs_as_configured_by_nobody() -> Iterator[None]:
    """A command line that a test ran leaves its logger behind, bound to a stream that is closed by then."""
    yield
    structlog.reset_defaults()
