"""llama.cpp through its shared library: token ids of a text, logits of token ids.

The structures below are those of `include/llama.h` at the commit that llama-cpp-python 0.3.36 brings (0c1e57098);
another version may need other fields.
"""

import ctypes as c
from pathlib import Path

import numpy as np


class ModelParams(c.Structure):
    _fields_ = [
        ("devices", c.c_void_p),
        ("tensor_buft_overrides", c.c_void_p),
        ("n_gpu_layers", c.c_int32),
        ("split_mode", c.c_int),
        ("load_mode", c.c_int),
        ("lazy_mode", c.c_int),
        ("main_gpu", c.c_int32),
        ("tensor_split", c.c_void_p),
        ("progress_callback", c.c_void_p),
        ("progress_callback_user_data", c.c_void_p),
        ("kv_overrides", c.c_void_p),
        ("flags", c.c_bool * 6),
    ]


class ContextParams(c.Structure):
    _fields_ = [
        ("n_ctx", c.c_uint32),
        ("n_batch", c.c_uint32),
        ("n_ubatch", c.c_uint32),
        ("n_seq_max", c.c_uint32),
        ("n_rs_seq", c.c_uint32),
        ("n_outputs_max", c.c_uint32),
        ("n_outputs_max_per_seq", c.c_uint32),
        ("n_threads", c.c_int32),
        ("n_threads_batch", c.c_int32),
        ("ctx_type", c.c_int),
        ("rope_scaling_type", c.c_int),
        ("pooling_type", c.c_int),
        ("attention_type", c.c_int),
        ("flash_attn_type", c.c_int),
        ("rope", c.c_float * 6),
        ("yarn_orig_ctx", c.c_uint32),
        ("defrag_thold", c.c_float),
        ("cb_eval", c.c_void_p),
        ("cb_eval_user_data", c.c_void_p),
        ("type_k", c.c_int),
        ("type_v", c.c_int),
        ("abort_callback", c.c_void_p),
        ("abort_callback_data", c.c_void_p),
        ("flags", c.c_bool * 6),
        ("samplers", c.c_void_p),
        ("n_samplers", c.c_size_t),
        ("ctx_other", c.c_void_p),
    ]


class Batch(c.Structure):
    _fields_ = [
        ("n_tokens", c.c_int32),
        ("token", c.POINTER(c.c_int32)),
        ("embd", c.c_void_p),
        ("pos", c.POINTER(c.c_int32)),
        ("n_seq_id", c.POINTER(c.c_int32)),
        ("seq_id", c.POINTER(c.POINTER(c.c_int32))),
        ("logits", c.POINTER(c.c_int8)),
    ]


RESULTS = {
    "llama_model_default_params": ModelParams,
    "llama_context_default_params": ContextParams,
    "llama_batch_init": Batch,
    "llama_model_load_from_file": c.c_void_p,
    "llama_init_from_model": c.c_void_p,
    "llama_model_get_vocab": c.c_void_p,
    "llama_get_memory": c.c_void_p,
    "llama_get_logits_ith": c.POINTER(c.c_float),
    "llama_print_system_info": c.c_char_p,
}

F16 = 1  # GGML_TYPE_F16


class LlamaCpp:
    """A GGUF file on the CPU: one thread, f16 KV cache, everything else as llama.cpp sets it by default."""

    def __init__(self, library, path, context=256):
        self.lib = c.CDLL(str(Path(library).resolve()))
        for name, result in RESULTS.items():
            getattr(self.lib, name).restype = result
        self.log = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)(lambda *_: None)
        self.lib.llama_log_set(self.log, None)
        self.lib.llama_backend_init()
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = c.c_void_p(self.lib.llama_model_load_from_file(str(path).encode(), params))
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self.vocab = c.c_void_p(self.lib.llama_model_get_vocab(self.model))
        self.n_vocab = self.lib.llama_vocab_n_tokens(self.vocab)
        params = self.lib.llama_context_default_params()
        params.n_ctx = context
        params.n_threads = params.n_threads_batch = 1
        if (params.type_k, params.type_v) != (F16, F16):
            raise RuntimeError("the structures of this script are not those of this llama.cpp")
        self.context = c.c_void_p(self.lib.llama_init_from_model(self.model, params))
        self.system = self.lib.llama_print_system_info().decode().strip()

    def tokenize(self, text):
        """Ids with the special tokens that the file asks for; special tokens in the text are not parsed."""
        data = text.encode()
        ids = (c.c_int32 * (len(data) + 8))()
        count = self.lib.llama_tokenize(
            self.vocab, data, len(data), ids, len(ids), c.c_bool(True), c.c_bool(False)
        )
        return list(ids[:count])

    def logits(self, ids):
        """float32 [len(ids), n_vocab]: the whole list is one batch of an empty context."""
        self.lib.llama_memory_clear(c.c_void_p(self.lib.llama_get_memory(self.context)), c.c_bool(True))
        batch = self.lib.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, id in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = id, i, 1, 1
            batch.seq_id[i][0] = 0
        if self.lib.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        rows = [self.lib.llama_get_logits_ith(self.context, i) for i in range(len(ids))]
        result = np.stack([np.ctypeslib.as_array(row, (self.n_vocab,)) for row in rows])
        self.lib.llama_batch_free(batch)
        return result
