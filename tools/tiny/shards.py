"""Tensors in safetensors files of bounded size."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

# Safely below 16 MiB with a header.
LIMIT = 15 * 2**20


def save(tensors: dict[str, torch.Tensor], folder: Path, stem: str) -> None:
    for old in folder.glob(f"{stem}-*-of-*.safetensors"):
        old.unlink()
    shards, size = [{}], 0
    for name, tensor in tensors.items():
        length = tensor.numel() * tensor.element_size()
        if shards[-1] and size + length > LIMIT:
            shards.append({})
            size = 0
        shards[-1][name] = tensor.detach().cpu().contiguous()
        size += length
    for i, shard in enumerate(shards, 1):
        save_file(shard, folder / f"{stem}-{i}-of-{len(shards)}.safetensors", metadata={"format": "pt"})


def load(folder: Path, stem: str) -> dict[str, torch.Tensor]:
    tensors = {}
    for path in sorted(folder.glob(f"{stem}-*-of-*.safetensors")):
        tensors |= load_file(path)
    return tensors
