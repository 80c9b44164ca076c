"""How commands fail: one line on stderr, and a code."""

from __future__ import annotations

import sys

GOOD, FAILED, USAGE, UNEXPECTED, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes: all is well; a check failed or a rule was broken; wrong configuration or command; engine or executor
failed; interrupted."""


def complain(message: str, code: int) -> int:
    """Say on one line of stderr what went wrong, and at debug level where. The code is handed back.

    Called while an exception is handled, its traceback goes to the log.
    """
    print(f"interlock: {' '.join(message.split())}", file=sys.stderr)
    if sys.exc_info()[0] is not None and "structlog" in sys.modules:
        from interlock.plugins.cli.logs import debugging, log

        if debugging():
            log().debug("failed", exc_info=True)
    return code
