"""`gruff convert` and `gruff dequantize` against transformers and llama.cpp, for every architecture.

    python tools/checks/convert.py --llama-cpp FOLDER [--llama-debug PROGRAM] [--work FOLDER] [CASE ..]

Needs torch, transformers (5.x), tokenizers, sentencepiece and numpy, so it is run by hand; what continuous
integration repeats of it is in tools/checks/conversions.py. FOLDER is llama.cpp's source (it is inside the
llama-cpp-python source package); PROGRAM its built llama-debug. For each case a random model is saved by
transformers with a tokenizer trained for it. Then must hold:

* gruff's file and that of llama.cpp's converter have the same keys and values, and the same tensors, types and
  values, but for the last bit of an exponential;
* `gruff logits --dtype f32` of gruff's file has an NMSE below 1e-8 to transformers' logits;
* gruff's token ids of a text are those of the folder's tokenizer;
* llama.cpp loads gruff's file, with an NMSE below 1e-5 to gruff's logits (its keys and values are f16);
* `AutoModelForCausalLM.from_pretrained` opens what `gruff dequantize` makes of the file, of its Q8_0 too, with
  an NMSE below 1e-8 to gruff's logits, its tokenizer gives the same ids, and a step of training lowers the loss;
* converting that folder gives the first file's values again.
"""

import argparse
import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"  # read when the packages below are imported

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers as tf  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models as tm, pre_tokenizers, processors, trainers  # noqa: E402

import models  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TEXT = ("In the beginning was the word, and 12 words more: naïve déjà-vu, 3.14159! It's what we'd said -- "
        "twice, in two lines.\n\nThe quick brown fox jumps over the lazy dog;  and the cat's away.\n" * 3)
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")
# name of the tokenizer: steps before the bytes, whether merges are ignored
BYTE_LEVEL = {
    "qwen2": ([pre_tokenizers.Split(Regex(QWEN2), "isolated")], False),
    "qwen35": ([pre_tokenizers.Split(Regex(QWEN35), "isolated")], False),
    "llama-bpe": ([pre_tokenizers.Split(Regex(LLAMA3), "isolated")], True),
    "smollm": ([pre_tokenizers.Digits(individual_digits=True)], False),
}
# case of models.py: tokenizer
CASES = {
    "llama": "smollm", "llama-llama3": "llama-bpe", "llama-yarn": "smollm", "llama-linear": "llama-bpe",
    "llama-bias": "smollm", "mistral": "spm", "mixtral": "spm", "qwen2": "qwen2", "qwen2-yarn": "qwen2",
    "qwen3": "qwen2", "qwen3-untied": "qwen2", "qwen3moe": "qwen2", "gemma3": "spm", "gemma3-linear": "spm",
    "qwen35": "qwen35", "qwen35-untied": "qwen35", "qwen35moe": "qwen35",
}
# The same weights as they are published: inside a multimodal model, experts fused.
WRAPPED = {"qwen35moe-wrapped": "qwen35moe", "qwen35-wrapped": "qwen35", "gemma3-wrapped": "gemma3"}
WRAPPERS = {"qwen35moe": ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe"),
            "qwen35": ("Qwen3_5ForConditionalGeneration", "qwen3_5"),
            "gemma3": ("Gemma3ForConditionalGeneration", "gemma3")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join([*CASES, *WRAPPED]))
    parser.add_argument("--llama-cpp", type=Path, required=True)
    parser.add_argument("--llama-debug", type=Path, help="llama.cpp's llama-debug, to compare logits with")
    parser.add_argument("--gruff", type=Path, default=ROOT / "target" / "debug" / "gruff")
    parser.add_argument("--work", type=Path, help="where models are kept (default: a temporary folder)")
    arguments = parser.parse_args()
    sys.path[:0] = [str(arguments.llama_cpp), str(arguments.llama_cpp / "gguf-py")]
    logging.disable(logging.WARNING)
    tf.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        names = arguments.cases or [*CASES, *WRAPPED]
        failed = [name for name in names if not Case(name, work, arguments).check()]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def train_byte_level(name, vocab):
    """A byte-level tokenizer whose ids end below `vocab`."""
    steps, ignore_merges = BYTE_LEVEL[name]
    tokenizer = Tokenizer(tm.BPE(ignore_merges=ignore_merges))
    regex = name == "smollm"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab - 8, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([TEXT], trainer)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    begin = tokenizer.token_to_id("<|endoftext|>")
    if name == "llama-bpe":  # files of this name begin texts with a token
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing("<|endoftext|> $A", special_tokens=[("<|endoftext|>", begin)])])
    return tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>",
                                      bos_token="<|endoftext|>" if name == "llama-bpe" else None,
                                      pad_token="<|endoftext|>", chat_template="{{ messages[0].content }}")


def train_sentencepiece(folder, vocab, gemma):
    """tokenizer.model, and the tokenizer.json that transformers makes of it."""
    import sentencepiece

    text = folder / "text.txt"
    text.write_text(TEXT)
    # The model keeps the names it was made from; inside the folder they are no paths.
    with contextlib.chdir(folder):
        sentencepiece.SentencePieceTrainer.train(
            input=text.name, model_prefix="tokenizer", model_type="bpe", vocab_size=vocab,
            byte_fallback=True, character_coverage=0.98, unk_id=3 if gemma else 0, bos_id=1, eos_id=2,
            pad_id=0 if gemma else -1, bos_piece="<bos>" if gemma else "<s>", eos_piece="<eos>" if gemma else "</s>",
            add_dummy_prefix=not gemma, remove_extra_whitespaces=False, normalization_rule_name="identity",
            minloglevel=2, hard_vocab_limit=False)
    text.unlink()
    (folder / "tokenizer.vocab").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(
        tokenizer_class="GemmaTokenizer" if gemma else "LlamaTokenizer", add_bos_token=True, add_eos_token=False,
        bos_token="<bos>" if gemma else "<s>", eos_token="<eos>" if gemma else "</s>", unk_token="<unk>")))


class Case:
    def __init__(self, name, work, arguments):
        self.name, self.arguments = name, arguments
        self.base = WRAPPED.get(name, name)
        self.folder = work / name / "hf"
        self.out = work / name
        self.faults = []

    def expect(self, holds, what):
        if not holds:
            self.faults.append(what)

    def gruff(self, *command):
        done = subprocess.run([self.arguments.gruff, *map(str, command)], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"gruff {' '.join(map(str, command))}: {done.stderr.strip()}")
        return done.stdout

    def check(self):
        """Whether the case holds."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.model = models.make(self.base)
        self.save()
        if self.name in WRAPPED:
            self.wrap()
        self.ids = torch.randint(3, 250, (models.TOKENS,))
        with torch.no_grad():
            self.expected = self.model(self.ids[None]).logits[0].numpy().astype(np.float64)
        figures = []
        try:
            self.gguf = self.out / "gruff.gguf"
            self.gruff("convert", self.folder, self.gguf, "--outtype", "f32")
            figures.append(f"NMSE {self.compare_logits(self.gguf, self.expected, 1e-8, 'transformers'):.1e}")
            figures.append(f"{self.compare_files()} keys and tensors")
            self.compare_ids()
            if self.arguments.llama_debug:
                figures.append(f"llama.cpp {self.llama_cpp():.1e}")
            figures.append(self.dequantize())
        except Exception as error:  # noqa: BLE001 the report names the case and goes on with the next
            self.faults.append(f"{type(error).__name__}: {error}")
        print(f"{self.name:18} {', '.join(figures)}{'   FAILED: ' + '; '.join(self.faults) if self.faults else ''}",
              flush=True)
        return not self.faults

    def save(self):
        kind = CASES[self.base]
        if kind == "spm":
            train_sentencepiece(self.folder, models.VOCABULARY, self.base.startswith("gemma"))
        else:
            self.tokenizer = train_byte_level(kind, models.VOCABULARY)
            self.tokenizer.save_pretrained(self.folder)
        self.model.generation_config.temperature = 0.7
        self.model.generation_config.top_p = 0.8
        self.model.generation_config.top_k = 20
        self.model.generation_config.do_sample = True
        self.model.save_pretrained(self.folder, max_shard_size="400KB")
        if kind == "spm":
            self.tokenizer = tf.AutoTokenizer.from_pretrained(self.folder)

    def wrap(self):
        """Makes the folder one of a multimodal model, with fused experts."""
        class_name, model_type = WRAPPERS[self.base]
        tensors = {}
        for shard in sorted(self.folder.glob("model*.safetensors")):
            tensors |= load_file(shard)
            shard.unlink()
        (self.folder / "model.safetensors.index.json").unlink(missing_ok=True)
        experts = self.model.config.to_dict().get("num_experts") or 0
        renamed = {"model.visual.blocks.0.attn.qkv.weight": torch.zeros(4, 4)}
        for name, tensor in tensors.items():
            renamed[name.replace("model.", "model.language_model.", 1)] = tensor
        for layer in range(self.model.config.num_hidden_layers if experts else 0):
            stem = f"model.language_model.layers.{layer}.mlp.experts"
            if f"{stem}.0.down_proj.weight" not in renamed:
                continue
            part = {k: torch.stack([renamed.pop(f"{stem}.{e}.{k}.weight") for e in range(experts)])
                    for k in ("gate_proj", "up_proj", "down_proj")}
            renamed[f"{stem}.gate_up_proj"] = torch.cat([part["gate_proj"], part["up_proj"]], 1)
            renamed[f"{stem}.down_proj"] = part["down_proj"]
        save_file(renamed, self.folder / "model.safetensors", dict(format="pt"))
        text = json.loads((self.folder / "config.json").read_text())
        text.pop("architectures")
        config = dict(architectures=[class_name], model_type=model_type, text_config=text, vision_config={},
                      tie_word_embeddings=text["tie_word_embeddings"])
        (self.folder / "config.json").write_text(json.dumps(config))

    def logits(self, model):
        out = self.out / "logits.npy"
        ids = ",".join(str(int(i)) for i in self.ids)
        self.gruff("logits", model, "--ids", ids, "--all", "--dtype", "f32", "--out", out)
        return np.load(out).astype(np.float64)

    def compare_logits(self, model, expected, bar, other):
        nmse = nmse_of(self.logits(model), expected)
        self.expect(nmse < bar, f"logits differ from {other}'s: NMSE {nmse:.1e}")
        return nmse

    def compare_files(self):
        """Keys and tensors of llama.cpp's converter, in F32 and in the other types."""
        kind = None if CASES[self.base] == "spm" else CASES[self.base]
        count = 0
        for outtype in ("f32", "f16", "bf16", "q8_0"):
            reference, own = self.out / f"llama-cpp-{outtype}.gguf", self.out / f"gruff-{outtype}.gguf"
            llama_cpp_convert(self.arguments.llama_cpp, self.folder, reference, outtype, kind)
            self.gruff("convert", self.folder, own, "--outtype", outtype, "--overwrite")
            found, faults = differences(reference, own)
            count += found
            self.faults += [f"{outtype}: {fault}" for fault in faults]
        return count

    def compare_ids(self):
        expected = self.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
        (self.out / "text").write_text(TEXT)
        text = subprocess.run([self.arguments.gruff, "tokenize", self.gguf, "-", "--ids"], input=TEXT,
                              capture_output=True, text=True, check=True).stdout
        self.expect([int(i) for i in text.split()] == expected, "token ids differ from the folder's tokenizer")

    def llama_cpp(self):
        """NMSE of llama.cpp's logits after a text to gruff's."""
        prompt = "The quick brown fox"
        where = self.out / "llama-debug"
        where.mkdir(exist_ok=True)
        subprocess.run([self.arguments.llama_debug, "-m", self.gguf, "-p", prompt, "--save-logits",
                        "--logits-output-dir", where, "-t", "1", "-c", "256"], capture_output=True, check=True)
        ids = self.gruff("tokenize", self.gguf, prompt, "--ids", "--add-special").split()
        theirs = np.fromfile(next(p for p in where.glob("*.bin") if "tokens" not in p.name), np.float32)
        self.gruff("logits", self.gguf, "--ids", ",".join(ids), "--dtype", "f32", "--out", self.out / "one.npy")
        nmse = nmse_of(theirs.astype(np.float64), np.load(self.out / "one.npy").astype(np.float64))
        self.expect(nmse < 1e-5, f"llama.cpp's logits differ: NMSE {nmse:.1e}")
        return nmse

    def dequantize(self):
        figures = []
        for outtype in ("f32", "q8_0"):
            gguf = self.out / f"gruff-{outtype}.gguf"
            back = self.out / f"back-{outtype}"
            self.gruff("dequantize", gguf, back, "--dtype", "f32")
            model = tf.AutoModelForCausalLM.from_pretrained(back, attn_implementation="eager").eval()
            with torch.no_grad():
                logits = model(self.ids[None]).logits[0].numpy().astype(np.float64)
            nmse = self.compare_logits(gguf, logits, 1e-8, f"the dequantized {outtype} model")
            figures.append(f"{outtype} back {nmse:.1e}")
            tokenizer = tf.AutoTokenizer.from_pretrained(back)
            same = tokenizer(TEXT)["input_ids"] == self.tokenizer(TEXT)["input_ids"]
            self.expect(same, f"token ids of the dequantized {outtype} model differ")
            again = self.out / f"again-{outtype}.gguf"
            self.gruff("convert", back, again, "--outtype", "f32", "--name", "again")
            if outtype == "f32":
                _, faults = differences(self.gguf, again, loose=True)
                self.faults += [f"round trip: {fault}" for fault in faults]
            if outtype == "q8_0":
                figures.append(self.train(model))
        return ", ".join(figures)

    def train(self, model):
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        before = model(self.ids[None], labels=self.ids[None]).loss
        before.backward()
        optimizer.step()
        with torch.no_grad():
            after = model(self.ids[None], labels=self.ids[None]).loss
        self.expect(bool(after < before), f"a step of training took the loss from {before:.3f} to {after:.3f}")
        return f"loss {float(before.detach()):.3f} to {float(after):.3f}"


def nmse_of(found, expected):
    return float(((found - expected) ** 2).sum() / (expected ** 2).sum())


def llama_cpp_convert(source, folder, out, outtype, pre_tokenizer):
    """llama.cpp's converter; it knows tokenizers by what they make of a text, so ours has to be named."""
    import conversion.base as base
    import gguf
    from conversion import get_model_class

    types = dict(f32=gguf.LlamaFileType.ALL_F32, f16=gguf.LlamaFileType.MOSTLY_F16,
                 bf16=gguf.LlamaFileType.MOSTLY_BF16, q8_0=gguf.LlamaFileType.MOSTLY_Q8_0)
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre_tokenizer
    config = json.loads((folder / "config.json").read_text())
    kind = get_model_class(config["architectures"][0])
    kind.no_mtp = True
    kind(folder, types[outtype], out).write()


def differences(reference, own, loose=False):
    """How many keys and tensors there are, and what differs; `loose` leaves out what names the model."""
    import gguf

    def keys(reader):
        # Of scores, a tokenizer.json keeps the order.
        skipped = ("general.name", "general.basename", "general.finetune", "general.version",
                   "tokenizer.ggml.scores", "tokenizer.ggml.unknown_token_id")
        return {key: field for key, field in reader.fields.items()
                if not key.startswith("GGUF.") and not (loose and key in skipped)}

    first, second = gguf.GGUFReader(reference), gguf.GGUFReader(own)
    a, b, faults = keys(first), keys(second), []
    for key in sorted({*a, *b}):
        if key not in a or key not in b:
            faults.append(f"key {key} is {'missing' if key in a else 'additional'}")
        elif list(map(int, a[key].types)) != list(map(int, b[key].types)) or a[key].contents() != b[key].contents():
            faults.append(f"key {key} is {str(b[key].contents())[:60]}, not {str(a[key].contents())[:60]}")
    x, y = ({t.name: t for t in reader.tensors} for reader in (first, second))
    for name in sorted({*x, *y}):
        if name not in x or name not in y:
            faults.append(f"tensor {name} is {'missing' if name in x else 'additional'}")
        elif x[name].tensor_type != y[name].tensor_type or list(x[name].shape) != list(y[name].shape):
            faults.append(f"tensor {name} is {y[name].tensor_type.name} {list(y[name].shape)}, "
                          f"not {x[name].tensor_type.name} {list(x[name].shape)}")
        elif not np.array_equal(x[name].data, y[name].data):
            one, two = (gguf.quants.dequantize(t.data, t.tensor_type) for t in (x[name], y[name]))
            # exponentials in f32, and one more or less in f32, leave the last bit open
            close = 2e-6 * max(1.0, float(np.abs(one).max()))
            if not (name.endswith(("ssm_a", "rope_freqs.weight")) or loose) or np.abs(one - two).max() > close:
                faults.append(f"tensor {name} differs by up to {np.abs(one - two).max():.1e}")
    return len(a) + len(x), faults


if __name__ == "__main__":
    main()
