"""Models on an NVIDIA card against the CPU's exact path, and requests alone against requests in a batch.

    python tools/checks/cuda_model.py GRUFF [MODEL ..] [--device cuda:0] [--prompts N] [--tokens N]

MODEL is a file or `bundled` (the default). For each of some prompts, all of whose ids are read at once:

- exact path of the card (--dtype f32): NMSE of its logits to the CPU's below 1e-8, and the most likely id the CPU's wherever the
  CPU's two likeliest are further apart than rounding;
- default path of the card, held to the CPU's exact path as tools/checks/checkpoints.py holds the CPU's: mean KL divergence at most
  1.1 times llama.cpp's, where that is recorded for the file (tests/peers), else 1.5 times that of the CPU's default path;
  where it prefers another id, the exact path's logits of the two are closer than 5 standard deviations of its rounding.

Then a server answers requests one after the other and all at once, greedy and drawn: texts and log-probabilities must be the
same. Needs a card (or, with tools/emulator in the environment, patience) and nothing but Python.
"""

import argparse
import array
import ast
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NMSE_BAR = 1e-8
KL_BAR = 1.1
KL_BAR_UNRECORDED = 1.5
GAP_BAR = 5.0
PASSAGES = [
    "The capital of France is Paris, and the river that runs through it is the Seine. Its best known bridge",
    "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n\nprint(",
    "Water boils at 100 degrees Celsius at sea level; on a high mountain it boils at less, because the pressure of the",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233. Each of these numbers is the sum of the two in front of it,",
]
QUESTIONS = [
    "What is the capital of France?",
    "Name the days of the week.",
    "What is two plus three?",
    "Who wrote Hamlet?",
    "Write a sentence about the sea.",
    "What colour is the sky?",
    "Count from one to five.",
    "Say hello in three languages, one after the other, and then say goodbye in each of them too.",
]
FAILURES = []


def gruff(*words) -> str:
    ended = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=1800)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} failed:\n{ended.stderr}")
    return ended.stdout


def rows(path: Path) -> list:
    """Rows of a file of f32 values `[ids, vocabulary]`."""
    data = path.read_bytes()
    assert data[:6] == b"\x93NUMPY"
    start = 10 + int.from_bytes(data[8:10], "little")
    head = ast.literal_eval(data[10:start].decode())
    assert head["descr"] == "<f4" and not head["fortran_order"], head
    values = array.array("f")
    values.frombytes(data[start:])
    count, width = head["shape"]
    return [values[row * width : (row + 1) * width] for row in range(count)]


def logits(arguments, model, ids, device, exact) -> list:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        words = ["--dtype", "f32"] if exact else []
        line = ",".join(map(str, ids))
        gruff(arguments.gruff, "logits", model, "--ids", line, "--all", "--out", out, "--device", device, *words)
        return rows(out)


def log_softmax(row) -> list:
    largest = max(row)
    total = math.log(sum(math.exp(x - largest) for x in row)) + largest
    return [x - total for x in row]


def divergence(exact, other) -> float:
    p, q = log_softmax(exact), log_softmax(other)
    return sum(math.exp(a) * (a - b) for a, b in zip(p, q))


def strays(name, exact, other) -> int:
    """Counts rows whose likeliest id is another, and holds the gap of the two to the rounding."""
    count = 0
    for position, (right, got) in enumerate(zip(exact, other)):
        best, found = (max(range(len(row)), key=row.__getitem__) for row in (right, got))
        if best == found:
            continue
        count += 1
        differences = [b - a for a, b in zip(right, got)]
        mean = sum(differences) / len(differences)
        deviation = math.sqrt(sum((d - mean) ** 2 for d in differences) / len(differences))
        gap = right[best] - right[found]
        if gap > GAP_BAR * deviation:
            FAILURES.append(f"{name}, position {position}: the best id trails by {gap:.4f}, {gap / deviation:.1f} times rounding")
    return count


def prompts(arguments, model) -> tuple:
    """Lists of ids, and llama.cpp's mean divergence on them, if it is recorded."""
    for recorded in ROOT.glob("tests/peers/*/peers.json"):
        peers = json.loads(recorded.read_text())
        if peers["file"] == Path(model).name:
            return [prompt["ids"] for prompt in peers["prompts"]], peers["kl_transformers_llama_cpp"]["mean"]
    ids = (gruff(arguments.gruff, "tokenize", model, passage, "--ids").split() for passage in PASSAGES)
    return [list(map(int, line)) for line in ids], None


def paths(arguments, model) -> None:
    all_ids, bar = prompts(arguments, model)
    error = size = 0.0
    kl, kl_cpu, other, positions = [], [], 0, 0
    for index, ids in enumerate(all_ids[: arguments.prompts]):
        ids = ids[: arguments.tokens]
        name = f"{model}, prompt {index}"
        exact = logits(arguments, model, ids, "cpu", True)
        card = logits(arguments, model, ids, arguments.device, True)
        for right, got in zip(exact, card):
            error += sum((a - b) ** 2 for a, b in zip(right, got))
            size += sum(a * a for a in right)
        strays(name + ", exact path", exact, card)
        default = logits(arguments, model, ids, arguments.device, False)
        kl += [divergence(a, b) for a, b in zip(exact, default)]
        if bar is None:
            kl_cpu += [divergence(a, b) for a, b in zip(exact, logits(arguments, model, ids, "cpu", False))]
        other += strays(name + ", default path", exact, default)
        positions += len(ids)
    nmse, mean = error / size, sum(kl) / len(kl)
    most = KL_BAR * bar if bar is not None else KL_BAR_UNRECORDED * sum(kl_cpu) / len(kl_cpu)
    print(f"{model}: NMSE of the exact path {nmse:.2e} (bar {NMSE_BAR}); KL of the default path {mean:.6f} (bar {most:.6f}); "
          f"{other} of {positions} likeliest ids differ, where rounding may decide", flush=True)
    if not nmse < NMSE_BAR:
        FAILURES.append(f"{model}: logits of the card's exact path have NMSE {nmse:.2e} to the CPU's")
    if not mean <= most:
        FAILURES.append(f"{model}: the card's default path has KL {mean:.6f} to the CPU's exact path, bar {most:.6f}")


class Server:
    def __init__(self, arguments, model):
        self.log = tempfile.TemporaryFile("w+")
        command = [arguments.gruff, "serve", model, "--port", "0", "--device", arguments.device, "--ctx", "1024"]
        self.process = subprocess.Popen(command, stderr=self.log, text=True, env=os.environ)

    def __enter__(self):
        last = time.monotonic() + 600
        while time.monotonic() < last:
            if found := re.search(r"(http://\S+?)/v1", self.words()):
                self.address = found[1]
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.__exit__()
        sys.exit(f"the server did not start:\n{self.words()}")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def words(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def ask(self, question, drawn, tokens) -> tuple:
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": tokens, "logprobs": True, "top_logprobs": 5}
        body |= {"temperature": 0.8, "seed": 7} if drawn else {"temperature": 0}
        request = urllib.request.Request(
            self.address + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=1800) as reply:
            choice = json.load(reply)["choices"][0]
        return choice["message"], choice["logprobs"]


def batches(arguments, model) -> None:
    asked = [(question, drawn) for question in QUESTIONS[: 2 * arguments.prompts] for drawn in (False, True)]
    with Server(arguments, model) as server:
        alone = [server.ask(*one, arguments.tokens) for one in asked]
    # Another process, whose caches hold nothing of it.
    with Server(arguments, model) as server:
        together = [None] * len(asked)

        def ask(index):
            together[index] = server.ask(*asked[index], arguments.tokens)

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(asked))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    same = sum(a == b for a, b in zip(alone, together))
    print(f"{model}: {same} of {len(asked)} answers and their log-probabilities are the same alone and in a batch", flush=True)
    for one, a, b in zip(asked, alone, together):
        if a != b:
            FAILURES.append(f"{model}, {one}: alone {a[0]}, in a batch {b and b[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gruff")
    parser.add_argument("models", nargs="*", metavar="MODEL", default=["bundled"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    for model in arguments.models:
        paths(arguments, model)
        batches(arguments, model)
    for failure in FAILURES:
        print(f"FAILED {failure}")
    sys.exit(bool(FAILURES))


if __name__ == "__main__":
    main()
