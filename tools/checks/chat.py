"""Second tier: conversations on a terminal, `gruff run` and `gruff chat`, typed as a person types them.

    python tools/checks/chat.py

Runs target/release/gruff (GRUFF names another) in a pseudo-terminal: answers as they come, /commands, reasoning, Ctrl-C
that stops the answer and not the conversation, and a server that is slow, breaks off, or is not there.
"""

import http.server
import json
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GRUFF = os.environ.get("GRUFF", str(ROOT / "target" / "release" / "gruff"))
# What a terminal is told besides text, and what it is asked.
CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>78]|\x1b\][^\x07]*\x07|\r")


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *arguments: str, home: str):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            environment = {**os.environ, "HOME": home, "TERM": "xterm", "XDG_STATE_HOME": home}
            environment.pop("OPENAI_API_KEY", None)
            os.execve(GRUFF, [GRUFF, *arguments], environment)
        self.seen = b""
        self.mark = 0

    def read(self, seconds: float) -> bool:
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            got = os.read(self.fd, 65536)
        except OSError:
            return False
        # The line editor asks where the cursor is.
        for _ in range(got.count(b"\x1b[6n")):
            os.write(self.fd, b"\x1b[1;1R")
        self.seen += got
        return bool(got)

    def text(self) -> str:
        return CONTROL.sub(b"", self.seen[self.mark :]).decode(errors="replace")

    def expect(self, pattern: str, seconds: float = 60) -> str:
        """Waits for a text behind what was last typed."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text()):
            assert time.monotonic() < end, f"{pattern!r} is not in {self.text()!r}"
            assert self.read(0.2) or re.search(pattern, self.text()), f"it ended: {self.text()!r}"
        return self.text()

    def prompt(self) -> None:
        """Waits until it asks for a line."""
        self.expect(r"> $")

    def type(self, line: str) -> None:
        time.sleep(0.1)
        while self.read(0) and select.select([self.fd], [], [], 0)[0]:
            pass
        self.mark = len(self.seen)
        os.write(self.fd, line.encode() + b"\r")

    def press(self, key: bytes) -> None:
        os.write(self.fd, key)

    def end(self) -> int:
        while self.read(10):
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Slow(http.server.BaseHTTPRequestHandler):
    """A model that says a word every 50 ms, or what the last message asks for."""

    gone = threading.Event()
    asked: list[dict] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        last = body["messages"][-1]["content"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            if "silence" in last:
                self.wfile.flush()
                time.sleep(5)
                return
            for n in range(10_000 if "long" in last else 3):
                self.say({"choices": [{"delta": {"content": f"w{n} "}}]})
                if "break" in last:
                    return
                time.sleep(0.05)
            self.say({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        except OSError:
            self.gone.set()

    def say(self, event: dict) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


def converse(terminal: Terminal) -> None:
    """What holds wherever the bundled model is."""
    terminal.expect("/help for help")
    terminal.prompt()
    terminal.type("What is the capital of France?")
    terminal.expect(r"The capital of France is Paris\.\s+\[.*tok/s")
    terminal.prompt()
    terminal.type("And of Italy?")
    terminal.expect(r"Rome")
    terminal.prompt()
    terminal.type("/info")
    assert "4 messages" in terminal.expect(r"messages, \d+ tokens"), terminal.text()
    terminal.prompt()
    terminal.type("/retry")
    terminal.expect(r"tok/s")
    terminal.prompt()
    terminal.type("/reasoning on")
    terminal.expect(r"from the next answer on")
    terminal.prompt()
    terminal.type("What is the capital of Spain?")
    terminal.expect(r"(?s)\w.*\n\s*\n.*Madrid.*tok/s")
    terminal.prompt()
    terminal.type("/system You are a cat.")
    terminal.expect("A new conversation")
    terminal.prompt()
    terminal.type("/retry")
    terminal.expect("nothing to answer again")
    terminal.prompt()
    terminal.type("/nonsense")
    terminal.expect("is no command")
    terminal.prompt()
    terminal.type("/exit")
    assert terminal.end() == 0


def slow(home: str) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"127.0.0.1:{server.server_port}"
    terminal = Terminal("chat", url, "m", home=home)
    terminal.prompt()
    terminal.type("a long story")
    terminal.expect("w3 ")
    terminal.press(b"\x03")
    terminal.expect(r"stopped\]", 5)
    assert Slow.gone.wait(5), "the server still writes"
    terminal.prompt()
    # Nothing comes at all, and still one can leave it.
    terminal.type("silence")
    time.sleep(0.5)
    terminal.press(b"\x03")
    terminal.expect(r"stopped\]", 3)
    terminal.prompt()
    terminal.type("break off")
    terminal.expect("error:.*ended before")
    terminal.prompt()
    terminal.type("short")
    terminal.expect(r"w0 w1 w2 .*\n\[")
    # What broke off is forgotten, what was stopped is not.
    told = [message["content"] for message in Slow.asked[-1]["messages"]]
    assert told[0] == "a long story" and told[1].startswith("w0 ") and told[-1] == "short", told
    assert "break off" not in told, told
    terminal.prompt()
    server.shutdown()
    server.server_close()
    terminal.type("is anybody there?")
    terminal.expect("error:.*cannot be reached")
    terminal.prompt()
    terminal.press(b"\x04")
    assert terminal.end() == 0


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        converse(Terminal("run", "bundled", "--temperature", "0", home=home))
        server = subprocess.Popen([GRUFF, "serve", "--port", "0"], stderr=subprocess.PIPE, text=True)
        try:
            url = next(found[1] for line in server.stderr if (found := re.search(r"(http://\S+)/v1", line)))
            converse(Terminal("chat", url, "--temperature", "0", home=home))
        finally:
            server.kill()
        slow(home)
    print("conversations: run and chat, commands, reasoning, Ctrl-C, servers that are slow, break off or are gone")


if __name__ == "__main__":
    sys.exit(main())
