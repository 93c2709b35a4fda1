#!/usr/bin/env python3
"""Compare random template expressions between gruff and transformers.

Usage: template_expressions.py [COUNT] [--seed N] [--render PROGRAM] [--show N]

Makes COUNT random expressions over the variables of
crates/gruff-text/tests/templates/context.json, renders them with transformers and with
gruff-text's `render` example, and compares texts; where one fails, both must. Needs Python with
transformers and jinja2.
"""

import argparse
import json
import pathlib
import random
import re
import subprocess
import sys

import examples
from transformers.utils import chat_template_utils as hf

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONTEXT = ROOT / "crates" / "gruff-text" / "tests" / "templates" / "context.json"
ATOMS = """none true false 0 1 2 -3 7 2.5 -0.5 1e16 '' 'a' 'B c' "it's" ' x ' 'é👩' '%s' '%d|%s' '{}' [] [1] [3,1,2] ['b','A'] (1,'x') () {} {'a':1,'b':[2]}
s n f flag off nothing big sp lst words nested d people empty html zero neg missing messages tools messages[0] messages[2] messages[1].content range(3)
d.items() d.keys() people[0] loop""".split()
VARIABLES = [atom for atom in ATOMS if atom[0].isalpha() and atom not in ("none", "true", "false", "range(3)")]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
FILTERS = """abs capitalize default default('x') default('x',true) dictsort e escape first float indent indent(2,true) int int(5) items|list join join(',') last length list
lower map('upper')|list map(attribute='a')|list max min reject|list replace('a','b') reverse|list round round(1) safe select|list select('string')|list selectattr('a')|list
sort sort(reverse=true) string sum title tojson tojson(indent=2) trim trim('a') unique|list upper wordcount batch(2)|list slice(2)|list dictsort(by='value') count
truncate(5) center(9) rejectattr('a')|list groupby('a') attr('items') format(1,2) striptags sort(attribute='a') sum(attribute='a') tojson(ensure_ascii=true)""".split()
TESTS = """defined undefined none string number integer float boolean mapping iterable sequence odd even divisibleby(2) lower upper true false
in([1,'a']) eq(1) gt(1) sameas(none) not\\ none not\\ defined""".replace("\\ ", "\0").split()
METHODS = """upper() lower() strip() lstrip() rstrip() split() split('a') split(',',1) rsplit('b',1) splitlines() startswith('a') endswith(('a','c')) replace('a','x') title()
capitalize() find('a') rfind('b') count('a') join(['x','y']) format(1,'z') zfill(4) removeprefix('a') removesuffix('c') isdigit() isalpha() isspace() items() keys() values()
get('a') get('zz',0) index('a') swapcase() center(7) ljust(5) partition('a') rpartition(' ') strip('ax') islower() isupper() append(1) expandtabs() nothing() update({}) copy()""".split()
SUBSCRIPTS = ["[0]", "[-1]", "[1:]", "[:2]", "[::-1]", "['a']", "[n]", "['items']", "[none]", "[1:-1]", "[:-1]", "[-2:]", ".a", ".items", ".content", ".role"]


def expression(rng, depth):
    pick = rng.random()
    if depth <= 0 or pick < 0.18:
        return rng.choice(ATOMS)
    inner = lambda: expression(rng, depth - 1)
    if pick < 0.38:
        return f"{inner()} {rng.choice(BINARY)} {inner()}"
    if pick < 0.46:
        return f"({inner()})"
    if pick < 0.62:
        return f"{inner()} | {rng.choice(FILTERS)}"
    if pick < 0.70:
        return f"({inner()} is {rng.choice(TESTS)})".replace("\0", " ")
    if pick < 0.80:
        return f"({inner()}).{rng.choice(METHODS)}"
    if pick < 0.90:
        subscript = rng.choice(SUBSCRIPTS)
        # Jinja evaluates a literal's slice early and differently: slices are tried on variables.
        return f"({rng.choice(VARIABLES) if ':' in subscript else inner()}){subscript}"
    if pick < 0.93:
        return f"not {inner()}"
    if pick < 0.96:
        return f"{inner()} if {inner()} else {inner()}"
    return rng.choice([f"[{inner()}, {inner()}]", f"{{'k': {inner()}}}", f"({inner()}, {inner()})", f"-({inner()})"])


def reference(source, context):
    try:
        texts, _ = hf.render_jinja_template(
            conversations=[hf._normalize_chat_messages(context["messages"])],
            tools=context["tools"],
            chat_template=source,
            **context["kwargs"],
        )
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    return texts[0], None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", nargs="?", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--render", help="the render example's binary; built with cargo when left out")
    parser.add_argument("--show", type=int, default=20)
    arguments = parser.parse_args()
    context = json.loads(CONTEXT.read_text())
    rng = random.Random(arguments.seed)
    # A template also may loop over an expression, or keep it in a variable first.
    shapes = ["{{ %s }}", "{{ %s }}", "{%% for x in %s %%}<{{ x }}>{%% endfor %%}", "{%% set v = %s %%}{{ v }}", "{%% if (%s) %%}t{%% endif %%}"]
    sources = [rng.choice(shapes) % expression(rng, rng.randint(1, 4)) for _ in range(arguments.count)]
    jobs = [{"id": str(at), "source": source, **context} for at, source in enumerate(sources)]
    command = [arguments.render or examples.build("render")]
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    answer = subprocess.run(command, input=lines.encode(), stdout=subprocess.PIPE, check=True, cwd=ROOT)
    wrong, equal, failed = 0, 0, 0
    for source, line in zip(sources, answer.stdout.decode().split("\n"), strict=False):
        got = json.loads(line)
        want, error = reference(source, context)
        # Addresses are printed; views of dicts subtract as sets, which gruff has not.
        if want is not None and re.search(r" at 0x[0-9a-f]+>|<jinja2|LoopContext|Undefined|^Markup", want):
            continue
        if re.search(r"\.(items|keys)\(\)", source) and " - " in source:
            continue
        equal += want is not None and want == got.get("text")
        failed += want is None and "error" in got
        if (want is None) != ("error" in got) or (want is not None and want != got.get("text")):
            wrong += 1
            if wrong <= arguments.show:
                print(f"{source}\n  python {want if error is None else error!r}\n  gruff  {got.get('text', got.get('error'))!r}"[:700])
    print(f"{len(sources)} expressions: {equal} equal, {failed} refused by both, {wrong} different")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
