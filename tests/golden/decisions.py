"""Golden decision logs: what each workload here decides, step by step, as one line a decision.

    python tests/golden/decisions.py            compare, and show what differs
    python tests/golden/decisions.py --write    replace the logs in this folder by what is decided now

A log is replaced by `--write` only, after its difference has been read and is what was meant. `derived` in each file
explains some of its steps by hand; where they change, so does that text.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from interlock.core import Batch, BoundaryRecord, Engine, EngineConfig, WorkKey

FOLDER = Path(__file__).parent
LOGS = sorted(FOLDER.glob("*.json"))


def log_of(config: dict[str, Any]) -> list[str]:
    """The decisions of a configuration: transitions and batches in the order in which they were made."""
    names: dict[int, str] = {}
    quiet = {"max_repeat": 1, "hook_warn_s": 60.0}  # a busy host must not write into the comparison
    engine = Engine.from_config(EngineConfig.load({**config, "engine": {**config["engine"], **quiet}}))
    return [line for record in engine.run() for line in _lines(record, names)]


def _lines(record: BoundaryRecord, names: dict[int, str]) -> Iterator[str]:
    at = f"{record.time_s:g}"
    for one in record.transitions:
        names[one.request] = one.request_id
        origin = "new" if one.from_status is None else one.from_status.name
        yield f"{at}: {one.request_id} {origin} -> {one.to_status.name} {one.reason}"
    if record.batch is not None:
        yield f"{at}: {record.batch.operation.name} {_members(record.batch, names)}"


def _members(batch: Batch, names: dict[int, str]) -> str:
    """`name WORK start+tokens`, with the depth where the work has one."""
    rows = zip(*(x.tolist() for x in (batch.numbers, batch.work, batch.start, batch.tokens, batch.loop)), strict=True)
    told = []
    for number, work, start, tokens, depth in rows:
        key = WorkKey(work)
        inside = f" depth {depth}" if key in (WorkKey.PROMPT_RECURRENT, WorkKey.DECODE_RECURRENT) else ""
        told.append(f"{names[number]} {key.name} {start}+{tokens}{inside}")
    return ", ".join(told)


def load(path: Path) -> dict[str, Any]:
    """A golden log: `derived`, `config`, `decisions`."""
    golden: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return golden


def difference(path: Path) -> str:
    """What is decided now against what the log says, as a diff; empty when it is the same."""
    golden = load(path)
    lines = difflib.unified_diff(golden["decisions"], log_of(golden["config"]), path.name, "now", lineterm="", n=2)
    return "\n".join(lines)


def write(path: Path) -> None:
    """Replace the decisions of a log by those of now."""
    golden = load(path)
    golden["decisions"] = log_of(golden["config"])
    path.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n", "utf-8")


def main() -> int:
    """Compare all logs, or with `--write` replace them. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace the logs that differ")
    options = parser.parse_args()
    changed = {path: text for path in LOGS if (text := difference(path))}
    for path, text in changed.items():
        print(text)
        if options.write:
            write(path)
            print(f"{path.name}: replaced")
    return 1 if changed and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
