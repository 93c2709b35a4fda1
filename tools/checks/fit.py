"""Second tier: `gruff fit` says the same of files on a Hub as of files on the disk, and fetches nothing but their headers.

    python tools/checks/fit.py

Runs target/release/gruff (GRUFF names another) against `tools/fake_hub.py` on the loopback interface.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from fake_hub import FakeHub, Repository  # noqa: E402

GRUFF = os.environ.get("GRUFF", ROOT / "target" / "release" / "gruff")
MODELS = ROOT / "crates" / "gruff" / "models"
# What a header may take: the first piece that is asked for.
PIECE = 1 << 20


def fit(place: str, home: Path, **environment: str) -> dict:
    variables = {**os.environ, "HF_HOME": str(home), **environment}
    variables.pop("HF_HUB_OFFLINE", None)
    command = [GRUFF, "fit", place, "--memory", "400M", "--ctx", "2048", "--json"]
    return json.loads(subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=True).stdout)


def compared(report: dict) -> list[dict]:
    """Without what differs by the place or from measurement to measurement."""
    names = ("quantization", "size", "bits_per_weight", "perplexity_loss_llama3_8b", "ctx", "memory", "fits", "recommended")
    return [{"file": Path(v["file"]).name, **{n: v[n] for n in names}} for v in report["variants"]]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        local, home = Path(folder, "local"), Path(folder, "home")
        local.mkdir()
        for path in MODELS.glob("*.gguf"):
            shutil.copy(path, local)
        repository = Repository()
        repository.commit({path.name: path.read_bytes() for path in local.iterdir()})
        hub = FakeHub({"org/model": repository})
        remote = fit("org/model", home, HF_ENDPOINT=hub.url)
        hub.stop()
        on_disk = fit(str(local), home)
        assert compared(remote) == compared(on_disk), (compared(remote), compared(on_disk))
        assert len(remote["variants"]) == 2 and sum(v["recommended"] for v in remote["variants"]) == 1
        for variant in remote["variants"]:
            read = remote["bandwidth"] / variant["tokens_per_second_at_most"]
            assert 1e6 < read < variant["size"] + variant["memory"]["state"], (variant, read)
        ranges = [wanted for method, _, wanted, _ in hub.requests if method == "GET" and wanted]
        assert ranges == [f"bytes=0-{PIECE - 1}"] * 2, ranges
        whole = [path for method, path, wanted, _ in hub.requests if method == "GET" and not wanted and "/api/" not in path]
        assert not whole, whole
        assert not list(home.rglob("*.gguf")), "the cache has models in it"
    print("2 variants, the same on the Hub as on the disk, from 1 MiB of each")


if __name__ == "__main__":
    main()
