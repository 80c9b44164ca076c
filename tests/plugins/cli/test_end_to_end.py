"""The command as users start it: a process of its own, the real engine, the files that it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interlock.plugins.cli.main import invoke

TABLES = ("requests", "steps", "transitions", "waits")
COMMAND = [sys.executable, "-m", "interlock.plugins.cli"]


def start(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env=os.environ | environment, timeout=120
    )


def run(*arguments: str) -> None:
    """Run a configuration in this process, with success and without a word."""
    assert invoke(["run", *arguments, "--quiet"]) == 0


def summary(folder: str) -> dict[str, Any]:
    """The summary in a run folder."""
    loaded: dict[str, Any] = json.loads(Path(folder, "summary.json").read_text())
    return loaded


def table(folder: str, name: str) -> pa.Table:
    """A table of a run folder."""
    return pq.read_table(f"{folder}/{name}.parquet")


def test_a_small_run_by_hand(here: Path) -> None:
    done = start("run", "small.yaml", "--out", "out")
    assert (done.returncode, done.stderr) == (0, "")
    # Prompts go first, one second each, then the two remaining tokens of `a`.
    rows = table("out", "requests").to_pylist()
    found = [{name: row[name] for name in ("request_id", "ttft_s", "tpot_s", "e2e_s", "token_times_s")} for row in rows]
    assert found == [
        {"request_id": "a", "ttft_s": 1.0, "tpot_s": 1.5, "e2e_s": 4.0, "token_times_s": [1.0, 3.0, 4.0]},
        {"request_id": "b", "ttft_s": 1.0, "tpot_s": None, "e2e_s": 1.0, "token_times_s": [2.0]},
    ]
    numbers = summary("out")
    assert (numbers["steps"], numbers["makespan_s"], numbers["lengths_known"]) == (4, 4.0, True)
    assert numbers["tokens"] == {"prompt": 6, "cached": 0, "output": 4, "recomputed": 0}
    assert numbers["throughput"] == {"requests_per_s": 0.5, "output_tokens_per_s": 1.0}
    (policy,) = numbers["versions"]["policies"]
    assert len(policy["source_hash"]) == 16


def test_piped_output_is_plain_text() -> None:
    done = start("run", "small.yaml")
    assert "runs/small-001" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def generated(here: Path, count: int) -> None:
    """A configuration of many requests, some of whose decodes go on for long."""
    (here / "many.yaml").write_text(f"""
policies: [./mine.py:Mine]
engine: {{max_num_seqs: 8}}
kv: {{num_blocks: 200, reserve: none}}
executor: {{simulated: {{cost: {{linear: {{base_s: 0.005, prefill_token_s: 2.0e-5, decode_token_s: 1.0e-4}}}}}}}}
workload:
  generate:
    count: {count}
    arrivals: {{poisson: {{rate: 4.0}}}}
    prompt: {{lognormal: {{mean: 64, sigma: 0.8}}}}
    output: {{geometric: {{mean: 32}}}}
""")


@pytest.mark.parametrize("variant", [["--set", "engine.max_repeat=1"], ["--set", "engine.max_repeat=3"]])
def test_digest_and_files_do_not_show_stretches_or_processes(here: Path, variant: list[str]) -> None:
    generated(here, 60)
    run("many.yaml", "--out", "one")
    assert start("run", "many.yaml", "--out", "two", *variant, PYTHONHASHSEED="2").returncode == 0
    assert summary("one")["digest"] == summary("two")["digest"]
    for name in TABLES:
        host = ["host_s"] if name == "steps" else []
        assert table("one", name).drop(host) == table("two", name).drop(host)


def test_another_seed_is_another_run(here: Path) -> None:
    generated(here, 20)
    run("many.yaml", "--out", "one")
    run("many.yaml", "--out", "two", "--seed", "1")
    assert summary("one")["digest"] != summary("two")["digest"]


def test_the_resolved_configuration_runs_again_to_the_same_digest(here: Path) -> None:
    generated(here, 20)
    run("many.yaml", "--out", "one")
    run("one/config.yaml", "--out", "two")
    assert summary("one")["digest"] == summary("two")["digest"]


def test_tables_agree_with_each_other(here: Path) -> None:
    generated(here, 60)
    run("many.yaml", "--out", "out")
    numbers, requests, steps = summary("out"), table("out", "requests"), table("out", "steps").to_pylist()
    emitted = sum(one["emitted"] * row["repeat"] for row in steps for one in row["members"])
    assert emitted == numbers["tokens"]["output"] == sum(requests["output_tokens"].to_pylist())
    assert sum(row["repeat"] for row in steps) == numbers["steps"]
    assert all(len(row["ends_s"]) == row["repeat"] for row in steps)
    assert [row["step"] for row in steps[1:]] == [row["step"] + row["repeat"] for row in steps[:-1]]
    assert sorted(number for row in steps for number in row["finished"]) == requests["request"].to_pylist()
    for row in requests.to_pylist():
        parts = [row[name] for name in ("queue_s", "prefill_s", "decode_s", "preempted_s", "transfer_s")]
        assert sum(parts) == pytest.approx(row["e2e_s"])
        assert row["token_times_s"][0] == row["first_token_s"]
        assert row["token_times_s"][-1] <= row["finished_s"]


def test_a_hook_that_raises_is_one_line_and_code_1(here: Path) -> None:
    text = (here / "mine.py").read_text()
    (here / "mine.py").write_text(text.replace('offer.sort_by("arrival")', "raise ValueError('not today')"))
    done = start("run", "small.yaml", "--out", "out", "--quiet")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "admit" in done.stderr
    assert "ValueError: not today" in done.stderr


def test_profile_times_the_hooks(here: Path) -> None:
    run("small.yaml", "--out", "out", "--profile")
    policy, hook, calls, *_ = Path("out/hooks.txt").read_text().splitlines()[1].split()
    assert (policy.endswith("mine.py:Mine"), hook, int(calls) > 0) == (True, "admit", True)


def test_ctrl_c(here: Path) -> None:
    generated(here, 2_000_000)
    arguments = ["run", "many.yaml", "--out", "out", "-q", "--log-level", "debug"]
    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while '"to": "FINISHED"' not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    last = err.splitlines()[-1]
    assert (process.returncode, last) == (130, "interlock: interrupted; what ran until then is in out")
    numbers = summary("out")
    assert numbers["interrupted"] is True
    assert len(table("out", "requests")) == numbers["requests"]["finished"] > 0
