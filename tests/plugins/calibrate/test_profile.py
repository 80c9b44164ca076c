"""The file: the simulator reads it, and a run is simulated again as it was recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interlock.core.config import EngineConfig
from interlock.core.errors import ConfigError
from interlock.executors.costs.profile import load_profile
from interlock.plugins.calibrate import calibrate
from interlock.plugins.run.folder import RunFolder
from interlock.plugins.run.session import execute

from .runs import TRUE, back_to_back, loads, run_folder

GENERATE = {
    "count": 60,
    "arrivals": {"poisson": {"rate": 8.0}},
    "prompt": {"lognormal": {"mean": 200, "sigma": 0.8}},
    "output": {"geometric": {"mean": 20}},
}
LINEAR = {"base_s": 0.008, "prefill_token_s": 1e-4, "decode_token_s": 3e-4, "context_token_s": 4e-7}
LOOPED = {"model": {"loops": 3, "exit": {"trace": [3, 1, 2]}}}


def simulated(
    cost: dict[str, Any],
    folder: Path,
    policy: str = "fcfs+mixed",
    count: int = 60,
    prompt: str = "atomic",
    **options: Any,
) -> dict[str, Any]:
    """Run the requests at this cost into a folder; its summary."""
    sections = {
        "engine": {"max_num_seqs": 16, "max_num_batched_tokens": 256, "prompt": prompt},
        "executor": {"simulated": {"cost": cost, **options}},
        "workload": {"generate": {**GENERATE, "count": count}},
    }
    session = execute(EngineConfig.load(sections, policy=policy))
    numbers = session.summary()
    session.write(RunFolder(folder), numbers)
    return numbers


def predicted(folder: Path, **options: Any) -> dict[str, Any]:
    """Calibrate on this run, and run the same requests with what was found."""
    place = folder / "profile.json"
    calibrate(folder).write(place)
    return simulated({"profile": {"path": str(place)}}, folder.parent / "predicted", **options)


def test_the_simulator_reads_it(tmp_path: Path) -> None:
    design = loads(100)
    found = calibrate(run_folder(tmp_path / "run", back_to_back(design, design @ TRUE)))
    found.write(tmp_path / "profile.json")
    profile = load_profile(tmp_path / "profile.json")
    assert np.array(profile.coefficients.coefficients()) == pytest.approx(TRUE, rel=1e-4)
    assert profile.operations == {}
    assert profile.about["rows"] == 100 and profile.about["set_aside"] == 0


@pytest.mark.parametrize("cost", [{"linear": LINEAR}, {"constant": {"step_s": 0.25}}], ids=["linear", "constant"])
def test_a_linear_run_is_simulated_again_to_the_nanosecond(tmp_path: Path, cost: dict[str, Any]) -> None:
    recorded = simulated(cost, tmp_path / "run")
    again = predicted(tmp_path / "run")
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert again[name] == pytest.approx(recorded[name], rel=1e-6)
    assert again["steps"] == recorded["steps"]


def test_a_constant_comes_out_as_it_was_written(tmp_path: Path) -> None:
    simulated({"constant": {"step_s": 0.25}}, tmp_path / "run")
    found = calibrate(tmp_path / "run")
    assert list(found.default.coefficients.values()) == [0.25, 0, 0, 0, 0]
    assert found.default.error == pytest.approx(0, abs=1e-12)


def test_a_device_s_limits_are_predicted_within_a_tenth(tmp_path: Path) -> None:
    recorded = simulated({"roofline": {"model": "llama-3-8b", "device": "a100-80gb"}}, tmp_path / "run")
    again = predicted(tmp_path / "run")
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        for point in ("mean", "p90"):
            assert again[name][point] == pytest.approx(recorded[name][point], rel=0.1), (name, point)


@pytest.mark.parametrize("prompt", ["atomic", "split"])
def test_each_stage_of_a_looped_model_has_its_own(tmp_path: Path, prompt: str) -> None:
    cost = {"constant": {"step_s": 0.03, "prelude_s": 0.002, "recurrent_s": 0.005, "coda_s": 0.001}}
    options = {"policy": "fcfs+refill", "prompt": prompt, "count": 12, **LOOPED}
    recorded = simulated(cost, tmp_path / "run", **options)
    again = predicted(tmp_path / "run", **options)
    assert again["e2e_s"] == pytest.approx(recorded["e2e_s"], rel=1e-6)
    profile = load_profile(tmp_path / "run" / "profile.json")
    stages = {name: each.base_s for name, each in profile.operations.items()}
    expected = {"prelude": 0.002, "recurrent": 0.005, "coda": 0.001}
    assert stages == (expected if prompt == "split" else {**expected, "forward": 0.03})
    if prompt == "atomic":
        assert profile.coefficients.base_s == 0.03


def test_what_it_is_about(tmp_path: Path) -> None:
    config = "executor:\n  torch: {model: /models/smollm.gguf, device: cpu}\n"
    design = loads(20)
    found = calibrate(run_folder(tmp_path / "run", back_to_back(design, design @ TRUE), config))
    assert found.about["executor"] == "torch" and found.about["model"] == "smollm.gguf" and found.about["run"] == "run"
    plain = calibrate(run_folder(tmp_path / "run", back_to_back(design, design @ TRUE))).about
    assert plain["executor"] == "simulated" and "model" not in plain
    assert "executor" not in calibrate(run_folder(tmp_path / "run", back_to_back(design, design @ TRUE), "[]")).about
    seconds = design @ TRUE
    seconds[3] *= 50
    aside = calibrate(run_folder(tmp_path / "run", back_to_back(design, seconds))).default
    assert aside.aside == 1 and aside.aside_s == pytest.approx(seconds[3], abs=1e-8)
    assert aside.total_s == pytest.approx(seconds.sum())


def test_what_the_run_did_not_show(tmp_path: Path) -> None:
    design = loads(20)
    design[:, [1, 4]] = 0
    found = calibrate(run_folder(tmp_path / "run", back_to_back(design, design @ TRUE))).default
    assert found.seen == {"base_s", "decode_token_s", "context_token_s"}
    assert found.coefficients["prefill_token_s"] == 0


# -- writing


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of ten calls."""
    return run_folder(tmp_path / "run", back_to_back(loads(10), loads(10) @ TRUE))


def test_a_profile_is_replaced_and_nothing_else_is(run: Path) -> None:
    found = calibrate(run)
    place = run / "profile.json"
    found.write(place)
    found.write(place)
    assert json.loads(place.read_text())["format"] == "interlock-cost-profile"
    assert sorted(path.name for path in run.iterdir()) == ["config.yaml", "profile.json", "steps.parquet"]
    for other in (run / "config.yaml", run / "steps.parquet", run):
        with pytest.raises(ConfigError, match="allowed: a cost profile, which is replaced, or a name that is free"):
            found.write(other)


def test_a_place_that_is_not_there(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"profile\.json: cannot be written: No such file or directory; --out names"):
        calibrate(run).write(run / "absent" / "profile.json")
