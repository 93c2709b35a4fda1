#!/usr/bin/env bash
# Builds, checks and times everything on this machine's NVIDIA card: all tables of docs/cuda.md. Needs a driver, NVRTC and Python.
#
#   tools/checks/cuda_card.sh [--programs FOLDER] [--only STEP,..] [MODEL.gguf ..]
#
# FOLDER has gruff, conformance and cuda_speed, built before (a machine with a card needs no Rust then); else they are built.
# Steps, in this order, and about how long they take with files of 0.5 and 2.7 GB on an H200:
#
#   conformance  every operation, type and odd shape against the reference; all kernels are compiled           some minutes
#   plain        the same for what stands in the place of kernels that are left out, by the subset below         1 minute
#   model        the bundled model, and those MODELs that tests/peers knows, against the CPU's exact path          2 minutes
#   sanitize     a subset of the conformance run under compute-sanitizer                                           5 minutes
#   start        from the start of the program to the first token, files and kernels cached                        1 minute
#   speed        prompts, one stream, streams together                                                             2 minutes
#   loop         ids read late and at once, steps replayed and launched                                            4 minutes
#   kernels      without each family of kernels                                                                    6 minutes
#   profile      where the time of prompts, of one stream and of 32 goes, kernel by kernel                         2 minutes
#   products     single kernels (cuda_speed)                                                                       some minutes
set -uo pipefail
all=conformance,plain,model,sanitize,start,speed,loop,kernels,profile,products
only=$all programs='' models=()
while [ $# -gt 0 ]; do
    case $1 in
        --programs) programs=$(realpath "$2"); shift 2 ;;
        --only) only=$2; shift 2 ;;
        -*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
        *) models+=("$(realpath "$1")"); shift ;;
    esac
done
for step in ${only//,/ }; do
    case ,$all, in *,"$step",*) ;; *) echo "there is no step $step; there are $all"; exit 2 ;; esac
done
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [ -z "$programs" ]; then
    cargo build --release -p gruff-kernels --bin conformance --example cuda_speed || exit 1
    cargo build --release -p gruff-cli || exit 1
    release=${CARGO_TARGET_DIR:-target}/release
    programs=$(mktemp -d)
    trap 'rm -rf "$programs"' EXIT
    cp "$release/gruff" "$release/conformance" "$release/examples/cuda_speed" "$programs"
fi
gruff=$programs/gruff conformance=$programs/conformance
failed=()

conformance() { "$conformance" --device cuda --failures; }
plain() { "$conformance" --device cuda --plain --subset sanitize --failures; }
sanitize() { tools/checks/cuda_sanitize.sh "$conformance"; }
products() { "$programs/cuda_speed" && "$programs/cuda_speed" attention delta floats norms small; }
speed() { each speed; }
loop() { each loop; }
kernels() { each kernels; }

each() {
    [ ${#models[@]} = 0 ] && { echo "no MODEL was given"; return 0; }
    python3 tools/checks/cuda_tables.py "$gruff" "${models[@]}" --tables "$1"
}

model() {
    local known=() file
    for file in "${models[@]}"; do
        grep --quiet --fixed-strings "\"${file##*/}\"" tests/peers/*/peers.json && known+=("$file")
    done
    python3 tools/checks/cuda_model.py "$gruff" bundled "${known[@]}"
}

start() {
    local file begin
    for file in bundled "${models[@]}"; do
        for _ in 1 2 3; do
            begin=$(date +%s%N)
            "$gruff" run "$file" "Hi" --device cuda --temperature 0 --max-new-tokens 1 -v >"$log" 2>&1 || { cat "$log"; return 1; }
            printf '%s: %s ms from start to end of one token; %s\n' "${file##*/}" $((($(date +%s%N) - begin) / 1000000)) \
                "$(grep --max-count=1 'start:' "$log")"
        done
    done
}

profile() {
    python3 tools/checks/cuda_profile.py "$gruff" || return 1
    local file
    for file in "${models[@]}"; do
        "$gruff" bench "$file" --device cuda -p 4096 --ubatch-size 4096 -n 64 -r 1 --profile || return 1
        "$gruff" bench "$file" --device cuda -p 512 -n 32 -r 1 --batch 32 --profile || return 1
        "$gruff" bench "$file" --device cuda -p 0 -n 32 -d 32768 --ubatch-size 4096 -r 1 --profile || return 1
    done
}

log=$(mktemp)
"$gruff" doctor | grep -E '^(cuda|nvrtc)'
for step in ${only//,/ }; do
    printf '\n## %s\n\n' "$step"
    SECONDS=0
    "$step" || failed+=("$step")
    echo "$step: $SECONDS s"
done
rm -f "$log"
echo "${#failed[@]} steps failed: ${failed[*]}"
exit $((${#failed[@]} > 0))
