"""Second tier: two workers behind a router that knows prefixes (docs/deploy.md), one of them killed under load.

    python tools/checks/router.py

Runs target/release/gruff (GRUFF names another) twice with the bundled model behind PyPI's `vllm-router`, with the flags
of deploy/router.sh, on the loopback interface: a conversation stays with its worker, every answer is the one that a
worker gives alone, a worker that is killed costs at most the answers it had begun to stream, the router stops asking it
and takes it back when it is there again.
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import aiohttp

ROOT = Path(__file__).resolve().parents[2]
GRUFF = os.environ.get("GRUFF", str(ROOT / "target" / "release" / "gruff"))
KEY = "a key for this check"
CLIENTS, ROUNDS = 12, 10
COUNTRIES = ["France", "Italy", "Spain", "Germany", "Japan", "Egypt"]
# Short answers, and long ones, of which some are on their way whenever a worker goes.
QUESTIONS = [f"What is the capital of {country}?" for country in COUNTRIES] + ["Tell me a story.", "Who are you?"] * 3


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Worker:
    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = [GRUFF, "serve", "--port", str(self.port), "--threads", "1", "--api-key", KEY, "--queue", "200"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert any("served at" in line for line in self.process.stderr), "the worker did not start"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Router:
    def __init__(self, workers: list[Worker]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "WORKERS": " ".join(worker.url for worker in workers),
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "METRICS_PORT": str(free_port()),
            "GRUFF_API_KEY": KEY,
        }
        self.process = subprocess.Popen(
            ["sh", ROOT / "deploy" / "router.sh"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


async def ready(session: aiohttp.ClientSession, url: str) -> None:
    for _ in range(300):
        try:
            async with session.get(f"{url}/health") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.1)
    raise AssertionError(f"{url} is not ready")


def body(messages: list[dict], stream: bool) -> dict:
    return {"model": "bundled", "messages": messages, "temperature": 0, "max_tokens": 120, "stream": stream}


async def whole(session: aiohttp.ClientSession, url: str, messages: list[dict]) -> tuple[int, str]:
    """Status and answer."""
    async with session.post(f"{url}/v1/chat/completions", json=body(messages, False)) as response:
        answer = await response.json(content_type=None)
        if response.status != 200:
            return response.status, json.dumps(answer)
        return 200, answer["choices"][0]["message"]["content"]


async def streamed(session: aiohttp.ClientSession, url: str, messages: list[dict]) -> tuple[str, str]:
    """How it ended (whole, refused, cut), and what was said."""
    text, begun, done = "", False, False
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body(messages, True)) as response:
            if response.status != 200:
                return f"refused {response.status}", await response.text()
            # A worker has it; what breaks from here on cannot be asked of another.
            begun = True
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                if line.strip() == b"data: [DONE]":
                    done = True
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    return "cut", text
                for choice in chunk["choices"]:
                    text += choice["delta"].get("content") or ""
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        return ("cut" if begun else f"lost ({type(error).__name__})"), text
    return ("whole" if done else "cut"), text


def question(country: str) -> dict:
    return {"role": "user", "content": f"What is the capital of {country}?"}


async def answered(session: aiohttp.ClientSession, worker: Worker) -> int:
    """Answers that a worker's own counter has."""
    async with session.get(f"{worker.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}) as response:
        text = await response.text()
    found = re.search(r'^gruff_responses_total\{route="/v1/chat/completions",status="200"\} (\d+)', text, re.M)
    return int(found[1]) if found else 0


async def conversations_stay(session: aiohttp.ClientSession, router: Router, workers: list[Worker]) -> None:
    """A conversation's later turns go to the worker that has its earlier ones."""
    for country in COUNTRIES:
        before = [await answered(session, worker) for worker in workers]
        messages = [{"role": "system", "content": f"You are a guide to {country}. " * 6}]
        for other in COUNTRIES[:3]:
            messages.append(question(other))
            status, text = await whole(session, router.url, messages)
            assert status == 200, text
            messages.append({"role": "assistant", "content": text})
        gained = [await answered(session, worker) - count for worker, count in zip(workers, before)]
        assert sorted(gained) == [0, 3], f"{country}: {gained}"


async def load(session: aiohttp.ClientSession, router: Router, alone: dict[str, str], kill) -> Counter:
    """Streams of many clients; a third of the way in, `kill` is called."""
    outcomes: Counter = Counter()
    total, begun = CLIENTS * ROUNDS, 0

    async def client(n: int) -> None:
        nonlocal begun
        for turn in range(ROUNDS):
            begun += 1
            if kill and begun == total // 3:
                kill()
            asked = QUESTIONS[(n + turn) % len(QUESTIONS)]
            outcome, text = await streamed(session, router.url, [{"role": "user", "content": asked}])
            outcomes[outcome] += 1
            if outcome == "whole":
                assert text == alone[asked], f"{asked}: {text!r} is not {alone[asked]!r}"
            else:
                assert alone[asked].startswith(text) or outcome != "cut", text

    await asyncio.gather(*(client(n) for n in range(CLIENTS)))
    return outcomes


async def check(workers: list[Worker], router: Router) -> None:
    timeout = aiohttp.ClientTimeout(total=120)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        await ready(session, router.url)
        alone = {}
        for asked in QUESTIONS:
            status, alone[asked] = await whole(session, workers[0].url, [{"role": "user", "content": asked}])
            assert status == 200, alone[asked]
        async with session.post(f"{router.url}/v1/chat/completions", json=body([question("France")], False), headers={"Authorization": "Bearer wrong"}) as response:
            assert response.status == 401, response.status
        await conversations_stay(session, router, workers)
        calm = await load(session, router, alone, None)
        assert calm == {"whole": CLIENTS * ROUNDS}, calm
        shares = [await answered(session, worker) for worker in workers]
        assert all(shares), f"one worker does all: {shares}"
        start = time.monotonic()
        rough = await load(session, router, alone, workers[1].kill)
        # Whoever was being answered by it may have lost the rest; nobody else noticed.
        cut = rough["cut"]
        assert rough["whole"] + cut == CLIENTS * ROUNDS and cut <= CLIENTS, rough
        print(f"killed under load: {rough['whole']} answers whole, {cut} cut in their stream, {time.monotonic() - start:.1f} s")
        calm = await load(session, router, alone, None)
        assert calm == {"whole": CLIENTS * ROUNDS}, f"with one worker: {calm}"
        workers[1].start()
        before = await answered(session, workers[1])
        for _ in range(60):
            assert await load(session, router, alone, None) == {"whole": CLIENTS * ROUNDS}
            if await answered(session, workers[1]) > before:
                break
            await asyncio.sleep(1)
        else:
            raise AssertionError("the worker that came back gets no work")
        # A worker that is told to stop finishes what it has: nothing is lost at all.
        rough = await load(session, router, alone, lambda: workers[0].process.send_signal(signal.SIGTERM))
        assert rough == {"whole": CLIENTS * ROUNDS}, f"at a stop: {rough}"


def main() -> None:
    workers = [Worker(), Worker()]
    router = Router(workers)
    try:
        asyncio.run(check(workers, router))
    except BaseException:
        router.process.kill()
        print("\n".join(router.process.stdout.read().splitlines()[-30:]))
        raise
    finally:
        router.process.kill()
        for worker in workers:
            worker.kill()
    print("two workers behind a router: conversations stay, a killed worker is left and taken back, a stopped one loses nothing")


main()
