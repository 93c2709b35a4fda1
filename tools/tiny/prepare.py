"""Makes the bundled model's tokenizer and packs texts and conversations into token ids.

    python tools/tiny/prepare.py TEXTS TEMPLATE OUT

TEXTS: the folder that corpus.py filled. TEMPLATE: Qwen3.5's chat template (`tools/fetch.py` brings it).
OUT/tokenizer/: tokenizer.json, tokenizer_config.json, chat_template.jinja, for transformers.
OUT/prose.npy, OUT/prose.json: ids of the training texts one after the other, and where each lies.
OUT/validation.npy, OUT/persuasion.npy: ids for measuring, with their bytes in OUT/prose.json.
OUT/chat.npy, OUT/chat_learned.npy: conversations in rows, and which ids are answers.
Needs tokenizers, transformers and numpy.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import questions

VOCABULARY = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_pad|>"]
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
# The splitting rule of Qwen3.5's tokenizer.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
HELD_OUT = "austen-persuasion"
# The last part of each text is for validation.
VALIDATION = 0.02
# How often a token of a text is drawn, next to one of the others; texts in broken lines come also in whole paragraphs.
WEIGHTS = {"sotu": 1.0, "bible-kjv": 0.7}
PARAGRAPHS = 0.5
CONVERSATIONS, SEED = 48_000, 1818
# Conversations lie in rows of this many ids, the first of each row at its beginning.
ROW = 257


def unwrapped(text: str) -> str:
    """The text with a paragraph a line."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)


def sentences(text: str) -> list[str]:
    """Sentences of a text that stand alone."""
    found = re.findall(r'(?<=[a-z]{3}[.!?] )[A-Z][^.!?"“”_]{40,180}[.!?](?= )', unwrapped(text))
    return [s for s in found if not re.search(r"\b(Mr|Mrs|Dr|St)\.$", s)]


def split(text: str) -> tuple[str, str]:
    """Training and validation part, divided between paragraphs."""
    at = text.index("\n\n", int(len(text) * (1 - VALIDATION))) + 2
    return text[:at], text[at:]


def train_tokenizer(texts: list[str], template: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - len(MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKS])
    assert tokenizer.get_vocab_size() == VOCABULARY
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
        chat_template=template,
    )


def answering_at_once(template: str) -> str:
    """The template with thinking off unless it is asked for, as the smallest Qwen3.5 models have it."""
    thinking = "enable_thinking is defined and enable_thinking is false"
    assert template.count(thinking) == 1
    before, after = template.split(thinking)
    open_, closed = "{{- '<think>\\n' }}", "{{- '<think>\\n\\n</think>\\n\\n' }}"
    assert after.count(open_) == 1 and after.count(closed) == 1
    after = after.replace(closed, "\0").replace(open_, closed).replace("\0", open_)
    return before + "enable_thinking is defined and enable_thinking is true" + after


def conversation_ids(tokenizer: PreTrainedTokenizerFast, messages: list[dict]) -> tuple[list[int], list[bool]]:
    """Ids of a conversation, and which of them its assistant says."""
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    thinks = "reasoning_content" in messages[-1]
    ids, learned = [], []
    for part in re.split(r"(?<=<\|im_start\|>assistant\n)", text):
        # Each part but the first begins with what the assistant says.
        said, end, rest = part.partition("<|im_end|>") if ids else ("", "", part)
        opened = "<think>\n" if thinks else "<think>\n\n</think>\n\n"
        prompt, said = (opened, said[len(opened) :]) if said.startswith(opened) else ("", said)
        for piece, answer in [(prompt, False), (said + end, True), (rest, False)]:
            new = tokenizer.encode(piece, add_special_tokens=False) if piece else []
            ids += new
            learned += [answer] * len(new)
    return ids, learned


def pack_conversations(
    tokenizer: PreTrainedTokenizerFast, quoted: dict[str, list[str]]
) -> tuple[np.ndarray, np.ndarray]:
    padding = tokenizer.pad_token_id
    rows, masks, row, mask = [], [], [], []
    for messages in questions.conversations(CONVERSATIONS, SEED, quoted):
        ids, learned = conversation_ids(tokenizer, messages)
        if row and len(row) + len(ids) > ROW:
            rows.append((row + [padding] * ROW)[:ROW])
            masks.append((mask + [False] * ROW)[:ROW])
            row, mask = [], []
        row += ids
        mask += learned
    return np.array(rows, np.uint16), np.array(masks, np.uint8)


def main() -> None:
    texts, template, out = map(Path, sys.argv[1:4])
    out.mkdir(parents=True, exist_ok=True)
    prose = {path.stem: path.read_text(encoding="utf-8") for path in sorted(texts.glob("*.txt"))}
    held_out = prose.pop(HELD_OUT)
    parts = {name: split(text) for name, text in prose.items()}
    talk = [m["content"] for c in questions.conversations(4000, SEED + 1) for m in c]
    tokenizer = train_tokenizer(
        [train for train, _ in parts.values()] + talk, answering_at_once(template.read_text(encoding="utf-8"))
    )
    tokenizer.save_pretrained(out / "tokenizer")

    def encode(text: str) -> np.ndarray:
        return np.array(tokenizer.encode(text, add_special_tokens=False), np.uint16)

    ids, sources, at = [], [], 0
    for name, (train, _) in parts.items():
        broken = name.startswith("austen") or name == "moby-dick"
        forms = [(name, train, WEIGHTS.get(name, 1.0))]
        if broken:
            forms.append((f"{name} in paragraphs", unwrapped(train), PARAGRAPHS))
        for form, text, weight in forms:
            new = encode(text)
            sources.append({"name": form, "begin": at, "end": at + len(new), "bytes": len(text.encode()), "weight": weight})
            ids.append(new)
            at += len(new)
    measured = {"persuasion": held_out, "validation": "".join(v for _, v in parts.values())}
    measured["validation-austen"] = "".join(v for name, (_, v) in parts.items() if name.startswith("austen"))
    about = {"sources": sources, "measured": {}}
    for name, text in measured.items():
        np.save(out / f"{name}.npy", encode(text))
        about["measured"][name] = {"bytes": len(text.encode())}
    np.save(out / "prose.npy", np.concatenate(ids))
    austen = "\n\n".join(train for name, (train, _) in parts.items() if name.startswith("austen"))
    quoted = {"Jane Austen": sentences(austen), "Herman Melville": sentences(parts["moby-dick"][0])}
    chat, learned = pack_conversations(tokenizer, quoted)
    np.save(out / "chat.npy", chat)
    np.save(out / "chat_learned.npy", learned)
    (out / "prose.json").write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps(about, indent=1))
    print(f"{at:,} ids of prose, {chat.shape[0]:,} rows of conversations, {int(learned.sum()):,} ids of answers")


if __name__ == "__main__":
    main()
