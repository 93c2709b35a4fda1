"""Records what transformers' generate answers with the bundled model's weights, for crates/gruff/tests/generate.rs.

    gruff dequantize bundled DENSE --dtype f32
    python tools/peers/generation.py DENSE > tests/peers/generation.json

Greedy, with beams of several kinds, with processors and with guidance, all in F32. In a guided search transformers' own
processor goes on with the negative text of whichever beam stood in a row before; here every beam has its own, computed
anew. Needs torch and transformers.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList

PROMPTS = ["Once upon a time", "The capital of France is", "She said", "In the morning we"]
SEARCHES = [
    {"num_beams": 2},
    {"num_beams": 3, "num_return_sequences": 3},
    {"num_beams": 4, "early_stopping": True, "num_return_sequences": 2},
    {"num_beams": 4, "early_stopping": "never", "length_penalty": 1.5},
    {"num_beams": 3, "length_penalty": -0.5, "no_repeat_ngram_size": 2, "num_return_sequences": 2},
    {"num_beams": 5, "length_penalty": 0.0, "repetition_penalty": 1.2, "early_stopping": "never", "num_return_sequences": 2},
]
GREEDY = [
    {},
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2, "min_new_tokens": 6},
    {"guidance_scale": 1.8},
    {"suppress_tokens": [10, 11, 12, 13], "renormalize_logits": True},
]
GUIDED_SEARCHES = [
    {"num_beams": 3, "num_return_sequences": 3, "guidance_scale": 1.6},
    {"num_beams": 4, "num_return_sequences": 2, "guidance_scale": 0.7, "early_stopping": True},
]


class Guidance(LogitsProcessor):
    """Guidance away from the prompt's last token, by one pass over the negative text of every row."""

    def __init__(self, model, prompt: list[int], scale: float) -> None:
        self.model, self.prompt, self.scale = model, prompt, scale

    def __call__(self, input_ids, scores):
        negative = self.model(input_ids[:, len(self.prompt) - 1 :], use_cache=False).logits[:, -1]
        own, other = (torch.nn.functional.log_softmax(x, dim=-1) for x in (scores, negative))
        return self.scale * (own - other) + other


def main() -> None:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    # Frequent tokens as end tokens, so that searches have something to end on.
    ends = [tokenizer.convert_tokens_to_ids("<|im_end|>")] + [tokenizer.encode(text)[0] for text in (".", ",")]
    out = {"end_tokens": ends, "cases": []}
    for index, text in enumerate(PROMPTS):
        prompt = tokenizer.encode(text)
        for config in GREEDY + SEARCHES + GUIDED_SEARCHES:
            ids = torch.tensor([prompt])
            asked, more = dict(config), {}
            if config in GUIDED_SEARCHES:
                more["logits_processor"] = LogitsProcessorList([Guidance(model, prompt, asked.pop("guidance_scale"))])
            found = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16, eos_token_id=ends,
                pad_token_id=ends[0], return_dict_in_generate=True, output_scores=True, top_k=None, top_p=None,
                temperature=None, **asked, **more,
            )
            indices = getattr(found, "beam_indices", None)
            rows, all_indices = [], []
            for row, sequence in enumerate(found.sequences[:, len(prompt):].tolist()):
                length = next((i + 1 for i, id in enumerate(sequence) if id in ends), len(sequence))
                rows.append(sequence[:length])
                if indices is not None:
                    all_indices.append(indices[row][:length].tolist())
            scores = model.compute_transition_scores(found.sequences, found.scores, indices, normalize_logits=False)
            scores = [[round(v, 5) for v in scores[i][: len(row)].tolist()] for i, row in enumerate(rows)]
            sums = getattr(found, "sequences_scores", None)
            out["cases"].append({
                "prompt": prompt, "config": config, "sequences": rows, "transition_scores": scores,
                "sequences_scores": None if sums is None else [round(v, 5) for v in sums.tolist()],
                "beam_indices": all_indices or None,
            })
    json.dump(out, sys.stdout, separators=(",", ":"))
    print()


if __name__ == "__main__":
    with torch.no_grad():
        main()
