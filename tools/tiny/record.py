"""Records what transformers answers with the bundled models' weights, for the tests of crates/gruff.

    gruff dequantize bundled DENSE --dtype f32
    gruff dequantize crates/gruff/models/gruff-moe-Q4_K_M.gguf MOE --dtype f32
    python tools/tiny/record.py DENSE MOE > crates/gruff/tests/bundled/answers.json

Answers are greedy, in F32, with the ids of prompt and answer. `clear`: at every step the first choice leads by so much
that rounding activations cannot change it. Needs torch and transformers.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

CHATS = [
    ["What is the capital of France?"],
    ["Who are you?"],
    ["What is 7 + 5?"],
    ["Name the planets."],
    ["Write a line in the manner of Jane Austen."],
    ["Hello, my name is Anna.", "What is the opposite of hot?", "What is my name?"],
]
TEXT = "It was a truth universally acknowledged, that Captain Wentworth"
# In logits.
CLEAR = 0.75


@torch.no_grad()
def greedy(model, prompt: list[int], end: int | None, count: int) -> tuple[list[int], float]:
    new, cache, lead, ids = torch.tensor([prompt]), None, float("inf"), []
    while len(ids) < count:
        step = model(new, past_key_values=cache, use_cache=True)
        best = step.logits[0, -1].topk(2)
        lead = min(lead, (best.values[0] - best.values[1]).item())
        ids.append(best.indices[0].item())
        if ids[-1] == end:
            break
        new, cache = best.indices[None, :1], step.past_key_values
    return ids, lead


def main() -> None:
    out = {}
    for kind, folder in zip(["dense", "moe"], sys.argv[1:3]):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        records = []
        for turns in CHATS:
            messages = []
            for turn in turns:
                messages.append({"role": "user", "content": turn})
                prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
                ids, lead = greedy(model, prompt, end, 64)
                text = tokenizer.decode(ids, skip_special_tokens=True)
                records.append({"messages": list(messages), "prompt": prompt, "ids": ids, "text": text, "clear": lead > CLEAR})
                messages.append({"role": "assistant", "content": text})
        prompt = tokenizer.encode(TEXT)
        ids, lead = greedy(model, prompt, None, 24)
        records.append({"raw": TEXT, "prompt": prompt, "ids": ids, "text": tokenizer.decode(ids), "clear": lead > CLEAR})
        out[kind] = records
    json.dump(out, sys.stdout, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
