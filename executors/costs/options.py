"""The section `cost` of an executor's options, and the cost models it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from interlock.core.work import Operation
from interlock.executors.costs.catalog import DEVICES, MODELS, Device, LanguageModel, lookup
from interlock.executors.costs.cost import Coefficients, CostModel, Linear
from interlock.executors.costs.profile import load_profile
from interlock.executors.costs.roofline import Factors, Roofline

Seconds = Annotated[float, Field(ge=0)]
Duration = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
OperationName = Literal["forward", "prelude", "recurrent", "coda"]


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class OneKey(Frozen):
    """A section of which exactly one key is given."""

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"exactly one of {', '.join(type(self).model_fields)} is needed, found {found}")
        return self


class ConstantOptions(Frozen):
    """The same seconds for each call; of looped models an operation may have its own."""

    step_s: Duration
    prelude_s: Duration | None = None
    recurrent_s: Duration | None = None
    coda_s: Duration | None = None

    def build(self, base: Path, loops: int | None) -> CostModel:
        """The cost model."""
        own = {Operation.PRELUDE: self.prelude_s, Operation.RECURRENT: self.recurrent_s, Operation.CODA: self.coda_s}
        return Linear(Coefficients(self.step_s), {key: Coefficients(s) for key, s in own.items() if s is not None})


class LinearCoefficients(Frozen):
    """Seconds per call, prompt token, decode token and token of decode context. One left out is zero."""

    base_s: Seconds = 0.0
    prefill_token_s: Seconds = 0.0
    decode_token_s: Seconds = 0.0
    context_token_s: Seconds = 0.0

    def coefficients(self) -> Coefficients:
        """The same for the cost model."""
        return Coefficients(self.base_s, self.prefill_token_s, self.decode_token_s, self.context_token_s)

    @model_validator(mode="after")
    def _costs_something(self) -> Self:
        if not any(self.coefficients()):
            raise ValueError("at least one coefficient must be above 0")
        return self


class LinearOptions(LinearCoefficients):
    """A sum of coefficients; `operations` replaces all of them for calls of a looped model."""

    operations: dict[OperationName, LinearCoefficients] = {}

    def build(self, base: Path, loops: int | None) -> CostModel:
        """The cost model."""
        by_name = {Operation[name.upper()]: each.coefficients() for name, each in self.operations.items()}
        return Linear(self.coefficients(), by_name)


class RooflineOptions(Frozen):
    """A named model on `tp` named devices; the other options are the factors of `roofline`, None the device's own."""

    model: str
    device: str
    tp: Count = 1
    mfu: Fraction = Factors.mfu
    mbu: Fraction = Factors.mbu
    attention_mbu: Fraction = Factors.attention_mbu
    attention_mfu: Fraction | None = None
    attention_n0: Annotated[float, Field(ge=0)] | None = None
    kernel_s: Seconds = Factors.kernel_s
    kernels_per_layer: Annotated[int, Field(ge=0)] = Factors.kernels_per_layer
    host_s: Seconds = Factors.host_s
    value_bytes: Literal[1, 2, 4] = 2

    @field_validator("model")
    @classmethod
    def _known_model(cls, name: str) -> str:
        lookup("model", name, MODELS)
        return name

    @field_validator("device")
    @classmethod
    def _known_device(cls, name: str) -> str:
        lookup("device", name, DEVICES)
        return name

    @model_validator(mode="after")
    def _splits_heads(self) -> Self:
        if self.language_model.heads % self.tp:
            raise ValueError(f"tp {self.tp} does not divide the {self.language_model.heads} heads of {self.model}")
        return self

    @property
    def language_model(self) -> LanguageModel:
        """The named model."""
        return MODELS[self.model]

    @property
    def accelerator(self) -> Device:
        """The named device."""
        return DEVICES[self.device]

    def build(self, base: Path, loops: int | None) -> CostModel:
        """The cost model. `loops` wins over the model's own."""
        factors = Factors(**self.model_dump(exclude={"model", "device", "tp"}))
        return Roofline(self.language_model, self.accelerator, self.tp, loops or self.language_model.loops, factors)


class ProfileOptions(Frozen):
    """Coefficients from a file that `calibrate` wrote; a relative path is relative to the configuration file."""

    path: Path

    def build(self, base: Path, loops: int | None) -> CostModel:
        """The cost model; ConfigError when the file is not there or not a profile."""
        return load_profile(base / self.path).cost()


class CostOptions(OneKey):
    """How long a step takes."""

    constant: ConstantOptions | None = None
    linear: LinearOptions | None = None
    roofline: RooflineOptions | None = None
    profile: ProfileOptions | None = None

    def build(self, base: Path, loops: int | None) -> CostModel:
        """The cost model of the one that is given. `loops` None leaves it to the model."""
        chosen = self.constant or self.linear or self.roofline or self.profile
        assert chosen is not None  # the validator's promise
        return chosen.build(base, loops)
