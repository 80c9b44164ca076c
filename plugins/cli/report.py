"""The summary of a run on the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from interlock.core.config import EngineConfig
    from interlock.plugins.run.session import Answer

_LATENCIES = {"TTFT": "ttft_s", "TPOT": "tpot_s", "ITL": "itl_s", "e2e": "e2e_s", "queue": "queue_s"}
_PROMPT = 72  # characters of a prompt that are shown
_POINTS = ("p50", "p90", "p99", "max")


def print_summary(numbers: dict[str, Any], config: EngineConfig, place: Path) -> None:
    """Print the figures that people look at first. The rest is in summary.json."""
    console = Console(highlight=False)
    console.print(_latencies(numbers))
    for name, value in (*facts(numbers, config), ("folder", str(place))):
        # Names and paths are to be copied: nothing is wrapped or cut.
        console.print(Text.assemble((f"{name:13}", "bold"), value), soft_wrap=True)


def print_answers(answers: Sequence[Answer]) -> None:
    """Print what was asked in text, shortened, how it ended, and the answers as they are."""
    console = Console(highlight=False)
    for one in answers:
        asked = textwrap.shorten(one.prompt, _PROMPT, placeholder=" ...")
        console.print(Text.assemble((one.request_id, "bold"), f"  {asked}  ({one.finish_reason})"), soft_wrap=True)
        console.print(Text(textwrap.indent(one.text.strip(), "    ")), soft_wrap=True)


def facts(numbers: dict[str, Any], config: EngineConfig) -> Iterator[tuple[str, str]]:
    """Name and value of each line below the latencies."""
    yield "policies", " + ".join(spec.name for spec in config.policies) or "none (the core's defaults)"
    yield "requests", _counts(numbers["requests"])
    if "rejections" in numbers:
        yield "rejected", ", ".join(f"{count:,} {reason}" for reason, count in numbers["rejections"].items())
    yield "tokens", _counts(numbers["tokens"])
    yield "throughput", _throughput(numbers["throughput"])
    yield "preemptions", _counts(numbers["preemptions"])
    yield "cached", _share(numbers["tokens"]["cached"], numbers["tokens"]["prompt"]) + " of prompt tokens"
    yield "slo", _slo(numbers["slo"], config)
    yield "time", f"{numbers['makespan_s']:,.3f} s on the engine's clock, {numbers['wall_s']:,.3f} s of wall time"
    yield "scheduler", _share(numbers["scheduler_s"], numbers["wall_s"]) + f" of wall time, {numbers['steps']:,} steps"


def _latencies(numbers: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("seconds")
    for name in _POINTS:
        table.add_column(name, justify="right", no_wrap=True)
    for title, key in _LATENCIES.items():
        table.add_row(title, *(_number(numbers[key][name]) for name in _POINTS))
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4f}"


def _counts(counts: dict[str, int]) -> str:
    shown = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    return ", ".join(shown) or "none"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _throughput(rates: dict[str, float | None]) -> str:
    requests, tokens = rates["requests_per_s"], rates["output_tokens_per_s"]
    if requests is None or tokens is None:
        return "-"
    return f"{requests:,.3f} requests/s, {tokens:,.1f} output tokens/s"


def _slo(slo: dict[str, float | None], config: EngineConfig) -> str:
    attained, goodput = slo["attained"], slo["goodput_rps"]
    if attained is None:
        return "-"
    limits = {"ttft": config.slo.ttft_s, "tpot": config.slo.tpot_s}
    told = ", ".join(f"{name} {limit:g} s" for name, limit in limits.items() if limit is not None)
    rate = "" if goodput is None else f", goodput {goodput:,.3f} requests/s"
    return f"{attained:.1%} attained" + (f" ({told})" if told else "") + rate
