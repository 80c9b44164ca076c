"""From a run folder to a profile file, which the cost model `profile` of an executor reads."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from interlock.core.errors import ConfigError
from interlock.core.yamlfile import read_file
from interlock.plugins.calibrate.fit import fit
from interlock.plugins.calibrate.observations import NAMES, Observations, observations

FORMAT, VERSION = "interlock-cost-profile", 1


@dataclass(frozen=True)
class Operation:
    """One model call's coefficients, by their names, and how well they tell its time.

    `seen` are the coefficients that the run had anything to say about. `error` and `error_p90` are relative to what was
    measured, over all `calls`; the fit leaves out `aside` of them, which took `aside_s` of `total_s` seconds.
    """

    coefficients: dict[str, float]
    seen: frozenset[str]
    calls: int
    aside: int
    error: float
    error_p90: float
    aside_s: float
    total_s: float

    @classmethod
    def of(cls, calls: Observations) -> Operation:
        """Fitted to these calls."""
        found = fit(calls.loads, calls.seconds)
        # Twelve digits are more than any clock has, and a constant comes out as it was written.
        coefficients = {name: float(f"{c:.12g}") for name, c in zip(NAMES, found.coefficients.tolist(), strict=True)}
        seen = frozenset(name for name, column in zip(NAMES, calls.loads.T, strict=True) if column.any())
        return cls(
            coefficients, seen, len(calls), int((~found.kept).sum()), float(found.errors.mean()),
            float(np.quantile(found.errors, 0.9)), float(calls.seconds[~found.kept].sum()), float(calls.seconds.sum()),
        )  # fmt: skip


@dataclass(frozen=True)
class Calibration:
    """What was fitted: `default` for calls of no operation of their own, `operations` by name where there are several.

    `about` goes into the file as it is.
    """

    default: Operation
    operations: dict[str, Operation]
    about: dict[str, str | int | float | None]

    def profile(self) -> dict[str, Any]:
        """The content of a profile file."""
        several = {"operations": {name: each.coefficients for name, each in self.operations.items()}}
        return {
            "format": FORMAT,
            "version": VERSION,
            "coefficients": self.default.coefficients,
            **(several if len(self.operations) > 1 else {}),
            "about": self.about,
        }

    def write(self, path: Path) -> None:
        """Write the file whole. ConfigError, one line, where there is another kind of file, or it cannot be written."""
        _refuse_other_files(path)
        part = path.with_name(f".{path.name}-{secrets.token_hex(4)}.partial")
        try:
            part.write_text(json.dumps(self.profile(), indent=2, allow_nan=False) + "\n", "utf-8")
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise ConfigError(f"{path}: cannot be written: {error.strerror or error}; --out names another") from None


def calibrate(folder: Path) -> Calibration:
    """Fit a profile to a run. Raises ConfigError, one line, where the folder is no run's, or the run has no steps."""
    calls = observations(folder)
    operations = {name: Operation.of(each) for name, each in calls.by_operation()}
    # Stages of a looped model say little about its whole depth in one call: without one, all calls are the best guess.
    default = operations.get("forward") or Operation.of(calls)
    return Calibration(default, operations, _about(folder, operations))


def _about(folder: Path, operations: dict[str, Operation]) -> dict[str, str | int | float | None]:
    calls = sum(each.calls for each in operations.values())
    error = sum(each.calls * each.error for each in operations.values()) / calls
    return {
        "run": folder.resolve().name,
        **_model(folder),
        "rows": calls,
        "set_aside": sum(each.aside for each in operations.values()),
        "relative_error": round(error, 6),
    }


def _model(folder: Path) -> dict[str, str]:
    """What the run says it ran on: the executor and, where its options name one, the model."""
    config = read_file(folder / "config.yaml").data
    executor = config.get("executor") if isinstance(config, dict) else None
    name, options = next(iter(executor.items())) if isinstance(executor, dict) and executor else (executor, None)
    model = options.get("model") if isinstance(options, dict) else None
    if not isinstance(name, str):
        return {}
    return {"executor": name, **({"model": Path(model).name} if isinstance(model, str) else {})}


def _refuse_other_files(path: Path) -> None:
    """A profile may be replaced; nothing else is."""
    if not path.exists():
        return
    try:
        known = json.loads(path.read_bytes()).get("format") == FORMAT
    except (OSError, ValueError, AttributeError):
        known = False
    if not known:
        found = "a folder" if path.is_dir() else "another file"
        raise ConfigError(f"{path}: found {found}, allowed: a cost profile, which is replaced, or a name that is free")
