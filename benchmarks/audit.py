"""Milliseconds per audit, check by check, in the states of the boundary benchmark.

    python benchmarks/audit.py [--audits N]

What `audit` with `every: n` adds to a boundary is an n-th of this.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from boundary import engine

from interlock.plugins.audit import Audit
from interlock.plugins.audit.books import Books
from interlock.plugins.audit.observer import CHECKS

STATES = ((64, 0), (1024, 0), (1024, 16384))


def milliseconds(work: Callable[[], object], between: Callable[[], object], times: int) -> float:
    """Median duration of `work`, with `between` called before each."""
    spent = []
    for _ in range(times):
        between()
        started = time.perf_counter_ns()
        work()
        spent.append(time.perf_counter_ns() - started)
    return statistics.median(spent) / 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audits", type=int, default=50)
    options = parser.parse_args()
    for decoding, waiting in STATES:
        built = engine(decoding, waiting, ["fcfs", "mixed"])
        for _ in range(300):
            built.step()
        audit, books = Audit(), Books(built.view)
        whole = milliseconds(lambda: audit.audit(built.view), built.step, options.audits)  # noqa: B023
        pool = built.state.pool
        print(f"{decoding} decode, {waiting} wait, {pool.num_blocks} blocks, {len(pool._index)} keys: {whole:.2f} ms")
        for check in CHECKS:
            each = milliseconds(lambda: list(check(books)), lambda: None, options.audits)  # noqa: B023
            print(f"    {check.__module__.rsplit('.', 1)[1] + '.' + check.__name__:22} {each:8.3f}")


if __name__ == "__main__":
    main()
