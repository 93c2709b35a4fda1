"""Second tier: gruff's quantizer beside llama.cpp's.

    python tools/checks/quantize.py [FOLDER_OF_CHECKPOINTS] [--gruff PROGRAM] [--types TYPE ..] [--rows 200]

Needs numpy, gguf and libgguf.

- rows: values as weights have them (heavy-tailed, and a real model's embeddings where the folder has them) are packed by
  `libgguf`, which is llama.cpp's quantizer, and by gruff-blocks. For every type the error of ours is at most 1.02 times
  theirs: root mean square without importance, weighted with it. What we pack, `libgguf` unpacks to the same values.
- types: `gruff quantize --dry-run` gives each tensor of the checkpoints the type that llama-quantize gave it
  (tests/peers/quantize), under every preset.
- file: a checkpoint quantized to Q8_0 holds what the gguf package makes of the same values.
"""

import argparse
import functools
import json
import string
import subprocess
import sys
import tempfile
from pathlib import Path

import examples
import gguf
import libgguf
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from block_oracle import SIZES  # noqa: E402

BAR = 1.02
ROW = 1024
IDS = {name: int(getattr(gguf.GGMLQuantizationType, name, 41 if name == "Q1_0" else -1)) for name in SIZES}
TYPES = """Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL
IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0""".split()
# Types that libgguf packs with importance only.
NEEDS = {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS"}
FAILURES = []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--gruff", type=Path, default=ROOT / "target" / "release" / "gruff")
    parser.add_argument("--types", nargs="+", default=TYPES)
    parser.add_argument("--rows", type=int, default=200)
    arguments = parser.parse_args()
    check_rows(arguments)
    if arguments.folder:
        check_types(arguments)
        check_file(arguments)
    for failure in FAILURES:
        print("FAILED:", failure)
    sys.exit(bool(FAILURES))


def hold(condition, what):
    if not condition:
        FAILURES.append(what)


def check_rows(arguments):
    rng = np.random.default_rng(1)
    sets = {"tails": (rng.standard_t(6, size=(arguments.rows, ROW)) * 0.03).astype(np.float32)}
    if arguments.folder and (path := arguments.folder / "SmolLM2-135M-Instruct.Q4_1.gguf").exists():
        sets["SmolLM2"] = embeddings(path, arguments.rows, rng)
    importance = np.exp(rng.normal(size=ROW)).astype(np.float32)
    print(f"{'':8} {'rows':8} {'importance':11} {'theirs':>9} {'ours':>9} {'ratio':>7}")
    for name in arguments.types:
        for label, rows in sets.items():
            for weights in (None, importance):
                compare(name, label, rows, weights)


def embeddings(path, rows, rng):
    """Q8_0 embeddings as floats again, moved by less than half a step so that they lie on no grid."""
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "token_embd.weight")
    values = gguf.quants.dequantize(tensor.data[: 2 * rows], tensor.tensor_type).ravel()[: rows * ROW]
    step = np.abs(values).reshape(-1, 32).max(axis=1).repeat(32) / 127
    return (values + step * rng.uniform(-0.5, 0.5, values.size)).astype(np.float32).reshape(rows, ROW)


def compare(name, label, rows, weights):
    given = weights if weights is not None or name not in NEEDS else np.ones(ROW, dtype=np.float32)
    theirs = bytes(libgguf.quantize_rows_raw(IDS[name], rows.tobytes(), len(rows), ROW, given))
    ours = quantize(name, rows, weights)
    values = unpack(name, ours)
    again = libgguf.dequantize_rows_raw(IDS[name], ours, len(rows), ROW)
    same = np.array_equal(values, np.frombuffer(again, dtype="<f4"))
    hold(same, f"{name} {label}: libgguf unpacks what we packed to other values")
    weight = np.ones(ROW) if weights is None else weights.astype(np.float64)

    def error(unpacked):
        difference = rows.astype(np.float64) - unpacked.reshape(rows.shape)
        return np.sqrt((difference**2 * weight).sum() / (rows.astype(np.float64) ** 2 * weight).sum())

    mine, other = error(values), error(unpack(name, theirs))
    hold(mine <= BAR * other, f"{name} {label}: error {mine:.5f} where libgguf has {other:.5f}")
    kind = "without" if weights is None else "with"
    print(f"{name:8} {label:8} {kind:11} {other:9.5f} {mine:9.5f} {mine / other:7.4f}", flush=True)


@functools.cache
def program():
    return examples.build("blocks")


def blocks(*arguments, data):
    return subprocess.run([program(), *arguments], check=True, input=data, capture_output=True).stdout


def quantize(name, rows, weights):
    if weights is None:
        return blocks("quantize", name, str(ROW), data=rows.tobytes())
    with tempfile.NamedTemporaryFile() as file:
        file.write(weights.tobytes())
        file.flush()
        return blocks("quantize", name, str(ROW), file.name, data=rows.tobytes())


def unpack(name, packed):
    return np.frombuffer(blocks("unpack", name, data=packed), dtype="<f4")


def check_types(arguments):
    for path in sorted(arguments.folder.glob("*.gguf")):
        recording = ROOT / "tests" / "peers" / "quantize" / f"{path.stem.lower()}.json"
        if not recording.exists():
            continue
        recorded = json.loads(recording.read_text())
        names = [tensor[0] for tensor in recorded["tensors"]]
        wrong = 0
        plain = {preset: row for preset, row in recorded["types"].items() if "+" not in preset}
        for preset, row in plain.items():
            run = subprocess.run(
                [arguments.gruff, "quantize", path, preset, "--dry-run", "--json"], capture_output=True, text=True
            )
            hold((run.returncode == 0) == (row is not None), f"{path.name} {preset}: {run.stderr or 'is not refused'}")
            if row is None or run.returncode != 0:
                continue
            expected = {n: recorded["letters"][string.ascii_letters.index(c)] for n, c in zip(names, row, strict=True)}
            found = {tensor["name"]: tensor["type"] for tensor in json.loads(run.stdout)["tensors"]}
            differ = [name for name in names if found.get(name) != expected[name]]
            wrong += len(differ)
            hold(not differ and len(found) == len(names), f"{path.name} {preset}: other types for {differ[:3]}")
        print(f"{path.name}: {len(plain)} presets, {len(names)} tensors, {wrong} types differ")


def check_file(arguments):
    path = arguments.folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.gguf"
        command = [arguments.gruff, "quantize", path, out, "Q8_0", "--allow-requantize", "--quiet"]
        subprocess.run(command, check=True)
        before = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
        wrong = 0
        after = gguf.GGUFReader(out).tensors
        for tensor in after:
            source = before[tensor.name]
            if source.tensor_type == tensor.tensor_type:
                expected = source.data
            else:
                values = gguf.quants.dequantize(source.data, source.tensor_type)
                expected = gguf.quants.quantize(values, tensor.tensor_type)
            wrong += not np.array_equal(expected, tensor.data)
        hold(wrong == 0 and len(after) == len(before), f"{wrong} of {len(after)} tensors of {out.name} differ")
        print(f"{path.name} as Q8_0: {len(after)} tensors, {wrong} differ from gguf's")


if __name__ == "__main__":
    main()
