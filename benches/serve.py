#!/usr/bin/env python3
"""Loads gruff serve, and llama-server beside it: the same file, the same threads, in turn.

    python benches/serve.py --gruff target/release/gruff model.gguf
    python benches/serve.py --gruff target/release/gruff --llama llama.cpp/build --threads 2 model.gguf
    python benches/serve.py --gruff target/release/gruff --llama llama.cpp/build --streams 8,32 --history 8192 model.gguf

For each number of streams a server is started with room for that many, warmed up with as many answers to other prompts,
and asked for that many at once, each to a prompt of its own; then the other server, and all of it again in every round.
Tables have the medians over rounds:

- tok/s: new tokens of all streams by the time from the first request to the last token
- TTFT: from a request to its first token, median and the longest
- gap: between two tokens of a stream, median and 99th percentile

Then a conversation: TTFT of a first turn of --history tokens, and of a second turn behind its answer, on one stream.

Needs Python 3.9 alone. Servers listen on the loopback interface, on ports that are free. On a machine that does
something else besides, the figures say nothing: the load is printed.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = (
    "river stone small green walk under light seven never house water paper garden winter answer copper silent market "
    "window letter engine summer forest bridge candle morning thunder harbor village mirror"
).split()
START_SECONDS = 600


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server on one model, running while it is entered."""

    # Fields that one server needs and another does not know.
    extra = {}

    def __init__(self, program, model, threads, context, streams, flags):
        self.port = free_port()
        self.log = tempfile.TemporaryFile()
        self.command = [str(part) for part in self.line(program, model, threads, context, streams)] + flags
        self.environment = os.environ

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, env=self.environment
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                self.fail(f"ended with code {self.process.returncode}")
            try:
                if asyncio.run(get(self.port, "/health"))[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.1)
        self.process.kill()
        self.fail(f"did not start within {START_SECONDS} seconds")

    def fail(self, fault):
        self.log.seek(0)
        sys.exit(f"{' '.join(self.command)}\n{fault}:\n{self.log.read()[-4000:].decode(errors='replace')}")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def memory(self):
        """Resident bytes, at most so far."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return 0
        return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)


class Gruff(Server):
    name = "gruff"

    def line(self, program, model, threads, context, streams):
        room = ["--ctx", context, "--max-sequences", streams, "--queue", streams]
        return [program, "serve", model, "--port", self.port, "--threads", threads, *room]


class Llama(Server):
    name = "llama-server"
    extra = {"ignore_eos": True}

    def __init__(self, program, *rest):
        super().__init__(program, *rest)
        libraries = [str(Path(program).parent), os.environ.get("LD_LIBRARY_PATH", "")]
        self.environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, libraries))}

    def line(self, program, model, threads, context, streams):
        room = ["-c", context * streams, "-np", streams]
        return [program, "-m", model, "--host", "127.0.0.1", "--port", self.port, "-t", threads, *room]


async def send(port, method, path, body=None):
    """Sends a request; gives the status and a reader of its body's bytes as they come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()
    status = int((await reader.readline()).split()[1])
    headers = {}
    while (line := (await reader.readline()).strip()):
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()

    async def pieces():
        try:
            if headers.get("transfer-encoding") != "chunked":
                while piece := await reader.read(65536):
                    yield piece
                return
            while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
                yield await reader.readexactly(size)
                await reader.readline()
        finally:
            writer.close()

    return status, pieces()


async def get(port, path, body=None):
    """A whole answer: its status and bytes."""
    status, pieces = await send(port, "GET" if body is None else "POST", path, body)
    return status, b"".join([piece async for piece in pieces])


async def stream(port, path, body):
    """Asks for a stream; gives the times of its tokens since it was sent, and what usage says."""
    started = time.perf_counter()
    status, pieces = await send(port, "POST", path, {**body, "stream": True, "stream_options": {"include_usage": True}})
    if status != 200:
        fault = b"".join([piece async for piece in pieces])
        sys.exit(f"POST {path}: status {status}: {fault[:2000].decode(errors='replace')}")
    times, text, usage, rest = [], [], {}, b""
    async for piece in pieces:
        now = time.perf_counter() - started
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                sys.exit(f"POST {path}: {event['error']}")
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                delta = choice.get("delta", choice)
                new = delta.get("reasoning_content") or delta.get("content") or delta.get("text")
                if new:
                    times.append(now)
                    text.append(new if delta.get("content") == new else "")
    return times, usage, "".join(text)


def median(values):
    return statistics.median(values) if values else float("nan")


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


async def words(port, seed, count):
    """So many token ids of some text, different for each seed; and the text."""
    generator = random.Random(seed)
    text = " ".join(generator.choices(WORDS, k=count))
    status, body = await get(port, "/tokenize", {"content": text})
    if status != 200:
        sys.exit(f"/tokenize: status {status}: {body[:500]!r}")
    return json.loads(body)["tokens"][:count], text


async def load(server, streams, prompt, new, seed):
    """All streams at once."""
    fields = {"max_tokens": new, "temperature": 0, **server.extra}
    prompts = [(await words(server.port, seed + index, prompt))[0] for index in range(streams)]
    warm = [(await words(server.port, seed + streams + index, prompt))[0] for index in range(streams)]

    async def all_of(prompts):
        ask = [stream(server.port, "/v1/completions", {"prompt": ids, **fields}) for ids in prompts]
        return await asyncio.gather(*ask)

    # Until every sequence has been there once a server takes memory from the system, which is no part of serving.
    await all_of(warm)
    started = time.perf_counter()
    answers = await all_of(prompts)
    took = time.perf_counter() - started
    gaps = [later - earlier for times, _, _ in answers for earlier, later in zip(times, times[1:])]
    firsts = [times[0] for times, _, _ in answers if times]
    tokens = sum(usage.get("completion_tokens", len(times)) for times, usage, _ in answers)
    return {
        "tokens": tokens,
        "tok/s": tokens / took,
        "ttft": median(firsts),
        "ttft_max": max(firsts, default=float("nan")),
        "gap": median(gaps),
        "gap_p99": percentile(gaps, 0.99),
        "memory": server.memory(),
    }


async def converse(server, history, new, seed):
    """Two turns; the second goes on behind the first one's answer."""
    fields = {"max_tokens": new, "temperature": 0, **server.extra}
    _, text = await words(server.port, seed, history)
    # A word may be several tokens.
    count = len(json.loads((await get(server.port, "/tokenize", {"content": text}))[1])["tokens"])
    text = text[: int(len(text) * history / max(count, 1))]
    messages = [{"role": "system", "content": text}, {"role": "user", "content": "What is this about?"}]
    turns = []
    for _ in range(2):
        times, usage, answer = await stream(server.port, "/v1/chat/completions", {"messages": messages, **fields})
        turns.append((times[0] if times else float("nan"), usage))
        messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": "And what follows from it?"})
    (first, usage), (second, then) = turns
    details = then.get("prompt_tokens_details") or {}
    return {
        "prompt": usage.get("prompt_tokens", 0),
        "first": first,
        "second": second,
        "cached": details.get("cached_tokens", 0),
        "second_prompt": then.get("prompt_tokens", 0),
    }


def context_of(program, model):
    """The context that a model was trained for."""
    with Gruff(program, model, 1, 512, 1, []) as server:
        listed = json.loads(asyncio.run(get(server.port, "/v1/models"))[1])["data"][0]
        return listed.get("meta", {}).get("n_ctx_train") or 1 << 20


def milliseconds(seconds):
    return f"{seconds * 1000:,.0f}"


def table(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip(), flush=True)


def medians(runs):
    return {key: median([run[key] for run in runs]) for key in runs[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file, or `bundled` (gruff alone)")
    parser.add_argument("--gruff", required=True, type=Path, help="the program")
    parser.add_argument("--llama", type=Path, help="a folder that llama.cpp was built in, or its bin")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--streams", default="1,8,32,64", help="numbers of answers at once [1,8,32,64]")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt [32]")
    parser.add_argument("--new", type=int, default=32, help="tokens of each answer [32]")
    parser.add_argument("--history", type=int, default=8192, help="tokens of the conversation; 0 for none [8192]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gruff-flags", default="", help="further flags of gruff serve")
    parser.add_argument("--llama-flags", default="", help="further flags of llama-server")
    parser.add_argument("--json", type=Path, help="also write every run there")
    options = parser.parse_args()

    servers = [(Gruff, options.gruff, options.gruff_flags.split())]
    if options.llama:
        found = [path for path in (options.llama / "bin/llama-server", options.llama / "llama-server") if path.exists()]
        if not found:
            sys.exit(f"no llama-server in {options.llama}; build llama.cpp's target llama-server")
        servers.append((Llama, found[0], options.llama_flags.split()))
    trained = context_of(options.gruff, options.model)
    history = min(options.history, trained - 2 * options.new - 256)
    if history < options.history:
        print(f"the model was trained for {trained} tokens: a history of {history}")
    print(f"{options.model}: {options.threads} threads, prompts of {options.prompt}, answers of {options.new} tokens, "
          f"{options.rounds} rounds; load {os.getloadavg()[0]:.1f}", flush=True)

    runs = []
    rows = [["streams", "", "tok/s", "TTFT ms", "longest", "gap ms", "p99", "MiB"]]
    for streams in (int(count) for count in options.streams.split(",")):
        measured = {kind.name: [] for kind, *_ in servers}
        for round in range(options.rounds):
            for kind, program, flags in servers:
                room = -(-(options.prompt + options.new + 16) // 64) * 64
                with kind(program, options.model, options.threads, room, streams, flags) as server:
                    seed = options.seed + 1000 * round
                    run = asyncio.run(load(server, streams, options.prompt, options.new, seed))
                measured[kind.name].append(run)
                runs.append({"server": kind.name, "streams": streams, "round": round, **run})
        for name, all_runs in measured.items():
            run = medians(all_runs)
            times = [milliseconds(run[key]) for key in ("ttft", "ttft_max", "gap", "gap_p99")]
            rows.append([str(streams), name, f"{run['tok/s']:.1f}", *times, f"{run['memory'] / 2**20:,.0f}"])
        if len(servers) > 1:
            ours, theirs = (measured[kind.name] for kind, *_ in servers)
            ratio = median([a["tok/s"] / b["tok/s"] for a, b in zip(ours, theirs)])
            rows.append(["", "ratio", f"{ratio:.2f}x", "", "", "", "", ""])
    table(rows)

    if history > 0:
        rows = [["second turn", "first ms", "tokens", "second ms", "tokens", "cached", "second/first"]]
        measured = {kind.name: [] for kind, *_ in servers}
        for round in range(options.rounds):
            for kind, program, flags in servers:
                room = min(trained, history + 2 * options.new + 256)
                with kind(program, options.model, options.threads, room, 1, flags) as server:
                    run = asyncio.run(converse(server, history, options.new, options.seed + round))
                measured[kind.name].append(run)
                runs.append({"server": kind.name, "history": history, "round": round, **run})
        for name, all_runs in measured.items():
            run = medians(all_runs)
            ratio = median([run["second"] / run["first"] for run in all_runs])
            counts = [f"{run[key]:.0f}" for key in ("prompt", "second_prompt", "cached")]
            rows.append([name, milliseconds(run["first"]), counts[0], milliseconds(run["second"]), *counts[1:],
                         f"1/{1 / ratio:.1f}"])
        print()
        table(rows)
    print(f"\nload {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps(runs, indent=1))


if __name__ == "__main__":
    main()
