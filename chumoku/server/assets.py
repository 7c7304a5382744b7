"""The files of the web page, read once at start-up. A requested path is only looked up in this list, never opened."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from chumoku.server.errors import RequestError

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "json": "application/json",
}
LARGEST = 4 << 20


class Asset(NamedTuple):
    content: bytes
    media_type: str
    tag: str


class Assets:
    """The files of `chumoku/viewer`, read once."""

    def __init__(self) -> None:
        self._files = dict(read())

    def respond(self, request: Request, name: str) -> Response:
        asset = self._files.get(name)
        if asset is None:
            raise RequestError(404, "There is no such file.")
        # The browser must check every file again, so that it never mixes old and new ones.
        headers = {"ETag": asset.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers, media_type=asset.media_type)


def read() -> list[tuple[str, Asset]]:
    """Every file of the page by its path below `chumoku/viewer`, such as "core/app.js"."""
    found: list[tuple[str, Asset]] = []
    for name, file in walk(files("chumoku") / "viewer"):
        kind = TYPES.get(name.rpartition(".")[2])
        if kind is not None:
            content = file.read_bytes()[:LARGEST]
            found.append((name, Asset(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')))
    return found


def walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    """The files of a folder and of its subfolders, each with its path relative to the first folder."""
    for one in sorted(folder.iterdir(), key=lambda one: one.name) if folder.is_dir() else ():
        if one.is_dir():
            yield from walk(one, f"{prefix}{one.name}/")
        elif one.is_file():
            yield prefix + one.name, one
