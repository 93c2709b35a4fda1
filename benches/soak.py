#!/usr/bin/env python3
"""Wears out `gruff serve`: clients of every kind, good and bad, all at once, for as many requests as are wanted.

    python benches/soak.py --requests 10000
    python benches/soak.py --seconds 3600 --requests 1000000 --clients 48 --rest 12
    python benches/soak.py --model owner/repo:Q4_K_M

Starts target/release/gruff (GRUFF names another) on the loopback interface and asks it a set of questions one by one,
with nobody else there. Then so many clients at a time do what clients do: they ask for whole answers and for streams, read
slowly, leave in the middle, send what is no request, what is too large or what never ends. It fails unless

- every answer is the one that the question got alone, and every refusal has the status that is due;
- nothing is lost: each request is answered, and nothing is in progress at the end;
- the counters of /metrics are exactly what the clients saw: responses by route and status, tokens, answers;
- the server's resident memory at the end is within 5 % of what it was after half of the load (and 12 MiB, where these
  were fewer than 10,000 requests: caches fill).

Standard library only.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

GRUFF = os.environ.get("GRUFF", Path(__file__).resolve().parents[1] / "target" / "release" / "gruff")
FLAT = 0.05
# Bytes that caches and buffers may still fill in the second half of a short load, and how many requests are none.
SLACK, MANY = 12 << 20, 10_000
PATIENCE = 300
CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"


class Failure(Exception):
    """The server did what it must not."""


def questions() -> list[tuple[str, dict]]:
    """Requests whose answers depend on themselves alone: greedy or seeded, short or long, of every dialect."""
    subjects = ["France", "Italy", "the moon", "a horse", "the number 7", "rain", "a ship", "Elizabeth"]
    asked = []
    for number, subject in enumerate(subjects):
        sampling = {"temperature": 0} if number % 2 else {"temperature": 0.9, "seed": number}
        message = [{"role": "user", "content": f"Tell me about {subject}." + " Please." * number * 4}]
        long = [*message, {"role": "assistant", "content": "Well. " * 30}, {"role": "user", "content": "Go on."}]
        asked += [
            (CHAT, {"messages": message, "max_tokens": 16 + number, **sampling}),
            (CHAT, {"messages": long, "max_tokens": 24, "n": 1 + number % 3, **sampling}),
            (TEXT, {"prompt": f"The story of {subject} is", "max_tokens": 12 + number, **sampling}),
        ]
    asked += [
        (TEXT, {"prompt": ["One", "The sea", "My lord,"], "max_tokens": 8, "temperature": 0}),
        (RESPONSES, {"input": "What is the capital of France?", "max_output_tokens": 16, "temperature": 0, "store": False}),
        (MESSAGES, {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16, "temperature": 0}),
        (CHAT, {"messages": [{"role": "user", "content": "A colour?"}], "max_tokens": 24, "temperature": 0,
                "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": {
                    "type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"],
                    "additionalProperties": False}}}}),
    ]  # fmt: skip
    return asked


def outcome(path: str, answer: dict) -> list:
    """What of a whole answer must be the same each time."""
    if path == RESPONSES:
        return [part["text"] for item in answer["output"] for part in item.get("content", [])]
    if path == MESSAGES:
        return [[block.get("text") for block in answer["content"]], answer["stop_reason"]]
    return [[choice.get("text", choice.get("message")), choice["finish_reason"]] for choice in answer["choices"]]


def tokens(path: str, answer: dict) -> tuple[int, int]:
    """Prompt and new tokens. A prompt counts once for each of its answers, as in the server's counters."""
    usage = answer["usage"]
    if path in (RESPONSES, MESSAGES):
        read = usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
        return read, usage["output_tokens"]
    prompts = usage["prompt_tokens"]
    return prompts, usage["completion_tokens"]


def streamed(events: list[dict], answers: int) -> list:
    """The texts that chunks of OpenAI's two older APIs make."""
    texts, reasons = [""] * answers, [None] * answers
    for event in events:
        if "error" in event:
            raise Failure(f"a stream ended with {event}")
        for choice in event["choices"]:
            delta = choice.get("delta", {})
            if "tool_calls" in delta or "reasoning_content" in delta:
                raise Failure(f"nobody asked for {delta}")
            texts[choice["index"]] += choice.get("text", delta.get("content", ""))
            reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    return [[text, reason] for text, reason in zip(texts, reasons, strict=True)]


class Connection:
    """One request on one connection."""

    def __init__(self, soak: "Soak"):
        self.soak = soak

    async def __aenter__(self) -> "Connection":
        self.reader, self.writer = await asyncio.open_connection(*self.soak.address, limit=1 << 20)
        return self

    async def __aexit__(self, *_) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        lines = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(body))}
        if body:
            lines["Content-Type"] = "application/json"
        lines |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    async def head(self, path: str) -> int:
        """Status and headers; what is counted here the server must have counted."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        self.chunked = "transfer-encoding: chunked" in head.lower()
        status = int(head.split(" ")[1])
        self.soak.seen[path, status] += 1
        return status

    async def rest(self) -> bytes:
        if not self.chunked:
            return await self.reader.read()
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        return body


class Soak:
    def __init__(self, address: tuple[str, int], pid: int, options: argparse.Namespace):
        self.address, self.pid, self.options = address, pid, options
        self.random = random.Random(options.seed)
        self.alone: list[tuple[str, dict, list, tuple[int, int], int]] = []
        self.seen: collections.Counter = collections.Counter()
        self.kinds: collections.Counter = collections.Counter()
        self.prompt_tokens = self.new_tokens = self.answers = self.begun = 0
        self.memory: list[int] = []

    # What clients do ---------------------------------------------------------------------------------------------

    async def json(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict]:
        async with Connection(self) as connection:
            connection.send(method, path, body, **headers)
            status = await connection.head(path)
            return status, json.loads(await connection.rest())

    def count(self, path: str, request: dict, usage: tuple[int, int], answers: int) -> None:
        """Adds a whole answer to what the server's counters must have."""
        # The usage tells a prompt once, the counters once for each of its answers.
        self.prompt_tokens += usage[0] * request.get("n", 1)
        self.new_tokens += usage[1]
        self.answers += answers

    async def whole(self) -> None:
        path, request, expected, usage, answers = self.random.choice(self.alone)
        status, answer = await self.json("POST", path, json.dumps(request).encode())
        if status != 200:
            raise Failure(f"{status} for {request}: {answer}")
        if (got := outcome(path, answer)) != expected or tokens(path, answer) != usage:
            raise Failure(f"{request} was answered with {got}, alone with {expected}")
        self.count(path, request, usage, answers)

    async def stream(self, slowly: bool = False) -> None:
        path, request, expected, usage, answers = self.random.choice([a for a in self.alone if a[0] in (CHAT, TEXT)])
        body = json.dumps({**request, "stream": True}).encode()
        async with Connection(self) as connection:
            connection.send("POST", path, body)
            if (status := await connection.head(path)) != 200:
                raise Failure(f"{status} for a stream of {request}")
            if slowly:
                await asyncio.sleep(self.random.uniform(0.2, 2))
            lines = (await connection.rest()).decode().splitlines()
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        if data[-1] != "[DONE]":
            raise Failure(f"a stream of {request} ended with {data[-1]}")
        got = streamed([json.loads(event) for event in data[:-1]], answers)
        texts = [[t if isinstance(t, str) else t["content"], reason] for t, reason in expected]
        if got != texts:
            raise Failure(f"{request} was streamed as {got}, alone it is {texts}")
        self.count(path, request, usage, answers)

    async def slow(self) -> None:
        await self.stream(slowly=True)

    async def leave(self) -> None:
        """Leaves in the middle of an answer that would go on for long."""
        request = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": self.options.long,
                   "temperature": 1.5, "stream": True, "logit_bias": dict.fromkeys(self.ends, -100)}  # fmt: skip
        async with Connection(self) as connection:
            connection.send("POST", CHAT, json.dumps(request).encode())
            if (status := await connection.head(CHAT)) != 200:
                raise Failure(f"{status} for an answer to leave")
            for _ in range(self.random.randrange(6)):
                await connection.reader.readline()

    async def nonsense(self) -> None:
        hello = {"messages": [{"role": "user", "content": "Hi"}]}
        body = lambda **fields: json.dumps({**hello, **fields}).encode()  # noqa: E731
        path, sent, headers, due = self.random.choice([
            (CHAT, b'{"messages": [', {}, 400),
            (CHAT, body(frobnicate=1), {}, 400),
            (CHAT, body(temperature="hot"), {}, 400),
            (CHAT, body(top_p=7), {}, 400),
            (CHAT, body(messages=[]), {}, 400),
            (CHAT, body(n=1000), {}, 400),
            (CHAT, body(model="nobody/knows"), {}, 404),
            (CHAT, body(response_format={"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}), {}, 400),
            (CHAT, body(), {"Content_Type": "text/plain"}, 415),
            (CHAT, body(), {"Host": "evil.example"}, 403),
            (TEXT, json.dumps({"prompt": "word " * 200_000}).encode(), {}, 400),
            (MESSAGES, body(), {}, 400),
            (RESPONSES, b'{"input": 3}', {}, 400),
        ])  # fmt: skip
        status, answer = await self.json("POST", path, sent, **headers)
        if status != due or "message" not in answer["error"]:
            raise Failure(f"{status} and not {due} for {sent[:200]}: {answer}")

    async def oversized(self) -> None:
        async with Connection(self) as connection:
            connection.send("POST", CHAT, b"", Content_Length=str(40 << 20), Content_Type="application/json")
            if (status := await connection.head(CHAT)) != 413:
                raise Failure(f"{status} for a body that is too large")

    async def half_open(self) -> None:
        """Sends a part of a request, stays a while and goes. It is for /detokenize, which nobody else asks."""
        async with Connection(self) as connection:
            start = b"POST /detokenize HTTP/1.1\r\nHost: localhost\r\n"
            begun = [b"", start[:7], start, start + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"]
            connection.writer.write(self.random.choice(begun))
            await asyncio.sleep(self.random.uniform(0, 3))

    KINDS = {whole: 55, stream: 20, slow: 5, leave: 6, nonsense: 8, oversized: 3, half_open: 3}

    # The load ----------------------------------------------------------------------------------------------------

    async def ask_alone(self) -> None:
        """The answers that all others are held to."""
        self.ends = set()
        for mark in ("<|im_end|>", "<|endoftext|>", "</s>", "<|eot_id|>"):
            _, answer = await self.json("POST", "/tokenize", json.dumps({"content": mark}).encode())
            if len(answer["tokens"]) == 1:
                self.ends.add(str(answer["tokens"][0]))
        for path, request in questions():
            status, answer = await self.json("POST", path, json.dumps(request).encode())
            if status != 200:
                raise Failure(f"{status} for {request}: {answer}")
            answers = len(answer["choices"]) if "choices" in answer else 1
            usage = tokens(path, answer)
            self.alone.append((path, request, outcome(path, answer), usage, answers))
            self.count(path, request, usage, answers)

    async def client(self, until: float) -> None:
        kinds, weights = zip(*self.KINDS.items(), strict=True)
        while self.begun < self.options.requests and time.monotonic() < until:
            self.begun += 1
            (kind,) = self.random.choices(kinds, weights)
            self.kinds[kind.__name__] += 1
            try:
                await asyncio.wait_for(kind(self), PATIENCE)
            except (OSError, EOFError, TimeoutError) as error:
                # IncompleteReadError is an EOFError.
                raise Failure(f"{kind.__name__} got no answer: {error!r}") from error
            if self.options.rest:
                await asyncio.sleep(self.random.uniform(0, 2 * self.options.rest))

    async def watch(self) -> None:
        """Notes the server's memory as the load goes on."""
        while True:
            self.memory.append(self.resident())
            await asyncio.sleep(self.options.pause)

    def resident(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) << 10

    async def run(self) -> None:
        started = time.monotonic()
        await self.ask_alone()
        print(f"{len(self.alone)} questions asked alone: {time.monotonic() - started:.1f} s", flush=True)
        started = time.monotonic()
        watch = asyncio.create_task(self.watch())
        until = started + self.options.seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(self.options.clients):
                group.create_task(self.client(until))
        took = time.monotonic() - started
        await self.check_counters()
        watch.cancel()
        print(f"{self.begun} requests of {self.options.clients} clients in {took:.0f} s: {dict(self.kinds)}")
        print(f"{self.answers} whole answers, {self.new_tokens} tokens, each as it was alone; counters exact")
        self.check_memory()

    # What must hold ----------------------------------------------------------------------------------------------

    async def metrics(self) -> dict[str, int]:
        async with Connection(self) as connection:
            connection.send("GET", "/metrics")
            await connection.head("/metrics")
            text = (await connection.rest()).decode()
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    async def check_counters(self) -> None:
        for _ in range(200):
            metrics = await self.metrics()
            if metrics["gruff_answers_in_progress"] == 0:
                break
            await asyncio.sleep(0.1)
        else:
            raise Failure(f"{metrics['gruff_answers_in_progress']} answers are still in progress")
        # The last question was counted when its answer was on its way.
        self.seen["/metrics", 200] -= 1
        counted = {}
        for name, value in metrics.items():
            if found := re.fullmatch(r'gruff_responses_total\{route="(.*)",status="(\d+)"\}', name):
                counted[found[1], int(found[2])] = int(value)
        half = {key: counted.pop(key) for key in list(counted) if key[0] == "/detokenize"}
        if set(half) - {("/detokenize", 400)} or sum(half.values()) > self.kinds["half_open"]:
            raise Failure(f"requests that were never whole were answered: {half}")
        seen = {key: count for key, count in self.seen.items() if count}
        if counted != seen:
            raise Failure(f"responses: counted {counted}, seen {seen}")
        for name, value in [
            ("gruff_prompt_tokens_total", self.prompt_tokens),
            ("gruff_generated_tokens_total", self.new_tokens),
            ("gruff_answer_seconds_count", self.answers),
        ]:
            if metrics[name] != value:
                raise Failure(f"{name} is {metrics[name]:.0f}, and clients saw {value}")

    def check_memory(self) -> None:
        # Caches and buffers fill at first; what leaks goes on.
        first, last = self.memory[len(self.memory) // 2], self.resident()
        mib = lambda size: f"{size / (1 << 20):.1f}"  # noqa: E731
        series = [self.memory[i * (len(self.memory) - 1) // 10] for i in range(11)]
        grown = last / first - 1
        print(f"resident memory, MiB: {', '.join(map(mib, series))}; {grown:+.1%} from half of the load to its end")
        slack = SLACK if self.begun < MANY else 0
        if last > first * (1 + FLAT) + slack and self.begun >= self.options.judge_memory_from:
            raise Failure(f"memory grew from {mib(first)} to {mib(last)} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rest", type=float, default=0, help="seconds that a client rests between requests, on average")
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--long", type=int, default=600, help="tokens of answers that are left in the middle")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two looks at the memory")
    parser.add_argument("--judge-memory-from", type=int, default=1_000, help="requests; less load says nothing of leaks")
    options = parser.parse_args()
    command = [GRUFF, "serve", options.model, "--port", "0", "--threads", options.threads, "--ctx", "1024"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if found := re.search(r"http://([\d.]+):(\d+)/v1", line):
                break
        else:
            sys.exit("the server did not start")
        try:
            asyncio.run(Soak((found[1], int(found[2])), server.pid, options).run())
        except* Failure as failures:
            sys.exit(f"FAILED: {failures.exceptions[0]}")
        server.terminate()
        if code := server.wait(timeout=60):
            sys.exit(f"FAILED: the server ended with {code}")
    finally:
        server.kill()


if __name__ == "__main__":
    main()
