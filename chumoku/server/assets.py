"""Files of the web page, all read at start-up. A requested path is only looked up in this list, never opened."""

from __future__ import annotations

import hashlib
from importlib.resources import files
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
MAX_BYTES = 4 << 20


class Asset(NamedTuple):
    content: bytes
    media_type: str
    tag: str


class Assets:
    """The files of `chumoku/viewer`, read once."""

    def __init__(self) -> None:
        self._files = dict(read_assets())

    def respond(self, request: Request, name: str) -> Response:
        asset = self._files.get(name)
        if asset is None:
            raise RequestError(404, "There is no such file.")
        # The browser must check every file again, so that it never mixes old and new ones.
        headers = {"ETag": asset.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers, media_type=asset.media_type)


def read_assets() -> list[tuple[str, Asset]]:
    """All files of the page as (name, content), at most one folder deep: "app.js", "css/base.css"."""
    assets: list[tuple[str, Asset]] = []
    folder = files("chumoku") / "viewer"
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name) if folder.is_dir() else ():
        inner = [(f"{entry.name}/{file.name}", file) for file in entry.iterdir()] if entry.is_dir() else None
        for name, file in inner or [(entry.name, entry)]:
            kind = TYPES.get(name.rpartition(".")[2])
            if kind is not None and file.is_file():
                content = file.read_bytes()[:MAX_BYTES]
                assets.append((name, Asset(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')))
    return assets
