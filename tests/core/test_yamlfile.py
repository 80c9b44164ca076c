"""YAML 1.2 scalars, no key twice, and one line for all that is broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core import yamlfile
from interlock.core.errors import ConfigError
from interlock.core.yamlfile import dumps, read_file, read_inline, read_text

PARSERS = [yaml.SafeLoader, *([yaml.CSafeLoader] if hasattr(yaml, "CSafeLoader") else [])]


@pytest.fixture(params=PARSERS, ids=lambda parser: parser.__name__)
def either_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yamlfile, "_Parser", request.param)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("0o17", 15),
        ("0x1F", 31),
        ("010", 10),
        ("+7", 7),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("12:30", "12:30"),
        ("2020-01-01", "2020-01-01"),
        ("1_000", "1_000"),
        ("<<", "<<"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 1", "1"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any, either_parser: None) -> None:
    found = read_text(f"key: {text}", "x.yaml").data["key"]
    assert found == value
    assert type(found) is type(value)


def test_keys_are_text_whatever_they_look_like() -> None:
    assert read_text("{1: a, true: b, null: c, no: d}", "x").data == {"1": "a", "true": "b", "null": "c", "no": "d"}


def test_every_key_path_has_its_line(either_parser: None) -> None:
    document = read_text("a:\n  b: 1\n  c:\n  - x\n  - d: 2\n", "x.yaml")
    assert document.where(("a", "b")) == "x.yaml:2"
    assert document.where(("a", "c", 1, "d")) == "x.yaml:5"
    assert document.where(("a", "c", 1, "absent")) == "x.yaml:5", "the nearest thing around it"
    assert document.where(("absent",)) == "x.yaml"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: 2\na: 3", 3, "a: found the key 'a' twice, allowed: once (also in line 1)"),
        ("a:\n  - {b: 1, b: 2}", 2, "a.0.b: found the key 'b' twice"),
        ("a: [1,\n", 2, "broken YAML"),
        ("a: b: c", 1, "broken YAML: mapping values are not allowed"),
        ("a: !!python/object:os.system x", 1, "allowed: no tags"),
        ("a: !!int x", 1, "allowed: no tags"),
        ("a: &x [*x]", 1, "found the alias *x, allowed: an anchor defined before it"),
        ("a: 1\n---\nb: 2", 2, "found a second document, allowed: one"),
        ("? [a]\n: b", 1, "found a key that is not plain text"),
        ("a: " + "9" * 5000, 1, "found a number of 5000 digits"),
        ("a: 1\nb: \x07", 2, "not text"),
        ("a: " + "[" * 70 + "]" * 70, 1, "nested too deep"),
    ],
)
def test_what_is_broken_is_one_line(text: str, line: int, words: str, either_parser: None) -> None:
    with pytest.raises(ConfigError) as caught:
        read_text(text, "x.yaml")
    assert str(caught.value).startswith(f"x.yaml:{line}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "x.yaml:1: found nothing, allowed: a YAML document that is not empty"),
        (b"# a comment\n", "found nothing"),
        (b"a: 1\nb: \xff\xfe", "x.yaml:2: not text: found a byte that is not UTF-8"),
    ],
)
def test_a_file_is_utf8_and_not_empty(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match="found") as caught:
        read_file(tmp_path / "x.yaml", "x.yaml")
    assert words in str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read: No such file or directory$"):
        read_file(tmp_path / "absent.yaml")


def test_inline_yaml_has_no_line_number_in_its_errors() -> None:
    assert read_inline("{a: 1e3}", "--set x") == {"a": 1000.0}
    with pytest.raises(ConfigError, match=r"^--set x: broken YAML"):
        read_inline("[", "--set x")


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc.:- \n1", max_size=4), inner, max_size=4),
    max_leaves=10,
)


@settings(derandomize=True, deadline=None)
@given(PLAIN)
def test_what_is_dumped_is_read_back(data: Any) -> None:
    assert read_text(dumps({"data": data}), "x").data == {"data": data}
