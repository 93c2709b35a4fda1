#!/usr/bin/env bash
# Runs CUDA kernels without a card: builds the driver and compiler of tools/emulator, tests them, holds `--device cuda` to the
# contracts of the operations with them (each family, some types of weights, in several orders of threads and blocks), lets the
# bundled model answer, plays the bad cases through, replays recorded steps, and has two cards compute together. Needs cargo,
# g++, Python and an x86-64 processor with AVX2, F16C and FMA.
#
#   tools/checks/cuda_emulated.sh CONFORMANCE GRUFF
set -euo pipefail
conformance=$(realpath "$1")
gruff=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
emulator=${CARGO_TARGET_DIR:-$PWD/target}/emulator
for needed in avx2 f16c fma; do
    grep --quiet --word-regexp "$needed" /proc/cpuinfo || { echo "this processor has no $needed"; exit 1; }
done
tools/emulator/build.sh "$emulator"
tools/emulator/test/run.sh "$emulator"
export LD_LIBRARY_PATH=$emulator GRUFF_NVRTC=$emulator/libnvrtc.so.13 GRUFF_KERNEL_CACHE=$emulator/kernels

# One line an order, a compute capability and an operation; the longest first. 8.6 has little shared memory, 8.0 less than 9.0:
# attention and the delta rule take other forms there. 7.5 multiplies on the host. `norm` has those that round for products too.
cases() {
    local operation
    for operation in attention delta; do
        printf '%s;%s\n' "backward;86" "$operation" "random:1;80" "$operation" "random:2;90" "$operation"
    done
    printf '%s;linear Q4_K\n' 'forward;86' 'random:1;90'
    printf 'random:2;86;linear %s\n' F32 F16
    printf 'forward;75;%s\n' 'linear Q4_0' norm
    for operation in embed 'experts Q4_K' sampl 'linear fused' 'linear behind' 'experts Q8_0' 'experts F' \
        'linear '{Q3_K,Q2_K,Q8_0,Q4_0,IQ4_XS,IQ3_S,IQ1_M,MXFP4,NVFP4,F32,F16,BF16} \
        norm rope prepare add glu sigmoid softcap scale copy gather route conv; do
        printf 'forward;90;%s\n' "$operation"
    done
    for operation in 'experts Q4_K' 'linear Q6_K' sampl norm route; do
        printf '%s;90;%s\n' backward "$operation" random:2 "$operation"
    done
}

# A filter that meets nothing is a fault of this file.
one() {
    local order capability operation told
    IFS=';' read -r order capability operation <<<"$1"
    told=$(CUDA_EMULATOR_ORDER=$order CUDA_EMULATOR_CAPABILITY=$capability "$conformance" --device cuda --failures --filter "$operation" 2>&1) || {
        printf '%s, %s: FAILED\n%s\n' "$operation" "$order, $capability" "$told"
        return 1
    }
    case $told in
        0\ comparisons*) printf '%s, %s: there is no such operation\n' "$operation" "$order"; return 1 ;;
    esac
    printf '%-14s %-13s %s\n' "$operation" "$order, $capability" "$told"
}
export -f one
export conformance
cases | xargs --max-procs="$(nproc)" --delimiter='\n' --max-args=1 bash -c 'one "$0"'

# What stands in the place of kernels that are left out.
"$conformance" --device cuda --plain --subset sanitize --failures

# Sampling aside, an answer does not depend on the order, nor on when work is done.
answer() {
    local told
    told=$("$gruff" run "What is the capital of France?" --device cuda --temperature 0 "$@")
    printf '%s\n' "$told"
    [[ $told == *Paris* ]]
}
answer
CUDA_EMULATOR_ORDER=random:3 CUDA_EMULATOR_LATE=1 answer
answer --without fusion,attention,delta-net,norm,matmul
python3 tools/checks/cuda_model.py "$gruff" bundled --prompts 1 --tokens 12
python3 tools/checks/cuda_faults.py "$gruff"
python3 tools/checks/cuda_profile.py "$gruff"

# Copies that are made as late as may be.
cargo test --quiet --workspace --test copies --test snapshots
CUDA_EMULATOR_LATE=1 cargo test --quiet --workspace --test copies --test snapshots

# Steps that are replayed, also where a replay is refused.
cargo test --quiet --workspace --test recordings
# Two cards, and a card beside the CPU: the bits of one, the CPU's results, steps that are replayed part by part, the whole
# program's answer.
CUDA_EMULATOR_DEVICES=2 cargo test --quiet --workspace --test placement card
CUDA_EMULATOR_DEVICES=2 CUDA_EMULATOR_LATE=1 cargo test --quiet --workspace --test recordings two_cards
told=$(CUDA_EMULATOR_DEVICES=2 CUDA_EMULATOR_LATE=1 "$gruff" run "What is the capital of France?" --temperature 0 \
    --device cuda:0,cuda:1 2>&1)
printf '%s\n' "$told"
[[ $told == *Paris* && $told == *cuda:0*layers\ 0-*cuda:1*head* ]]
# Cards that share a model's matrices out: sums, models and answers; a launch that is refused, NCCL that fails or is not there, and
# what the program says, whether NCCL was built in or not (parts of the bundled model's heads are no whole blocks).
CUDA_EMULATOR_DEVICES=3 cargo test --quiet --workspace --test collective card
on_two() { CUDA_EMULATOR_DEVICES=2 "$@"; }
on_two cargo test --quiet --workspace --test tensor_parallel card
CUDA_EMULATOR_NCCL_FAULT=14 on_two cargo test --quiet --workspace --test tensor_parallel nccl_fails
GRUFF_NCCL=$emulator/nothing on_two cargo test --quiet --workspace --test tensor_parallel not_there
told=$(on_two "$gruff" run "Hello" --device cuda:0,cuda:1 --split-mode tensor 2>&1) && exit 1
[[ $told == *"--split-mode layer"* ]]
faults=$(mktemp)
trap 'rm -f "$faults"' EXIT
CUDA_EMULATOR_FAULTS=$faults cargo test --quiet --workspace --test recordings refused_by_the_driver
# What is taken of a card's memory is what was planned.
CUDA_EMULATOR_FAULTS=$faults cargo test --quiet --workspace --test memory
cargo test --quiet --workspace --lib what_a_card_takes
CUDA_EMULATOR_FAULTS=$faults on_two cargo test --quiet --workspace --test recordings refuses_its_part
CUDA_EMULATOR_FAULTS=$faults on_two cargo test --quiet --workspace --test tensor_parallel refuses_a_launch
