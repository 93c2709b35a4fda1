#!/usr/bin/env bash
# Builds, checks and times everything on this machine's NVIDIA card, and prints a table last. Needs a driver and NVRTC.
#
#   tools/checks/cuda_card.sh [MODEL.gguf]
#
# 1. every operation, type and odd shape against the reference (what fails is printed, and counted at the end);
# 2. the bundled model's greedy answers: the card's exact path must give the CPU's;
# 3. `gruff bench` of MODEL, with the time of each operation.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
model=${1:-}
cargo build --release -p gruff-kernels --bin conformance || exit 1
cargo build --release -p gruff-cli || exit 1
gruff=${CARGO_TARGET_DIR:-target}/release/gruff
conformance=${CARGO_TARGET_DIR:-target}/release/conformance
failed=0

"$gruff" doctor | grep -E '^(cuda|nvrtc)'
"$conformance" --device cuda --failures || failed=$((failed + 1))

for question in "What is the capital of France?" "What is two plus three?" "Who wrote Hamlet?"; do
    answer() { "$gruff" run bundled "$question" --dtype f32 --temperature 0 -n 60 --device "$1" 2>/dev/null; }
    cpu=$(answer cpu) card=$(answer cuda)
    if [ -n "$cpu" ] && [ "$cpu" = "$card" ]; then
        echo "same answer: $question $card"
    else
        echo "DIFFERENT: $question"
        printf '  cpu:  %s\n  cuda: %s\n' "$cpu" "$card"
        failed=$((failed + 1))
    fi
done

if [ -n "$model" ]; then
    "$gruff" bench "$model" --device cuda -p 512 -p 4096 --ubatch-size 4096 -n 128 || failed=$((failed + 1))
    "$gruff" bench "$model" --device cuda -p 4096 --ubatch-size 4096 -n 16 -r 1 --profile || failed=$((failed + 1))
fi
echo "$failed of the card's checks failed"
exit $((failed > 0))
