"""Shapes of the bundled models, and what makes transformers' Qwen3.5 fast enough to train without extra kernels."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe

# Rows of every matrix are multiples of 256, so that K-quants fit.
COMMON = dict(
    hidden_size=256,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
    rope_parameters=dict(
        rope_type="default",
        rope_theta=10000.0,
        partial_rotary_factor=0.5,
        mrope_interleaved=True,
        mrope_section=[6, 5, 5],
    ),
)
DENSE = dict(num_hidden_layers=12, intermediate_size=512)
MOE = dict(
    num_hidden_layers=2,
    full_attention_interval=2,
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=256,
    shared_expert_intermediate_size=256,
)
CHUNK = 64


def build(kind: str, vocabulary: int, end: int, padding: int) -> nn.Module:
    """A model with fresh weights: `dense` or `moe`."""
    ends = dict(vocab_size=vocabulary, eos_token_id=end, pad_token_id=padding)
    if kind == "dense":
        return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**COMMON, **DENSE, **ends))
    layers = ["linear_attention" if (i + 1) % 2 else "full_attention" for i in range(MOE["num_hidden_layers"])]
    return Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**COMMON, **MOE, **ends, layer_types=layers))


class UnitLowerInverse(torch.autograd.Function):
    """The inverse of I + A for strictly lower triangular A, by joining the inverses of ever larger diagonal blocks.

    cuBLAS's batched triangular solve is slow for many small systems; this is twelve small products.
    """

    @staticmethod
    def forward(ctx, a: torch.Tensor) -> torch.Tensor:
        n = a.shape[-1]
        at = torch.arange(n, device=a.device)
        inverse = torch.eye(n, device=a.device, dtype=a.dtype).expand_as(a)
        size = 1
        while size < n:
            block = at // size
            lower = (block[:, None] % 2 == 1) & (block[None, :] == block[:, None] - 1)
            inverse = inverse - inverse @ (a * lower) @ inverse
            size *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -(transposed @ grad @ transposed).tril(-1)


def chunk_gated_delta_rule(query, key, value, g, beta, initial_state=None, output_final_state=False, **_):
    """The gated delta rule in chunks (arXiv 2412.06464), for whole sequences from an empty state.

    query, key, value [batch, time, heads, width], g (log decay) and beta [batch, time, heads]; time is a multiple of CHUNK.
    """
    assert initial_state is None and not output_final_state
    # Sums over many tokens: not in bfloat16.
    with torch.autocast(value.device.type, enabled=False):
        return _chunk_gated_delta_rule(query, key, value, g, beta), None


def _chunk_gated_delta_rule(query, key, value, g, beta):
    kind, (batch, time, heads, width) = value.dtype, value.shape
    if key.shape[2] != heads:
        query, key = (x.repeat_interleave(heads // key.shape[2], dim=2) for x in (query, key))
    # [batch, heads, chunk, position, width], as f32
    query, key, value = (
        x.float().transpose(1, 2).reshape(batch, heads, time // CHUNK, CHUNK, -1) for x in (query, key, value)
    )
    g, beta = (x.float().transpose(1, 2).reshape(batch, heads, time // CHUNK, CHUNK) for x in (g, beta))
    query = query * torch.rsqrt(query.square().sum(-1, keepdim=True) + 1e-6) * query.shape[-1] ** -0.5
    key = key * torch.rsqrt(key.square().sum(-1, keepdim=True) + 1e-6)
    decay = g.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=query.device).tril()
    # What is left at position i of what came at j: exp(decay_i - decay_j) for j <= i.
    left = (decay[..., :, None] - decay[..., None, :]).masked_fill(~lower, float("-inf")).exp()
    weighted = key * beta[..., None]
    system = (weighted @ key.transpose(-1, -2) * left).tril(-1)
    inverse = UnitLowerInverse.apply(system)
    updates = inverse @ (value * beta[..., None])
    reads = inverse @ (weighted * decay.exp()[..., None])
    within = query @ key.transpose(-1, -2) * left
    query = query * decay.exp()[..., None]
    key = key * (decay[..., -1:] - decay).exp()[..., None]
    total = decay[..., -1].exp()[..., None, None]
    state, out = None, []
    for c in range(time // CHUNK):
        new = updates[:, :, c]
        if state is None:
            out.append(within[:, :, c] @ new)
            state = key[:, :, c].transpose(-1, -2) @ new
            continue
        new = new - reads[:, :, c] @ state
        out.append(query[:, :, c] @ state + within[:, :, c] @ new)
        state = state * total[:, :, c] + key[:, :, c].transpose(-1, -2) @ new
    out = torch.stack(out, dim=2).reshape(batch, heads, time, width)
    return out.transpose(1, 2).to(kind)


def causal_conv1d(hidden_states, weight, bias=None, activation=None, **_):
    """A causal convolution of each channel, and SiLU; [batch, channels, time], weight [channels, taps]."""
    assert bias is None and activation == "silu"
    taps, time = weight.shape[-1], hidden_states.shape[-1]
    padded = F.pad(hidden_states, (taps - 1, 0))
    return F.silu(sum(padded[..., i : i + time] * weight[:, i, None] for i in range(taps))).to(hidden_states.dtype)


def use_fast_functions() -> None:
    """Has transformers' Qwen3.5 layers call the functions above. For training alone: they know no cache."""
    for module in (modeling_qwen3_5, modeling_qwen3_5_moe):
        module.torch_chunk_gated_delta_rule = chunk_gated_delta_rule
        module.causal_conv1d_fn = causal_conv1d


def dropped(model: nn.Module, rate: float) -> None:
    """Drops values of the embedding's and of each mixer's and feed-forward's output while training."""

    def drop(module, _, output):
        return F.dropout(output, rate, module.training)

    model.model.embed_tokens.register_forward_hook(drop)
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda m, i, o: F.dropout(o[0] if isinstance(o, tuple) else o, rate, m.training))
        if hasattr(layer, "linear_attn"):
            layer.linear_attn.register_forward_hook(drop)
        else:
            layer.self_attn.o_proj.register_forward_hook(drop)


def hidden(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """What the head reads, for ids [batch, time]: transformers' modules in transformers' order, without a cache."""
    base = model.model
    x = base.embed_tokens(ids)
    positions = torch.arange(ids.shape[1], device=ids.device)[None].expand(ids.shape[0], -1)
    angles = base.rotary_emb(x, positions[None].expand(3, -1, -1))
    for layer in base.layers:
        x = layer(x, position_embeddings=angles, attention_mask=None, position_ids=positions)
        x = x[0] if isinstance(x, tuple) else x
    return base.norm(x)
