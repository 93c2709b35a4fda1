"""Records what transformers' logits processors do to random logits, for crates/gruff-engine/tests/processors.rs.

    python tools/peers/processors.py > tests/peers/processors.json

What transformers does not have (DRY, XTC, top-n-sigma, Mirostat, dynamic temperature, OpenAI's penalties) is computed
here by the published formulas, in plain Python. Needs torch and transformers.
"""

import json
import math
import sys

import torch
from transformers.generation import logits_process as lp

VOCABULARY = 48
INF = float("inf")
torch.manual_seed(7)


def row(scale: float = 3.0) -> list[float]:
    return (torch.randn(VOCABULARY) * scale).tolist()


def softmax(x: list[float]) -> list[float]:
    top = max(x)
    e = [math.exp(v - top) for v in x]
    return [v / sum(e) for v in e]


def plain(value: float):
    return None if value == -INF else round(value, 7)


cases = []


def record(name: str, params: dict, tokens: list[int], prompt_len: int, logits: list[float], expected, **more) -> None:
    cases.append(
        {
            "name": name,
            "params": params,
            "tokens": tokens,
            "prompt_len": prompt_len,
            "logits": [plain(v) for v in logits],
            "expected": [plain(v) for v in expected],
            **more,
        }
    )


def peer(name: str, params: dict, make, tokens=(3, 7, 11, 3, 7, 20, 3), prompt_len: int = 4, scale: float = 3.0, masked=(), **more):
    logits = row(scale)
    for i in masked:
        logits[i] = -INF
    logits = [v if v == -INF else round(v, 7) for v in logits]
    out = make()(torch.tensor([list(tokens)]), torch.tensor([logits]))[0].tolist()
    record(name, params, list(tokens), prompt_len, logits, out, **more)


def from_transformers() -> None:
    prompt = torch.tensor([[3, 7, 11, 3]])
    eos = torch.tensor([5, 9])
    ends = {"end_tokens": [5, 9]}
    peer("repetition_penalty", {"repetition_penalty": 1.3}, lambda: lp.RepetitionPenaltyLogitsProcessor(1.3))
    peer("repetition_penalty", {"repetition_penalty": 0.8}, lambda: lp.RepetitionPenaltyLogitsProcessor(0.8))
    peer("encoder_repetition_penalty", {"encoder_repetition_penalty": 1.5},
         lambda: lp.EncoderRepetitionPenaltyLogitsProcessor(1.5, prompt))
    bias = [[[4], 2.5], [[7, 20, 3, 8], -1.5], [[3, 9], 3.0], [[1, 2], 4.0]]
    peer("sequence_bias", {"sequence_bias": bias}, lambda: lp.SequenceBiasLogitsProcessor(bias))
    for size in (1, 2, 3):
        peer("no_repeat_ngram_size", {"no_repeat_ngram_size": size}, lambda: lp.NoRepeatNGramLogitsProcessor(size),
             tokens=(3, 7, 11, 3, 7, 20, 3, 7))
    peer("encoder_no_repeat_ngram_size", {"encoder_no_repeat_ngram_size": 2},
         lambda: lp.EncoderNoRepeatNGramLogitsProcessor(2, prompt))
    words = [[20, 3, 8], [3, 9], [5], [12], [9, 9]]
    peer("bad_words_ids", {"bad_words_ids": words}, lambda: lp.NoBadWordsLogitsProcessor(words, eos), **ends)
    for n in (7, 8):
        peer("min_length", {"min_length": n}, lambda: lp.MinLengthLogitsProcessor(n, eos), **ends)
    for n in (3, 4):
        peer("min_new_tokens", {"min_new_tokens": n}, lambda: lp.MinNewTokensLengthLogitsProcessor(4, n, eos), **ends)
    peer("prefix_allowed_tokens", {"allowed": [1, 2, 8]}, lambda: lp.PrefixConstrainedLogitsProcessor(lambda b, s: [1, 2, 8], 1))
    peer("prefix_allowed_tokens", {"allowed": [1, 2]}, lambda: lp.PrefixConstrainedLogitsProcessor(lambda b, s: [1, 2], 1), masked=(1, 2))
    peer("forced_bos_token_id", {"forced_bos_token_id": 6}, lambda: lp.ForcedBOSTokenLogitsProcessor(6), tokens=(3,), prompt_len=1)
    peer("forced_bos_token_id", {"forced_bos_token_id": 6}, lambda: lp.ForcedBOSTokenLogitsProcessor(6))
    for length in (8, 9):
        peer("forced_eos_token_id", {"forced_eos_token_id": [5, 9]}, lambda: lp.ForcedEOSTokenLogitsProcessor(length, eos),
             max_length=length)
    for start in (1, 3):
        peer("exponential_decay_length_penalty", {"exponential_decay_length_penalty": [start, 1.4]},
             lambda: lp.ExponentialDecayLengthPenalty((start, 1.4), eos, 4), masked=(9,), **ends)
    peer("suppress_tokens", {"suppress_tokens": [1, 5, 40]}, lambda: lp.SuppressTokensLogitsProcessor([1, 5, 40]))
    for length in (4, 7):
        peer("begin_suppress_tokens", {"begin_suppress_tokens": [1, 5]},
             lambda: lp.SuppressTokensAtBeginLogitsProcessor([1, 5], length), prompt_len=length)
    for t in (0.3, 0.7, 2.5):
        peer("temperature", {"temperature": t}, lambda: lp.TemperatureLogitsWarper(t))
    for h in (0.2, 0.5, 0.9):
        peer("top_h", {"top_h": h}, lambda: lp.TopHLogitsWarper(h), scale=1.0)
    for k in (1, 5, 100):
        peer("top_k", {"top_k": k}, lambda: lp.TopKLogitsWarper(k), masked=(0, 1))
    for p in (0.1, 0.5, 0.9, 0.99):
        peer("top_p", {"top_p": p}, lambda: lp.TopPLogitsWarper(p), scale=1.5)
        peer("top_p", {"top_p": p}, lambda: lp.TopPLogitsWarper(p, min_tokens_to_keep=3), min_tokens_to_keep=3)
    for p in (0.02, 0.3, 0.9):
        peer("min_p", {"min_p": p}, lambda: lp.MinPLogitsWarper(p))
        peer("min_p", {"min_p": p}, lambda: lp.MinPLogitsWarper(p, min_tokens_to_keep=4), min_tokens_to_keep=4)
    for p in (0.2, 0.6, 0.95):
        peer("typical_p", {"typical_p": p}, lambda: lp.TypicalLogitsWarper(p), scale=1.5)
        peer("typical_p", {"typical_p": p}, lambda: lp.TypicalLogitsWarper(p, min_tokens_to_keep=3), scale=1.5, min_tokens_to_keep=3)
    for e in (0.01, 0.2, 0.9):
        peer("epsilon_cutoff", {"epsilon_cutoff": e}, lambda: lp.EpsilonLogitsWarper(e))
        peer("eta_cutoff", {"eta_cutoff": e}, lambda: lp.EtaLogitsWarper(e, device="cpu"))
    peer("eta_cutoff", {"eta_cutoff": 0.3}, lambda: lp.EtaLogitsWarper(0.3, min_tokens_to_keep=3, device="cpu"), min_tokens_to_keep=3)
    peer("watermark", {"watermark": {}}, lambda: lp.WatermarkLogitsProcessor(VOCABULARY, "cpu"))
    peer("watermark", {"watermark": {"greenlist_ratio": 0.5, "bias": 1.5, "hashing_key": 101}},
         lambda: lp.WatermarkLogitsProcessor(VOCABULARY, "cpu", 0.5, 1.5, 101))
    for width in (1, 3):
        peer("watermark", {"watermark": {"seeding_scheme": "selfhash", "context_width": width}},
             lambda: lp.WatermarkLogitsProcessor(VOCABULARY, "cpu", seeding_scheme="selfhash", context_width=width))
    peer("renormalize_logits", {"renormalize_logits": True}, lambda: lp.LogitNormalization(), masked=(4,))
    cond, uncond = row(), row()
    for scale in (1.5, -0.5):
        own, other = (torch.log_softmax(torch.tensor(x), -1) for x in (cond, uncond))
        record("guidance", {"guidance_scale": scale, "negative": [plain(v) for v in uncond]}, [1], 1, cond,
               (scale * (own - other) + other).tolist())


def chains() -> None:
    """Several processors in the order of transformers' generate."""
    tokens, eos = (3, 7, 11, 3, 7, 20, 3, 7), torch.tensor([5, 9])
    prompt = torch.tensor([tokens[:4]])
    bias = [[[11], -2.0], [[7, 12], 1.0]]
    params = {
        "sequence_bias": bias, "encoder_repetition_penalty": 1.2, "repetition_penalty": 1.1, "no_repeat_ngram_size": 3,
        "bad_words_ids": [[40], [7, 13]], "min_new_tokens": 6, "exponential_decay_length_penalty": [2, 1.1],
        "suppress_tokens": [30, 31], "temperature": 0.8, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.98,
        "epsilon_cutoff": 0.0005, "eta_cutoff": 0.0007, "renormalize_logits": True,
    }
    chain = lp.LogitsProcessorList([
        lp.SequenceBiasLogitsProcessor(bias), lp.EncoderRepetitionPenaltyLogitsProcessor(1.2, prompt),
        lp.RepetitionPenaltyLogitsProcessor(1.1), lp.NoRepeatNGramLogitsProcessor(3),
        lp.NoBadWordsLogitsProcessor([[40], [7, 13]], eos), lp.MinNewTokensLengthLogitsProcessor(4, 6, eos),
        lp.ExponentialDecayLengthPenalty((2, 1.1), eos, 4), lp.SuppressTokensLogitsProcessor([30, 31]),
        lp.TemperatureLogitsWarper(0.8), lp.TopKLogitsWarper(30), lp.TopPLogitsWarper(0.95), lp.MinPLogitsWarper(0.01),
        lp.TypicalLogitsWarper(0.98), lp.EpsilonLogitsWarper(0.0005), lp.EtaLogitsWarper(0.0007, device="cpu"),
        lp.LogitNormalization(),
    ])
    for scale in (1.0, 2.0, 4.0):
        peer("chain", params, lambda: chain, tokens=tokens, scale=scale, end_tokens=[5, 9])


def penalties() -> None:
    tokens, prompt_len = [3, 7, 11, 3, 7, 20, 3, 20], 4
    logits = row()
    for presence, frequency in ((0.5, 0.0), (0.0, 0.4), (1.0, -0.3)):
        out = list(logits)
        for id in set(tokens[prompt_len:]):
            out[id] -= presence + frequency * tokens[prompt_len:].count(id)
        record("occurrence", {"presence_penalty": presence, "frequency_penalty": frequency}, tokens, prompt_len, logits, out)


def dry(tokens: list[int], multiplier: float, base: float, allowed: int, breakers: list[int]) -> dict[int, float]:
    """For each place where the end of the text occurred before: the longest common suffix, up to a breaker."""
    longest: dict[int, int] = {}
    for at in range(1, len(tokens)):
        n = 0
        while n < at and tokens[at - 1 - n] == tokens[len(tokens) - 1 - n] and tokens[at - 1 - n] not in breakers:
            n += 1
        if n >= allowed:
            longest[tokens[at]] = max(longest.get(tokens[at], 0), n)
    return {id: multiplier * base ** (n - allowed) for id, n in longest.items()}


def extras() -> None:
    logits = row()
    texts = [
        ([1, 2, 3, 4, 9, 1, 2, 3], []),
        ([1, 2, 3, 3, 2, 3, 8, 1, 2, 3], []),
        ([5, 5, 5, 5, 5, 5], []),
        ([1, 2, 30, 3, 4, 1, 2, 30, 3], [30]),
        ([1, 2, 3, 30, 1, 2, 3], [30]),
        ([1, 2, 3, 1, 2, 30], [30]),
    ]
    for tokens, breakers in texts:
        for allowed in (2, 1):
            out = list(logits)
            for id, penalty in dry(tokens, 0.8, 1.75, allowed, breakers).items():
                out[id] -= penalty
            params = {"multiplier": 0.8, "base": 1.75, "allowed_length": allowed, "sequence_breakers": [[b] for b in breakers]}
            record("dry", {"dry": params}, tokens, 2, logits, out)
    for n in (0.5, 1.0, 2.0):
        logits = row()
        mean = sum(logits) / len(logits)
        sigma = math.sqrt(sum((v - mean) ** 2 for v in logits) / len(logits))
        bound = max(logits) - n * sigma
        record("top_n_sigma", {"top_n_sigma": n}, [1], 1, logits, [v if v >= bound else -INF for v in logits])
    for threshold in (0.02, 0.1, 0.4):
        logits = row(1.5)
        likely = [i for i, p in enumerate(softmax(logits)) if p >= threshold]
        kept = min(likely, key=lambda i: logits[i]) if likely else None
        out = [-INF if i in likely and i != kept else v for i, v in enumerate(logits)]
        record("xtc", {"xtc": {"probability": 1.0, "threshold": threshold}}, [1], 1, logits, out)
    for spread, exponent in ((0.5, 1.0), (0.8, 2.0), (3.0, 0.5)):
        logits = row()
        p = softmax(logits)
        share = -sum(v * math.log(v) for v in p) / math.log(len(p))
        low, high = max(0.0, 1.2 - spread), 1.2 + spread
        temperature = low + (high - low) * share**exponent
        record("dynamic_temperature", {"temperature": 1.2, "dynamic_temperature": {"range": spread, "exponent": exponent}},
               [1], 1, logits, [v / temperature for v in logits])


def mirostat() -> None:
    """Three steps each; the token that is drawn is given."""
    for version in (1, 2):
        tau, eta, mu, tokens = 2.0, 0.3, 4.0, [1]
        steps = []
        for _ in range(3):
            logits = row(2.0)
            p = softmax(logits)
            order = sorted(range(VOCABULARY), key=lambda i: -p[i])
            if version == 1:
                sorted_p = [p[i] for i in order[:100]]
                t = [math.log((i + 2) / (i + 1)) for i in range(len(sorted_p) - 1)]
                b = [math.log(sorted_p[i] / sorted_p[i + 1]) for i in range(len(sorted_p) - 1)]
                s = sum(x * y for x, y in zip(t, b)) / sum(x * x for x in t)
                e = s - 1
                k = ((e * 2**mu) / (1 - VOCABULARY**-e)) ** (1 / s)
                kept = order[: max(1, int(k))]
            else:
                kept = [i for i in order if -math.log2(p[i]) <= mu] or order[:1]
            out = [v if i in kept else -INF for i, v in enumerate(logits)]
            drawn = kept[len(kept) // 2]
            steps.append({"tokens": list(tokens), "logits": [plain(v) for v in logits], "expected": [plain(v) for v in out]})
            total = sum(p[i] for i in kept)
            mu -= eta * (-math.log2(p[drawn] / total) - tau)
            tokens.append(drawn)
        cases.append({"name": "mirostat", "params": {"temperature": 1.0, "mirostat": {"version": version, "tau": tau, "eta": eta}}, "steps": steps})


from_transformers()
chains()
penalties()
extras()
mirostat()
json.dump(cases, sys.stdout, separators=(",", ":"))
print()
