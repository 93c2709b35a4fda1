#!/usr/bin/env bash
# Builds and runs the emulator's own tests with what build.sh has put into FOLDER.
#
#   tools/emulator/test/run.sh FOLDER
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
folder=$(realpath "$1")
"${CUDA_EMULATOR_CXX:-g++}" -std=c++17 -O1 -Wall -Wextra tools/emulator/test/*.cpp -o "$folder/test" \
    -L"$folder" -Wl,-rpath,"$folder" -l:libcuda.so.1 -l:libnvrtc.so.13
"$folder/test" crates/gruff-kernels/src/cuda
