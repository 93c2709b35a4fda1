"""A model whose matrices are shared out among NVIDIA cards (--split-mode tensor) against one card, and how fast it is.

    python tools/checks/cuda_tensor.py GRUFF MODEL [--cards N] [--tokens N] [--no-bench]

- exact path (--dtype f32): NMSE of its logits to one card's below 1e-8;
- default path: NMSE to one card's exact path at most 1.5 times that of one card's default path;
- logits of a prompt do not depend on what is computed after it: the first half alone has the bits that it has in the whole;
- `gruff bench` on one card, on one without recorded steps (what the shared model is launched like), and on all.

GRUFF has to be built with `--features nccl`; needs several cards, NCCL and nothing but Python.
"""

import argparse
import array
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

NMSE_BAR = 1e-8
ROUNDED_BAR = 1.5
FAILURES = []


def gruff(*words) -> str:
    ended = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=1800)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} failed:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def logits(program, model, ids, *options) -> array.array:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        gruff(program, "logits", model, "--ids", ",".join(map(str, ids)), "--all", "--out", out, *options)
        data = out.read_bytes()
    header = struct.unpack_from("<H", data, 8)[0]
    return array.array("f", data[10 + header :])


def nmse(found, expected) -> float:
    error = sum((a - b) ** 2 for a, b in zip(found, expected, strict=True))
    return error / sum(b * b for b in expected)


def check(what: str, holds: bool):
    print(f"{'holds' if holds else 'FAILS'}: {what}")
    if not holds:
        FAILURES.append(what)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gruff")
    parser.add_argument("model")
    parser.add_argument("--cards", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--no-bench", action="store_true")
    args = parser.parse_args()
    one = ["--device", "cuda:0"]
    all_of_them = ["--device", ",".join(f"cuda:{card}" for card in range(args.cards)), "--split-mode", "tensor"]
    print("\n".join(line for line in gruff(args.gruff, "doctor").splitlines() if line.startswith(("cuda", "nccl"))))

    ids = [100 + at * 37 % 4000 for at in range(args.tokens)]
    exact = logits(args.gruff, args.model, ids, *one, "--dtype", "f32")
    shared = logits(args.gruff, args.model, ids, *all_of_them, "--dtype", "f32")
    error = nmse(shared, exact)
    check(f"exact path: NMSE {error:.1e} to one card", error < NMSE_BAR)
    rounded = nmse(logits(args.gruff, args.model, ids, *one), exact)
    whole = logits(args.gruff, args.model, ids, *all_of_them)
    error = nmse(whole, exact)
    check(f"default path: NMSE {error:.1e}, {rounded:.1e} on one card", error < ROUNDED_BAR * rounded)
    half = logits(args.gruff, args.model, ids[: args.tokens // 2], *all_of_them)
    check("rows have the same bits in a shorter step", half.tobytes() == whole[: len(half)].tobytes())

    if not args.no_bench:
        tests = ["-p", "512", "-p", "4096", "--ubatch-size", "4096", "-n", "128", "-r", "3"]
        for where in [one, [*one, "--without", "graphs"], all_of_them]:
            print(f"\ngruff bench {' '.join(where)}\n{gruff(args.gruff, 'bench', args.model, *where, *tests)}")
    print(f"{len(FAILURES)} of the checks failed")
    sys.exit(bool(FAILURES))


if __name__ == "__main__":
    main()
