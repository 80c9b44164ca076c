"""`interlock check`: the conformance suite on a stack of policies, or on an executor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from interlock.plugins.cli.errors import FAILED, GOOD


def check(
    what: Annotated[
        str,
        typer.Argument(
            metavar="STACK|executor:NAME", help="A stack: a+b, inline YAML or a YAML file. Or an executor's name."
        ),
    ],
    executor: Annotated[
        str | None,
        typer.Option("--executor", metavar="NAME", help="The stack's executor. Default: simulated."),
    ] = None,
    max_examples: Annotated[int, typer.Option("--max-examples", metavar="N", help="Scenarios for each check.")] = 200,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report here, failures beside it.")
    ] = None,
) -> int:
    """Hold a stack of policies, or an executor, to the suite.

    A line per check, and for each that fails the smallest counter-example as a configuration that `run` accepts.
    """
    from interlock.core.errors import MissingExtra

    try:
        from interlock.plugins.conformance import front, report
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("hypothesis", "pytest"):
            raise
        raise MissingExtra("interlock check", "check") from None

    suite = front.suite_of(what, executor, max_examples)
    folder = report.FOLDER if json is None else json.parent / report.FOLDER
    verdicts = []
    for verdict in suite.verdicts():
        report.write_scenario(verdict, suite.subject, folder)
        typer.echo(report.line(verdict))
        verdicts.append(verdict)
    for verdict in verdicts:
        if told := report.paragraph(verdict):
            typer.echo(f"\n{told}")
    typer.echo(f"\n{suite.title}: {report.counted(verdicts)}")
    if json is not None:
        report.write_json(json, report.as_json(verdicts, suite.subject, max_examples))
    return GOOD if all(verdict.good for verdict in verdicts) else FAILED
