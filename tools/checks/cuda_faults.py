"""The bad cases of `--device cuda` and of `auto`, with the emulated driver of tools/emulator: no driver, an old one, no card, no compiler, a
folder of kernels that cannot be written or was damaged, no memory, a launch that is refused, a kernel that crashes, a card
that goes.

    python tools/checks/cuda_faults.py GRUFF

The environment names the emulator, as tools/checks/cuda_emulated.sh sets it. Needs Python and g++.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

GRUFF = sys.argv[1]
QUESTION = "What is the capital of France?"


def run(faults: str = "", device: str = "cuda", **settings: str) -> subprocess.CompletedProcess:
    environment = os.environ | settings | ({"CUDA_EMULATOR_FAULTS": faults} if faults else {})
    command = [GRUFF, "run", QUESTION, "--device", device, "--temperature", "0"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


def fails(words: str, faults: str = "", **settings: str) -> None:
    """The program ends with an error that has these words, and does not crash."""
    ended = run(faults, **settings)
    assert ended.returncode == 1, (ended.returncode, ended.stderr)
    assert re.search(words, ended.stderr), ended.stderr
    assert "panicked" not in ended.stderr and "Paris" not in ended.stdout, ended.stderr


def answers(words: str | None = None, device: str = "cuda", **settings: str) -> None:
    """The program answers all the same; `words` are in what it says on standard error."""
    ended = run(device=device, **settings)
    assert "panicked" not in ended.stderr, ended.stderr
    assert ended.returncode == 0 and "Paris" in ended.stdout, (ended.returncode, ended.stdout, ended.stderr)
    assert (re.search(words, ended.stderr) is not None) if words else "warning" not in ended.stderr, ended.stderr


def is_cpu(words: str | None, **settings: str) -> None:
    """`auto` answers on the CPU; one warning, with these words, says why, or none does."""
    answers(words, device="auto", **settings)
    ended = run(device="auto", **settings)
    assert len(re.findall("(?i)warn", ended.stderr)) == (1 if words else 0), ended.stderr


def damage(folder: Path) -> int:
    """Cuts some kernels short, empties one and changes a byte of others."""
    kernels = sorted(folder.glob("*.cubin"))
    for index, kernel in enumerate(kernels[::8]):
        code = kernel.read_bytes()
        middle = len(code) // 2
        changed = code[:middle] + bytes([code[middle] ^ 1]) + code[middle + 1 :]
        kernel.write_bytes([code[:middle], b"", changed][index % 3])
    return len(kernels[::8])


class Server:
    """`gruff serve` whose card gets faults while it runs; it is ended with the block, whatever happens there."""

    def __init__(self, folder: Path):
        self.faults = folder / "faults"
        self.faults.write_text("")
        command = [GRUFF, "serve", "--port", "0", "--device", "cuda", "--ctx", "512"]
        self.log = open(folder / "log", "w+")
        environment = os.environ | {"CUDA_EMULATOR_FAULTS": str(self.faults)}
        self.process = subprocess.Popen(command, env=environment, stderr=self.log, text=True)

    def __enter__(self) -> "Server":
        try:
            self.address = self.started()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def started(self) -> str:
        """Its address, once it serves. All kernels are compiled before: slow machines take minutes."""
        last = time.monotonic() + 600
        while time.monotonic() < last:
            if found := re.search(r"(http://\S+?)/v1", self.words()):
                return found[1]
            assert self.process.poll() is None, self.words()
            time.sleep(0.1)
        raise SystemExit(f"the server did not start:\n{self.words()}")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def words(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def wish(self, faults: str) -> None:
        self.faults.write_text(faults)
        # Files are told apart by their times.
        time.sleep(0.05)

    def ask(self, prompt: str = QUESTION) -> tuple[int, str]:
        """Status, and the answer or what the error says."""
        body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 16}
        request = urllib.request.Request(
            self.address + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as reply:
                return reply.status, json.load(reply)["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["error"]["message"]

    def health(self) -> int:
        try:
            with urllib.request.urlopen(self.address + "/health", timeout=60) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code

    def stop(self) -> None:
        self.process.terminate()
        code = self.process.wait(timeout=120)
        words = self.words()
        assert code == 0, (code, words)
        assert "panicked" not in words, words


def serves(faults: str, lives: bool) -> None:
    """A fault between requests: the next one fails; whether those after it are answered, and that the server says so."""
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder)) as server:
        status, answer = server.ask()
        assert status == 200 and "Paris" in answer, (status, answer)
        server.wish(faults)
        # Another text, of which nothing is kept.
        status, answer = server.ask("Name the seven days of the week, one after the other, from the first to the last. " * 4)
        print(f"  {faults}: {status} {answer}", flush=True)
        assert status in (500, 503), (status, answer)
        server.wish("")
        status, answer = server.ask()
        print(f"  then: {status} {answer}; health {server.health()}", flush=True)
        if lives:
            assert status == 200 and "Paris" in answer, (status, answer)
        else:
            assert status in (500, 503) and server.health() == 503, (status, answer, server.health())
        server.stop()


if not any(Path(folder, "libcuda.so.1").exists() for folder in ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib"]):
    fails("no NVIDIA driver", LD_LIBRARY_PATH="")
fails("there is no device|no CUDA-capable", CUDA_EMULATOR_DEVICES="0")
fails("CUDA 11.8, but 12.0 is needed", CUDA_EMULATOR_DRIVER="11080")
fails("compute capability 6.1, but 7.5", CUDA_EMULATOR_CAPABILITY="61")
fails("no NVRTC", GRUFF_NVRTC="/nowhere", GRUFF_KERNEL_CACHE="")
fails("memory", CUDA_EMULATOR_MEMORY="1000000")
fails("memory", faults="memory 4000000")
fails("launching .*CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", faults="launch 20")
fails("CUDA_ERROR_ILLEGAL_ADDRESS", faults="kernel 40")
fails("CUDA_ERROR_UNKNOWN", faults="lost 60")
print("gruff run: faults end in errors", flush=True)

# A driver that is none: a library of its name with nothing in it, and a file that is no library.
with tempfile.TemporaryDirectory() as folder:
    subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", f"{folder}/libcuda.so"], check=True)
    shutil.copy(f"{folder}/libcuda.so", f"{folder}/libcuda.so.1")
    is_cpu("the library has no cuInit", LD_LIBRARY_PATH=folder)
    for name in ["libcuda.so", "libcuda.so.1"]:
        Path(folder, name).write_text("no library")
    is_cpu(None, LD_LIBRARY_PATH=folder)
is_cpu(None, CUDA_EMULATOR_DEVICES="0")
is_cpu("CUDA 11.8, but 12.0 is needed", CUDA_EMULATOR_DRIVER="11080")
is_cpu("compute capability 6.1, but 7.5", CUDA_EMULATOR_CAPABILITY="61")
is_cpu("no NVRTC", GRUFF_NVRTC="/nowhere", GRUFF_KERNEL_CACHE="")
# Too little memory for any of it.
answers(device="auto", CUDA_EMULATOR_MEMORY="1000000")
# It says that there is enough, and gives less.
answers("gave no more than .* MiB for weights", device="auto", CUDA_EMULATOR_FAULTS="memory 4000000")
fails("since cuda:0 .* gave no more than .* MiB: not enough memory: .*--device auto", faults="memory 4000000")
print("gruff run: auto is the CPU where no card can be used or gives enough memory, and says why", flush=True)

# With compiled kernels at hand, no compiler is needed; without a folder for them, or with a damaged one, they are compiled.
answers(GRUFF_NVRTC="/nowhere")
with tempfile.TemporaryDirectory() as folder:
    copy = Path(folder, "kernels")
    shutil.copytree(os.environ["GRUFF_KERNEL_CACHE"], copy)
    damaged = damage(copy)
    answers(GRUFF_KERNEL_CACHE=str(copy))
    print(f"gruff run: {damaged} damaged kernels are compiled again", flush=True)
    # Nobody, root neither, can make a folder below a file.
    Path(folder, "file").write_text("")
    answers("kernels cannot be kept", GRUFF_KERNEL_CACHE=str(Path(folder, "file", "kernels")))
    print("gruff run: without a folder to keep kernels in, they are compiled with a warning", flush=True)
serves("memory 0", lives=True)
serves("launch 30", lives=True)
serves("kernel 30", lives=False)
serves("lost 30", lives=False)
print("gruff serve: 4 faults are survived or told")
