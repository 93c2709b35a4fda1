"""Second tier: what deploy/ has is true of the program that it runs.

    python tools/checks/deploy.py

Runs target/release/gruff (GRUFF names another). The manifests follow Kubernetes' schemas and hang together, the unit
passes systemd-analyze (where there is one), every flag is one that gruff or the router has, the images copy what a build
needs, and the probes that are written down are answered by a server with a key.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from pathlib import Path

import kubernetes_validate
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
GRUFF = os.environ.get("GRUFF", str(ROOT / "target" / "release" / "gruff"))


def flags_of(*command: str) -> set[str]:
    text = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z][a-z-]+", text))


def has_flags(words: list[str], known: set[str], where: str) -> None:
    used = [word for word in words if word.startswith("--")]
    assert used and set(used) <= known, f"{where}: {set(used) - known}"


def instructions(path: Path) -> list[tuple[str, str]]:
    """A Dockerfile's instructions, continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def images(serve: set[str]) -> list[str]:
    """Checks both images; gives the command by which the first tells its health."""
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())
    steps = instructions(DEPLOY / "Dockerfile")
    assert (steps[0][0], steps[0][1].split(":")[1].split("-")[0]) == ("FROM", cargo["workspace"]["package"]["rust-version"])
    copied = [word for name, rest in steps if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]]
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert ignore[0] == "*" and [word.lstrip("!") for word in ignore[1:]] == copied, "the context lacks what is copied"
    with tempfile.TemporaryDirectory() as folder:
        for name in copied:
            assert (ROOT / name).exists(), f"there is no {name} to copy"
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(folder) / name)
        build = next(rest for name, rest in steps if name == "RUN" and "cargo" in rest)
        assert "--release --locked -p gruff-cli" in build, build
        # Cargo understands what is copied, and nothing that is compiled in lies outside.
        metadata = ["cargo", "metadata", "--locked", "--no-deps", "--offline", "--format-version", "1"]
        subprocess.run(metadata, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        for source in Path(folder).glob("crates/*/src/**/*.rs"):
            # What tests include is not compiled.
            compiled = source.read_text().split("#[cfg(test)]")[0]
            for included in re.findall(r'include_(?:str|bytes)!\(\s*"([^"]+)"', compiled):
                assert (source.parent / included).exists(), f"{source}: {included} is not in the image"
    fields = dict(steps)
    assert fields["USER"].split(":")[0] not in ("0", "root") and fields["ENTRYPOINT"] == '["gruff"]'
    command = json.loads(fields["CMD"])
    assert command[0] == "serve"
    has_flags(command, serve, "Dockerfile")
    router = instructions(DEPLOY / "router.Dockerfile")
    wanted = next(line for line in (ROOT / "tools/requirements.txt").read_text().split() if line.startswith("vllm-router"))
    assert any(wanted in rest for _, rest in router), f"the router's image has not {wanted}"
    assert dict(router)["USER"].split(":")[0] not in ("0", "root")
    return json.loads(fields["HEALTHCHECK"].split("CMD", 1)[1])


def unit(serve: set[str]) -> None:
    path = DEPLOY / "gruff.service"
    text = path.read_text()
    start = shlex.split(re.search(r"^ExecStart=(.*)$", text, re.M)[1])
    has_flags(start, serve, "gruff.service")
    if not shutil.which("systemd-analyze"):
        print("no systemd-analyze here: the unit is not verified")
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        # The program need not be installed here.
        copy.write_text(text.replace(start[0], str(Path(GRUFF).resolve())))
        verified = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True)
        said = [line for line in verified.stderr.splitlines() if path.name in line]
        assert not said, "\n".join(said)
        scored = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", "--threshold=20", copy], capture_output=True, text=True
        )
        assert scored.returncode == 0, scored.stdout[-2000:] + scored.stderr


def manifests(serve: set[str]) -> set[str]:
    """Checks them, and gives the paths that their probes ask for."""
    documents = [
        (path.name, document)
        for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]
    for name, document in documents:
        if document["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(document, "1.37", strict=True)
    pods = {}
    paths = set()
    for name, document in documents:
        if document["kind"] not in ("Deployment", "StatefulSet"):
            continue
        spec = document["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items(), name
        pod = spec["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        pods[tuple(sorted(labels.items()))] = {port["name"] for c in pod["containers"] for port in c["ports"]}
        for container in pod["containers"]:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                paths |= {container[probe]["httpGet"]["path"]} if "httpGet" in container[probe] else set()
            if container["image"].startswith("gruff:"):
                assert container["args"][0] == "serve"
                has_flags(container["args"], serve, name)
            names = {mount["name"] for mount in container.get("volumeMounts", [])}
            volumes = {v["name"] for v in pod.get("volumes", [])}
            volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
            assert names <= volumes, f"{name}: {names - volumes}"
    services = [document for _, document in documents if document["kind"] == "Service"]
    for service in services:
        selected = [ports for labels, ports in pods.items() if service["spec"]["selector"].items() <= dict(labels).items()]
        assert len(selected) == 1, service["metadata"]["name"]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= selected[0]
    for name, document in documents:
        if document["kind"] != "ServiceMonitor":
            continue
        wanted = document["spec"]["selector"]["matchLabels"].items()
        found = [service for service in services if wanted <= service["metadata"]["labels"].items()]
        assert len(found) == 1, name
        ports = {port["name"] for port in found[0]["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in document["spec"]["endpoints"]} <= ports
    # The router's list of workers is what the stateful set makes.
    by_name = {document["metadata"]["name"]: document for _, document in documents if document["kind"] in ("Deployment", "StatefulSet")}
    worker, router = by_name["gruff-worker"], by_name["gruff-router"]
    environment = {entry["name"]: entry.get("value") for entry in router["spec"]["template"]["spec"]["containers"][0]["env"]}
    hosts = [f"http://gruff-worker-{n}.{worker['spec']['serviceName']}:8000" for n in range(worker["spec"]["replicas"])]
    assert environment["WORKERS"].split() == hosts, environment["WORKERS"]
    return paths


def answers(paths: set[str], health: list[str]) -> None:
    command = [GRUFF, "serve", "--port", "0", "--api-key", "secret"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        url = next(found[1] for line in server.stderr if (found := re.search(r"(http://\S+)/v1", line)))
        for path in paths:
            assert urllib.request.urlopen(url + path).status == 200, path
        here = [part.replace("/8000", f"/{url.rsplit(':', 1)[1]}") for part in health]
        assert here != health and subprocess.run(here).returncode == 0, "the image's health check fails"
        request = urllib.request.Request(f"{url}/metrics", headers={"Authorization": "Bearer secret"})
        assert b"# TYPE gruff_" in urllib.request.urlopen(request).read()
    finally:
        server.kill()
        server.wait()
    assert subprocess.run(here, stderr=subprocess.DEVNULL).returncode != 0, "a dead server counts as healthy"


def main() -> None:
    serve = flags_of(GRUFF, "serve")
    health = images(serve)
    unit(serve)
    paths = manifests(serve)
    answers(paths, health)
    script = (DEPLOY / "router.sh").read_text()
    used = re.findall(r"(?<=[\s+])--[a-z-]+", "\n".join(line for line in script.splitlines() if not line.startswith("#")))
    has_flags(used, flags_of(str(Path(sys.executable).parent / "vllm-router")), "router.sh")
    subprocess.run(["sh", "-n", DEPLOY / "router.sh"], check=True)
    print(f"deploy/ holds: images, unit, manifests, {len(used)} flags of the router, probes {sorted(paths)}")


main()
