"""What other implementations make of packed blocks: the yardstick for crates/gruff-blocks.

Needs `numpy`, `gguf` and `libgguf` from PyPI. With the path of llama.cpp's `libggml-base` shared library, types
that neither package unpacks are taken from there; without it they fall back to the formula written out below.
"""

import ctypes

import gguf
import libgguf
import numpy as np
from gguf.quants import _type_traits

# name: (values, bytes) of a block, for every type of the format.
SIZES = {t.name: s for t, s in gguf.GGML_QUANT_SIZES.items()} | {"Q8_1": (32, 36), "Q1_0": (128, 18), "Q2_0": (64, 18)}

# Types that gruff-blocks packs as the gguf package does.
PACKED = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]

NUMPY_TYPES = {"F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}

Q1_0_ID = 41


def _q8_1(blocks):
    d = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return d * blocks[:, 4:].copy().view("i1").astype(np.float32)


def _q8_k(blocks):
    d = blocks[:, :4].copy().view("<f4")
    return d * blocks[:, 4:260].copy().view("i1").astype(np.float32)


def _q2_0(blocks):
    d = blocks[:, :2].copy().view("<f2").astype(np.float32)
    q = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], dtype=np.uint8) & 3
    return d * (q.reshape(len(blocks), 64).astype(np.float32) - 1)


FORMULAS = {"Q8_1": _q8_1, "Q8_K": _q8_k, "Q2_0": _q2_0}
LIBGGML_FUNCTIONS = {"Q8_K": "dequantize_row_q8_K", "Q2_0": "dequantize_row_q2_0"}


def dequantize(name, packed, libggml=None):
    """Returns (float32 values, name of the oracle) for whole blocks packed in a uint8 array."""
    values, size = SIZES[name]
    blocks = packed.reshape(-1, size)
    kind = getattr(gguf.GGMLQuantizationType, name, None)
    with np.errstate(all="ignore"):
        if name in NUMPY_TYPES:
            return packed.view(NUMPY_TYPES[name]).astype(np.float32), "numpy"
        if kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16) or kind in _type_traits:
            return gguf.quants.dequantize(blocks, kind).ravel(), f"gguf {_version('gguf')}"
        if name == "Q1_0":
            raw = libgguf.dequantize_rows_raw(Q1_0_ID, packed.tobytes(), 1, len(blocks) * values)
            return np.frombuffer(raw, dtype=np.float32), f"libgguf {_version('libgguf')}"
        if libggml and name in LIBGGML_FUNCTIONS:
            out = np.empty(len(blocks) * values, dtype=np.float32)
            function = getattr(ctypes.CDLL(libggml), LIBGGML_FUNCTIONS[name])
            function(ctypes.c_void_p(packed.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(out.size))
            return out, "libggml"
        return FORMULAS[name](blocks).ravel(), "formula"


def quantize(name, values):
    """Packs float32 values as real quantizers do; None where no package packs the type."""
    kind = getattr(gguf.GGMLQuantizationType, name, None)
    try:
        return np.ascontiguousarray(gguf.quants.quantize(values.reshape(1, -1), kind)).view(np.uint8).ravel()
    except (NotImplementedError, AttributeError):
        pass
    if name == "F64" or name.startswith("I") and not name.startswith("IQ"):
        return (values * 100).astype(NUMPY_TYPES[name]).view(np.uint8)
    try:
        importance = np.ones(values.size, dtype=np.float32)
        type_id = Q1_0_ID if name == "Q1_0" else int(kind)
        raw = libgguf.quantize_rows_raw(type_id, values.tobytes(), 1, values.size, importance)
        return np.frombuffer(raw, dtype=np.uint8)
    except (ValueError, TypeError):
        return None


def _version(package):
    from importlib.metadata import version

    return version(package)
