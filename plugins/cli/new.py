"""`interlock new`: an installable project to start from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

new = typer.Typer(rich_markup_mode=None)


@new.callback(invoke_without_command=True)
def _kinds(context: typer.Context) -> None:
    """Make an installable project of a new plugin."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@new.command("policy")
def policy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What configurations will call it: short_first.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="The new folder. Default: interlock-NAME.")
    ] = None,
) -> None:
    """Make the project of a new scheduling policy, with its tests."""
    from interlock.plugins.scaffold import Names, write_project

    names = Names.of_policy(name)
    folder = out or Path(names.distribution)
    for path in write_project(names, folder):
        typer.echo(folder / path)
    typer.echo(f"\nNext: cd {shlex.quote(str(folder))} && pip install --editable '.[test]' && pytest")
