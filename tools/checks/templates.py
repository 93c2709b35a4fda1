#!/usr/bin/env python3
"""Compare gruff's chat templates with transformers', byte for byte.

Usage: templates.py FOLDER [FOLDER ...] [--render PROGRAM] [--only TEXT] [--show N]

Every *.jinja file of the folders is rendered over every conversation of
crates/gruff-text/tests/conversations and every entry of tests/render_options.json,
by transformers (`apply_chat_template`'s own functions) and by gruff-text's `render`
example. Texts must be equal, assistant spans too, and where one refuses, both must.
Needs Python with transformers and jinja2.
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys

import examples
from transformers.utils import chat_template_utils as hf

ROOT = pathlib.Path(__file__).resolve().parents[2]
CRATE = ROOT / "crates" / "gruff-text"
NOW = datetime.datetime(2026, 3, 7, 9, 5, 3, 42)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class FixedClock(datetime.datetime):
    """Stands in for datetime so that strftime_now is repeatable."""

    @classmethod
    def now(cls, tz=None):
        return NOW


hf.datetime = FixedClock


def jobs(folders, only):
    options = json.loads((CRATE / "tests" / "render_options.json").read_text())
    conversations = sorted((CRATE / "tests" / "conversations").glob("*.json"))
    for folder in folders:
        templates = sorted(pathlib.Path(folder).glob("*.jinja"))
        if not templates:
            sys.exit(f"no *.jinja file in {folder}")
        for template in templates:
            for conversation in conversations:
                name = f"{template.stem}/{conversation.stem}"
                if only and only not in name:
                    continue
                data = json.loads(conversation.read_text())
                for index, option in enumerate(options):
                    job = {
                        "id": f"{name}/{index}",
                        "template": str(template.resolve()),
                        "now": NOW.isoformat(),
                        "messages": data["messages"],
                        "add_generation_prompt": option["add_generation_prompt"],
                        "kwargs": option.get("kwargs", {}),
                        "assistant_spans": option["add_generation_prompt"] is False,
                    }
                    for key in ("tools", "documents", "continue_final_message"):
                        if key in data:
                            job[key] = data[key]
                    if "continue_final_message" in job:
                        job["add_generation_prompt"] = job["assistant_spans"] = False
                    if option.get("tokens", True):
                        job.update(TOKENS)
                    yield job


def reference(job, source):
    """What transformers answers: {"text", "spans"} or {"error"}."""
    kwargs = {name: job[name] for name in TOKENS if name in job} | job["kwargs"]
    try:
        texts, spans = hf.render_jinja_template(
            conversations=[hf._normalize_chat_messages(job["messages"])],
            tools=job.get("tools"),
            documents=job.get("documents"),
            chat_template=source,
            return_assistant_tokens_mask=job["assistant_spans"],
            continue_final_message=job.get("continue_final_message", False),
            add_generation_prompt=job["add_generation_prompt"],
            **kwargs,
        )
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"text": texts[0], "spans": spans[0] if spans else []}


def byte_spans(text, spans):
    return [[len(text[:start].encode()), len(text[:end].encode())] for start, end in spans]


def verdict(want, got):
    if "error" in want or "error" in got:
        return "error" in want and "error" in got
    return want["text"] == got["text"] and byte_spans(want["text"], want["spans"]) == got["spans"]


def difference(want, got):
    if "text" in want and "text" in got and want["text"] != got["text"]:
        a, b = want["text"], got["text"]
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        return f"  differs at {at}\n  python {a[max(0, at - 60):at + 60]!r}\n  gruff  {b[max(0, at - 60):at + 60]!r}"
    return f"  python {str(want)[-300:]}\n  gruff  {str(got)[-300:]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--render", help="the render example's binary; built with cargo when left out")
    parser.add_argument("--only", help="only template/conversation names with this text in them")
    parser.add_argument("--show", type=int, default=10, help="differences to print")
    parser.add_argument("--errors", action="store_true", help="print the message of each refusal too")
    arguments = parser.parse_args()

    command = [arguments.render or examples.build("render")]
    work = list(jobs(arguments.folders, arguments.only))
    lines = "".join(json.dumps(job, ensure_ascii=False) + "\n" for job in work)
    answer = subprocess.run(command, input=lines.encode(), stdout=subprocess.PIPE, check=True, cwd=ROOT)
    answers = [json.loads(line) for line in answer.stdout.decode().split("\n") if line]
    if len(answers) != len(work):
        sys.exit(f"{len(work)} jobs, {len(answers)} answers")

    sources, equal, refused, wrong, counts = {}, 0, 0, [], {}
    for job, got in zip(work, answers):
        assert got["id"] == job["id"], (got["id"], job["id"])
        path = job["template"]
        if path not in sources:
            sources[path] = pathlib.Path(path).read_text()
        want = reference(job, sources[path])
        if verdict(want, got):
            equal += "text" in want
            refused += "error" in want
            if arguments.errors and "error" in want:
                print(f"{job['id']}\n  python {want['error'][:200]}\n  gruff  {got['error'][:200]}")
        else:
            wrong.append((job["id"], want, got))
            key = pathlib.Path(path).stem
            counts[key] = counts.get(key, 0) + 1
    for name, want, got in wrong[: arguments.show]:
        print(f"{name}\n{difference(want, got)}")
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:6} differences in {name}")
    print(f"{len(sources)} templates, {len(work)} renderings: {equal} byte-equal, "
          f"{refused} refused by both, {len(wrong)} different")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
