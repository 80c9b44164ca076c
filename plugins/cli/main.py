"""The `interlock` command: its subcommands, and what each kind of failure exits with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from interlock.plugins.cli.calibrate import calibrate
from interlock.plugins.cli.check import check
from interlock.plugins.cli.errors import INTERRUPTED, UNEXPECTED, USAGE, complain
from interlock.plugins.cli.listing import list_
from interlock.plugins.cli.new import new
from interlock.plugins.cli.replay import replay
from interlock.plugins.cli.run import run
from interlock.plugins.cli.show import show

# Plain help is the same on a terminal and in a pipe, and rich is not imported for it.
app = typer.Typer(
    name="interlock",
    help="Scheduling policies of LLM inference engines: run, compare and check them.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _command in (
    ("run", run),
    ("check", check),
    ("replay", replay),
    ("calibrate", calibrate),
    ("show", show),
    ("list", list_),
):
    app.command(_name)(_command)
app.add_typer(new, name="new")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"interlock {version('interlock')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Entry point: run the command line and exit with its code."""
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: Sequence[str]) -> int:
    """Run the command line with these arguments; the exit code. Every failure is one line on stderr."""
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="interlock", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return complain("interrupted", INTERRUPTED)
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    # Typer brings its own copy of Click or uses the installed one, by its version: its errors have no fixed class.
    if hasattr(error, "format_message"):
        return complain(error.format_message(), USAGE)
    # The core is not imported for help and for mistyped commands.
    from interlock.core.errors import InterlockError

    if isinstance(error, InterlockError):
        return complain(str(error), error.exit_code)
    return complain(f"unexpected {type(error).__name__}: {error} (--log-level debug shows where)", UNEXPECTED)
