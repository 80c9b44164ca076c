"""Every packaged configuration loads, shows itself, and runs to the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from interlock.core import EngineConfig
from interlock.core.yamlfile import read_file
from interlock.plugins.cli.main import invoke

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
# Long enough to be worth looking at on a terminal, longer than a test has to be.
SHORTER = {"common": ["workload.generate.count=400"], "smollm": ["workload.max_tokens=4"]}
REAL = {"smollm"}  # a real model, whose steps take as long as they take
MODEL = Path(__file__).parents[1] / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def runnable(path: Path) -> Path:
    """A configuration that can run here: a real model needs its file, which is no part of the checkout."""
    if path.stem in REAL and not MODEL.is_file():
        pytest.skip(f"{MODEL.name} is not there: `make run-model` fetches it")
    return path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_runs_to_the_end(runnable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # its relative paths are relative to the file, wherever it is run from
    sets = [word for one in SHORTER.get(runnable.stem, []) for word in ("--set", one)]
    assert invoke(["run", str(runnable), *sets, "--out", "out", "--quiet"]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    requests = summary["requests"]
    assert requests["submitted"] == requests["finished"] + requests["cancelled"] > 0
    assert summary["slo"]["attained"] is not None


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_is_packaged_and_resolves_to_itself(path: Path) -> None:
    config = EngineConfig.load(path.stem)
    assert config == EngineConfig.load(path)
    assert EngineConfig.load(config.resolved()) == config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_begins_by_saying_what_it_is_for(path: Path) -> None:
    assert path.read_text("utf-8").startswith("# ")
    assert read_file(path).data


def test_the_data_are_described() -> None:
    data = CONFIGS[0].parent / "data"
    told = (data / "README.md").read_text("utf-8")
    assert [path.name for path in data.iterdir() if path.suffix != ".md" and f"`{path.name}`" not in told] == []


def test_every_data_file_is_used() -> None:
    used = "".join(path.read_text("utf-8") for path in CONFIGS)
    assert [p.name for p in (CONFIGS[0].parent / "data").glob("*.csv") if f"data/{p.name}" not in used] == []


@pytest.mark.soak
@pytest.mark.parametrize("path", [path for path in CONFIGS if path.stem not in REAL], ids=lambda path: path.stem)
def test_single_steps_leave_the_same_digest(path: Path, tmp_path: Path) -> None:
    """Whether equal steps run one by one or as stretches, at full length."""
    sets = ["--set", "workload.generate.count=10000"] if path.stem == "common" else []
    digests = set()
    for repeat in ("null", "1"):
        words = ["run", str(path), *sets, "--set", f"engine.max_repeat={repeat}", "--out", str(tmp_path / repeat)]
        assert invoke([*words, "--quiet"]) == 0
        digests.add(json.loads((tmp_path / repeat / "summary.json").read_text())["digest"])
    assert len(digests) == 1
