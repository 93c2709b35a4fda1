"""`gruff bench --profile` on a card: the account adds up, and every operation's time is that of its kernels.

    python tools/checks/cuda_profile.py GRUFF [MODEL]

Needs a card or, as tools/checks/cuda_emulated.sh sets it, the environment of tools/emulator. Needs nothing but Python.
"""

import json
import subprocess
import sys

GRUFF, MODEL = sys.argv[1], (sys.argv[2:] or ["bundled"])[0]
FAMILIES = {"matmul", "attention", "norm", "rope", "embedding", "transfer"}


def bench(*options: str) -> list:
    command = [GRUFF, "bench", MODEL, "-p", "8", "-n", "3", "-r", "1", "--profile", "-o", "json", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    records = json.loads(ended.stdout)
    assert [record["test"] for record in records] == ["pp8", "tg3"], records
    return records


def counted(account: dict, card: bool) -> dict:
    """Families of one device, whose account is sound."""
    assert account["clock"] == ("card" if card else "host"), account["clock"]
    for ceiling in ["copy_bandwidth", "empty_kernel_ns"]:
        assert account[ceiling] > 0 if card else account[ceiling] is None, (ceiling, account[ceiling])
    assert account["f32_products"] > 0 and (account["read_bandwidth"] is None) == card, account
    for op in account["ops"] if card else []:
        kernels = op["kernels"]
        assert sum(kernel["ns"] for kernel in kernels) == op["ns"], op
        # Copies alone have no kernel.
        assert op["family"] == "transfer" or any(kernel["kernel"] for kernel in kernels), op
    families = {family["family"]: family for family in account["families"]}
    assert sum(op["ns"] for op in account["ops"]) == sum(family["ns"] for family in families.values())
    return families


for record in bench("--device", "cuda"):
    profile = record["profile"]
    families = counted(profile, card=True)
    assert FAMILIES <= families.keys(), families.keys()
    assert ("sampling" in families) == (record["n_gen"] > 0)
    inside = sum(op["ns"] for op in profile["ops"])
    assert profile["between_ns"] == max(0, profile["ns"] - inside), profile
    launches = sum(kernel["calls"] for op in profile["ops"] for kernel in op["kernels"] if kernel["kernel"])
    each = profile["ns"] / profile["steps"] / 1e6
    print(f"{record['test']}: {each:.3f} ms a step, {100 * inside / profile['ns']:.0f} % of it in kernels and copies, "
          f"{launches / profile['steps']:.0f} launches")

# Of a model on two devices each has its account: the head's, sampling with it, then that of the first layers.
for record in bench("--device", "cuda,cpu", "--gpu-layers", "2"):
    profile = record["profile"]
    head, first = profile["devices"]
    assert head["device"].startswith("cuda:0") and first["device"].startswith("cpu"), profile
    own, host = counted(head, card=True), counted(first, card=False)
    assert {"matmul", "norm", "transfer"} <= own.keys() and "embedding" not in own, own.keys()
    assert {"matmul", "norm", "embedding"} <= host.keys() and "sampling" not in host, host.keys()
    assert ("sampling" in own) == (record["n_gen"] > 0)
    inside = sum(op["ns"] for account in (head, first) for op in account["ops"])
    assert profile["between_ns"] == max(0, profile["ns"] - inside), profile
    print(f"{record['test']} on two devices: {100 * inside / profile['ns']:.0f} % in operations of both")
