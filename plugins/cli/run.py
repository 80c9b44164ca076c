"""`interlock run`: a workload under a stack of policies, from configuration to run folder."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.plugins.cli import options
from interlock.plugins.cli.errors import FAILED, GOOD, INTERRUPTED, UNEXPECTED, complain

if TYPE_CHECKING:
    from interlock.core.config import EngineConfig
    from interlock.plugins.run.folder import RunFolder
    from interlock.plugins.run.session import Session


def run(
    config: options.Config,
    policy: options.Policy = None,
    sets: options.Set = None,
    seed: options.Seed = None,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Profile the run: profile.pstats and hooks.txt in the run folder.")
    ] = False,
    quiet: options.Quiet = False,
    log_level: options.Level = options.LogLevel.WARNING,
) -> int:
    """Run a workload, print a summary and write a run folder."""
    from interlock.core.config import EngineConfig
    from interlock.plugins.cli.logs import configure
    from interlock.plugins.run.folder import RunFolder
    from interlock.plugins.run.session import interruptible

    configure(log_level.value)
    with interruptible() as stopped:  # from the start: libraries that are interrupted while they load may swallow it
        loaded = EngineConfig.load(config, overrides=sets or (), policy=policy, seed=seed)
        folder = RunFolder(out, Path(loaded.origin).stem, overwrite)
        try:
            session = _execute(loaded, folder, stopped, profile, quiet)
            return _finish(session, folder, quiet)
        finally:
            folder.discard()


def _execute(config: EngineConfig, folder: RunFolder, stopped: Any, profile: bool, quiet: bool) -> Session:
    from interlock.plugins.cli.logs import debugging
    from interlock.plugins.cli.profile import profiled
    from interlock.plugins.cli.progress import progress
    from interlock.plugins.run.logs import TransitionLog
    from interlock.plugins.run.place import running_in
    from interlock.plugins.run.session import execute

    logs = [TransitionLog()] if debugging() else []
    timing = profiled(folder.scratch, config) if profile else nullcontext()
    with progress(config, quiet) as bars, running_in(folder.scratch), timing:
        return execute(config, [*bars, *logs], stopped)


def _finish(session: Session, folder: RunFolder, quiet: bool) -> int:
    """Write what the run left, say how it went, and return the exit code."""
    error = session.error
    if error is not None and not session.recorder.transitions:
        raise error
    numbers = session.summary()
    place = session.write(folder, numbers)
    if not quiet:
        from interlock.plugins.cli.report import print_answers, print_summary

        print_answers(session.answers())
        print_summary(numbers, session.config, place)
    if error is not None:
        return _failed(error, place)
    if session.interrupted:
        return complain(f"interrupted; what ran until then is in {place}", INTERRUPTED)
    return _judge(numbers)


def _failed(error: Exception, place: Path) -> int:
    from interlock.core.errors import InterlockError

    known = isinstance(error, InterlockError)
    what = str(error) if known else f"unexpected {type(error).__name__}: {error}"
    try:
        raise error
    except Exception:
        return complain(f"{what}; what ran until then is in {place}", getattr(error, "exit_code", UNEXPECTED))


def _judge(numbers: dict[str, Any]) -> int:
    """A run that drained is good unless something had to be forced or repaired on the way."""
    rescues = numbers["rescues"]
    faults = {
        "times progress needed force": rescues["forced"],
        "plans were repaired": rescues["repaired"],
        "rules were broken": numbers["violations"],
    }
    told = ", ".join(f"{what}: {count}" for what, count in faults.items() if count)
    return complain(told, FAILED) if told else GOOD
