"""Second tier: compares what gruff-gguf reads and writes with PyPI gguf's reader.

    python tools/checks/container.py FILE_OR_FOLDER..

Needs numpy and gguf. For every file: keys in order, their types and values, tensors in order, their shapes, types,
places and data. Files up to 16 MB are also written again by gruff and read by gguf; those with tensors split and
joined, and turned big-endian by gruff and, where it knows all the types, by gguf's own converter, which must give
the same bytes.
"""

import argparse
import functools
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import examples
import numpy as np
from gguf import GGUFReader, GGUFValueType

# Copies are made of files up to this size.
SMALL = 16 << 20
# What gguf's converter can turn around.
CONVERTIBLE = {"F32", "F16", "BF16", "Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "NVFP4"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE_OR_FOLDER")
    arguments = parser.parse_args()
    files = [f for path in arguments.paths for f in ([path] if path.is_file() else sorted(path.rglob("*.gguf")))]
    if not files:
        sys.exit("no GGUF files there")
    failed = 0
    for file in files:
        faults = check(file)
        failed += bool(faults)
        print(f"{file.name}: {'; '.join(faults) or 'the same'}")
    print(f"{len(files) - failed} of {len(files)} files agree")
    sys.exit(failed > 0)


def check(file):
    """What differs, in words."""
    expected, actual = reference(file), dump(file)
    faults = differences(expected, actual)
    if file.stat().st_size <= SMALL:
        with tempfile.TemporaryDirectory() as folder:
            faults += check_copies(file, actual, Path(folder))
    return faults


def check_copies(file, original, folder):
    whole = folder / "whole.gguf"
    run("copy", file, whole)
    faults = differences(reference(whole), original, "copy: ", offsets=False)
    if not original["tensors"]:
        return faults
    parts = run("copy", file, folder / "part.gguf", "--split-tensors", "7").split()
    run("copy", parts[-1], folder / "joined.gguf")
    if (folder / "joined.gguf").read_bytes() != whole.read_bytes():
        faults.append("joined parts differ from the whole")
    run("copy", file, folder / "big.gguf", "--big-endian")
    faults += differences(original, dump(folder / "big.gguf"), "big-endian: ", offsets=False)
    types = {tensor.tensor_type.name for tensor in GGUFReader(whole).tensors}
    if types <= CONVERTIBLE:
        shutil.copy(whole, folder / "theirs.gguf")
        convert = [sys.executable, "-m", "gguf.scripts.gguf_convert_endian", folder / "theirs.gguf", "big"]
        subprocess.run(convert, input=b"YES\n", check=True, capture_output=True)
        if (folder / "big.gguf").read_bytes() != (folder / "theirs.gguf").read_bytes():
            faults.append("big-endian copies differ")
    return faults


def differences(expected, actual, what="", offsets=True):
    faults = []
    for part in ("metadata", "tensors"):
        a, b = expected[part], actual[part]
        if not offsets and part == "tensors":
            a, b = ([[*row[:3], *row[4:]] for row in rows] for rows in (a, b))
        wrong = [f"{x[0]}: {x[1:]} is {y[1:]}" for x, y in zip(a, b) if x != y]
        if len(a) != len(b):
            wrong.append(f"{len(a)} are {len(b)}")
        if wrong:
            faults.append(f"{what}{len(wrong)} {part} differ, first {wrong[0]}")
    return faults


built = functools.cache(examples.build)


def run(example, *arguments):
    return subprocess.run([built(example), *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True).stdout


def dump(file):
    return json.loads(run("dump", file))


def reference(file):
    """The same as gruff's dump, by gguf's reader."""
    reader = GGUFReader(file)
    fields = [field for key, field in reader.fields.items() if not key.startswith("GGUF.")]
    metadata = [[field.name, *describe(field)] for field in fields]
    tensors = []
    for tensor in reader.tensors:
        data = tensor.data.tobytes()
        # A scalar has one dimension in gruff.
        shape = tensor.shape.tolist() or [1]
        row = [tensor.name, shape, int(tensor.tensor_type), int(tensor.data_offset), len(data), sha256(data)]
        tensors.append(row)
    return {"metadata": metadata, "tensors": tensors}


def describe(field):
    """Type and SHA-256 sum of a value: little-endian bytes, integers as 64 bits, strings after their lengths."""
    kind = field.types[0]
    values = [field.parts[at] for at in field.data]
    if kind != GGUFValueType.ARRAY:
        return kind.name.lower(), sha256(encode(kind, values))
    # Behind the key (length, text, type) come the elements' type and their number.
    kind, count = GGUFValueType(int(field.parts[3][0])), int(field.parts[4][0])
    return f"{kind.name.lower()}[{count}]", sha256(encode(kind, values))


def encode(kind, values):
    if kind == GGUFValueType.STRING:
        return b"".join(np.uint64(len(value)).tobytes() + value.tobytes() for value in values)
    numbers = np.concatenate(values) if values else np.empty(0, np.uint8)
    if kind not in (GGUFValueType.BOOL, GGUFValueType.FLOAT32, GGUFValueType.FLOAT64):
        numbers = numbers.astype(np.int64)
    return numbers.tobytes()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    main()
