"""`interlock replay`: a recorded run once more, and the first decision that is another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from interlock.plugins.cli import options
from interlock.plugins.cli.errors import FAILED, GOOD, INTERRUPTED, complain


def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")],
    sets: options.Set = None,
) -> int:
    """Run a recorded run again and compare its decisions.

    Exits with 0 where they are the same, with 1 and one paragraph about the first difference where they are not. The
    run's observers are left out; `--set plugins=[audit]` brings some in. Nothing is written.
    """
    from interlock.core.config import EngineConfig
    from interlock.plugins.cli.logs import configure
    from interlock.plugins.run.recorded import Recorded
    from interlock.plugins.run.replay import replay as compare
    from interlock.plugins.run.session import interruptible

    configure("warning")
    recorded = Recorded.read(folder)
    config = EngineConfig.load(recorded.config, overrides=["plugins=[]", *(sets or ())])
    same_executor = config.executor == EngineConfig.load(recorded.config, overrides=["plugins=[]"]).executor
    with interruptible() as stopped:
        verdict = compare(recorded, config, same_executor, stopped)
    if verdict.same is None:
        return complain(verdict.text, INTERRUPTED)
    typer.echo(verdict.text)
    return GOOD if verdict.same else FAILED
