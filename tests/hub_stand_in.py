"""The Hub's cache with a model in it, and a local stand-in for its API for writing: create, upload, commit.

POST /api/repos/create                              POST /OWNER/NAME.git/info/lfs/objects/batch
POST /api/models/OWNER/NAME/preupload/main          PUT  /lfs/SHA256
POST /api/models/OWNER/NAME/commit/main
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "hf_stand_in"


class Hub(ThreadingHTTPServer):
    """What was created and committed; `fail` is a status that every request is answered with."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, Any]] = {}
        self.committed: dict[str, bytes] = {}
        self.objects: dict[str, bytes] = {}
        self.fail: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.read_body()
        if self.server.fail is not None or self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer(self.server.fail or 401, {"error": "refused"})
        elif self.path == "/api/repos/create":
            values = json.loads(body)
            name = f"{values['organization']}/{values['name']}"
            self.server.repositories[name] = values
            self.answer(200, {"url": f"{self.server.url}/{name}", "id": name, "name": name})
        elif self.path == "/api/validate-yaml":  # of the model card
            self.answer(200, {"warnings": [], "errors": []})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            modes = {True: "lfs", False: "regular"}
            chosen = [{"path": f["path"], "uploadMode": modes[f["path"].endswith(".safetensors")]} for f in files]
            self.answer(200, {"files": [{**one, "shouldIgnore": False} for one in chosen]})
        elif self.path.endswith("/objects/batch"):
            objects = json.loads(body)["objects"]
            actions = [{"upload": {"href": f"{self.server.url}/lfs/{one['oid']}"}} for one in objects]
            found = [{**one, "actions": action} for one, action in zip(objects, actions, strict=True)]
            self.answer(200, {"transfer": "basic", "objects": found}, kind="application/vnd.git-lfs+json")
        elif "/commit/" in self.path:
            self.commit(body)
        else:
            self.answer(404, {"error": self.path})

    def do_PUT(self) -> None:
        body = self.read_body()
        self.server.objects[hashlib.sha256(body).hexdigest()] = body
        self.answer(200, {})

    def commit(self, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.server.committed[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.committed[value["path"]] = self.server.objects[value["oid"]]
        url = f"{self.server.url}/owner/name/commit/{'a' * 40}"
        self.answer(200, {"success": True, "commitOid": "a" * 40, "commitUrl": url})

    def read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, status: int, values: dict[str, Any], kind: str = "application/json") -> None:
        body = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()


def make_hub_cache(folder: Path, files: dict[str, bytes], name: str = "owner/name") -> Path:
    """Add a model to a Hugging Face cache; returns the folder of its files."""
    home = folder / f"models--{name.replace('/', '--')}"
    snapshot = home / "snapshots" / ("a" * 40)
    for place in (home / "blobs", home / "refs", snapshot):
        place.mkdir(parents=True)
    (home / "refs" / "main").write_text("a" * 40)
    for file, data in files.items():
        (snapshot / file).parent.mkdir(exist_ok=True)
        large = len(data) > 10_000
        digest = hashlib.sha256(data) if large else hashlib.sha1(f"blob {len(data)}\0".encode() + data)
        (home / "blobs" / digest.hexdigest()).write_bytes(data)
        (snapshot / file).symlink_to(os.path.relpath(home / "blobs" / digest.hexdigest(), (snapshot / file).parent))
    return snapshot
