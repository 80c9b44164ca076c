"""Plugins are found by entry point, by module and by file, and nothing is imported that was not named."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from interlock.core.errors import ConfigError
from interlock.core.registry import GROUPS, find, installed

Install = Callable[[str, str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution with entry points, as pip would: a folder on the path with metadata."""

    def make(distribution: str, entry_points: str) -> Path:
        site = tmp_path / distribution
        info = site / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(str(site))
        return site

    return make


def test_an_entry_point_is_found_with_its_distribution(install: Install) -> None:
    site = install("lab-one", "[interlock.policies]\nmine = lab_one_policies:Mine\n")
    source = site / "lab_one_policies.py"
    source.write_text("class Mine: ...\n")
    found = find("policies", "mine")
    assert (found.name, found.distribution, found.version, found.kind) == ("mine", "lab-one", "1.2", "entry point")
    assert found.obj.__name__ == "Mine"
    assert found.source_hash == hashlib.sha256(source.read_bytes()).hexdigest()[:16]


def test_listing_imports_nothing(install: Install) -> None:
    install("lab-two", "[interlock.policies]\nlazy = lab_two_absent:Lazy\n")
    (entry,) = [entry for entry in installed("policies") if entry.name == "lazy"]
    assert (entry.distribution, entry.version) == ("lab-two", "1.2")
    with pytest.raises(ConfigError, match=r"^policy 'lazy' of lab-two 1\.2 cannot be imported: ModuleNotFoundError"):
        entry.load()


def test_a_failing_import_names_plugin_and_distribution(install: Install) -> None:
    site = install("lab-three", "[interlock.executors]\nbad = lab_three_bad:Bad\n")
    (site / "lab_three_bad.py").write_text("raise RuntimeError('first\\nsecond')\n")
    with pytest.raises(ConfigError) as caught:
        find("executors", "bad")
    expected = "executor 'bad' of lab-three 1.2 cannot be imported: RuntimeError: first second"
    assert str(caught.value) == expected


def test_one_name_from_two_distributions_is_refused(install: Install) -> None:
    for name in ("lab-four", "lab-five"):
        install(name, "[interlock.policies]\ntwin = somewhere:Twin\n")
    expected = "policy 'twin' is offered by lab-five and lab-four, allowed: one distribution"
    with pytest.raises(ConfigError, match=expected):
        find("policies", "twin")


def test_an_unknown_name_is_answered_with_the_nearest(install: Install) -> None:
    install("lab-six", "[interlock.drafters]\nngram = x:Y\n")
    expected = r"^unknown drafter 'ngrma'; allowed: .*ngram.*, path/file.py:Class; did you mean 'ngram'\?$"
    with pytest.raises(ConfigError, match=expected):
        find("drafters", "ngrma")
    with pytest.raises(ConfigError, match=r"unknown group 'policy'; allowed: .*; did you mean 'policies'\?"):
        installed("policy")


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_can_be_listed(group: str) -> None:
    names = [entry.name for entry in installed(group)]
    assert names == sorted(names)


def test_a_class_of_a_module() -> None:
    found = find("policies", "pytest:Session")
    assert found.obj is pytest.Session
    assert (found.kind, found.distribution, found.version) == ("module", "pytest", pytest.__version__)
    with pytest.raises(ConfigError, match="policy 'absent_module:X' cannot be imported: ModuleNotFoundError"):
        find("policies", "absent_module:X")


def test_a_file_gives_the_same_class_each_time(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine: ...\n")
    found = find("policies", "mine.py:Mine", base=tmp_path)
    assert found.kind == "file"
    assert found.obj is find("policies", f"{tmp_path}/mine.py:Mine").obj
    assert found.obj is find("policies", "../mine.py:Mine", base=tmp_path / "below").obj


def test_files_of_one_name_do_not_clash(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "json.py").write_text(f"class Mine:\n    folder = {folder!r}\n")
    assert [find("policies", f"{folder}/json.py:Mine", base=tmp_path).obj.folder for folder in "ab"] == ["a", "b"]
    import json

    assert json.loads("1") == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent.py:Mine", "no such file: "),
        ("good.py", "found no class, allowed: good.py:Class"),
        ("good.py:Mime", "no 'Mime' in it; it has Mine; did you mean 'Mine'?"),
        ("broken.py:Mine", "cannot be imported: SyntaxError"),
        ("leaves.py:Mine", "cannot be imported: SystemExit"),
    ],
)
def test_what_a_file_lacks_is_one_line(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "good.py").write_text("class Mine: ...\n")
    (tmp_path / "broken.py").write_text("class Mine(:\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(ConfigError) as caught:
        find("policies", name, base=tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_failed_can_be_mended(tmp_path: Path) -> None:
    path = tmp_path / "mended.py"
    path.write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        find("policies", "mended.py:Mine", base=tmp_path)
    path.write_text("class Mine: ...  # mended\n")
    assert find("policies", "mended.py:Mine", base=tmp_path).obj.__name__ == "Mine"


def test_our_own_plugins_come_by_the_same_door() -> None:
    script = (
        "import sys; from interlock.core.registry import installed\n"
        "names = {entry.name for entry in installed('executors')}\n"
        "assert 'simulated' in names\n"
        "assert not any(name.startswith(('interlock.executors', 'interlock.policies')) for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
