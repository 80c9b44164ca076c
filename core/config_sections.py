"""The plain sections of a configuration, key by key. Every field is checked for its type and range when it is read."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from interlock.core.config_errors import MAX_INT, MAX_SEED

Count: TypeAlias = Annotated[int, Field(ge=1, le=MAX_INT)]
Natural: TypeAlias = Annotated[int, Field(ge=0, le=MAX_INT)]
Integer: TypeAlias = Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)]
Seed: TypeAlias = Annotated[int, Field(ge=0, le=MAX_SEED)]
Positive: TypeAlias = Annotated[float, Field(gt=0)]
NonNegative: TypeAlias = Annotated[float, Field(ge=0)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A mapping of known keys, immutable. Types are strict: no text for a number, no truth value for a count."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    shows_nulls: ClassVar[bool] = True
    """Whether the resolved configuration shows keys that are null by default."""


class OneOf(Section):
    """A mapping of which exactly one key is given."""

    shows_nulls = False

    @model_validator(mode="after")
    def _exactly_one(self) -> OneOf:
        names = list(type(self).model_fields)
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"found {found}, allowed: exactly one of {', '.join(names)}")
        return self


class EngineSection(Section):
    """Limits and habits of the engine. What a valid value means that an engine cannot do, the engine refuses."""

    max_num_seqs: Count = 64
    max_num_batched_tokens: Count = 2048
    max_model_len: Count = 8192
    long_prefill_token_threshold: Natural = 0
    prompt: Literal["atomic", "split"] = "atomic"
    pipeline_depth: Count = 1
    on_violation: Literal["raise", "repair"] = "raise"
    seed: Seed = 0
    scan_limit: Natural = 64
    bypass_limit: Natural = 0
    max_waiting: Natural | None = None
    max_preemptions: Natural = 8
    progress_window: Count = 256
    max_repeat: Count | None = None
    hook_warn_s: NonNegative = 0.01


class KVSection(Section):
    """The pool of KV blocks. `auto` leaves their number to the executor. `watermark` is a fraction of the blocks."""

    num_blocks: Count | Literal["auto"] = 4096
    block_size: Count = 16
    enable_prefix_caching: bool = True
    salt_by_tenant: bool = False
    reserve: Literal["none", "prompt", "full"] = "prompt"
    watermark: Fraction = 0.0
    host_blocks: Natural = 4096


class SLOSection(Section):
    """Objectives for the latency of a request, null for none, and the share of requests that should meet them."""

    ttft_s: Positive | None = 1.0
    tpot_s: Positive | None = 0.05
    attain: Annotated[float, Field(gt=0, le=1)] = 0.99


class MeasureSection(Section):
    """Requests that arrive in these ends of a run, in seconds, count in no latency and no goodput."""

    warmup_s: NonNegative = 0.0
    cooldown_s: NonNegative = 0.0


class RecordsSection(Section):
    """What a run folder holds: with `tokens`, the ids and times of every token."""

    tokens: bool = True
