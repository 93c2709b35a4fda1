"""Examples of the workspace as programs for checks."""

import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build(name):
    """Builds an example as `cargo test --workspace` does, which has it already then, and gives the program's path.

    With `--package` instead of `--workspace` other features of its dependencies are asked for: all are compiled again.
    """
    command = ["cargo", "build", "--quiet", "--workspace", "--example", name, "--message-format", "json"]
    told = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    for message in map(json.loads, told.splitlines()):
        if message["reason"] == "compiler-artifact" and message["target"]["name"] == name and message["executable"]:
            return Path(message["executable"])
    raise RuntimeError(f"cargo names no program of the example {name}")
