#!/bin/sh
# Builds sdist and wheel, installs the wheel in an empty environment outside the checkout, and uses it from there.
# PYTHON: an interpreter that has `build`.
set -eu
unset PYTHONPATH VIRTUAL_ENV || true

root=$(cd "$(dirname "$0")/.." && pwd)
python=$(command -v "${PYTHON:-python3}")
case $python in /*) ;; *) python=$(pwd)/$python ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

say() { printf 'package-check: %s\n' "$1"; }

say "build"
# From a copy, so that nothing is written into the checkout and nothing stale in it is packaged.
mkdir "$work/source"
cd "$root"
cp -R pyproject.toml README.md LICENSE core policies executors plugins configs "$work/source/"
"$python" -m build --outdir "$work/dist" "$work/source" > "$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }

say "install"
"$python" -m venv "$work/venv"
bin=$work/venv/bin
"$bin/python" -m pip --disable-pip-version-check install --quiet "$work"/dist/*.whl

cd "$work"
say "every file of the checkout's packages is in the wheel"
"$bin/python" - "$root" <<'PYTHON'
import importlib.metadata
import pathlib
import sys

root = pathlib.Path(sys.argv[1])
installed = {str(path) for path in importlib.metadata.files("interlock")}
wanted = {
    str(pathlib.Path("interlock") / path.relative_to(root))
    for top in ("core", "policies", "executors", "plugins", "configs")
    for path in (root / top).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}
assert wanted <= installed, f"missing in the wheel: {sorted(wanted - installed)}"
PYTHON

say "the core imports without the extras"
"$bin/python" - <<'PYTHON'
import importlib.util
import pathlib
import sys

extras = ("pytest", "hypothesis", "torch")
assert not [name for name in extras if importlib.util.find_spec(name)], "the environment is not empty"
import interlock.core

assert pathlib.Path(interlock.core.__file__).is_relative_to(sys.prefix), interlock.core.__file__
PYTHON

say "interlock list, interlock show quickstart, interlock run quickstart"
"$bin/interlock" list > list.txt
grep -q fcfs list.txt && grep -q simulated list.txt
"$bin/interlock" show quickstart | grep -q max_num_seqs
"$bin/interlock" run quickstart --out "$work/run" --quiet
"$bin/python" - "$work/run/summary.json" <<'PYTHON'
import json
import sys

with open(sys.argv[1]) as file:
    summary = json.load(file)
requests = summary["requests"]
assert requests["finished"] == requests["submitted"] > 0, requests
assert summary["violations"] == 0 and summary["digest"], summary
PYTHON

say "a wrong configuration exits with 2 and one line"
code=0
"$bin/interlock" run no-such-configuration > out.txt 2> err.txt || code=$?
[ "$code" -eq 2 ] && [ "$(wc -l < err.txt)" -eq 1 ]

say "good"
