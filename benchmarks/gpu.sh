#!/bin/sh
# The whole set of GPU measurements: at most 20 minutes, one JSON file. docs/performance/gpu.md says what is in it.
#
#   benchmarks/gpu.sh                              on the first CUDA device
#   benchmarks/gpu.sh --resume                     the parts that failed or are missing in the JSON file
#   benchmarks/gpu.sh --device cpu --tiny          in miniature on a CPU, in under a minute: the script works
#   ARCHBENCH_GPU_DEVICE=cpu benchmarks/gpu.sh     the same
#
# It needs PyTorch, and this checkout; PYTHON names the interpreter (.venv/bin/python where there is one).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
if [ -z "${PYTHON:-}" ]; then
    if [ -x "$root/.venv/bin/python" ]; then PYTHON=$root/.venv/bin/python; else PYTHON=python3; fi
fi
trap '' INT # until gpu.py handles Ctrl-C: the interpreter would print a traceback
PYTHONPATH="$root/src:$root${PYTHONPATH:+:$PYTHONPATH}" exec "$PYTHON" "$root/benchmarks/gpu.py" "$@"
