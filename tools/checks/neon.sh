#!/usr/bin/env bash
# Builds the conformance runner for AArch64 and runs it in user-mode emulation: every kernel with NEON, with and without
# dotprod and i8mm, against the reference, and bit for bit against portable Rust. With one thread: how work is shared out does not
# depend on instructions, and is checked where they are not emulated.
#
#   tools/checks/neon.sh [OPERATION]
#
# Needs Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user-static, and the standard library of
# aarch64-unknown-linux-gnu (`rustup target add`).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=aarch64-unknown-linux-gnu
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
cargo build --quiet --profile bench-quick --target "$target" --package gruff-kernels --bin conformance
filter=()
[ $# = 0 ] || filter=(--filter "$1")
conformance=${CARGO_TARGET_DIR:-target}/$target/bench-quick/conformance
# One thread computes most of the time: a process a core.
cores=$(nproc)
seq -f "%g/$cores" "$cores" | xargs --max-procs="$cores" --replace \
    qemu-aarch64-static -cpu max -L /usr/aarch64-linux-gnu "$conformance" --threads 1 --failures --shard {} "${filter[@]}"
