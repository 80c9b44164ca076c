"""Small models run fastest on one thread, and are saved and loaded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from .answers import Theirs
from .kit import save_dense

FAMILIES = ("llama", "qwen2", "qwen3")


class Family(NamedTuple):
    """A model as a Hugging Face folder, and as `transformers` runs it."""

    folder: Path
    theirs: Theirs


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Family]:
    """A small dense model of each family."""
    folders = {name: save_dense(tmp_path_factory.mktemp(name), name) for name in FAMILIES}
    return {name: Family(folder, Theirs(folder)) for name, folder in folders.items()}
