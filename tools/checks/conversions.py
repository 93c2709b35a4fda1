"""Second tier: `gruff convert`, `dequantize`, `split`, `merge` and `edit` against what others made of the same models.

    python tools/checks/conversions.py [--gruff PROGRAM]

Needs numpy, gguf, tokenizers, sentencepiece and transformers (without torch). For each folder of tests/conversion,
which tools/fixtures/conversion.py made with transformers and llama.cpp's converter:

* PyPI gguf reads in gruff's file the keys, types, shapes and bytes of llama.cpp's, but for the last bit of exponentials;
* logits on gruff's exact path have an NMSE below 1e-8 to those that transformers gave;
* the dequantized folder holds the values of the original one, its tokenizer makes the same ids;
* split, merged and edited files hold the same tensors.

A folder whose weights are cut short is refused; a disk that is full leaves nothing behind; a model of 500 MB is
converted in less than 150 MB of memory.
"""

import argparse
import hashlib
import json
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from tokenizers import Tokenizer
from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "conversion"
TEXT = "In the beginning, 3.14159 words: naïve déjà-vu!\n\nIt's what we'd said -- <|im_end|> twice;  中文 and so on. "
FLAT = 150 << 20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gruff", type=Path, default=ROOT / "target" / "release" / "gruff")
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        check = Check(arguments.gruff, Path(work))
        for folder in sorted(path for path in MODELS.iterdir() if path.is_dir()):
            failed += check.model(folder)
        for case in (check.cut_short, check.full_disk, check.flat_memory):
            failed += check.report(case.__name__.replace("_", " "), case)
    sys.exit(f"{failed} failed" if failed else 0)


class Check:
    def __init__(self, gruff, work):
        self.gruff, self.work = gruff.resolve(), work

    def run(self, *command, **options):
        return subprocess.run([self.gruff, *map(str, command)], capture_output=True, text=True, **options)

    def ok(self, *command):
        done = self.run(*command)
        if done.returncode != 0:
            raise AssertionError(f"gruff {' '.join(map(str, command))}: {done.stderr.strip()}")
        return done.stdout

    def report(self, name, case):
        """1 if the case fails."""
        try:
            print(f"{name:28} {case()}", flush=True)
            return 0
        except AssertionError as fault:
            print(f"{name:28} FAILED: {fault}", flush=True)
            return 1

    def model(self, folder):
        return self.report(folder.name, lambda: self.check_model(folder))

    def check_model(self, folder):
        expected = json.loads((folder / "expected.json").read_text())
        count = 0
        for outtype, file in expected.items():
            out = self.work / f"{folder.name}-{outtype}.gguf"
            self.ok("convert", folder, out, "--outtype", outtype)
            count += compare(file, GGUFReader(out))
        f32 = self.work / f"{folder.name}-f32.gguf"
        nmse = self.compare_logits(folder, f32)
        back = self.work / f"{folder.name}-back"
        self.ok("dequantize", f32, back, "--dtype", "f32", "--max-shard-size", "100k")
        values = self.compare_tensors(folder, back)
        ids = self.compare_ids(folder, back, f32)
        self.containers(f32)
        return f"{count} keys and tensors, NMSE {nmse:.1e}, {values} values back, {ids} ids"

    def compare_logits(self, folder, file):
        ids = ",".join(map(str, json.loads((folder / "ids.json").read_text())))
        out = self.work / "logits.npy"
        self.ok("logits", file, "--ids", ids, "--all", "--dtype", "f32", "--out", out)
        found, expected = np.load(out).astype(np.float64), np.load(folder / "logits.npy").astype(np.float64)
        nmse = float(((found - expected) ** 2).sum() / (expected ** 2).sum())
        assert nmse < 1e-8, f"logits differ from transformers': NMSE {nmse:.1e}"
        return nmse

    def compare_tensors(self, folder, back):
        one, two = tensors_of(folder), tensors_of(back)
        assert one.keys() == two.keys(), f"tensors differ: {sorted(one.keys() ^ two.keys())[:5]}"
        for name, values in one.items():
            assert values.shape == two[name].shape, f"{name} has the shape {two[name].shape}"
            # Norms and decays are rounded once on the way.
            close = np.allclose(values, two[name], rtol=2e-6, atol=2e-7)
            assert close, f"{name} differs by {np.abs(values - two[name]).max():.1e}"
        return sum(values.size for values in one.values())

    def compare_ids(self, folder, back, file):
        original = AutoTokenizer.from_pretrained(folder)
        expected = original(TEXT, add_special_tokens=False)["input_ids"]
        (self.work / "text").write_text(TEXT)
        found = subprocess.run([self.gruff, "tokenize", file, "-", "--ids", "--parse-special"], input=TEXT,
                               capture_output=True, text=True, check=True).stdout
        assert [int(i) for i in found.split()] == expected, "gruff's ids differ from the folder's tokenizer"
        again = Tokenizer.from_file(str(back / "tokenizer.json"))
        assert again.encode(TEXT, add_special_tokens=False).ids == expected, "ids of the folder made back differ"
        # A template of either may begin texts with a token.
        whole = AutoTokenizer.from_pretrained(back)(TEXT)["input_ids"]
        assert whole == original(TEXT)["input_ids"], "special tokens of the folder made back differ"
        return len(expected)

    def containers(self, file):
        """Split, merge, edit."""
        parts = self.ok("split", file, self.work / "part.gguf", "--max-tensors", "7", "--overwrite").split()
        assert len(parts) > 2, parts
        assert sum(len(GGUFReader(part).tensors) for part in parts) == len(GGUFReader(file).tensors)
        merged = self.work / "merged.gguf"
        self.ok("merge", parts[-1], merged, "--overwrite")
        assert merged.read_bytes() == file.read_bytes(), "the merged file differs"
        before = {t.name: t.data.tobytes() for t in GGUFReader(merged).tensors}
        for length in (3, 400, 5):
            self.ok("edit", merged, "--set", f"general.name={'n' * length}", "--set", "test.numbers=[1, 2]")
            reader = GGUFReader(merged)
            assert reader.fields["general.name"].contents() == "n" * length
            assert reader.fields["test.numbers"].contents() == [1, 2]
            assert {t.name: t.data.tobytes() for t in reader.tensors} == before, "edited tensors differ"

    def cut_short(self):
        folder = self.copy("qwen35", "cut")
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:40000])
        done = self.run("convert", folder, self.work / "cut.gguf")
        assert done.returncode == 1 and "cut short" in done.stderr, done.stderr
        return self.nothing_left("cut.gguf", done)

    def full_disk(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000))

        done = self.run("convert", MODELS / "qwen35", self.work / "full.gguf", preexec_fn=limit)
        assert done.returncode == 1 and "full.gguf" in done.stderr, done.stderr
        self.nothing_left("full.gguf", done)
        file = self.work / "qwen35-f32.gguf"
        done = self.run("dequantize", file, self.work / "full", "--dtype", "f32", preexec_fn=limit)
        assert done.returncode == 1 and "full" in done.stderr, done.stderr
        return self.nothing_left("full", done)

    def flat_memory(self):
        """Feed-forwards so wide that the weights take 500 MB."""
        folder = self.copy("Tiny-Llama-36K-Instruct-v0.2", "large")
        header, data = read_header(folder / "model.safetensors")
        narrow, wide = 48, 1_400_000
        config = json.loads((folder / "config.json").read_text())
        config["intermediate_size"] = wide
        (folder / "config.json").write_text(json.dumps(config))
        at, chunks = 0, []
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            if ".mlp." in name:
                entry["shape"] = [wide if size == narrow else size for size in entry["shape"]]
                length = 2 * int(np.prod(entry["shape"]))
            else:
                length = end - begin
                chunks.append((at, data[begin:end]))
            entry["data_offsets"] = [at, at + length]
            at += length
        text = json.dumps(header).encode()
        with open(folder / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for place, chunk in chunks:
                file.seek(8 + len(text) + place)
                file.write(chunk)
            file.truncate(8 + len(text) + at)
        peak = self.peak("convert", folder, self.work / "large.gguf", "--outtype", "q8_0")
        assert peak < FLAT, f"{at >> 20} MB of weights took {peak >> 20} MB of memory"
        return f"{at >> 20} MB of weights converted in {peak >> 20} MB of memory"

    def peak(self, *command):
        """The most memory a command took, in bytes."""
        code = ("import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]); "
                "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024); sys.exit(done.returncode)")
        done = subprocess.run([sys.executable, "-c", code, self.gruff, *map(str, command)], capture_output=True,
                              text=True)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.split()[-1])

    def copy(self, name, new):
        return Path(shutil.copytree(MODELS / name, self.work / new))

    def nothing_left(self, name, done):
        left = [path.name for path in self.work.iterdir() if name.split(".")[0] in path.name and path.name != "cut"]
        assert not left, f"left behind: {left}"
        return done.stderr.strip().removeprefix("error: ").replace(str(self.work), "")


def compare(expected, reader):
    """How many keys and tensors there are; they must be those expected."""
    keys = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert keys.keys() == expected["keys"].keys(), f"keys differ: {sorted(keys.keys() ^ expected['keys'].keys())}"
    for key, (types, value) in expected["keys"].items():
        found = [[int(t) for t in keys[key].types], keys[key].contents()]
        assert found == [types, value], f"{key} is {str(found)[:80]}, not {str([types, value])[:80]}"
    tensors = {t.name: t for t in reader.tensors}
    both = tensors.keys() ^ expected["tensors"].keys()
    assert not both, f"tensors differ: {sorted(both)}"
    for name, (kind, shape, digest) in expected["tensors"].items():
        tensor = tensors[name]
        found = [tensor.tensor_type.name, [int(n) for n in tensor.shape]]
        assert found == [kind, shape], f"{name} is {found}, not {[kind, shape]}"
        # The last bit of exponentials, and of powers, depends on the library.
        if not name.endswith(("ssm_a", "rope_freqs.weight")):
            same = hashlib.sha256(tensor.data.tobytes()).hexdigest() == digest
            assert same, f"the values of {name} differ from those of llama.cpp's converter"
    return len(keys) + len(tensors)


def read_header(path):
    """The tensors of a safetensors file in the order of their values, and the values' bytes."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + length])
    header.pop("__metadata__", None)
    return dict(sorted(header.items(), key=lambda item: item[1]["data_offsets"])), content[8 + length:]


def tensors_of(folder):
    """All tensors of a folder as f32."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        header, data = read_header(path)
        for name, entry in header.items():
            part = data[entry["data_offsets"][0]:entry["data_offsets"][1]]
            if entry["dtype"] == "BF16":
                values = (np.frombuffer(part, np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                assert entry["dtype"] == "F32", entry["dtype"]
                values = np.frombuffer(part, np.float32)
            tensors[name] = values.reshape(entry["shape"])
    return tensors


if __name__ == "__main__":
    main()
