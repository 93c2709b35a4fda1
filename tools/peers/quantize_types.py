"""Records which types llama-quantize gives to the tensors of models (tests/peers/quantize/*.json).

    python tools/peers/quantize_types.py LLAMA_QUANTIZE [CHECKPOINT ..]

Needs gguf and numpy. Beside the checkpoints given, small files are made that reach the rules which those do not: eight
experts, key-value heads shared by four, the size class of 70B, Falcon, rows that are not whole blocks. Each preset is
recorded without and with an importance matrix (`Q4_0+imatrix`). `types` has a letter for each of `tensors`, an index
into `letters`.
"""

import argparse
import json
import re
import string
import subprocess
import tempfile
from pathlib import Path

import gguf
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "peers" / "quantize"
PRESETS = """Q1_0 Q2_0 Q4_0 Q4_1 MXFP4_MOE Q5_0 Q5_1 IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ1_S IQ1_M TQ1_0 TQ2_0 Q2_K Q2_K_S
IQ3_XXS IQ3_S IQ3_M IQ3_XS Q3_K_S Q3_K_M Q3_K_L IQ4_NL IQ4_XS Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K Q8_0 F16 BF16 F32""".split()
LINE = re.compile(r"\[ *\d+/ *\d+\] +(\S+) +- \[.*\], type = +(\w+), size = .*?(?:\((\w+)\))?$")

# name: (architecture, layers, heads, key-value heads, experts, width, middle, whether output.weight is there)
SHAPES = {
    "shared-kv": ("llama", 16, 8, 2, 0, 256, 512, True),
    "own-kv-tied": ("llama", 24, 4, 4, 0, 512, 96, False),
    "class-70b": ("llama", 80, 8, 1, 0, 256, 256, True),
    "eight-experts": ("llama", 16, 8, 2, 8, 256, 256, True),
    "many-experts": ("qwen3moe", 16, 8, 4, 32, 256, 256, True),
    "falcon": ("falcon", 32, 8, 1, 0, 256, 256, True),
    "odd-rows": ("llama", 16, 4, 2, 0, 320, 80, True),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("checkpoints", nargs="*", type=Path)
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        models = {path.stem.lower(): path for path in arguments.checkpoints}
        for name, shape in SHAPES.items():
            models[name] = Path(folder) / f"{name}.gguf"
            write_model(models[name], *shape)
        for name, path in models.items():
            importance = Path(folder) / "imatrix.gguf"
            write_importance(importance, path)
            record(arguments.program, name, path, importance)


def write_model(path, architecture, layers, heads, kv_heads, experts, width, middle, output):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(layers)
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(middle)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_layer_norm_eps(1e-5)
    writer.add_vocab_size(8)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(middle)

    def add(name, rows, columns, stack=0):
        shape = (stack, rows, columns) if stack else (rows, columns)
        writer.add_tensor(name, np.zeros(shape, dtype=np.float32))

    add("token_embd.weight", 8, width)
    if output:
        add("output.weight", 8, width)
    writer.add_tensor("output_norm.weight", np.zeros(width, dtype=np.float32))
    for layer in range(layers):
        prefix = f"blk.{layer}."
        writer.add_tensor(f"{prefix}attn_norm.weight", np.zeros(width, dtype=np.float32))
        for name in ["attn_qkv"] if architecture == "falcon" else ["attn_q", "attn_k", "attn_v"]:
            add(f"{prefix}{name}.weight", 2, width)
        add(f"{prefix}attn_output.weight", 2, width)
        if experts:
            add(f"{prefix}ffn_gate_inp.weight", experts, width)
            add(f"{prefix}ffn_gate_exps.weight", 2, width, experts)
            add(f"{prefix}ffn_up_exps.weight", 2, width, experts)
            add(f"{prefix}ffn_down_exps.weight", 2, middle, experts)
        else:
            if architecture != "falcon":
                add(f"{prefix}ffn_gate.weight", 2, width)
            add(f"{prefix}ffn_up.weight", 2, width)
            add(f"{prefix}ffn_down.weight", 2, middle)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_importance(path, model):
    """An importance matrix with all columns of all matrices alike, as llama-imatrix writes it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["nothing"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 1)
    for tensor in gguf.GGUFReader(model).tensors:
        shape = [int(size) for size in tensor.shape]
        if len(shape) > 1:
            stack = shape[2] if len(shape) > 2 else 1
            writer.add_tensor(f"{tensor.name}.in_sum2", np.ones((stack, shape[0]), dtype=np.float32))
            writer.add_tensor(f"{tensor.name}.counts", np.ones((stack, 1), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def dry_run(program, model, preset, extra):
    run = subprocess.run([program, "--dry-run", *extra, model, preset], capture_output=True, text=True)
    types = {}
    for line in (run.stdout + run.stderr).splitlines():
        if match := LINE.match(line.strip()):
            name, before, after = match.groups()
            types[name] = (after or before).upper()
    return types


def record(program, name, path, importance):
    reader = gguf.GGUFReader(path)
    architecture = reader.get_field("general.architecture").contents()

    def number(key):
        field = reader.get_field(f"{architecture}.{key}")
        value = field.contents() if field else 0
        return value[0] if isinstance(value, list) else value

    tensors = [(t.name, [int(size) for size in t.shape], t.tensor_type.name) for t in reader.tensors]
    types, letters = {}, []
    for preset in PRESETS:
        for suffix, extra in [("", []), ("+imatrix", ["--imatrix", importance])]:
            found = dry_run(program, path, preset, extra)
            if not found:
                # It refuses a few: no relative of the type has blocks that fit.
                types[preset + suffix] = None
                continue
            row = ""
            for tensor, _, _ in tensors:
                if found[tensor] not in letters:
                    letters.append(found[tensor])
                row += string.ascii_letters[letters.index(found[tensor])]
            types[preset + suffix] = row
    recorded = {
        "made_with": "llama-quantize --dry-run, llama.cpp 0c1e57098",
        "architecture": architecture,
        "layers": number("block_count"),
        "experts": number("expert_count"),
        "heads": number("attention.head_count"),
        "kv_heads": number("attention.head_count_kv"),
        "letters": letters,
        "tensors": [list(tensor) for tensor in tensors],
        "types": types,
    }
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in recorded.items())
    (OUT / f"{name}.json").write_text("{\n" + lines + "\n}\n")
    print(name, len(tensors), "tensors,", sum(row is None for row in types.values()), "refused")


if __name__ == "__main__":
    main()
