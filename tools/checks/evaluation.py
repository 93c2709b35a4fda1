"""Second tier: gruff's measures of real checkpoints against those of llama-perplexity and llama-imatrix.

    python tools/checks/evaluation.py FOLDER_OF_CHECKPOINTS [--gruff PROGRAM]

Needs numpy and gguf. What llama.cpp measured was recorded once (tools/peers/evaluation.py, tests/peers). Both round
activations to int8, each in its own way, so no two values are the same; held are:

- perplexity of three checkpoints: within 0.5 %, after every window (127 tokens) within 3 %; its standard error within
  2 %. Of SmolLM2 llama.cpp's own rounding is that large: its value for the same weights in F32 is held within 0.1 % on
  both paths, and the one for the rounded file as near as those two are to each other;
- strided perplexity of SmolLM2 (3,840 tokens): within 0.5 %, and within 0.1 % of what llama-perplexity finds for the
  same weights in F32, where it rounds nothing (0.3 % after every window);
- statistics of `--kl-divergence` against saved logits that are shifted by a position (127 tokens): means within 2 %,
  the likeliest id at two positions at most, percentiles within 5 % or a fiftieth of the largest;
- a file of logits that llama-perplexity saved: read, its divergence below 0.01; one that gruff saves has the same
  size, header and tokens;
- multiple choice: at most one of the tasks is decided otherwise;
- importance matrix: the same tensors, counts and keys; sums over all inputs within 2 %, single inputs within
  25 %, or 2 % of the tensor's mean one. (Of a model in F32, where neither rounds, they agree to 1e-4: a test of
  gruff-eval holds that.)
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "tests" / "peers"
sys.path.insert(0, str(ROOT / "tools"))
from peers.evaluation import MODELS, SAVED, TEXT, imatrix, rotate  # noqa: E402

SMOLLM2 = "smollm2-135m"
# llama-perplexity's names, gruff's, and what one is of the other.
MEANS = [
    ("Mean PPL(Q)", "perplexity", 1),
    ("Mean PPL(base)", "base_perplexity", 1),
    ("Mean ln(PPL(Q)/PPL(base))", "ln_ratio", 1),
    ("Mean PPL(Q)/PPL(base)", "ratio", 1),
    ("Mean PPL(Q)-PPL(base)", "difference", 1),
    ("Mean KLD", "kld", 1),
    ("Mean Δp", "delta_p", 100),
    ("RMS Δp", "rms_delta_p", 100),
    ("Same top p", "same_top", 100),
]
PERCENTILES = {
    "Maximum": "maximum",
    "99.9%": "p99_9",
    "99.0%": "p99",
    "95.0%": "p95",
    "90.0%": "p90",
    "75.0%": "p75",
    "Median": "median",
    "25.0%": "p25",
    "10.0%": "p10",
    "5.0%": "p5",
    "1.0%": "p1",
    "0.1%": "p0_1",
    "Minimum": "minimum",
}
FAILURES = []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gruff", type=Path, default=ROOT / "target" / "release" / "gruff")
    arguments = parser.parse_args()
    recorded = json.loads((PEERS / "evaluation.json").read_text())

    def gruff(command, model, *options):
        line = [arguments.gruff, command, arguments.folder / MODELS[model], *map(str, options)]
        done = subprocess.run(line, stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout) if "--json" in options else None

    with tempfile.TemporaryDirectory() as scratch:
        perplexity(gruff, recorded)
        divergence(gruff, recorded["divergence"], Path(scratch))
        saved_logits(gruff, Path(scratch))
        choices(gruff, recorded["choices"])
        importance(gruff, recorded["imatrix"], Path(scratch))
    for failure in FAILURES:
        print(f"FAILED {failure}")
    print(f"{len(FAILURES)} failures")
    sys.exit(bool(FAILURES))


def hold(what, found, expected, relative, absolute=0.0):
    """Whether two numbers are close; gives the relative difference."""
    difference = abs(found - expected)
    if not difference <= max(relative * abs(expected), absolute):
        FAILURES.append(f"{what}: {found:.6g}, llama.cpp's is {expected:.6g}")
    return difference / abs(expected) if expected else 0.0


def options(windows):
    return [text for name, value in windows.items() for text in (f"--{name}", value)]


def perplexity(gruff, recorded):
    windows = options(recorded["perplexity"]["windows"])
    for model, expected in recorded["perplexity"]["models"].items():
        line = f"{model:20} perplexity, llama.cpp {expected['value']:.4f}"
        exact = expected.get("f32")
        rounding = abs(expected["value"] / exact - 1) if exact else 0.0
        for dtype in ["auto", "f32"] if exact else ["auto"]:
            found = gruff("perplexity", model, "-f", TEXT, *windows, "--dtype", dtype, "--json")
            value, what = found["perplexity"], f"{model}, {dtype}"
            off = hold(f"{what}: perplexity", value["value"], expected["value"], max(0.005, rounding + 0.001))
            if exact:
                hold(f"{what}: perplexity beside F32's", value["value"], exact, 0.001)
            hold(f"{what}: its error", value["error"], expected["error"], 0.02)
            for chunk, peer in zip(found["chunks"], expected["chunks"], strict=True):
                hold(f"{what}: after window {chunk['chunk']}", chunk["perplexity"]["value"], peer, 0.03)
            line += f"; {dtype} {value['value']:.4f}, {100 * off:.2f} % off"
        print(line, flush=True)
    strided = recorded["strided"]
    found = gruff("perplexity", SMOLLM2, "-f", TEXT, *options(strided["windows"]), "--json")
    value, rounded, exact = found["perplexity"]["value"], strided["chunks"][-1], strided["f32"][-1]
    off = hold("strided perplexity", value, rounded, 0.005)
    exactly = hold("strided perplexity, F32", value, exact, 0.001)
    for chunk, peer in zip(found["chunks"], strided["f32"], strict=True):
        hold(f"strided perplexity: after window {chunk['chunk']}", chunk["perplexity"]["value"], peer, 0.003)
    print(f"strided: {value:.4f}, llama.cpp {rounded:.4f}, {100 * off:.2f} % off; F32 {exact:.4f}, {100 * exactly:.3f} % off")


def divergence(gruff, recorded, scratch):
    base = scratch / "base.kld"
    gruff("perplexity", SMOLLM2, "-f", TEXT, *options(recorded["windows"]), "--save-logits", base)
    rotate(base)
    found = gruff("perplexity", SMOLLM2, "--kl-divergence", base, "--json")
    peer = recorded["statistics"]
    for theirs, ours, unit in MEANS:
        value, error = (unit * found[ours][key] for key in ("value", "error"))
        # One position more or less is one in as many as there are; else what is printed has three digits.
        step = 100 / found["tokens"] if ours == "same_top" else 0.001
        hold(theirs, value, peer[theirs][0], 0.02, 2.01 * step)
        hold(f"error of {theirs}", error, peer[theirs][1], 0.05, step)
    hold("correlation", 100 * found["correlation"], peer["Cor(ln(PPL(Q)), ln(PPL(base)))"][0], 0.02, 0.5)
    count = len(MEANS)
    for kind, key, unit in (("KLD", "kld_percentiles", 1), ("Δp", "delta_p_percentiles", 100)):
        largest = max(abs(peer[f"Maximum {kind}"][0]), abs(peer[f"Minimum {kind}"][0]))
        for theirs, ours in PERCENTILES.items():
            if f"{theirs} {kind}" in peer:
                count += 1
                hold(f"{theirs} {kind}", unit * found[key][ours], peer[f"{theirs} {kind}"][0], 0.05, 0.02 * largest)
    print(f"divergence: {count} statistics, mean {found['kld']['value']:.6f}, llama.cpp {peer['Mean KLD'][0]:.6f}")


def saved_logits(gruff, scratch):
    theirs, ours = PEERS / SMOLLM2 / "saved-logits.kld", scratch / "ours.kld"
    found = gruff("perplexity", SMOLLM2, "--kl-divergence", theirs, "--json")
    if not 0 < found["kld"]["value"] < 0.01:
        FAILURES.append(f"the divergence from llama-perplexity's own file is {found['kld']['value']}")
    gruff("perplexity", SMOLLM2, "-f", TEXT, *options(SAVED), "--save-logits", ours)
    theirs, ours = theirs.read_bytes(), ours.read_bytes()
    header = 20 + 4 * SAVED["ctx"] * SAVED["chunks"]
    if len(theirs) != len(ours) or theirs[:header] != ours[:header]:
        FAILURES.append("a saved file has another size, header or tokens than llama-perplexity's")
    print(f"saved logits: divergence from llama-perplexity's {found['kld']['value']:.6f}")


def choices(gruff, recorded):
    found = gruff("perplexity", SMOLLM2, "--multiple-choice", PEERS / "choices.jsonl", "--json")
    hold("tasks", found["tasks"], recorded["tasks"], 0)
    share = found["acc_token"]["share"]["value"]
    hold("acc_token", share, recorded["acc_token"], 0, 1.01 / recorded["tasks"])
    print(f"multiple choice: {share:.2f}, llama.cpp {recorded['acc_token']:.2f}")


def importance(gruff, recorded, scratch):
    out = scratch / "imatrix.gguf"
    gruff("imatrix", SMOLLM2, "-f", TEXT, "-o", out, *options(recorded["windows"]), "-q")
    found = imatrix(out)
    if found["keys"] != recorded["keys"]:
        FAILURES.append(f"importance matrix: the keys are {found['keys']}, not {recorded['keys']}")
    if found["tensors"].keys() != recorded["tensors"].keys():
        FAILURES.append(f"importance matrix: other tensors, {set(found['tensors']) ^ set(recorded['tensors'])}")
        return
    sums, singles = [], []
    for name, peer in recorded["tensors"].items():
        tensor = found["tensors"][name]
        for size in ("counts", "inputs"):
            if tensor[size] != peer[size]:
                FAILURES.append(f"{name}: {size} {tensor[size]}, llama.cpp's are {peer[size]}")
        sums.append(hold(f"{name}: sum", tensor["sum"], peer["sum"], 0.02))
        for value, expected in zip(tensor["some"], peer["some"], strict=True):
            hold(f"{name}: an input", value, expected, 0.25, 0.02 * peer["sum"] / peer["inputs"])
            singles.append(abs(value - expected) * peer["inputs"] / peer["sum"])
    print(f"importance matrix: {len(sums)} tensors, sums off by {100 * np.mean(sums):.3f} % in the mean and "
          f"{100 * max(sums):.2f} % at most, single inputs by {100 * np.mean(singles):.3f} % of the mean one")


if __name__ == "__main__":
    main()
