"""Second tier: unpacks (and packs) many random blocks with gruff-blocks and compares bit for bit.

    python tools/checks/blocks.py [--blocks 10000] [--seed 1] [--libggml PATH_OF_libggml-base.so] [TYPE ..]
"""

import argparse
import subprocess
import sys
from pathlib import Path

import examples
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from block_oracle import PACKED, SIZES, dequantize, quantize  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", metavar="TYPE")
    parser.add_argument("--blocks", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--libggml", help="llama.cpp's libggml-base, for the types PyPI packages lack")
    arguments = parser.parse_args()

    program = examples.build("blocks")

    def gruff(direction, name, data):
        return subprocess.run([program, direction, name], check=True, input=data.tobytes(), stdout=subprocess.PIPE).stdout

    rng = np.random.default_rng(arguments.seed)
    failed = False
    for name in arguments.types or SIZES:
        packed = rng.integers(0, 256, arguments.blocks * SIZES[name][1], dtype=np.uint8)
        expected, oracle = dequantize(name, packed, arguments.libggml)
        actual = np.frombuffer(gruff("unpack", name, packed), dtype="<f4")
        same = actual.size == expected.size and (
            (actual.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(actual) & np.isnan(expected))
        )
        wrong = int(np.size(same) - np.count_nonzero(same))
        failed |= wrong > 0
        print(f"{name:8} {arguments.blocks} blocks against {oracle}: {wrong} values differ")
    for name in PACKED:
        if arguments.types and name not in arguments.types:
            continue
        values = rng.standard_normal(arguments.blocks * SIZES[name][0]).astype(np.float32)
        actual = np.frombuffer(gruff("pack", name, values), dtype=np.uint8)
        expected = quantize(name, values)
        wrong = expected.size if actual.size != expected.size else int(np.count_nonzero(actual != expected))
        failed |= wrong > 0
        print(f"{name:8} {arguments.blocks} blocks packed against gguf: {wrong} bytes differ")
    sys.exit(failed)


if __name__ == "__main__":
    main()
