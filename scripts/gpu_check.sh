#!/bin/sh
# GPU tests and attention benchmark on a machine with a CUDA device. Nothing is installed and nothing is fetched.
# PYTHON: an interpreter that has PyTorch and Triton. Ends within eight minutes.
set -u

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
cd "$root" || exit 1
# The import package is a mapping of folders; these links spare an installation.
export PYTHONPATH="$root/typings${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
unset TRITON_INTERPRET || true
failed=0

say() { printf 'gpu-check: %s\n' "$1"; }
has() { "$python" -c "import $1" 2> /dev/null; }

"$python" -c 'import torch; assert torch.cuda.is_available()' 2> /dev/null || { say "no PyTorch with a CUDA device"; exit 1; }
has triton || { say "no Triton"; exit 1; }
"$python" -c 'import torch, triton; print("gpu-check:", torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)'

tests=tests/gpu
for package in numpy pluggy pydantic yaml structlog transformers safetensors; do
    has $package || { say "$package is missing: only the tests of attention run"; tests=tests/gpu/test_attention.py; }
done
if has pytest; then
    say "$tests"
    # Alone: the configuration and the conftest of all tests import what this machine need not have.
    timeout 330 "$python" -m pytest -q -rs -c /dev/null --rootdir "$root" --confcutdir "$root/tests/gpu" \
        --import-mode=importlib -p no:cacheprovider --durations=5 "$tests" || failed=1
else
    say "pytest is missing: the tests are skipped"
fi

say "benchmark"
timeout 120 "$python" benchmarks/attention_gpu.py || failed=1
exit $failed
