#!/usr/bin/env bash
# Holds models that are split between two NVIDIA cards of this machine, and between a card and the CPU, to one card's answers,
# and times them. Needs a driver, NVRTC and two cards.
#
#   tools/checks/cuda_split.sh GRUFF [MODEL.gguf [MIXTURE.gguf]]
#
# 1. the bundled model: one card, two cards (the same text), half on the CPU with exact activations (the CPU's text);
# 2. MODEL: decoding and prompts on one card, on two, and with half of the layers on the CPU;
# 3. MIXTURE: with the experts of all layers on the CPU, beside one card alone.
#
# Two cards take turns, so one stream on two is expected at the pace of one card, launched without graphs, less some 20 us a
# border; prompts at the pace of one card. What is slower than that waits for the host at the border.
set -uo pipefail
gruff=$1 model=${2:-} mixture=${3:-}
failed=0
"$gruff" doctor | grep -E '^(cuda|nvrtc|device)'

answer() { "$gruff" run bundled "$question" --temperature 0 -n 60 "$@" 2>/dev/null; }
same() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then
        echo "same: $1: $2"
    else
        printf 'DIFFERENT: %s\n  %s\n  %s\n' "$1" "$2" "$3"
        failed=$((failed + 1))
    fi
}
for question in "What is the capital of France?" "What is two plus three?" "Who wrote Hamlet?"; do
    same "two cards" "$(answer --device cuda:0)" "$(answer --device cuda:0,cuda:1 --tensor-split 1,1)"
    same "card and CPU" "$(answer --device cpu --dtype f32)" "$(answer --device cuda,cpu --gpu-layers 3 --dtype f32)"
    same "auto" "$(answer --device cuda:0)" "$(answer --device auto)"
done

bench() { echo "gruff bench $*"; "$gruff" -v bench "$@" || failed=$((failed + 1)); }
if [ -n "$model" ]; then
    layers=$("$gruff" inspect "$model" | awk '$1 == "layers" { print $2 }')
    for where in "--device cuda:0" "--device cuda:0 --without graphs" "--device cuda:0,cuda:1 --tensor-split 1,1" \
        "--device cuda:0,cpu --gpu-layers $((${layers:-32} / 2))"; do
        # shellcheck disable=SC2086 # words of options
        bench "$model" $where -p 512 -p 4096 --ubatch-size 4096 -n 64 -r 3
    done
fi
if [ -n "$mixture" ]; then
    for where in "--device cuda:0" "--device cuda:0,cpu --cpu-moe" "--device cuda:0,cpu --n-cpu-moe 8"; do
        # shellcheck disable=SC2086 # words of options
        bench "$mixture" $where -p 512 -n 64 -r 3
    done
fi
echo "$failed of the split's checks failed"
exit $((failed > 0))
