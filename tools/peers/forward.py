"""Records, once, what transformers gives in a forward pass of the bundled model: the fixture of
crates/gruff/tests/peers.rs.

    gruff dequantize bundled FOLDER --dtype f32
    python tools/peers/forward.py FOLDER tests/peers/forward.json

Needs torch and transformers. The file has, for the ids in it: logits, hidden states as `output_hidden_states` numbers
them, and attention weights of the eager implementation; then logits with a LoRA adapter, whose matrices are made by
`matrix` below and applied as PEFT applies them: W + alpha / r * B A, with alpha_pattern and rank_pattern.
"""

import json
import sys
from importlib.metadata import version

import numpy as np
import torch
from transformers import AutoModelForCausalLM

IDS = [7, 300, 1200, 15, 64, 2048, 90, 411, 3000, 5, 777, 1500]
POSITIONS = [0, 5, 11]
COLUMNS = 8
VOCABULARY_STEP = 127
RANK, ALPHA = 4, 2.0
PATTERN = "layers.5.mlp.down_proj"
PATTERN_RANK, PATTERN_ALPHA = 2, 3.0
ADAPTED = [
    "model.layers.0.linear_attn.in_proj_qkv",
    "model.layers.0.linear_attn.in_proj_z",
    "model.layers.0.linear_attn.in_proj_b",
    "model.layers.0.linear_attn.out_proj",
    "model.layers.3.self_attn.q_proj",
    "model.layers.3.self_attn.v_proj",
    "model.layers.3.self_attn.o_proj",
    "model.layers.5.mlp.gate_proj",
    "model.layers.5.mlp.up_proj",
    "model.layers.5.mlp.down_proj",
]


def matrix(seed, rows, columns):
    """Numbers between -0.4 and 0.4 that any language makes alike, in f32."""
    index = np.arange(rows * columns, dtype=np.int64)
    values = ((index * 7919 + seed * 104729) % 1000).astype(np.float32)
    values = (values / np.float32(1000) - np.float32(0.5)) * np.float32(0.8)
    return torch.from_numpy(values.reshape(rows, columns))


def numbers(tensor):
    return [float(f"{value:.7g}") for value in tensor.flatten().tolist()]


def logits(output):
    return [numbers(output.logits[0, position, ::VOCABULARY_STEP]) for position in POSITIONS]


def main():
    folder, out = sys.argv[1:]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.tensor([IDS])
    with torch.no_grad():
        plain = model(ids, output_hidden_states=True, output_attentions=True)
        record = {
            "transformers": version("transformers"),
            "ids": IDS,
            "positions": POSITIONS,
            "vocabulary_step": VOCABULARY_STEP,
            "logits": logits(plain),
            "hidden_states": [
                [
                    {"norm": float(state[0, position].norm()), "first": numbers(state[0, position, :COLUMNS])}
                    for position in POSITIONS
                ]
                for state in plain.hidden_states
            ],
            "attentions": [[numbers(head[-1]) for head in layer[0]] for layer in plain.attentions if layer is not None],
        }
        modules = dict(model.named_modules())
        for seed, name in enumerate(ADAPTED):
            weight = modules[name].weight
            pattern = name.endswith(PATTERN)
            rank, alpha = (PATTERN_RANK, PATTERN_ALPHA) if pattern else (RANK, ALPHA)
            a, b = matrix(2 * seed, rank, weight.shape[1]), matrix(2 * seed + 1, weight.shape[0], rank)
            weight += alpha / rank * (b.double() @ a.double()).float()
        record["lora"] = {
            "modules": ADAPTED,
            "config": {
                "peft_type": "LORA",
                "r": RANK,
                "lora_alpha": ALPHA,
                "bias": "none",
                "use_rslora": False,
                "use_dora": False,
                "fan_in_fan_out": False,
                "modules_to_save": None,
                "rank_pattern": {PATTERN: PATTERN_RANK},
                "alpha_pattern": {PATTERN: PATTERN_ALPHA},
            },
            "logits": logits(model(ids)),
        }
    with open(out, "w") as file:
        json.dump(record, file, indent=None, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
