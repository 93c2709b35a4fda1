"""Records, once, what llama-perplexity and llama-imatrix measure: the fixtures of tools/checks/evaluation.py.

    python tools/peers/evaluation.py --llama FOLDER_OF_PROGRAMS --f32 FILE [--models FOLDER] [--golden FOLDER]

Needs numpy, gguf, a build of llama.cpp and the checkpoints that tools/fetch.py brings. Writes
tests/peers/evaluation.json and tests/peers/smollm2-135m/saved-logits.kld, a file of `--save-all-logits`. With
--golden, a folder with a small mixture of experts in F32 (moe-f32.gguf), also what a test of gruff-eval compares with:
tests/peers/evaluation-f32.json.
"""

import argparse
import json
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "tests/peers"
TEXT = PEERS / "persuasion.txt"
MODELS = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3-270m": "gemma-3-270m-q4_k_m.gguf",
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
}
WINDOWS = {"ctx": 256, "chunks": 6}
# llama-perplexity makes its windows longer than -c: with these options they have 512 tokens.
STRIDED = {"ctx": 512, "stride": 256, "chunks": 15}
STRIDED_OPTIONS = ["-c", "256", "-b", "256", "--ppl-stride", "256", "--chunks", "15"]
# The same weights in F32: nothing is rounded.
EXACT_OPTIONS = ["-fa", "off", "-ctk", "f32", "-ctv", "f32"]
DIVERGENCE = {"ctx": 256, "chunks": 1}
SAVED = {"ctx": 8, "chunks": 1}
IMATRIX = {"ctx": 256, "chunks": 2}
GOLDEN = {"ctx": 64, "chunks": 2}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", type=Path, required=True, help="where llama-perplexity and llama-imatrix are")
    parser.add_argument("--models", type=Path, default=ROOT / "target/fixtures/models")
    parser.add_argument("--f32", type=Path, required=True, help="SmolLM2 unpacked: `gruff dequantize --dtype f32`, then "
                        "`gruff convert --outtype f32`")
    parser.add_argument("--golden", type=Path, help="where moe-f32.gguf is")
    arguments = parser.parse_args()

    def llama(program, model, *options):
        path = arguments.models / MODELS[model] if model in MODELS else model
        command = [arguments.llama / program, "-m", path, "-t", "1", *map(str, options)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"{program} failed:\n{done.stdout[-2000:]}")
        return done.stdout

    if arguments.golden:
        golden(llama, arguments.golden / "moe-f32.gguf")
    records = {
        "made_by": "python tools/peers/evaluation.py --llama FOLDER",
        "llama_cpp": "0c1e57098 (llama-cpp-python 0.3.36), CPU, 1 thread",
        "perplexity": {"windows": WINDOWS, "models": {}},
    }
    for model in MODELS:
        output = llama("llama-perplexity", model, "-f", TEXT, "-c", WINDOWS["ctx"], "--chunks", WINDOWS["chunks"])
        value, error = re.search(r"PPL = ([\d.]+) \+/- ([\d.]+)", output).groups()
        chunks = [float(text) for text in re.findall(r"\[\d+\]([\d.]+),", output)]
        records["perplexity"]["models"][model] = {"value": float(value), "error": float(error), "chunks": chunks}
        print(f"{model:20} perplexity {value} +/- {error}", flush=True)

    model = "smollm2-135m"
    # Of this file llama.cpp's own rounding is as large as what the check would hold: its value for the same weights in
    # F32 tells what of a difference is whose.
    output = llama(
        "llama-perplexity", arguments.f32, "-f", TEXT, "-c", WINDOWS["ctx"], "--chunks", WINDOWS["chunks"], *EXACT_OPTIONS
    )
    records["perplexity"]["models"][model]["f32"] = float(re.search(r"PPL = ([\d.]+)", output).group(1))
    records["strided"] = {"windows": STRIDED}
    for key, file, more in (("chunks", model, []), ("f32", arguments.f32, EXACT_OPTIONS)):
        output = llama("llama-perplexity", file, "-f", TEXT, *STRIDED_OPTIONS, *more)
        assert f"Calculation chunk = {STRIDED['ctx']}" in output
        records["strided"][key] = [float(t) for t in re.findall(r"\[\d+\]([\d.]+),", output)]

    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base.kld"
        save = ["-f", TEXT, "--chunks", 1, "--save-all-logits", base, "-c"]
        llama("llama-perplexity", model, *save, SAVED["ctx"])
        (PEERS / model / "saved-logits.kld").write_bytes(base.read_bytes())
        llama("llama-perplexity", model, *save, DIVERGENCE["ctx"])
        rotate(base)
        output = llama("llama-perplexity", model, "-c", DIVERGENCE["ctx"], "--kl-divergence-base", base, "--kl-divergence")
        records["divergence"] = {"windows": DIVERGENCE, "statistics": statistics(output)}
        print(json.dumps(records["divergence"]["statistics"], ensure_ascii=False), flush=True)

        lines = []
        for line in (PEERS / "choices.jsonl").read_text().splitlines():
            task = json.loads(line)
            lines += [task["ctx"], str(task["label"]), *task["endings"]]
        tasks = Path(scratch) / "tasks.txt"
        tasks.write_text("\n".join(lines) + "\n")
        output = llama("llama-perplexity", model, "-f", tasks, "--hellaswag", "--hellaswag-tasks", 400, "-c", 512)
        number, acc = re.findall(r"^(\d+)\t\s*([\d.]+)%", output, re.M)[-1]
        records["choices"] = {"tasks": int(number), "acc_token": float(acc) / 100}
        print(f"multiple choice: {acc} % of {number}", flush=True)

        out = Path(scratch) / "imatrix.gguf"
        options = ["-f", TEXT, "-o", out, "-c", IMATRIX["ctx"], "--chunks", IMATRIX["chunks"], "--no-ppl"]
        llama("llama-imatrix", model, *options)
        records["imatrix"] = {"windows": IMATRIX, **imatrix(out)}
        print(f"importance matrix: {len(records['imatrix']['tensors'])} tensors", flush=True)

    write("evaluation.json", records)


def golden(llama, path):
    """Perplexity and importance matrix of a model in F32, whose activations llama.cpp does not round."""
    windows = ["-f", TEXT, "-c", GOLDEN["ctx"], "--chunks", GOLDEN["chunks"]]
    value, error = re.search(r"PPL = ([\d.]+) \+/- ([\d.]+)", llama("llama-perplexity", path, *windows)).groups()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "imatrix.gguf"
        llama("llama-imatrix", path, *windows, "-o", out, "--no-ppl")
        found = imatrix(out)
    write("evaluation-f32.json", {"windows": GOLDEN, "perplexity": float(value), "error": float(error), **found})


def write(name, records):
    text = json.dumps(records, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[\s\d,.e+-]+\]", lambda match: " ".join(match[0].split()), text)
    (PEERS / name).write_text(text + "\n")


def rotate(path):
    """Gives every position of a file of saved logits the row of the one before it, so that statistics differ from 0."""
    data = path.read_bytes()
    ctx, vocabulary, chunks = struct.unpack_from("<iii", data, 8)
    begin = 20 + 4 * ctx * chunks
    row = 2 * (2 * ((vocabulary + 1) // 2) + 4)
    rows = np.frombuffer(data, np.uint8, offset=begin).reshape(-1, row)
    path.write_bytes(data[:begin] + np.roll(rows, 1, axis=0).tobytes())


def statistics(output):
    """The last part of what `--kl-divergence` prints, by the names that llama-perplexity gives."""
    found = {}
    for line in output[output.index("====== Perplexity statistics") :].splitlines():
        match = re.match(r"\s*(\S.*?)\s*:\s+(-?[\d.]+)\s*(?:%)?\s*(?:±\s+([\d.]+))?", line)
        if match:
            name, value, error = match.groups()
            found[" ".join(name.split())] = [float(value)] + ([float(error)] if error else [])
    return found


def imatrix(path):
    """Keys, and of each tensor its counts, how many inputs it has, the sum over them and a few of them."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    tensors = {}
    data = {tensor.name: np.array(tensor.data, np.float64).reshape(-1) for tensor in reader.tensors}
    for name in sorted(data):
        if name.endswith(".in_sum2"):
            stem = name.removesuffix(".in_sum2")
            values = data[name]
            some = values[np.linspace(0, len(values) - 1, 4).astype(int)]
            rounded = [float(f"{value:.6g}") for value in some]
            counts = data[f"{stem}.counts"].astype(int).tolist()
            tensors[stem] = {"counts": counts, "inputs": len(values), "sum": float(f"{values.sum():.7g}"), "some": rounded}
    keys = ["general.type", "imatrix.chunk_count", "imatrix.chunk_size"]
    return {"keys": {key: reader.get_field(key).contents() for key in keys}, "tensors": tensors}


if __name__ == "__main__":
    main()
