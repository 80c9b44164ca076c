"""Prompts that are text: the command line prints the answers, and the run folder has them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from interlock.plugins.cli.main import invoke

EXECUTOR = """
from interlock.executors.simulated.executor import Simulated

class Echo:
    def encode(self, text):
        return [ord(one) for one in text]

    def decode(self, ids):
        return f"{len(ids)} words\\nand more"

class Says(Simulated):
    tokenizer = Echo()
"""

CONFIG = """
policies: [fcfs]
executor: {./says.py:Says: {cost: {constant: {step_s: 1.0}}}}
workload:
  requests:
    - {id: late, arrival: 5.0, text: "one  two\\nthree", output: 2}
    - {id: counted, prompt: 4, output: 3}
    - {id: twice, text: "WORDS", output: 4}
    - {id: twice, arrival: 9.0, text: "again", output: 1, cancel_at: 9.0}
    - {text: "", output: 1}
"""


@pytest.fixture
def talk(here: Path) -> Path:
    """A configuration whose executor has a tokenizer."""
    (here / "says.py").write_text(EXECUTOR)
    (here / "talk.yaml").write_text(CONFIG.replace("WORDS", "many words " * 20))
    return here / "talk.yaml"


def test_answers_are_printed_in_the_order_of_arrival(talk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", str(talk), "--out", "out"]) == 0
    words = "many words " * 5
    answers = capsys.readouterr().out.split("  seconds")[0].rstrip().splitlines()
    assert [line.rstrip() for line in answers] == [
        f"twice  {words}many words ...  (stop)",
        "    4 words",
        "    and more",
        "r4    (rejected)",
        "    0 words",
        "    and more",
        "late  one two three  (stop)",
        "    2 words",
        "    and more",
        "twice  again  (cancelled)",
        "    0 words",
        "    and more",
    ]
    text = pq.read_table("out/requests.parquet")["output_text"].to_pylist()
    assert text[0] == "3 words\nand more"


def test_quiet_is_quiet(talk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", str(talk), "--out", "out", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_a_tokenizer_changes_no_digest(here: Path, talk: Path) -> None:
    digests = []
    for name in ("says.py:Says", "says.py:Simulated"):
        sets = ["--set", f"executor=./{name}", "--set", "workload.requests=[{prompt: 4, output: 3}]"]
        assert invoke(["run", str(talk), *sets, "--out", name.replace(":", "-"), "--quiet"]) == 0
        folder = Path(name.replace(":", "-"))
        digests.append(json.loads((folder / "summary.json").read_text())["digest"])
        assert ("output_text" in pq.read_table(folder / "requests.parquet").column_names) == (name == "says.py:Says")
    assert len(set(digests)) == 1
