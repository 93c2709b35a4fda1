"""A GGUF file as a transformers model in float32, its weights unpacked by the gguf package."""

import re

import numpy as np
import torch
import transformers
from gguf import GGUFReader
from gguf.quants import dequantize

# GGUF's name of a tensor inside block N, and the name in transformers' decoder layer. Norms differ between families.
BLOCK = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def load(path):
    """The model, with eager attention, ready to be called."""
    reader = GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()

    def value(key, default=None):
        field = reader.fields.get(f"{arch}.{key}")
        return default if field is None else field.contents()

    names = {tensor.name for tensor in reader.tensors}
    heads = value("attention.head_count")
    common = {
        "vocab_size": int(next(t for t in reader.tensors if t.name == "token_embd.weight").shape[1]),
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv"),
        "head_dim": value("attention.key_length", value("embedding_length") // heads),
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in names,
    }
    plain_rope = {"rope_type": "default", "rope_theta": value("rope.freq_base", 10000.0)}
    if arch == "llama":
        config = transformers.LlamaConfig(**common, rope_parameters=plain_rope)
        kind = transformers.LlamaForCausalLM
    elif arch == "qwen2":
        common.pop("head_dim")
        config = transformers.Qwen2Config(**common, rope_parameters=plain_rope)
        kind = transformers.Qwen2ForCausalLM
    elif arch == "gemma3":
        local_rope = {"rope_type": "default", "rope_theta": 10000.0}
        rope = {"full_attention": plain_rope, "sliding_attention": local_rope}
        window = value("attention.sliding_window")
        config = transformers.Gemma3TextConfig(
            **common, rope_parameters=rope, sliding_window=window, query_pre_attn_scalar=common["head_dim"]
        )
        kind = transformers.Gemma3ForCausalLM
    else:
        raise ValueError(f"{path}: no mapping for the architecture {arch}")
    config._attn_implementation = "eager"

    weights = {}
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        array = array.reshape([int(n) for n in reversed(tensor.shape)])
        if arch == "llama" and (match := re.search(r"attn_([qk])\.", tensor.name)):
            array = unpermute(array, heads if match[1] == "q" else common["num_key_value_heads"])
        if arch == "gemma3" and tensor.name.endswith("norm.weight"):
            array = array - 1  # transformers' Gemma norm multiplies by 1 + weight; the file holds the factor itself
        weights[transformers_name(arch, tensor.name)] = torch.from_numpy(array.copy())
    if common["tie_word_embeddings"]:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]

    model = kind(config).to(torch.float32)
    model.load_state_dict(weights, strict=True)
    return model.eval()


def transformers_name(arch, name):
    stem, kind = name.rsplit(".", 1)
    if stem in OUTSIDE:
        return f"{OUTSIDE[stem]}.{kind}"
    _, block, stem = stem.split(".")
    table = BLOCK | GEMMA if arch == "gemma3" else BLOCK
    return f"model.layers.{block}.{table[stem]}.{kind}"


def unpermute(array, heads):
    """Undoes the order that GGUF gives the rows of llama's query and key heads: pairs that are rotated together
    lie side by side there, half a head apart in transformers."""
    rows, columns = array.shape
    return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
