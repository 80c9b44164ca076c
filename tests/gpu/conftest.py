"""Tests that need a CUDA device: all of this folder is skipped without one."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _cuda() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
