"""What all tests share: how Hypothesis searches."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The same examples in each run, and a failure that anybody can repeat from its output alone.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
# `make soak`: new examples in each run, and many more of them.
settings.register_profile(
    "soak", max_examples=2000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")
