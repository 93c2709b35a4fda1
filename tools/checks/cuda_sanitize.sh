#!/usr/bin/env bash
# Runs a named subset of the conformance run on this machine's NVIDIA card under compute-sanitizer: memcheck (accesses outside
# of memory) and racecheck (shared memory without a barrier). Needs the conformance program, a driver, NVRTC and
# compute-sanitizer; some minutes.
#
#   tools/checks/cuda_sanitize.sh CONFORMANCE [TOOL..]
#
# TOOL is a tool of compute-sanitizer (default: memcheck racecheck; there are synccheck and initcheck too). The list of cases
# is in crates/gruff-kernels/src/conformance/subset.rs.
set -uo pipefail
[ $# -gt 0 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
conformance=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- memcheck racecheck
sanitizer=$(command -v compute-sanitizer)
for folder in /usr/local/cuda/bin /usr/local/cuda/compute-sanitizer /usr/local/cuda-*/bin /usr/local/cuda-*/compute-sanitizer; do
    [ -n "$sanitizer" ] || sanitizer=$(command -v "$folder/compute-sanitizer")
done
[ -n "$sanitizer" ] || { echo "there is no compute-sanitizer; it comes with the CUDA toolkit (package cuda-sanitizer)"; exit 2; }
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
failed=0

# Kernels are compiled here, so that the tools meet them in the cache.
SECONDS=0
"$conformance" --device cuda --subset sanitize --failures || { echo "the subset fails without a sanitizer"; exit 1; }
echo "without a sanitizer: $SECONDS s"

# The host works most of the time: some processes side by side, each with a part of the cases. What the driver refuses is none of the
# kernels' faults.
parts=$(nproc)
[ "$parts" -le 8 ] || parts=8
part() {
    "$sanitizer" --tool "$1" --report-api-errors no --error-exitcode 99 --print-limit 20 \
        "$conformance" --device cuda --subset sanitize --failures --shard "$2" >"$logs/$1.${2%/*}" 2>&1
}
export -f part
export sanitizer conformance logs
for tool in "$@"; do
    SECONDS=0
    if seq -f "%g/$parts" "$parts" | xargs --max-procs="$parts" --replace bash -c 'part "$@"' part "$tool" {}; then
        printf '%s: clean, %s s; %s comparisons with the reference\n' "$tool" "$SECONDS" \
            "$(awk '/ comparisons with/ { sum += $1 } END { print sum }' "$logs/$tool".*)"
    else
        failed=$((failed + 1))
        cat "$logs/$tool".*
        printf '%s: FAILED, %s s\n' "$tool" "$SECONDS"
    fi
done
exit $((failed > 0))
