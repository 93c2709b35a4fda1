"""A Hub on the loopback interface: what huggingface_hub and gruff-hub need of the real one to download models.

    python tools/fake_hub.py [--port 8080] [--token TOKEN] OWNER/NAME=FOLDER ..

serves each folder as the `main` of a repository until it is interrupted; point HF_ENDPOINT at the address it prints.
Files named *.gguf or *.safetensors count as large: they are named by their SHA-256 and lie on a second port that plays
the storage host; all others are named by git's SHA-1 and come from the Hub itself.
"""

import argparse
import hashlib
import json
import ssl
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGE = (".gguf", ".safetensors")
CHUNK = 1 << 20


def git_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repository:
    """Commits with their files, and the names that lead to commits."""

    commits: dict = field(default_factory=dict)
    refs: dict = field(default_factory=dict)

    def commit(self, files, refs=("main",)):
        """Adds a commit of `files` (path -> bytes), makes `refs` point at it and returns its id."""
        listing = json.dumps([len(self.commits), sorted((path, git_id(data)) for path, data in files.items())])
        commit = hashlib.sha1(listing.encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.refs.update(dict.fromkeys(refs, commit))
        return commit


class FakeHub:
    """Two servers, the Hub and its storage, on threads of their own."""

    def __init__(self, repositories, port=0, token=None, cut_every=None, stall_at=None, certificate=None):
        """`cut_every`: the storage breaks a connection after so many bytes of its body; `stall_at`: it goes silent.
        `certificate`: a PEM file with certificate and key, to speak https."""
        self.repositories, self.token, self.cut_every, self.stall_at = repositories, token, cut_every, stall_at
        self.certificate, self.stalled = certificate, threading.Event()
        self.requests, self.servers = [], []
        self.url, self.storage = (self._serve(handler, p) for handler, p in ((HubHandler, port), (StorageHandler, 0)))

    def _serve(self, handler, port):
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        server.daemon_threads = True
        server.hub = self
        scheme = "http"
        if self.certificate:
            scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.servers.append(server)
        return f"{scheme}://127.0.0.1:{server.server_address[1]}"

    def stop(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.server.hub
        hub.requests.append((self.command, self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        self.answer(hub, unquote(urlsplit(self.path).path))

    def send(self, status, body=b"", headers=(), cut=None):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, str(value))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut is not None and cut < len(body):
            self.wfile.write(body[:cut])
            self.close_connection = True
            if self.server.hub.stall_at:
                self.wfile.flush()
                self.server.hub.stalled.set()
                threading.Event().wait()
            return
        self.wfile.write(body)

    def send_content(self, data, headers=(), cut=None):
        """The bytes asked for, by the rules of RFC 9110, section 14."""
        headers = {"Accept-Ranges": "bytes", **dict(headers)}
        wanted = self.headers.get("Range")
        if wanted is None or not wanted.startswith("bytes="):
            return self.send(200, data, headers, cut)
        first, _, last = wanted[len("bytes=") :].partition("-")
        first, last = int(first), min(int(last) if last else len(data) - 1, len(data) - 1)
        if first >= len(data):
            return self.send(416, b"", {**headers, "Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return self.send(206, data[first : last + 1], headers, cut)


class HubHandler(Handler):
    def fail(self, status, code, message, headers=()):
        body = json.dumps({"error": message}).encode()
        self.send(status, body, {"X-Error-Code": code, "X-Error-Message": message, **dict(headers)})

    def answer(self, hub, path):
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.fail(401, "RepoNotFound", "Repository not found")
        for name, repository in hub.repositories.items():
            for prefix, action in (
                (f"/api/models/{name}/revision/", self.information),
                (f"/api/models/{name}/tree/", self.tree),
                (f"/api/models/{name}", self.information),
                (f"/{name}/resolve/", self.resolve),
            ):
                if path.startswith(prefix):
                    return self.at_revision(repository, path[len(prefix) :] or "main", action)
        return self.fail(404, "RepoNotFound", "Repository not found")

    def at_revision(self, repository, rest, action):
        names = {**repository.refs, **{commit: commit for commit in repository.commits}}
        # A branch may have slashes in its name: the longest one that fits is meant.
        for name in sorted(names, key=len, reverse=True):
            if rest == name or rest.startswith(name + "/"):
                return action(names[name], repository.commits[names[name]], rest[len(name) + 1 :])
        return self.fail(404, "RevisionNotFound", f"Invalid rev id: {rest}")

    def information(self, commit, files, _):
        siblings = [{"rfilename": path, "size": len(data)} for path, data in files.items()]
        self.send_json({"_id": "0", "id": "org/model", "modelId": "org/model", "sha": commit, "siblings": siblings})

    def tree(self, _, files, __):
        self.send_json([self.entry(path, data) for path, data in files.items()])

    def entry(self, path, data):
        entry = {"type": "file", "oid": git_id(data), "size": len(data), "path": path}
        if path.endswith(LARGE):
            oid = hashlib.sha256(data).hexdigest()
            entry["lfs"] = {"oid": oid, "size": len(data), "pointerSize": 134}
        return entry

    def send_json(self, value):
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def resolve(self, commit, files, path):
        known = {"X-Repo-Commit": commit}
        if path not in files:
            return self.fail(404, "EntryNotFound", "Entry not found", known)
        data = files[path]
        if not path.endswith(LARGE):
            return self.send_content(data, {**known, "ETag": f'"{git_id(data)}"'})
        oid = hashlib.sha256(data).hexdigest()
        known |= {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": len(data), "ETag": '"of-the-redirect"'}
        return self.send(302, b"", {**known, "Location": f"{self.server.hub.storage}/{oid}?signature=secret"})


class StorageHandler(Handler):
    def answer(self, hub, path):
        if self.headers.get("Authorization"):
            return self.send(400, b"a token has no business here")
        for repository in hub.repositories.values():
            for files in repository.commits.values():
                for data in files.values():
                    if hashlib.sha256(data).hexdigest() == path.strip("/"):
                        return self.send_content(data, {"ETag": '"of-the-storage"'}, hub.cut_every or hub.stall_at)
        return self.send(404)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", nargs="+", metavar="OWNER/NAME=FOLDER")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token")
    arguments = parser.parse_args()
    repositories = {}
    for name, folder in (text.split("=", 1) for text in arguments.repositories):
        files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}
        repositories[name] = Repository()
        repositories[name].commit(files)
    hub = FakeHub(repositories, arguments.port, arguments.token)
    print(hub.url, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
