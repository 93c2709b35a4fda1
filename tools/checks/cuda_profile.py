"""`gruff bench --profile` on a card: the account adds up, and every operation's time is that of its kernels.

    python tools/checks/cuda_profile.py GRUFF [MODEL]

Needs a card or, as tools/checks/cuda_emulated.sh sets it, the environment of tools/emulator. Needs nothing but Python.
"""

import json
import subprocess
import sys

GRUFF, MODEL = sys.argv[1], (sys.argv[2:] or ["bundled"])[0]
FAMILIES = {"matmul", "attention", "norm", "rope", "embedding", "transfer"}

command = [GRUFF, "bench", MODEL, "--device", "cuda", "-p", "8", "-n", "3", "-r", "1", "--profile", "-o", "json"]
ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
assert ended.returncode == 0, ended.stderr
records = json.loads(ended.stdout)
assert [record["test"] for record in records] == ["pp8", "tg3"], records
for record in records:
    profile = record["profile"]
    assert profile["clock"] == "card", profile["clock"]
    for ceiling in ["copy_bandwidth", "f32_products", "empty_kernel_ns"]:
        assert profile[ceiling] > 0, (ceiling, profile[ceiling])
    assert profile["read_bandwidth"] is None
    families = {family["family"]: family for family in profile["families"]}
    assert FAMILIES <= families.keys(), families.keys()
    assert ("sampling" in families) == (record["n_gen"] > 0)
    for op in profile["ops"]:
        kernels = op["kernels"]
        assert sum(kernel["ns"] for kernel in kernels) == op["ns"], op
        # Copies alone have no kernel.
        assert op["family"] == "transfer" or any(kernel["kernel"] for kernel in kernels), op
    inside = sum(op["ns"] for op in profile["ops"])
    assert inside == sum(family["ns"] for family in families.values())
    assert profile["between_ns"] == max(0, profile["ns"] - inside), profile
    launches = sum(kernel["calls"] for op in profile["ops"] for kernel in op["kernels"] if kernel["kernel"])
    each = profile["ns"] / profile["steps"] / 1e6
    print(f"{record['test']}: {each:.3f} ms a step, {100 * inside / profile['ns']:.0f} % of it in kernels and copies, "
          f"{launches / profile['steps']:.0f} launches")
