"""Second tier: gruff-hub and huggingface_hub fill the same cache in the same way, and read each other's.

    python tools/checks/hub.py

Needs huggingface_hub and the openssl command. Both download from `tools/fake_hub.py` on the loopback interface; nothing else is called.
"""

import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import examples

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from fake_hub import FakeHub, Repository  # noqa: E402

EXAMPLE = examples.build("download")
TOKEN = "hf_of_the_check"
SPLIT = [f"BF16/m-BF16-0000{n}-of-00002.gguf" for n in (1, 2)]

# huggingface_hub reads its environment when it is imported: each use is a process of its own.
PYTHON = """
import sys
from huggingface_hub import hf_hub_download, scan_cache_dir
offline = sys.argv[1] == "offline"
for argument in sys.argv[2:]:
    if argument == "--scan":
        report = scan_cache_dir()
        assert not report.warnings, report.warnings
        print(sorted((r.repo_id, v.commit_hash, tuple(sorted(v.refs)), tuple(sorted(f.file_name for f in v.files)))
                     for r in report.repos for v in r.revisions))
    else:
        revision, file = argument.split(":")
        print(hf_hub_download("org/model", file, revision=revision, local_files_only=offline))
"""


def main():
    noise = random.Random(1)
    files = {
        "m-Q4_K_M.gguf": noise.randbytes(3_000_000),
        "generation_config.json": b'{"temperature": 0.6}\n',
        "README.md": b"# A model\n",
        SPLIT[0]: noise.randbytes(500_000),
        SPLIT[1]: noise.randbytes(400_000),
    }
    repository = Repository()
    old = repository.commit({**files, "m-Q4_K_M.gguf": noise.randbytes(1000)}, refs=("v1", "refs/pr/7"))
    new = repository.commit(files)
    hub = FakeHub({"org/model": repository}, token=TOKEN)
    # What gruff is asked for, and the files that it fetches for that.
    wanted = [
        ("org/model", "main", ["m-Q4_K_M.gguf"]),
        ("org/model:BF16", "main", SPLIT),
        ("org/model@v1:m-Q4_K_M.gguf", "v1", ["m-Q4_K_M.gguf"]),
        ("org/model@refs/pr/7:q4_k_m", "refs/pr/7", ["m-Q4_K_M.gguf"]),
        (f"org/model@{old}:{SPLIT[1]}", old, SPLIT),
    ]
    ids = [id for id, _, _ in wanted]
    names = [f"{revision}:{name}" for _, revision, names in wanted for name in [*names, "generation_config.json"]]

    with tempfile.TemporaryDirectory() as folder:
        ours, theirs, both = (Path(folder, name) for name in ("gruff", "huggingface_hub", "both"))
        gruff_paths = gruff(ours, hub.url, ids)
        python_paths = python(theirs, hub.url, ["online", *names])
        check("both name the same paths", relative(gruff_paths, ours), relative(python_paths, theirs))
        check("both leave the same tree", tree(ours), tree(theirs))
        check("the scan of huggingface_hub", *(python(home, hub.url, ["online", "--scan"]) for home in (ours, theirs)))

        # The same folder, filled by both at once.
        running = [start_gruff(both, hub.url, ids), start_python(both, hub.url, ["online", *names])]
        for process in running:
            finish(process)
        check("both at once leave the same tree", tree(both), tree(theirs))

        # A storage that breaks each connection after 700000 bytes.
        broken = Path(folder, "broken")
        cutting = FakeHub({"org/model": repository}, token=TOKEN, cut_every=700_000)
        gruff(broken, cutting.url, ids)
        check("a storage that breaks connections makes no difference", tree(broken), tree(theirs))
        ranges = [wanted for _, _, wanted, _ in cutting.requests if wanted]
        check("downloads went on where they broke", ranges, [f"bytes={n}00000-" for n in (7, 14, 21, 28)])
        cutting.stop()
        killed(Path(folder, "killed"), repository, hub.url, ids, tree(theirs))
        secure(Path(folder, "secure"), repository, ids, tree(theirs))
        hub.stop()

        # Without a server, each reads what the other has downloaded.
        check("gruff reads huggingface_hub's", gruff(theirs, hub.url, ids, offline=True), python_paths)
        check("huggingface_hub reads gruff's", python(ours, hub.url, ["offline", *names], offline=True), gruff_paths)
        listed = gruff(theirs, hub.url, ["--list"], offline=True)
        check("gruff lists huggingface_hub's", listed, gruff(ours, hub.url, ["--list"], offline=True))
        check("files in the list", len(listed), 3 + 3)
        check("main is the newest", Path(ours, "hub/models--org--model/refs/main").read_text(), new)
    print("gruff-hub and huggingface_hub agree")


def killed(home, repository, url, ids, expected):
    """A download that is killed leaves nothing that looks whole, and the next one goes on from there."""
    silent = FakeHub({"org/model": repository}, token=TOKEN, stall_at=700_000)
    process = start_gruff(home, silent.url, ids[:1])
    silent.stalled.wait(60)
    blobs = Path(home, "hub", "models--org--model", "blobs")
    wait_until(lambda: any(path.stat().st_size == 700_000 for path in blobs.iterdir()))
    process.kill()
    process.communicate()
    check("a killed download is not a blob", [path.suffix for path in blobs.iterdir()], [".incomplete"])
    check("and is in no snapshot", list(blobs.parent.glob("snapshots/*/*")), [])
    silent.stop()
    gruff(home, url, ids)
    check("the next run completes it", tree(home), expected)


def secure(home, repository, ids, expected):
    """TLS, with a certificate that only SSL_CERT_FILE makes trustworthy."""
    home.mkdir()
    certificate, key, pem = (Path(home, name) for name in ("certificate.pem", "key.pem", "both.pem"))
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    make += " -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE"
    subprocess.run([*make.split(), "-out", certificate, "-keyout", key], check=True, stderr=subprocess.DEVNULL)
    pem.write_text(certificate.read_text() + key.read_text())
    hub = FakeHub({"org/model": repository}, token=TOKEN, certificate=pem)
    stranger = start_gruff(home, hub.url, ids)
    _, complaint = stranger.communicate(timeout=60)
    check("a certificate of nobody is refused", stranger.returncode, 1)
    check("and the remedy is named", ("SSL_CERT_FILE" in complaint, "trying again" in complaint), (True, False))
    os.environ["SSL_CERT_FILE"] = str(certificate)
    gruff(home, hub.url, ids)
    del os.environ["SSL_CERT_FILE"]
    check("over TLS the tree is the same", tree(home), expected)
    hub.stop()


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            sys.exit("nothing happened in time")
        time.sleep(0.01)


def check(what, actual, expected):
    if actual != expected:
        sys.exit(f"{what}: differs\n  {actual}\n  {expected}")
    print(f"{what}: ok")


def environment(home, url, offline):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    kept |= {"HF_HOME": str(home), "HF_ENDPOINT": url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    kept["HF_HUB_OFFLINE"] = "1" if offline else "0"
    return kept


def start(command, home, url, offline):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(home, url, offline), **pipes)


def start_gruff(home, url, arguments, offline=False):
    return start([EXAMPLE, *arguments], home, url, offline)


def start_python(home, url, arguments, offline=False):
    return start([sys.executable, "-c", PYTHON, *arguments], home, url, offline)


def finish(process):
    out, err = process.communicate(timeout=300)
    if process.returncode != 0:
        sys.exit(f"{process.args[0]} failed:\n{err}")
    return out.splitlines()


def gruff(home, url, arguments, offline=False):
    return finish(start_gruff(home, url, arguments, offline))


def python(home, url, arguments, offline=False):
    return finish(start_python(home, url, arguments, offline))


def relative(paths, home):
    return [os.path.relpath(path, home) for path in paths]


def tree(home):
    """Every entry below the hub's cache: what a link says, what a file holds."""
    entries = {}
    for path in sorted(Path(home, "hub").rglob("*")):
        name = path.relative_to(home).as_posix()
        if path.is_symlink():
            entries[name] = f"-> {os.readlink(path)}"
        elif path.is_file() and path.name != "CACHEDIR.TAG":
            entries[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            entries[name] = "there"
    return entries


if __name__ == "__main__":
    main()
