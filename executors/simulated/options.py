"""The options of the simulated backend as the configuration writes them."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from interlock.executors.costs.options import CostOptions, Count, Duration, Frozen, OneKey, RooflineOptions
from interlock.executors.simulated.exits import ExitModel, Fixed, Pmf, Trace


class ExitOptions(OneKey):
    """The loop after which a decode token leaves: always the same, by a list over output positions, or drawn."""

    fixed: Count | None = None
    trace: Annotated[tuple[Count, ...], Field(min_length=1)] | None = None
    pmf: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1)] | None = None

    @field_validator("pmf")
    @classmethod
    def _sums_to_one(cls, pmf: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if pmf is not None and abs(sum(pmf) - 1) > 1e-6:
            raise ValueError(f"probabilities must sum to 1, found {sum(pmf):g}")
        return pmf

    @property
    def deepest(self) -> int:
        """The largest depth that can occur."""
        return len(self.pmf) if self.pmf else max(self.trace or (self.fixed or 1,))

    def build(self) -> ExitModel:
        """The exit model."""
        if self.trace is not None:
            return Trace(self.trace)
        return Pmf(self.pmf) if self.pmf is not None else Fixed(self.fixed or 1)


class ModelOptions(Frozen):
    """The looped model: its depth and its exits. What is left out is the cost's model's, and full depth."""

    loops: Count | None = None
    exit: ExitOptions | None = None


class SpeculationOptions(Frozen):
    """`acceptance`: the probability that a draft is accepted when those before it were."""

    acceptance: Annotated[float, Field(ge=0, le=1)]


def _default_cost() -> CostOptions:
    return CostOptions(roofline=RooflineOptions(model="llama-3-8b", device="a100-80gb"))


class SimulatedOptions(Frozen):
    """Options of the executor `simulated`. `copy_gbps`: bandwidth of KV copies between host and device, GB/s."""

    cost: CostOptions = Field(default_factory=_default_cost)
    model: ModelOptions = ModelOptions()
    speculation: SpeculationOptions | None = None
    copy_gbps: Duration = 25.0

    @property
    def loops(self) -> int:
        """Depth of the model, 1 for a dense one."""
        own = self.cost.roofline.language_model.loops if self.cost.roofline else 1
        return self.model.loops or own

    @model_validator(mode="after")
    def _exits_within_loops(self) -> Self:
        if self.model.exit is not None and self.model.exit.deepest > self.loops:
            raise ValueError(f"model.exit: depth {self.model.exit.deepest} is beyond the model's loops, {self.loops}")
        return self

    def exits(self) -> ExitModel:
        """The exit model, full depth unless another is given."""
        return self.model.exit.build() if self.model.exit else Fixed(self.loops)
