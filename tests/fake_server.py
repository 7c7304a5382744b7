"""A fake server for the tests of the page: the real page files, and responses that echo the request.

    GET  /, /viewer/<file>       the page, with the Content-Security-Policy of the real server
    POST /v1/…                   a response built from the text of the request

Every token is a piece of the request's text, so hostile texts reach every word, bar and branch of the page.
"""

from __future__ import annotations

import json
import math
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VIEWER = Path(__file__).parent.parent / "chumoku" / "viewer"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SIZES = {"context": 61, "vocabulary": 97, "heads": 3, "layers": 2, "encoder_layers": 0, "width": 12}
SAMPLING = {"temperature": 0.65, "top_k": 23, "top_p": None, "min_p": 0.05, "repetition_penalty": 1.0}
MODELS = [
    {"id": "little", "kind": "encoder-decoder", "chat": False, "into": None, **SIZES},
    {"id": "talker", "kind": "decoder", "chat": True, "into": None, **SIZES},
    {"id": "writer", "kind": "decoder", "chat": False, "into": None, "sampling": SAMPLING, **SIZES},
]


def tokens_of(text: str) -> list[dict[str, Any]]:
    pieces = re.findall(r" ?[^ ]+| ", text)
    return [{"id": number, "text": piece} for number, piece in enumerate(pieces, start=3)]


def probabilities_of(names: list[str]) -> list[tuple[str, float]]:
    """Names with probabilities of a half, a quarter and so on."""
    return [(name, 0.5 ** (place + 1)) for place, name in enumerate(names)]


def translation(text: str, body: dict[str, Any]) -> dict[str, Any]:
    source = tokens_of(text)
    reversed_words = [token["text"].strip(" ") for token in reversed(source)]
    said = [
        {"id": 3 + place, "text": " " * (place > 0) + word, "logprob": -0.1 - 0.3 * place}
        for place, word in enumerate(reversed_words)
    ]
    length = len(source) + 1
    # Word t attends most to word t + 2 (cyclically), so that the two directions differ.
    steps = [[(other - place - 2) % length for other in range(length)] for place in range(length)]
    raw = [[math.exp(-min(step, length - step)) for step in row] for row in steps]
    rows = [[weight / sum(row) for weight in row] for row in raw]
    names = [token["text"] for token in said] + ["a", "b", "c", "d", "e"]
    numbers = [token["id"] for token in said] + [0] * 5
    candidates = [
        [
            {"id": numbers[place + rank], "text": name, "probability": share}
            for rank, (name, share) in enumerate(probabilities_of(names[place : place + 5]))
        ]
        for place in range(length)
    ]
    one = {
        "text": "".join(token["text"] for token in said),
        "tokens": said,
        "alignment": rows,
        "candidates": candidates,
    }
    hypotheses = [{**one, "score": -0.1 * (rank + 1)} for rank in range(body.get("n", 1))]
    return {"source": source, "hypotheses": hypotheses, "tree": tree(said) if body.get("tree") else None}


def tree(said: list[dict[str, Any]]) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = []
    last, total = -1, 0.0
    for step, token in enumerate(said):
        for state, drop in (("chosen", 0.2), ("dropped", 1.5)):
            kept = {"parent": last, "id": token["id"], "text": token["text"], "logprob": -drop}
            nodes.append({**kept, "score": total - drop, "step": step, "state": state})
        last, total = len(nodes) - 2, total - 0.2
    return {"nodes": nodes}


class HttpError(Exception):
    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        self.status, self.code = status, code
        super().__init__(message)


class FakeServer:
    """A fake server; `requests` has the path and body of every POST request."""

    def __init__(
        self, port: int = 0, *, key: str | None = None, pause: float = 0.0, models: list[dict[str, Any]] = MODELS
    ) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.models = models
        self.dropped_messages = 0  # reported in chat streams
        self.key, self.pause = key, pause
        self.connections: list[socket.socket] = []
        self.client_left = threading.Event()  # set when the client closes a stream
        self.server = ThreadingHTTPServer(("127.0.0.1", port), self.handler())
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        """Stop like a killed process: close the port and all connections."""
        self.server.shutdown()
        self.server.server_close()
        for one in self.connections:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        """The response: a generator is sent as events, anything else as JSON."""
        self.requests.append((path, body))
        if path == "/v1/session":
            if body.get("key") != self.key:
                raise HttpError(401, "This is not the key.")
            return {}
        if body.get("model") not in [one["id"] for one in self.models]:
            raise HttpError(404, "There is no model of this name here.", "model_not_found")
        if path == "/v1/translate":
            texts = [body["text"]] if isinstance(body["text"], str) else body["text"]
            if any("refuse me" in text for text in texts):
                raise HttpError(400, "This text <b>was refused</b>: try another.")
            return {"object": "translation", "translations": [translation(text, body) for text in texts]}
        if path == "/v1/look/next":
            names = [token["text"] for token in tokens_of(body["text"])] + [f"w{number}" for number in range(29)]
            candidates = [
                {"id": at, "text": name, "logit": 5 - 0.5 * at} for at, name in enumerate(names[: body["count"]])
            ]
            return {"candidates": candidates, "rest": 1.5, "vocabulary": 97}
        if path in ("/v1/completions", "/v1/chat/completions"):
            return self.complete(path.endswith("chat/completions"), body)
        raise HttpError(404, "There is nothing here.")

    def complete(self, chat: bool, body: dict[str, Any]) -> Any:
        text = body["messages"][-1]["content"] if chat else body["prompt"]
        if len(text) > 400:
            raise HttpError(400, "The text is too long.", "context_length_exceeded")
        tops = probabilities_of([token["text"] for token in tokens_of(text)][:20] or ["?"])
        words = [token["text"] for token in tokens_of(text)][: body["max_tokens"]]
        if body.get("stream"):
            return self.stream(chat, words, tops, body)
        return {"choices": [choice(chat, "".join(words), tops, body)], "usage": {"completion_tokens": len(words)}}

    def stream(
        self, chat: bool, words: list[str], tops: list[tuple[str, float]], body: dict[str, Any]
    ) -> Iterator[Any]:
        if self.dropped_messages:
            yield {"choices": [{"index": 0, "delta": {"role": "assistant"}}], "dropped_messages": self.dropped_messages}
        for word in words:
            time.sleep(self.pause)
            yield {"choices": [choice(chat, word, tops, body, delta=True)]}
        yield {"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": "stop"}]}
        yield {"choices": [], "usage": {"completion_tokens": len(words)}}

    def handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                server.connections.append(self.connection)

            def log_message(self, *_: object) -> None: ...

            def send(self, status: int, kind: str, data: bytes, *more: tuple[str, str]) -> None:
                self.send_response(status)
                for name, value in (("Content-Type", kind), ("Content-Length", str(len(data))), *more):
                    self.send_header(name, value)
                self.send_header("Content-Security-Policy", POLICY)
                self.send_header("Cross-Origin-Resource-Policy", "same-origin")
                self.end_headers()
                self.wfile.write(data)

            def json(self, status: int, response: Any, *more: tuple[str, str]) -> None:
                self.send(status, "application/json", json.dumps(response).encode(), *more)

            def allowed(self) -> bool:
                return server.key is None or f"chumoku_key={server.key}" in (self.headers.get("Cookie") or "")

            def do_GET(self) -> None:
                path = self.path.split("?")[0]
                name = "index.html" if path == "/" else path.removeprefix("/viewer/")
                file = next((one for one in VIEWER.rglob("*.*") if one.relative_to(VIEWER).as_posix() == name), None)
                if path == "/health":
                    self.json(200, {"status": "ok"})
                elif file is not None:
                    self.send(200, KINDS[file.suffix] + "; charset=utf-8", file.read_bytes())
                elif not self.allowed():
                    self.json(401, {"error": {"message": "A key is needed.", "type": "authentication_error"}})
                elif path == "/v1/models":
                    self.json(200, {"object": "list", "data": server.models})
                else:
                    self.json(404, {"error": {"message": "There is nothing here.", "type": "not_found_error"}})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    response = server.answer(self.path, body)
                except HttpError as error:
                    self.json(error.status, {"error": {"message": str(error), "code": error.code, "param": None}})
                    return
                if isinstance(response, Iterator):
                    self.events(response)
                else:
                    cookie = ("Set-Cookie", f"chumoku_key={server.key}; HttpOnly; SameSite=Strict; Path=/")
                    self.json(200, response, *([cookie] if self.path == "/v1/session" else []))

            def events(self, response: Iterator[Any]) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                try:
                    for piece in response:
                        self.wfile.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
                    self.wfile.write(b"data: [DONE]\n\n")
                except OSError:
                    server.client_left.set()

        return Handler


def choice(
    chat: bool, text: str, tops: list[tuple[str, float]], body: dict[str, Any], *, delta: bool = False
) -> dict[str, Any]:
    """One choice of a response, in the format of a chat or a completion."""
    logs = [(name, math.log(share)) for name, share in tops]
    if chat:
        content = [
            {"token": text, "logprob": -1.3, "top_logprobs": [{"token": name, "logprob": log} for name, log in logs]}
        ]
        said = {"delta" if delta else "message": {"content": text}}
        return {"index": 0, **said, "logprobs": {"content": content} if body.get("logprobs") else None}
    response = {"tokens": [text], "token_logprobs": [-1.3], "top_logprobs": [dict(logs)]}
    return {"index": 0, "text": text, "logprobs": response if body.get("logprobs") is not None else None}


if __name__ == "__main__":
    fake = FakeServer(8739, pause=0.05)
    print(fake.url)
    threading.Event().wait()
