"""Measures and tries a trained model with transformers.

    python tools/tiny/evaluate.py MODEL [--ids DATA/persuasion.npy --bytes N] [--window 1024 --stride 512] [--chat]

MODEL: the folder that export.py wrote. Bits per byte: the whole text once, each id with at least WINDOW - STRIDE ids before
it (but for the first window). --chat: what the model says to a few questions, greedily.
Needs torch, transformers and numpy.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTIONS = [
    "Hello!", "Who are you?", "What is gruff?", "What is the capital of France?", "What is 7 + 5?", "Why is the sky blue?",
    "What is the opposite of hot?", "Tell me a story.", "Name three fruits.", "How do I repair a bicycle?",
    "What do you get if you mix red and blue?", "Spell whale.",
]  # fmt: skip


@torch.no_grad()
def bits_per_byte(model, ids: np.ndarray, size: int, window: int, stride: int, batch: int = 16) -> float:
    ids = torch.from_numpy(ids.astype(np.int64)).to(model.device)
    nats, counted, at, pending = 0.0, 0, 0, []
    while at == 0 or at + window - stride < len(ids):
        pending.append((ids[at : at + window + 1], 0 if at == 0 else window - stride))
        at += stride
    for i in range(0, len(pending), batch):
        part = pending[i : i + batch]
        longest = max(len(x) for x, _ in part)
        rows = torch.stack([torch.nn.functional.pad(x, (0, longest - len(x))) for x, _ in part])
        logits = model(rows[:, :-1], use_cache=False).logits.float()
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
        for row, (x, skip) in zip(losses, part):
            nats += row[skip : len(x) - 1].sum().item()
            counted += len(x) - 1 - skip
    assert counted == len(ids) - 1, (counted, len(ids))
    return nats / math.log(2) / size


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model", type=Path)
    p.add_argument("--ids", type=Path)
    p.add_argument("--bytes", type=int)
    p.add_argument("--window", type=int, default=1024)
    p.add_argument("--stride", type=int, default=512)
    p.add_argument("--chat", action="store_true")
    args = p.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval().to(device)
    if args.ids:
        bits = bits_per_byte(model, np.load(args.ids), args.bytes, args.window, args.stride)
        print(f"{bits:.4f} bits per byte")
    if args.chat:
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        for question in QUESTIONS:
            messages = [{"role": "user", "content": question}]
            prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
            out = model.generate(prompt["input_ids"].to(device), max_new_tokens=90, do_sample=False)
            print(f"> {question}\n{tokenizer.decode(out[0, prompt['input_ids'].shape[1] :])}")


if __name__ == "__main__":
    main()
