"""Logging of the command line: structlog on stderr, for eyes on a terminal, as JSON lines elsewhere."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_level = logging.WARNING


def configure(level: str) -> None:
    """Log from this level up. A call below it costs an empty function."""
    global _level
    _level = _LEVELS[level]
    renderers: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    if sys.stderr.isatty():
        renderers = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper("iso"),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )


def debugging() -> bool:
    """Whether everything is logged."""
    return _level <= logging.DEBUG


def log() -> Any:
    """The logger of the command line."""
    return structlog.get_logger("interlock")
