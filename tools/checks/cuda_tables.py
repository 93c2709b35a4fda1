"""The tables of docs/cuda.md that compare: the loop with and without its parts, and kernels with and without each family.

    python tools/checks/cuda_tables.py GRUFF MODEL.gguf .. [--tables speed,loop,kernels] [--device cuda:0]

speed    prompts of 512 and 4,096, one stream, streams together
loop     `generate` and the forward pass: ids read late and at once, steps replayed and launched one by one
kernels  `--without FAMILY`, each family by itself and all together

Tokens a second. Needs nothing but Python; with a 4B file speed takes about a minute, loop two, kernels three.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

FAMILIES = ["fusion", "attention", "delta-net", "norm", "matmul"]
STREAMS = [1, 8, 32]


def bench(arguments, model, *words) -> list:
    command = [arguments.gruff, "bench", model, "--device", arguments.device, "-o", "json", *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode != 0:
        print(f"{' '.join(command)} failed:\n{ended.stderr}", file=sys.stderr)
        arguments.failed = True
        return []
    return json.loads(ended.stdout)


def number(value) -> str:
    return "failed" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def by_test(records) -> dict:
    """The best run of each test."""
    return {record["test"]: max(record["samples_ts"]) for record in records}


def table(heads, rows) -> None:
    print(f"\n| {' | '.join(heads)} |\n| --- |{' ---: |' * (len(heads) - 1)}")
    for name, values in rows:
        print(f"| {name} | {' | '.join(map(number, values))} |", flush=True)


def streams(arguments, model, *words) -> list:
    """Tokens a second of streams together, without their prompts."""
    records = bench(arguments, model, "--batch", ",".join(map(str, STREAMS)), *words)
    found = {record["pl"]: record["speed_tg"] for record in records}
    return [found.get(count) for count in STREAMS]


def speed(arguments) -> None:
    rows = []
    for model in arguments.models:
        found = by_test(bench(arguments, model, "-p", "512,4096", "--ubatch-size", 4096, "-n", 128, "-r", 3))
        values = [found.get(test) for test in ["pp512", "pp4096", "tg128"]]
        rows.append((Path(model).stem, values + streams(arguments, model, "-p", 512, "-n", 64)[1:]))
    table(["file", "prompt of 512", "of 4,096", "one stream", *(f"{count} streams" for count in STREAMS[1:])], rows)


def loop(arguments) -> None:
    ways = [
        ("ids read late, graphs", True, []),
        ("ids read at once, graphs", True, ["late-ids"]),
        ("ids read late, graphs, kernels behind the end of the one before", True, ["early-launch"]),
        ("ids read late, launched one by one", True, ["graphs"]),
        ("ids read at once, launched one by one", True, ["late-ids", "graphs"]),
        ("forward pass, graphs", False, []),
        ("forward pass, graphs, kernels behind the end of the one before", False, ["early-launch"]),
        ("forward pass, launched one by one", False, ["graphs"]),
    ]
    for model in arguments.models:
        rows = []
        for name, whole, without in ways:
            without = ["--without", ",".join(without)] if without else []
            if whole:
                counts = ",".join(map(str, STREAMS))
                found = by_test(bench(arguments, model, "--generate", "-r", 2, "--batch", counts, *without))
                values = [found.get("generate128" + (f" x{count}" if count > 1 else "")) for count in STREAMS]
            else:
                values = streams(arguments, model, "-p", 16, "-n", 64, *without)
            rows.append((name, values))
        table([Path(model).stem, *(f"{count} streams" if count > 1 else "1 stream" for count in STREAMS)], rows)


def kernels(arguments) -> None:
    ways = [("nothing", []), *((f"`{family}`", [family]) for family in FAMILIES), ("all of these", FAMILIES)]
    for model in arguments.models:
        rows = []
        for name, without in ways:
            words = ["--without", ",".join(without)] if without else []
            found = by_test(bench(arguments, model, "-p", 512, "-n", 16, "-r", 1, *words))
            rows.append((name, [found.get("pp512"), found.get("tg16")]))
        table([f"{Path(model).stem}, without", "prompt of 512", "one stream"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gruff")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--tables", default="speed,loop,kernels")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    arguments.failed = False
    known = {"speed": speed, "loop": loop, "kernels": kernels}
    for name in arguments.tables.split(","):
        known[name](arguments)
    sys.exit(arguments.failed)


if __name__ == "__main__":
    main()
