"""The auditor: an observer that holds the engine to its ownership invariants at every boundary."""

from interlock.plugins.audit.observer import Audit, AuditError

__all__ = ["Audit", "AuditError"]
