"""What pyproject.toml says about folders and files is what there is."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest

from .project import ROOT, TOPS, files, pyproject, sources


def _packages() -> set[str]:
    return set(pyproject()["tool"]["setuptools"]["packages"])


def test_every_folder_with_python_files_is_a_listed_package() -> None:
    found = {
        "interlock." + ".".join(path.parent.relative_to(ROOT).parts) for top in TOPS for path in sources(top)
    }  # fmt: skip
    assert found == _packages()


@pytest.mark.parametrize("top", TOPS)
def test_each_package_has_an_init(top: str) -> None:
    folders = {path.parent for path in sources(top)}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_package_dirs_map_each_top_folder() -> None:
    mapping = pyproject()["tool"]["setuptools"]["package-dir"]
    assert mapping == {f"interlock.{top}": top for top in TOPS}


def test_interlock_is_a_namespace() -> None:
    """Other distributions may put packages beside ours only while nobody owns `interlock/__init__.py`."""
    import interlock

    assert getattr(interlock, "__file__", None) is None
    assert not (ROOT / "typings" / "interlock" / "__init__.py").exists()
    assert not (ROOT / "interlock").exists()


@pytest.mark.parametrize("top", TOPS)
def test_every_other_file_is_package_data(top: str) -> None:
    data = pyproject()["tool"]["setuptools"]["package-data"]
    missing = []
    for path in files():
        inside = path.relative_to(ROOT)
        if inside.parts[0] == top and path.suffix not in (".py", ".pyc"):
            patterns = data.get(f"interlock.{top}", [])
            name = str(Path(*inside.parts[1:]))
            if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
                missing.append(str(inside))
    assert missing == []


@pytest.mark.parametrize("top", ["core", "policies", "executors", "plugins"])
def test_each_top_package_is_typed_and_seen_by_type_checkers(top: str) -> None:
    assert (ROOT / top / "py.typed").is_file()
    link = ROOT / "typings" / "interlock" / top
    assert link.is_symlink()
    assert link.resolve() == ROOT / top


def test_no_file_names_the_machine_it_was_made_on() -> None:
    words = ["/" + "work/", "/" + "root/", ".." + "/shared", "pypi" + ".org", "python" + "hosted", "npmjs" + ".org"]
    found = []
    for path in files():
        text = path.read_bytes().decode("utf-8", "ignore")
        found += [f"{path.relative_to(ROOT)}: {word}" for word in words if word in text]
    assert found == []
