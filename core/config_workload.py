"""The workload section of a configuration: where requests come from, and how much of the truth policies see."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from interlock.core.config_sections import (
    Count,
    Integer,
    Natural,
    NonNegative,
    OneOf,
    Positive,
    Section,
    Seed,
)


class Constant(Section):
    """Every length is `value`."""

    value: Count


class Uniform(Section):
    """Whole lengths from `low` to `high`, both included."""

    low: Count
    high: Count

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.high < self.low:
            raise ValueError(f"found low {self.low} and high {self.high}, allowed: high of at least low")
        return self


class Mean(Section):
    """A distribution given by its mean alone."""

    mean: Annotated[float, Field(ge=1, le=2**31 - 1)]


class Lognormal(Mean):
    """`mean` is the distribution's own mean; `sigma` is the standard deviation of the logarithm."""

    sigma: Annotated[float, Field(ge=0, le=10)]


class Hyperexponential(Section):
    """An exponential of one of the `means`, drawn with its probability."""

    probabilities: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1)]
    means: Annotated[tuple[Positive, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _matching(self) -> Hyperexponential:
        if len(self.probabilities) != len(self.means):
            found = f"{len(self.probabilities)} probabilities and {len(self.means)} means"
            raise ValueError(f"found {found}, allowed: as many of each")
        if not math.isclose(sum(self.probabilities), 1.0, abs_tol=1e-6):
            raise ValueError(f"found probabilities that sum to {sum(self.probabilities):g}, allowed: 1")
        return self


class Length(OneOf):
    """A distribution of token counts. Draws are rounded to whole tokens, at least one."""

    constant: Constant | None = None
    uniform: Uniform | None = None
    exponential: Mean | None = None
    geometric: Mean | None = None
    lognormal: Lognormal | None = None
    hyperexponential: Hyperexponential | None = None


class Rate(Section):
    """Requests per second."""

    rate: Positive


class Gamma(Rate):
    """Gaps of a gamma distribution: `cv` is their coefficient of variation, 1 being Poisson."""

    cv: Positive


class Closed(Section):
    """So many requests at any time: each that finishes is followed by the next."""

    concurrency: Count


class Arrivals(OneOf):
    """When generated requests arrive."""

    poisson: Rate | None = None
    gamma: Gamma | None = None
    constant: Rate | None = None
    closed: Closed | None = None


class LengthsFile(Section):
    """A file of prompt and output tokens. Taken in order, from the start again at its end; or drawn with `sample`."""

    path: Path
    sample: bool = False


class Generate(Section):
    """Requests of a distribution: `prompt` and `output`, or the `lengths` of a file."""

    shows_nulls = False

    count: Count
    arrivals: Arrivals
    prompt: Length | None = None
    output: Length | None = None
    lengths: LengthsFile | None = None

    @model_validator(mode="after")
    def _one_source_of_lengths(self) -> Generate:
        given = [name for name in ("prompt", "output", "lengths") if getattr(self, name) is not None]
        if given not in (["prompt", "output"], ["lengths"]):
            found = " and ".join(given) or "none"
            raise ValueError(f"found {found}, allowed: prompt and output, or lengths")
        return self


class Trace(Section):
    """A recorded file. `limit` takes its first rows, `speedup` divides arrival times, `columns` maps metadata keys."""

    shows_nulls = False

    path: Path
    limit: Count | None = None
    speedup: Positive = 1.0
    columns: dict[str, str] = {}


class RequestEntry(Section):
    """One request, written out. Times are seconds on the engine's clock, `deadline_s` and `timeout_s` from arrival."""

    shows_nulls = False

    id: Annotated[str, Field(min_length=1)] | None = None
    arrival: NonNegative = 0.0
    prompt: Natural | tuple[Natural, ...] | None = None
    text: str | None = None
    output: Count | None = None
    priority: Integer = 0
    tenant: str = ""
    deadline_s: NonNegative | None = None
    cancel_at: NonNegative | None = None
    cancel_at_step: Natural | None = None
    max_tokens: Count | None = None
    min_tokens: Natural = 0
    stop_token_ids: tuple[Natural, ...] = ()
    timeout_s: Positive | None = None
    ignore_eos: bool = False
    temperature: NonNegative = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Natural = 0
    seed: Seed | None = None
    predicted: Natural | None = None

    @model_validator(mode="after")
    def _one_prompt_and_one_cancel(self) -> RequestEntry:
        for one, other, needed in (("prompt", "text", True), ("cancel_at", "cancel_at_step", False)):
            given = [name for name in (one, other) if getattr(self, name) is not None]
            if len(given) > 1 or (needed and not given):
                limit = "exactly" if needed else "at most"
                raise ValueError(f"found {' and '.join(given) or 'none'}, allowed: {limit} one of {one}, {other}")
        return self


class Noisy(Section):
    """The true output times lognormal noise, whose logarithm has the standard deviation `sigma`."""

    sigma: Annotated[float, Field(ge=0, le=10)]


class Predict(OneOf):
    """A guess of the output: the truth with noise, or a column of the trace."""

    noisy: Noisy | None = None
    column: str | None = None


class WorkloadSection(Section):
    """Exactly one source of requests; beside it, what policies see of the true output, and the seed of the draws."""

    shows_nulls = False

    trace: Trace | None = None
    generate: Generate | None = None
    requests: tuple[RequestEntry, ...] | None = None
    max_tokens: Count | Literal["output", "context"] = "output"
    predict: Literal["none", "oracle"] | Predict = "none"
    seed: Seed | None = None

    @model_validator(mode="after")
    def _exactly_one_source(self) -> WorkloadSection:
        sources = ("trace", "generate", "requests")
        given = [name for name in sources if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"found {found}, allowed: exactly one of {', '.join(sources)}")
        if isinstance(self.predict, Predict) and self.predict.column is not None and self.trace is None:
            raise ValueError(f"found predict from a column with {given[0]}, allowed: with a trace")
        return self
