"""Where what is made once is kept: dequantised models, compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/interlock`, else `~/.cache/interlock`. Deleting it costs nothing but time."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "interlock"
