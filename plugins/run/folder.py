"""The run folder: checked before the run, written beside its place, and moved there whole."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interlock.core.errors import ConfigError, InterlockError

if TYPE_CHECKING:
    import pyarrow as pa

RUNS = Path("runs")
SUMMARY, CONFIG = "summary.json", "config.yaml"


class RunFolder:
    """Where a run goes: `out`, or the next free `runs/NAME-001` and up.

    Nothing is at the final place until `publish`. `scratch` is a folder beside it for files that come before that.
    Raises ConfigError, one line, when the place is taken (unless `overwrite`) or cannot be written.
    """

    def __init__(self, out: Path | None, name: str = "run", overwrite: bool = False, runs: Path = RUNS) -> None:
        self.out, self.name, self.overwrite = out, _plain(name), overwrite
        if out is not None:
            _check_free(out, overwrite)
        self.kept = False
        self.parent = (runs if out is None else _real(out).parent).absolute()
        self.scratch = self.parent / f".{self.name}-{secrets.token_hex(4)}.partial"
        try:
            self.scratch.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(
                f"{self.parent}: cannot be written: {error.strerror or error}; --out names another"
            ) from None

    def write(self, config: Mapping[str, Any], summary: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> Path:
        """Write all files and move them to their place, which is returned. Raises InterlockError if that fails."""
        import pyarrow.parquet as pq

        from interlock.core.yamlfile import dumps

        try:
            (self.scratch / CONFIG).write_text(dumps(dict(config)), "utf-8")
            for name, table in tables.items():
                pq.write_table(table, self.scratch / f"{name}.parquet", compression="zstd")
            (self.scratch / SUMMARY).write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", "utf-8")
            return self.publish()
        except OSError as error:
            self.kept = True
            why = error.strerror or error
            raise InterlockError(f"{self.parent}: the run cannot be written: {why}; see {self.scratch}") from error

    def publish(self) -> Path:
        """Move `scratch` to its place and return that."""
        if self.out is None:
            return self._next()
        _replace(self.scratch, _real(self.out), self.overwrite)
        return self.out

    def discard(self) -> None:
        """Leave no trace of a run that came to nothing. Harmless after `write`; what that could not place is kept."""
        if not self.kept:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _next(self) -> Path:
        number = _last_number(self.parent, self.name) + 1
        while True:
            place = self.parent / f"{self.name}-{number:03}"
            try:
                # Of two runs that end at once, only one can make the folder.
                place.mkdir()
            except FileExistsError:
                number += 1
                continue
            self.scratch.rename(place)
            return Path(os.path.relpath(place))


def _plain(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", name).strip(".-") or "run"


def _real(path: Path) -> Path:
    """Where a path leads: a folder behind a link is replaced, not the link."""
    return Path(os.path.realpath(path))


def _check_free(out: Path, overwrite: bool) -> None:
    try:
        if not out.exists():
            return
        if not out.is_dir():
            raise ConfigError(f"{out}: found a file, allowed: a folder that is new or empty")
        if any(out.iterdir()) and not overwrite:
            raise ConfigError(f"{out}: found a folder that is not empty, allowed: a new or empty one, or --overwrite")
        if not os.access(out, os.W_OK | os.X_OK):
            raise ConfigError(f"{out}: cannot be written: Permission denied; --out names another")
    except OSError as error:
        raise ConfigError(f"{out}: cannot be read: {error.strerror or error}; --out names another") from None


def _last_number(parent: Path, name: str) -> int:
    pattern = re.compile(re.escape(name) + r"-(\d{3,})")
    numbers = [int(match[1]) for one in parent.iterdir() if (match := pattern.fullmatch(one.name))]
    return max(numbers, default=0)


def _replace(source: Path, place: Path, overwrite: bool) -> None:
    """Put `source` at `place`. An old run there goes as a whole; of another folder, strangers' files stay."""
    if not overwrite or not place.exists() or not any(place.iterdir()):
        source.rename(place)
    elif (place / SUMMARY).is_file() and (place / CONFIG).is_file():
        old = source.with_suffix(".old")
        place.rename(old)
        source.rename(place)
        shutil.rmtree(old)
    else:
        # The summary comes last: who finds one finds the rest.
        for one in sorted(source.iterdir(), key=lambda path: path.name == SUMMARY):
            one.replace(place / one.name)
        source.rmdir()


def refuse_what_is_no_run(folder: Path, files: Sequence[str]) -> None:
    """ConfigError, one line, for a folder that is not there or lacks one of these files of a run."""
    if not folder.is_dir():
        found = "a file" if folder.exists() else "no such folder"
        raise ConfigError(f"{folder}: found {found}, allowed: a run folder, as `interlock run` writes it")
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"{folder}: found no {missing[0]} in it, allowed: a run folder, with {', '.join(files)}")
