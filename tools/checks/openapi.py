"""Second tier: schemathesis against `gruff serve`, with what it makes of the server's own OpenAPI document.

    python tools/checks/openapi.py

Runs target/release/gruff (GRUFF names another) with the bundled model on the loopback interface. For every operation
schemathesis sends requests that the document allows and requests that it does not. No answer may be a server's error, or
of another status, type or form than the document has; another method than the document has is refused as such. The run
is bounded in time, and the server must live on.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GRUFF = os.environ.get("GRUFF", ROOT / "target" / "release" / "gruff")
SECONDS = int(os.environ.get("GRUFF_SCHEMATHESIS_SECONDS", "60"))
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
]


def main() -> None:
    command = [GRUFF, "serve", "bundled", "--port", "0", "--threads", "2", "--ctx", "256"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if found := re.search(r"(http://\S+)/v1", line):
                break
        else:
            raise SystemExit("the server did not start")
        with urllib.request.urlopen(f"{found[1]}/openapi.json") as answer:
            document = json.load(answer)
        operations = sum(len(item) for item in document["paths"].values())
        schemathesis = [Path(sys.executable).with_name("schemathesis"), "run", f"{found[1]}/openapi.json"]
        limits = ["--max-time", str(SECONDS), "--request-timeout", "60", "--seed", "1", "--workers", "1"]
        # Examples and stateful runs want examples and links, which the document has not.
        # No model here ranks: those say so, with status 501.
        limits += ["--exclude-path-regex", "rerank$"]
        limits += ["--phases", "coverage,fuzzing"]
        quiet = ["--warnings", "off", "--no-color", "--suppress-health-check", "all"]
        with tempfile.TemporaryDirectory() as folder:
            run = [*schemathesis, "--checks", ",".join(CHECKS), *limits, *quiet]
            subprocess.run(run, check=True, cwd=folder)
        with urllib.request.urlopen(f"{found[1]}/health") as answer:
            assert answer.status == 200
    finally:
        server.kill()
    print(f"{operations} operations of the document hold against what schemathesis makes of them")


main()
