"""Records, once, what llama.cpp and transformers make of real checkpoints: the fixtures of tools/checks/checkpoints.py.

    python tools/peers/record.py --llama PATH_OF_libllama.so [--models FOLDER] [NAME ..]

Needs torch, transformers, gguf and numpy, a build of llama.cpp, and the checkpoints that tools/fetch.py brings.
Writes tests/peers/NAME/: `peers.json` (versions, ids, greedy continuations, summaries) and the arrays

    llama_ids.npy        u32 [10, 64, 128]  the ids that llama.cpp finds most likely next, best first
    llama_logprobs.npy   f32 [10, 64, 128]  their natural log-probabilities; what is left belongs to all other ids
    logit_ids.npy        u32 [10, 4, 96]    ids at a few positions: the 64 of the highest logits, 32 spread evenly
    logits.npy           f32 [10, 4, 96]    transformers' logits of these
"""

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from peers.llama_cpp import LlamaCpp  # noqa: E402

MODELS = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3-270m": "gemma-3-270m-q4_k_m.gguf",
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
}
LENGTH = 64
CONTINUATION = 48
TOP = 128
POSITIONS = [0, 20, 41, 63]
LOGITS_TOP, LOGITS_SPREAD = 64, 32


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS), metavar="NAME")
    parser.add_argument("--llama", required=True, help="llama.cpp's shared library")
    parser.add_argument("--models", type=Path, default=ROOT / "target/fixtures/models")
    arguments = parser.parse_args()
    for name in arguments.names:
        record(name, arguments.models / MODELS[name], arguments.llama)


def record(name, path, library):
    import torch
    import transformers

    prompts = json.loads((ROOT / "tests/peers/prompts.json").read_text())["prompts"]
    llama = LlamaCpp(library, path)
    ids = []
    for prompt in prompts:
        ids.append(llama.tokenize(prompt["text"])[:LENGTH])
        if len(ids[-1]) != LENGTH:
            sys.exit(f"{name}: the prompt {prompt['name']} has only {len(ids[-1])} tokens")

    from peers.dequantized import load

    torch.set_num_threads(1)
    model = load(path)
    llama_ids, llama_logprobs, logit_ids, logits, divergence, records = [], [], [], [], [], []
    for prompt, prompt_ids in zip(prompts, ids):
        q_logits = llama.logits(prompt_ids)
        with torch.inference_mode():
            p_logits = model(torch.tensor([prompt_ids])).logits[0].numpy()
        p, q = log_softmax(p_logits), log_softmax(q_logits)
        divergence.append((np.exp(p) * (p - q)).sum(-1))
        order = np.argsort(-q, axis=-1, kind="stable")[:, :TOP]
        llama_ids.append(order.astype("<u4"))
        llama_logprobs.append(np.take_along_axis(q, order, -1).astype("<f4"))
        spread = np.linspace(0, p.shape[1] - 1, LOGITS_SPREAD).astype(np.int64)
        some = [np.concatenate([np.argsort(-p_logits[i], kind="stable")[:LOGITS_TOP], spread]) for i in POSITIONS]
        logit_ids.append(np.stack(some).astype("<u4"))
        logits.append(np.stack([p_logits[i][chosen] for i, chosen in zip(POSITIONS, some)]).astype("<f4"))
        continuation, gaps = greedy(model, prompt_ids)
        differs = np.flatnonzero(p_logits.argmax(-1) != q_logits.argmax(-1))
        rounding = (q_logits - p_logits).astype(np.float64).std(-1)
        explained = [
            {
                "position": int(i),
                "gap": float(p_logits[i].max() - p_logits[i][q_logits[i].argmax()]),
                "rounding": float(rounding[i]),
            }
            for i in differs
        ]
        records.append(
            {
                "name": prompt["name"],
                "ids": prompt_ids,
                "transformers_top1": p_logits.argmax(-1).tolist(),
                "transformers_greedy": continuation,
                "smallest_greedy_gap": min(gaps),
                "llama_cpp_kl": float(divergence[-1].mean()),
                "llama_cpp_top1_differences": explained,
            }
        )
        print(f"{name:20} {prompt['name']:14} KL(transformers || llama.cpp) {divergence[-1].mean():.6f}, "
              f"{len(differs)} top-1 differences, smallest greedy gap {min(gaps):.4f}", flush=True)

    folder = ROOT / "tests/peers" / name
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"llama_ids": llama_ids, "llama_logprobs": llama_logprobs, "logit_ids": logit_ids, "logits": logits}
    for array, rows in arrays.items():
        np.save(folder / f"{array}.npy", np.stack(rows))
    divergence = np.stack(divergence)
    about = {
        "file": path.name,
        "made_by": f"python tools/peers/record.py --llama libllama.so {name}",
        "versions": {p: version(p) for p in ("torch", "transformers", "gguf", "numpy")}
        | {"llama.cpp": "0c1e57098 (llama-cpp-python 0.3.36), libllama 0.5.0"},
        "llama_cpp": f"CPU, 1 thread, KV cache f16, one batch a prompt; {llama.system}",
        "transformers": "float32, eager attention, weights unpacked by gguf.quants.dequantize",
        "logit_positions": POSITIONS,
        "kl_transformers_llama_cpp": {
            "unit": "nat, over the whole vocabulary",
            "mean": float(divergence.mean()),
            "median": float(np.median(divergence)),
            "max": float(divergence.max()),
        },
        "prompts": records,
    }
    text = json.dumps(about, indent=1, ensure_ascii=False)
    (folder / "peers.json").write_text(one_line_lists(text) + "\n")


def one_line_lists(text):
    """Puts lists of plain numbers on one line."""
    import re

    return re.sub(r"\[[\s\d,.-]+\]", lambda match: " ".join(match[0].split()), text)


def greedy(model, ids):
    """The most likely next id, CONTINUATION times, past any end token, and each time its lead over the second."""
    import torch

    result, gaps, past, step = [], [], None, torch.tensor([ids])
    with torch.inference_mode():
        for _ in range(CONTINUATION):
            output = model(step, past_key_values=past, use_cache=True)
            past = output.past_key_values
            best = output.logits[0, -1].topk(2)
            result.append(int(best.indices[0]))
            gaps.append(float(best.values[0] - best.values[1]))
            step = torch.tensor([[result[-1]]])
    return result, gaps


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


if __name__ == "__main__":
    main()
