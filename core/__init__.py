"""The engine: state, boundary, hooks, rules. Knows no policy, no executor, no model."""

from interlock.core.batch import Batch, BatchResult, Ticket
from interlock.core.config import EngineConfig, EngineSection
from interlock.core.engine import Engine
from interlock.core.errors import (
    ConfigError,
    ExecutorError,
    HookError,
    InterlockError,
    LivelockError,
    MissingExtra,
    PolicyViolation,
)
from interlock.core.executor import Capabilities, Capability, Copy, Executor, ExecutorConfig
from interlock.core.handle import Handle
from interlock.core.policy import Policy, PolicyOptions, column
from interlock.core.proposals import Demand, DemandKind, Offer, Plan, Retention, Victims
from interlock.core.record import BoundaryRecord, Outcome, Transition
from interlock.core.request import (
    FinishReason,
    PreemptMode,
    Request,
    RequestStatus,
    SamplingParams,
    SyntheticPrompt,
)
from interlock.core.view import View
from interlock.core.work import Operation, WorkKey

__all__ = [
    "Batch",
    "BatchResult",
    "BoundaryRecord",
    "Capabilities",
    "Capability",
    "ConfigError",
    "Copy",
    "Demand",
    "DemandKind",
    "Engine",
    "EngineConfig",
    "EngineSection",
    "Executor",
    "ExecutorConfig",
    "ExecutorError",
    "FinishReason",
    "Handle",
    "HookError",
    "InterlockError",
    "LivelockError",
    "MissingExtra",
    "Offer",
    "Operation",
    "Outcome",
    "Plan",
    "Policy",
    "PolicyOptions",
    "PolicyViolation",
    "PreemptMode",
    "Request",
    "RequestStatus",
    "Retention",
    "SamplingParams",
    "SyntheticPrompt",
    "Ticket",
    "Transition",
    "Victims",
    "View",
    "WorkKey",
    "column",
]
