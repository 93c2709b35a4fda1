#!/usr/bin/env bash
# Compiles every CUDA kernel for every architecture that gruff is checked for, with NVRTC from PyPI: no GPU, driver or
# toolkit is needed. Fails on any error; prints what did not compile.
#
#   tools/checks/cuda.sh PYTHON CONFORMANCE
#
# PYTHON is an interpreter with pip, CONFORMANCE the conformance program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=$1
conformance=$2
"$python" -m pip install --quiet --requirement tools/checks/cuda.txt
GRUFF_NVRTC=$("$python" - <<'FIND'
import pathlib, nvidia

libraries = [lib for root in nvidia.__path__ for lib in pathlib.Path(root).rglob("libnvrtc.so.*") if ".alt." not in lib.name]
print(libraries[0])
FIND
)
export GRUFF_NVRTC
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# The compiler uses one core.
printf '%s\n' sm_80 sm_86 sm_89 sm_90a sm_120 |
    xargs --max-procs="$(nproc)" --replace sh -c '
        "$0" --compile-cuda {} >"$1/{}.log" 2>&1 || { cat "$1/{}.log"; exit 1; }
        tail -n 1 "$1/{}.log"' "$conformance" "$logs"
