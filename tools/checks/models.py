"""Second tier: logits of small random models of every architecture against transformers.

    python tools/checks/models.py --llama-cpp FOLDER [--work FOLDER] [CASE ..]

Needs torch, transformers (5.x), tokenizers and numpy. FOLDER is llama.cpp's source (it is inside the
llama-cpp-python source package), whose converter writes the F32 GGUF files. gruff runs them on its exact path
(`--activations f32`), in one step and in steps of 7 tokens; the two must give the same bits, and an NMSE to
transformers' logits below 1e-8.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"  # read when the packages below are imported

import examples  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers as tf  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = examples.build("logits")
BAR = 1e-8
VOCABULARY = 320
TOKENS = 100

COMMON = dict(vocab_size=VOCABULARY, hidden_size=128, intermediate_size=192, num_hidden_layers=3,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.08,
              bos_token_id=1, eos_token_id=2, pad_token_id=0)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=128)
LLAMA3 = dict(rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
QWEN35 = dict(COMMON, num_hidden_layers=5, head_dim=64, linear_num_key_heads=2, linear_num_value_heads=4,
              linear_key_head_dim=32, linear_value_head_dim=32,
              rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25,
                                   mrope_interleaved=True, mrope_section=[3, 3, 2]))
EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=96)
GEMMA3 = dict(COMMON, num_hidden_layers=8, head_dim=256, query_pre_attn_scalar=256, sliding_window=24,
              layer_types=["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(8)])


def gemma_rope(**full):
    local = dict(rope_type="default", rope_theta=1e4)
    return dict(full_attention=dict(dict(rope_type="default", rope_theta=1e6), **full), sliding_attention=local)


# name: (model family, settings of its configuration)
CASES = {
    "llama": ("Llama", dict(COMMON, head_dim=64, tie_word_embeddings=True)),
    "llama-llama3": ("Llama", dict(COMMON, rope_parameters=LLAMA3)),
    "llama-yarn": ("Llama", dict(COMMON, head_dim=64, rope_parameters=YARN)),
    "llama-yarn-factor": ("Llama", dict(COMMON, rope_parameters=dict(YARN, attention_factor=0.9, beta_fast=16.0))),
    "llama-linear": ("Llama", dict(COMMON, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.5))),
    "llama-bias": ("Llama", dict(COMMON, attention_bias=True, mlp_bias=True)),
    "mistral": ("Mistral", dict(COMMON, head_dim=128, sliding_window=None)),
    "mixtral": ("Mixtral", dict(COMMON, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)),
    "qwen2": ("Qwen2", dict(COMMON, tie_word_embeddings=True)),
    "qwen2-yarn": ("Qwen2", dict(COMMON, rope_parameters=dict(YARN, rope_theta=1e6))),
    "qwen3": ("Qwen3", dict(COMMON, head_dim=128, tie_word_embeddings=True)),
    "qwen3-untied": ("Qwen3", dict(COMMON, head_dim=64, tie_word_embeddings=False)),
    "qwen3moe": ("Qwen3Moe", dict(COMMON, **EXPERTS, head_dim=64, norm_topk_prob=True, decoder_sparse_step=1)),
    "gemma3": ("Gemma3", dict(GEMMA3, rope_parameters=gemma_rope())),
    "gemma3-linear": ("Gemma3", dict(GEMMA3, head_dim=64, query_pre_attn_scalar=64,
                                     rope_parameters=gemma_rope(rope_type="linear", factor=8.0))),
    "qwen35": ("Qwen3_5", dict(QWEN35, tie_word_embeddings=True)),
    "qwen35-untied": ("Qwen3_5", dict(QWEN35, head_dim=128, tie_word_embeddings=False)),
    "qwen35moe": ("Qwen3_5Moe", dict(QWEN35, **EXPERTS, shared_expert_intermediate_size=64)),
}
CONFIGS = {"Gemma3": "Gemma3TextConfig", "Qwen3_5": "Qwen3_5TextConfig", "Qwen3_5Moe": "Qwen3_5MoeTextConfig"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--llama-cpp", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="where models are kept (default: a temporary folder)")
    arguments = parser.parse_args()
    sys.path[:0] = [str(arguments.llama_cpp), str(arguments.llama_cpp / "gguf-py")]
    logging.disable(logging.WARNING)
    tf.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        failed = [name for name in arguments.cases or CASES if not check(name, work / name)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def make(name):
    """The random model of a case."""
    family, settings = CASES[name]
    torch.manual_seed(sum(name.encode()))
    config = getattr(tf, CONFIGS.get(family, f"{family}Config"))(**settings)
    model = getattr(tf, f"{family}ForCausalLM")(config).eval().float()
    model.set_attn_implementation("eager")
    with torch.no_grad():  # norms, biases and gates start constant: make them matter
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def check(name, folder):
    """One case; whether it holds."""
    model = make(name)
    ids = torch.randint(0, VOCABULARY, (TOKENS,))
    with torch.no_grad():
        expected = model(ids[None]).logits[0].numpy().astype(np.float64)
    gguf_file = convert(model, folder)
    whole = gruff(gguf_file, ids, folder / "whole.npy")
    parts = gruff(gguf_file, ids, folder / "parts.npy", "--split", "7")
    nmse = float(((whole - expected) ** 2).sum() / (expected ** 2).sum())
    same = bool((whole == parts).all())
    good = nmse < BAR and same
    print(f"{name:18} NMSE {nmse:.1e}, split steps {'same bits' if same else 'DIFFER'}"
          f"{'' if good else '   FAILED'}", flush=True)
    return good


def convert(model, folder):
    """llama.cpp's converter, without a vocabulary."""
    import gguf
    from conversion import get_model_class

    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    # Gemma's converter counts the tokens.
    tokens = {str(i): i for i in range(VOCABULARY)}
    (folder / "tokenizer.json").write_text(json.dumps(dict(model=dict(vocab=tokens), added_tokens=[])))
    kind = get_model_class(type(model).__name__)
    converter = type(kind.__name__, (kind,), dict(set_vocab=lambda self: None, no_mtp=True,
                                                  model_arch=kind.model_arch))
    out = folder / "f32.gguf"
    converter(folder, gguf.LlamaFileType.ALL_F32, out).write()
    return out


def gruff(gguf_file, ids, out, *options):
    text = ",".join(str(int(i)) for i in ids)
    command = [EXAMPLE, gguf_file, "--ids", text, "--activations", "f32", "--out", out, *options]
    subprocess.run(command, check=True, stderr=subprocess.PIPE)
    return np.load(out).astype(np.float64)


if __name__ == "__main__":
    main()
