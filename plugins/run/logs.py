"""One log event per transition, at debug level."""

from __future__ import annotations

import structlog

from interlock.core.record import BoundaryRecord


class TransitionLog:
    """An observer. At a higher level than debug leave it out: then it costs nothing."""

    def __init__(self) -> None:
        self.log = structlog.get_logger("interlock")

    def on_boundary(self, record: BoundaryRecord) -> None:
        """Log what changed status at this boundary."""
        for one in record.transitions:
            self.log.debug(
                "transition",
                request=one.request_id,
                number=one.request,
                origin=None if one.from_status is None else one.from_status.name,
                to=one.to_status.name,
                reason=one.reason,
                step=one.step,
                time_s=one.time_ns / 1e9,
            )
