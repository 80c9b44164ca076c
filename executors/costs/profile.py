"""The cost profile: a JSON file with the coefficients of a linear cost, fitted to measured steps.

    {
      "format": "interlock-cost-profile",
      "version": 1,
      "coefficients": {
        "base_s": 0.0105, "prefill_token_s": 6.2e-05, "decode_token_s": 9.0e-06,
        "context_token_s": 9.2e-08, "prompt_attention_s": 2.9e-09
      },
      "operations": {"recurrent": {...}},
      "about": {"model": "llama-3-8b", "rows": 5120, "relative_error": 0.06}
    }

A step costs base_s + prefill_token_s * prompt_tokens + decode_token_s * decode_tokens + context_token_s *
context_tokens + prompt_attention_s * prompt_attention seconds, over the columns of these names in `steps.parquet`. All
five coefficients are required, finite and not negative. `operations` (of looped models: forward, prelude, recurrent,
coda) and `about` (anything worth knowing, never read) may be left out; no other key is allowed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from interlock.core.errors import ConfigError
from interlock.core.work import Operation
from interlock.executors.costs.cost import Coefficients, Linear

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ProfileCoefficients(_Strict):
    """The five coefficients of a call, seconds per unit."""

    base_s: Seconds
    prefill_token_s: Seconds
    decode_token_s: Seconds
    context_token_s: Seconds
    prompt_attention_s: Seconds

    def coefficients(self) -> Coefficients:
        """The same for the cost model."""
        return Coefficients(**self.model_dump())


class Profile(_Strict):
    """A profile file. `model_dump_json` writes one."""

    format: Literal["interlock-cost-profile"]
    version: Literal[1]
    coefficients: ProfileCoefficients
    operations: dict[Literal["forward", "prelude", "recurrent", "coda"], ProfileCoefficients] = {}
    about: dict[str, str | int | float | bool | None] = {}

    def cost(self) -> Linear:
        """The cost model of these coefficients."""
        by_name = {Operation[name.upper()]: each.coefficients() for name, each in self.operations.items()}
        return Linear(self.coefficients.coefficients(), by_name)


def load_profile(path: Path) -> Profile:
    """Read and validate a profile; ConfigError with the file, the key and what is wrong."""
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cost profile {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"cost profile {path}: {where + ': ' if where else ''}{first['msg']}") from error
