"""`interlock replay`: the same decisions, the first other one, and folders that are none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from interlock.plugins.cli.main import invoke

CONFIG: dict[str, Any] = {
    "engine": {"max_num_seqs": 2},
    "kv": {"num_blocks": 16, "block_size": 4},
    "policies": [{"priority": {"preempt": "offload"}}, "mixed"],
    "executor": {"simulated": {"cost": {"constant": {"step_s": 1.0}}}},
    "workload": {
        "requests": [
            {"id": "first", "arrival": 0.0, "prompt": 8, "output": 5, "priority": 1},
            {"id": "second", "arrival": 0.0, "prompt": 8, "output": 30, "priority": 1},
            {"id": "urgent", "arrival": 3.0, "prompt": 6, "output": 3, "priority": 0},
        ]
    },
}
LOOPED = {
    "engine": {"max_num_seqs": 4, "prompt": "split"},
    "policies": ["fcfs", "refill"],
    "executor": {
        "simulated": {"cost": {"constant": {"step_s": 1.0}}, "model": {"loops": 3, "exit": {"trace": [3, 1]}}}
    },
}


def record(folder: str = "out", config: dict[str, Any] | None = None, *, code: int = 0) -> None:
    """Run a configuration into a folder."""
    Path("recorded.yaml").write_text(yaml.safe_dump(config or CONFIG))
    assert invoke(["run", "recorded.yaml", "--out", folder, "--quiet", "--overwrite"]) == code


def replay(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code, and what was said: the verdict on stdout, what is wrong on stderr."""
    capsys.readouterr()
    code = invoke(["replay", *arguments])
    said = capsys.readouterr()
    assert bool(said.out) == (code < 2)
    return code, said.out or said.err


@pytest.mark.parametrize("config", [CONFIG, {**CONFIG, **LOOPED}], ids=["dense", "looped"])
def test_a_run_decides_the_same_again(config: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    record("out", config)
    code, said = replay(capsys, "out")
    assert code == 0 and said.startswith("out: the replay decides the same: ")
    steps = json.loads(Path("out/summary.json").read_text())["steps"]
    moves = pq.read_table("out/transitions.parquet").num_rows
    assert f"{steps} batches and {moves} transitions" in said


@pytest.mark.parametrize("repeat", [1, 2, 7])
def test_stretches_do_not_matter(repeat: int, capsys: pytest.CaptureFixture[str]) -> None:
    record()
    assert replay(capsys, "out", "--set", f"engine.max_repeat={repeat}")[0] == 0
    record("single", {**CONFIG, "engine": {**CONFIG["engine"], "max_repeat": repeat}})
    assert replay(capsys, "single", "--set", "engine.max_repeat=null")[0] == 0


def test_another_policy_is_named_by_its_first_decision(capsys: pytest.CaptureFixture[str]) -> None:
    record()
    # The urgent request comes at 3 s. Recorded: it takes the slot of `second`; under `fcfs` nobody gives way.
    code, said = replay(capsys, "out", "--set", "policies=fcfs+mixed")
    assert code == 1
    assert said.startswith("out: the replay first differs at step 3 (3 s). Recorded: 'second' from ACTIVE to WAITING")
    assert "offloaded, at step 3 (3 s). Now: no such transition there." in said
    assert "Before that, 3 batches and 5 transitions are the same." in said and said.count("\n") == 1


def test_another_mode_of_preemption(capsys: pytest.CaptureFixture[str]) -> None:
    record()
    code, said = replay(capsys, "out", "--set", "policies.0.priority.preempt=recompute")
    assert code == 1
    assert "Recorded: 'second' from ACTIVE to WAITING, offloaded" in said
    assert "Now: 'second' from ACTIVE to WAITING, recompute" in said


def test_a_batch_that_is_another(capsys: pytest.CaptureFixture[str]) -> None:
    record()
    code, said = replay(capsys, "out", "--set", "engine.long_prefill_token_threshold=5")
    assert code == 1
    assert "Recorded: FORWARD of 16 tokens for 'first' PROMPT_ATOMIC 8, 'second' PROMPT_ATOMIC 8." in said
    assert "Now: FORWARD of 10 tokens for 'first' PROMPT_ATOMIC 5, 'second' PROMPT_ATOMIC 5." in said


def test_an_order_within_a_batch_is_a_decision(capsys: pytest.CaptureFixture[str]) -> None:
    record()
    order = "policies=[{priority: {preempt: offload}}, {mixed: {order: decode_first}}]"
    code, said = replay(capsys, "out", "--set", order)
    assert code == 0, "at 3 s `first` decodes before the prompt of `urgent` in either order"
    reverse = f"policies=[{{priority: {{preempt: offload}}}}, mixed, {__file__}:Backwards]"
    code, said = replay(capsys, "out", "--set", reverse)
    assert code == 1 and "first differs at step 1 (1 s)" in said
    assert "Now: FORWARD of 2 tokens for 'second' DECODE_ATOMIC 1, 'first' DECODE_ATOMIC 1." in said


def test_the_rest_of_either_run_is_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    record()
    fewer = "workload.requests.1.output=29"
    code, said = replay(capsys, "out", "--set", fewer)
    assert code == 1 and "'second' from ACTIVE to FINISHED, stop" in said
    record("less", {**CONFIG, "workload": {"requests": CONFIG["workload"]["requests"][:2]}})
    code, said = replay(capsys, "less", "--set", "workload.requests.1.output=31")
    assert code == 1 and "first differs at step 30 (30 s)" in said


def test_times_count_with_the_same_executor_only(capsys: pytest.CaptureFixture[str]) -> None:
    config = {**CONFIG, "workload": {"requests": CONFIG["workload"]["requests"][:2]}}
    record("out", config)
    code, said = replay(capsys, "out", "--set", "executor.simulated.cost.constant.step_s=0.5")
    assert code == 0 and "times are not compared, the executor is another" in said
    move_the_end_of_batch(Path("out"), 0)
    code, said = replay(capsys, "out")
    assert code == 1 and "The batch is the same." in said
    assert "Recorded: begun at 0 s, ended at 1.25 s. Now: begun at 0 s, ended at 1 s." in said


def move_the_end_of_batch(folder: Path, row: int) -> None:
    """Record another end for a batch."""
    table = pq.read_table(folder / "steps.parquet")
    ends = table["ends_s"].to_pylist()
    ends[row][0] += 0.25
    at = table.column_names.index("ends_s")
    pq.write_table(table.set_column(at, "ends_s", pa.array(ends)), folder / "steps.parquet")


def test_an_edited_policy_is_said_to_be_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one_slot = {"engine": {"max_num_seqs": 1}, "policies": ["./mine.py:Mine", "mixed"]}
    record("out", {**CONFIG, **one_slot})
    assert replay(capsys, "out")[0] == 0
    other = here / "other.py"
    other.write_text(
        (here / "mine.py").read_text().replace("'arrival'", "'-arrival'").replace('"arrival"', '"-arrival"')
    )
    shutil.copytree("out", "edited")
    text = Path("edited/config.yaml").read_text().replace("mine.py", "other.py")
    Path("edited/config.yaml").write_text(text)
    numbers = json.loads(Path("edited/summary.json").read_text())
    numbers["versions"]["policies"][0]["name"] = f"{other}:Mine"
    Path("edited/summary.json").write_text(json.dumps(numbers))
    code, said = replay(capsys, "edited")
    assert code == 1 and f"Not as recorded: policy {other}:Mine." in said


def test_an_interrupted_run_is_compared_as_far_as_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    record("out", {**CONFIG, "plugins": [f"{__file__}:Interrupts"]}, code=130)
    assert json.loads(Path("out/summary.json").read_text())["interrupted"] is True
    code, said = replay(capsys, "out")
    assert code == 0 and "there the recorded run was interrupted" in said
    assert replay(capsys, "out", "--set", "policies=fcfs+mixed")[0] == 1
    assert replay(capsys, "out", "--set", "engine.max_repeat=1")[0] == 0


def test_a_run_that_an_error_ended(capsys: pytest.CaptureFixture[str]) -> None:
    record("out", {**CONFIG, "policies": [*CONFIG["policies"], f"{__file__}:Raises"]}, code=1)
    code, said = replay(capsys, "out")
    assert code == 0 and "both end with HookError" in said
    code, said = replay(capsys, "out", "--set", "engine.on_violation=repair")
    assert code == 0 and "there the recorded run ended with HookError" in said and "and the replay did not" in said
    record("good")
    good = f"policies=[{{priority: {{preempt: offload}}}}, mixed, {__file__}:Raises]"
    code, said = replay(capsys, "good", "--set", good)
    assert code == 1 and "then ends with HookError" in said and "the recorded run did not" in said


def test_folders_without_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    record("out", {**CONFIG, "records": {"tokens": False}})
    assert replay(capsys, "out")[0] == 0


def test_observers_of_the_run_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    record("out", {**CONFIG, "plugins": ["audit", {"trace": {"path": "kept.jsonl"}}]})
    Path("kept.jsonl").write_text("kept")
    assert replay(capsys, "out")[0] == 0
    assert Path("kept.jsonl").read_text() == "kept"
    assert replay(capsys, "out", "--set", "plugins=[audit]")[0] == 0


def test_every_packaged_kind_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("fixture", "preemption"):
        assert invoke(["run", name, "--out", name, "--quiet"]) == 0
        assert replay(capsys, name)[0] == 0
    assert invoke(["run", "code_bursts", "--set", "workload.trace.limit=60", "--out", "bursts", "--quiet"]) == 0
    assert replay(capsys, "bursts", "--set", "engine.max_repeat=1")[0] == 0


# -- wrong input: one line, exit code 2


def wrong(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line on stderr of a command that is wrong."""
    code, said = replay(capsys, *arguments)
    assert code == 2 and said.count("\n") == 1
    return said


def test_what_is_no_run_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "found no such folder, allowed: a run folder" in wrong(capsys, "nowhere")
    assert "found a file" in wrong(capsys, "small.yaml")
    (here / "empty").mkdir()
    assert "found no config.yaml in it" in wrong(capsys, "empty")
    assert "DIR" in wrong(capsys)


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "steps.parquet", "transitions.parquet"])
def test_a_file_that_is_missing_or_damaged(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    record()
    Path("out", name).write_text("{not: [what it was")
    assert "out" in wrong(capsys, "out")
    Path("out", name).unlink()
    assert f"found no {name} in it" in wrong(capsys, "out")


def test_a_column_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    record()
    path = Path("out/steps.parquet")
    pq.write_table(pq.read_table(path).drop_columns(["members"]), path)
    assert "steps.parquet has no column 'members'" in wrong(capsys, "out")


def test_a_trace_that_is_gone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = here / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0.0,8,3\n0.5,4,2\n")
    record("out", {**CONFIG, "workload": {"trace": {"path": "trace.csv"}}})
    assert replay(capsys, "out")[0] == 0
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0.0,8,3\n0.5,4,3\n")
    code, said = replay(capsys, "out")
    assert code == 1 and said.rstrip().endswith("Not as recorded: trace.")
    trace.unlink()
    assert "trace.csv" in wrong(capsys, "out")


def test_a_wrong_set(capsys: pytest.CaptureFixture[str]) -> None:
    record()
    assert "--set engine.max_num_seq" in wrong(capsys, "out", "--set", "engine.max_num_seq=3")
    assert "KEY=VALUE" in wrong(capsys, "out", "--set", "engine")


# -- what the configurations above name


class Interrupts:
    """An observer that presses Ctrl-C at 5 seconds."""

    def on_boundary(self, record: Any) -> None:
        """Press it."""
        import os
        import signal

        if record.time_s == 5.0:
            os.kill(os.getpid(), signal.SIGINT)


from interlock.core import Plan, Policy, View  # noqa: E402


class Backwards(Policy):
    """From 1 s on, the last admitted runs first."""

    def select(self, plan: Plan, view: View) -> None:
        """Turn the order round."""
        if view.now >= 1.0:
            plan.reorder(plan.rows[::-1].copy())


class Raises(Policy):
    """Raises at 5 seconds."""

    def select(self, plan: Plan, view: View) -> None:
        """Raise."""
        if view.now == 5.0:
            raise RuntimeError("no")
