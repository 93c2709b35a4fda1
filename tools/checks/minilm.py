"""Second tier: all-MiniLM-L6-v2 through gruff's kernels, quantized on the fly, gives the embeddings of its own weights.

    python tools/checks/minilm.py target/fixtures/minilm

Builds the example minilm (MINILM names a built one) and holds its ids to `tokenizers` and its embeddings to the
encoder written out in NumPy, in f64 where it matters.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import examples
import numpy as np
from tokenizers import Tokenizer

MINILM = os.environ.get("MINILM") or examples.build("minilm")
TEXTS = [
    "A man is eating food.",
    "Someone eats a piece of bread.",
    "The stock market fell sharply today!",
    "Über-naïve façades, 東京 and $3.50: it's all here.",
    "word " * 60,
]
# The least cosine to the original that a type of block may have.
LEAST = {"F32": 0.9999, "Q8_0": 0.9995, "Q5_1": 0.975, "Q4_0": 0.9}
LAYERS, HEADS, EPS = 6, 12, 1e-12


def read(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, values = json.loads(data[8 : 8 + length]), data[8 + length :]
    return {
        name: np.frombuffer(values[slice(*entry["data_offsets"])], np.float32).reshape(entry["shape"]).astype(np.float64)
        for name, entry in header.items()
        if name != "__metadata__" and entry["dtype"] == "F32"
    }


def encode(weights, ids):
    """The mean of BERT's hidden states, of length 1."""

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    erf = np.vectorize(math.erf)
    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        heads = [
            linear(x, f"{name}.attention.self.{part}").reshape(len(ids), HEADS, -1).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        ]
        scores = heads[0] @ heads[1].transpose(0, 2, 1) / math.sqrt(heads[0].shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        attended = (scores / scores.sum(-1, keepdims=True)) @ heads[2]
        attended = attended.transpose(1, 0, 2).reshape(len(ids), -1)
        x = norm(x + linear(attended, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
        inner = linear(x, f"{name}.intermediate.dense")
        inner = inner * (1 + erf(inner / math.sqrt(2))) / 2
        x = norm(x + linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def main():
    folder = Path(sys.argv[1])
    output = subprocess.run([MINILM, folder, "--json", *TEXTS], stdout=subprocess.PIPE, check=True).stdout
    found = json.loads(output)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    expected = [tokenizer.encode(text).ids for text in TEXTS]
    assert found["ids"] == expected, (found["ids"], expected)
    weights = read(folder / "model.safetensors")
    originals = [encode(weights, ids) for ids in expected]
    assert set(found["embeddings"]) == set(LEAST), list(found["embeddings"])
    for kind, embeddings in found["embeddings"].items():
        cosines = [float(np.dot(own, original)) for own, original in zip(embeddings, originals, strict=True)]
        print(f"{kind}: cosine to the original at least {min(cosines):.6f}")
        assert min(cosines) >= LEAST[kind], (kind, cosines)


if __name__ == "__main__":
    main()
