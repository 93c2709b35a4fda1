"""Makes a transformers model folder of a training's shards.

    python tools/tiny/export.py TRAINED DATA OUT

TRAINED: what train.py wrote. DATA: what prepare.py made. OUT: config.json, generation_config.json, model.safetensors (F32)
and the tokenizer, for `gruff convert` and for transformers' from_pretrained.
Needs torch, transformers and safetensors.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoTokenizer, GenerationConfig

import model as models
import shards


def main() -> None:
    trained, data, out = map(Path, sys.argv[1:4])
    kind = json.loads((trained / "log.json").read_text())["settings"]["kind"]
    tokenizer = AutoTokenizer.from_pretrained(data / "tokenizer")
    model = models.build(kind, len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id)
    missing, unexpected = model.load_state_dict(shards.load(trained, "model"), strict=False)
    assert missing in ([], ["lm_head.weight"]) and not unexpected, (missing, unexpected)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False
    )
    model.to(torch.float32).save_pretrained(out)
    tokenizer.save_pretrained(out)
    print(f"{out}: {sum(p.numel() for p in model.parameters()):,} parameters, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
