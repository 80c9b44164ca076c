"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class LogLevel(StrEnum):
    """Least level of what is logged to stderr."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a packaged one (quickstart).")
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy", metavar="STACK", help="Policies instead of the configured ones: a+b, inline YAML or a YAML file."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one value: a dotted path and YAML. May be repeated."),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Sets engine.seed.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="The run folder. Default: runs/NAME-001 and up.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is in the run folder.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Level = Annotated[LogLevel, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")]
