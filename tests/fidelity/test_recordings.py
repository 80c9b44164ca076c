"""The decisions of a peer, recorded step by step, are made again: order, tokens, hits, victims, ends, free blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from .recordings import first_difference

DATA = Path(__file__).parents[1] / "data"
RECORDINGS = sorted(DATA.glob("vllm-0.10.2*/case-*.json"))


def test_the_recordings_are_there() -> None:
    assert len(RECORDINGS) >= 40


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_every_recorded_step_is_decided_alike(path: Path) -> None:
    assert first_difference(path) is None
