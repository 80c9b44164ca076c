"""`interlock new policy`: what it refuses, what it writes, and that the project's own tests pass once installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from interlock.core import EngineConfig
from interlock.core.yamlfile import read_text
from interlock.plugins.cli.main import invoke
from interlock.plugins.scaffold.project import POLICY

ROOT = Path(__file__).parents[3]
TEMPLATES = ROOT / "plugins" / "scaffold" / "templates"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def project(here: Path) -> Path:
    """A new project."""
    assert invoke(["new", "policy", "short_first"]) == 0
    return here / "interlock-short-first"


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Output of a command that succeeds, run as if from nowhere near the checkout."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=clean | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def install_by_hand(project: Path, site: Path) -> None:
    """What pip does with the project, without pip: its packages beside the metadata of its distribution."""
    told = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    shutil.copytree(project / "src", site)
    info = site / f"{told['name'].replace('-', '_')}-{told['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {told['name']}\nVersion: {told['version']}\n")
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in told["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(points)


# -- names and folders


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "Short-First",
            "allowed: a lower-case letter, then up to 39 lower-case letters, digits and single underscores",
        ),
        ("Short-First", "did you mean 'short_first'?"),
        ("3x", "found '3x', allowed: a lower-case letter"),
        ("a__b", "did you mean 'a_b'?"),
        ("../x", "found '../x', allowed: "),
        ("x" * 41, "allowed: a lower-case letter, then up to 39"),
        ("é", "found 'é', allowed: "),
        ("fcfs", "found 'fcfs', which interlock 0.1.0 offers already"),
        ("policy_options", "found 'policy_options', whose class PolicyOptions has a name that is taken"),
        ("never_preempts", "whose class NeverPreempts has a name that is taken"),
        ("none", "whose class None has a name that is taken"),
    ],
)
def test_a_name_that_cannot_be_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    assert invoke(["new", "policy", name]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("interlock: policy name: found ") and words in err
    assert err.count("\n") == 1 and out == ""
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("arguments", [["new", "policy"], ["new", "polic", "x"], ["new", "executor", "x"]])
def test_a_command_that_is_not_complete_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert invoke(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(here.iterdir()) == []


def test_a_folder_with_something_in_it_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_text() for path in project.rglob("*") if path.is_file()}
    (project / "README.md").write_text("mine")
    capsys.readouterr()
    assert invoke(["new", "policy", "short_first"]) == 2
    assert "interlock-short-first is not empty, allowed: a new or an empty folder" in capsys.readouterr().err
    assert (project / "README.md").read_text() == "mine"
    assert {path for path in project.rglob("*") if path.is_file()} == set(before)


def test_an_empty_folder_and_one_further_down_serve(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "empty").mkdir()
    assert invoke(["new", "policy", "one", "--out", "empty"]) == 0
    assert invoke(["new", "policy", "two", "--out", "a folder/below"]) == 0
    assert "cd 'a folder/below' && " in capsys.readouterr().out
    assert (here / "empty" / "src" / "interlock_one").is_dir()
    assert (here / "a folder" / "below" / "src" / "interlock_two").is_dir()


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_in_the_way_is_one_line(here: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    (here / "file").write_text("mine")
    assert invoke(["new", "policy", "one", "--out", place]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (here / "file").read_text() == "mine"


# -- what is written


def test_every_template_is_used_and_nothing_is_left_to_fill_in(project: Path) -> None:
    assert sorted(POLICY.values()) == sorted(path.name for path in TEMPLATES.iterdir())
    written = [path for path in project.rglob("*") if path.is_file()]
    assert len(written) == len(POLICY)
    assert [path for path in written if re.search(r"(?<!\$)\{\{", str(path) + path.read_text())] == []


def test_it_says_what_it_wrote_and_what_to_do_next(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["new", "policy", "short_first"]) == 0
    *lines, _, following = capsys.readouterr().out.splitlines()
    assert all((here / line).is_file() for line in lines) and len(lines) == len(POLICY)
    assert following.startswith("Next: cd interlock-short-first && pip install --editable '.[test]'")


def test_the_metadata_name_the_policy_and_what_it_needs(project: Path) -> None:
    told = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert told["entry-points"] == {"interlock.policies": {"short_first": "interlock_short_first.policy:ShortFirst"}}
    assert told["dependencies"] == ["interlock>=0.1.0"]
    assert told["optional-dependencies"]["test"] == ["interlock[check]>=0.1.0"]


def test_the_policy_is_short(project: Path) -> None:
    """About ten lines, blank ones, imports and docstrings aside."""
    text = (project / "src" / "interlock_short_first" / "policy.py").read_text()
    body = re.sub(r'""".*?"""', "", text[text.index("class ") :], flags=re.S)
    assert len([line for line in body.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("arguments", [["ruff", "check", "--isolated", "--select", "E,F,I,UP,B,SIM,RUF"], ["mypy"]])
def test_it_is_clean(project: Path, arguments: list[str]) -> None:
    extra = ["--line-length", "120"] if arguments[0] == "ruff" else ["--strict", "--no-incremental"]
    if arguments[0] == "mypy":
        config = project / "mypy.ini"
        config.write_text(f"[mypy]\nmypy_path = src:{ROOT / 'typings'}\nexplicit_package_bases = True\n")
        extra += ["--follow-imports=silent"]
    run(sys.executable, "-m", *arguments, *extra, "src", cwd=project)


def test_its_configuration_is_valid_yaml_that_names_it(project: Path) -> None:
    data = read_text((project / "configs" / "short_first.yaml").read_text(), "config").data
    assert data.pop("policies") == [{"short_first": {"patience": 100.0}}, "mixed"]
    assert EngineConfig.load(data).workload is not None


# -- that it works


def test_its_tests_pass_once_it_is_installed(project: Path, tmp_path: Path) -> None:
    """Installed by hand, beside our own distribution: quick, and without an index."""
    site = tmp_path / "site"
    install_by_hand(project, site)
    run(sys.executable, "-m", "pytest", "-q", "-W", "error", cwd=project, PYTHONPATH=str(site))
    command = [sys.executable, "-m", "interlock.plugins.cli"]
    run(*command, "run", "configs/short_first.yaml", "--out", "runs/one", "-q", cwd=project, PYTHONPATH=str(site))
    listed = run(*command, "list", cwd=project, PYTHONPATH=str(site))
    assert re.search(r"^short_first +interlock-short-first 0\.1\.0 +hooks admit$", listed, re.M)
    assert "options patience=100.0" in listed


@pytest.mark.soak
def test_its_tests_pass_in_an_empty_environment(project: Path, tmp_path: Path) -> None:
    """The way of a user: our wheel with its extra, then the project, by pip and from the index it is set up with."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("core", "policies", "executors", "plugins", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", source, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    binaries = tmp_path / "venv" / "bin"
    run(binaries / "python", "-m", "pip", "install", "-q", f"{wheel}[check]", cwd=tmp_path)
    shutil.rmtree(project)
    run(binaries / "interlock", "new", "policy", "short_first", cwd=tmp_path)
    run(binaries / "python", "-m", "pip", "install", "-q", ".[test]", cwd=project)
    run(binaries / "python", "-m", "pytest", "-q", cwd=project)
    run(binaries / "interlock", "run", "configs/short_first.yaml", "--out", "runs/one", "-q", cwd=project)
