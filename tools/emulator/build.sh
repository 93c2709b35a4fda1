#!/usr/bin/env bash
# Builds the emulator: libcuda.so.1, libnvrtc.so.13 and libnccl.so.2 with what they need, into FOLDER.
#
#   tools/emulator/build.sh FOLDER
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
into=$1
mkdir -p "$into"
# A number for this very state of the sources: driver and compiler take nothing from another.
build=0x$(cat "$source"/build.sh "$source"/{abi,device,driver,compiler}/* | sha256sum | cut -c1-14)
flags=(-std=c++17 -O2 -g1 -fPIC -shared -fvisibility=hidden -Wall -Wextra "-DEMULATOR_BUILD=${build}ull")
compiler=${CUDA_EMULATOR_CXX:-g++}
"$compiler" "${flags[@]}" "$source"/driver/*.cpp -o "$into/libcuda.so.1.new" -Wl,-soname,libcuda.so.1 -ldl -lpthread &
first=$!
"$compiler" "${flags[@]}" "$source"/compiler/*.cpp -o "$into/libnvrtc.so.13.new" -Wl,-soname,libnvrtc.so.13 -ldl
wait "$first"
"$compiler" "${flags[@]}" "$source"/nccl/*.cpp -o "$into/libnccl.so.2.new" -Wl,-soname,libnccl.so.2 "$into/libcuda.so.1.new"
rm -rf "$into/device" "$into/abi"
cp -r "$source/device" "$source/abi" "$into"
mv "$into/libcuda.so.1.new" "$into/libcuda.so.1"
mv "$into/libnvrtc.so.13.new" "$into/libnvrtc.so.13"
mv "$into/libnccl.so.2.new" "$into/libnccl.so.2"
ln -sf libcuda.so.1 "$into/libcuda.so"
