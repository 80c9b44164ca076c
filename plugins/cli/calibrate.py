"""`interlock calibrate`: a cost profile from the steps of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.plugins.cli.errors import GOOD

if TYPE_CHECKING:
    from rich.table import Table

    from interlock.plugins.calibrate import Calibration


def calibrate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The profile. Default: DIR/profile.json.")
    ] = None,
) -> int:
    """Fit a cost profile to a run, for the simulator.

    Prints the coefficients, seconds per unit, and how far the calls are from what they say. An old profile is replaced.
    """
    from rich.console import Console

    from interlock.plugins.calibrate import calibrate as fitted
    from interlock.plugins.cli.logs import configure

    configure("warning")
    found = fitted(folder)
    place = out or folder / "profile.json"
    found.write(place)
    console = Console(highlight=False)
    console.print(_table(found))
    console.print(f"profile       {place}", soft_wrap=True)
    return GOOD


def _table(found: Calibration) -> Table:
    """A column per operation."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("seconds per unit")
    for name in found.operations:
        table.add_column(name, justify="right", no_wrap=True)
    parts = list(found.operations.values())
    for name in found.default.coefficients:
        table.add_row(name, *(f"{one.coefficients[name]:.3e}" if name in one.seen else "-" for one in parts))
    table.add_section()
    table.add_row("calls", *(f"{one.calls:,}" for one in parts))
    table.add_row("calls set aside", *(f"{one.aside:,}" for one in parts))
    table.add_row("time set aside", *(f"{one.aside_s / one.total_s:.1%}" for one in parts))
    table.add_row("error, mean", *(f"{one.error:.1%}" for one in parts))
    table.add_row("error, p90", *(f"{one.error_p90:.1%}" for one in parts))
    return table
