"""Checks on every route: keys, hosts, origins, sizes, timeouts."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from annotated_types import Ge, Gt, Le, Lt, MaxLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from serving import KEY, Serving, serving

from chumoku.server.app import GET, POST
from chumoku.server.look import schemas as look_schemas
from chumoku.server.openai import schemas
from chumoku.server.openai.response_schemas import ResponseRequest
from chumoku.server.security import keys
from chumoku.server.security.limits import Limits
from chumoku.server.security.middleware import hostname

QUICK = Limits(body=3001, header_seconds=0.3, body_seconds=0.4, connections=11)
ROUTES = [*(("GET", path) for path in GET), *(("POST", path) for path in POST)]
BODY = {"model": "writer", "prompt": "a", "max_tokens": 1}
WITHOUT_KEY = httpx.Client()  # shared, because creating a client is slow


@pytest.fixture(scope="module")
def server(writer: Path) -> Iterator[Serving]:
    names = frozenset({"models.example"})
    with serving(
        {"writer": writer}, limits=QUICK, hosts=names, origins=frozenset({"https://friend.example"})
    ) as running:
        yield running


@pytest.fixture(scope="module")
def locked(writer: Path) -> Iterator[Serving]:
    with serving({"writer": writer}, key=KEY) as running:
        yield running


def send(server: Serving, method: str, path: str, **headers: str) -> httpx.Response:
    path = re.sub(r"\{.*?\}", "writer", path)
    body = {"json": BODY} if method == "POST" else {}
    return WITHOUT_KEY.request(method, server.url + path, headers=headers, **body)  # type: ignore[arg-type]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_checks_the_key(locked: Serving, method: str, path: str) -> None:
    open_to_all = path in ("/health", "/v1/session")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}, {"Cookie": f"chumoku_key={KEY}"}):
        answer = send(locked, method, path, **headers)
        assert (answer.status_code == 401) != open_to_all, path
        if path != "/" and not open_to_all:
            assert answer.json()["error"]["type"] == "authentication_error"
        assert "writer" not in answer.text or open_to_all
    assert send(locked, method, path, Authorization=f"Bearer {KEY}").status_code != 401


@pytest.mark.parametrize(("method", "path"), [*ROUTES, ("GET", "/nothing"), ("GET", "/viewer/nothing.js")])
def test_every_route_checks_the_host(server: Serving, method: str, path: str) -> None:
    for host in (
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil@localhost",
        "[::2]",
        "192.168.0.1",
    ):
        assert send(server, method, path, Host=host).status_code == 403, host
    for host in ("localhost", f"127.0.0.1:{server.port}", "[::1]:9", "MODELS.example:80"):
        assert send(server, method, path, Host=host).status_code != 403, host


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_checks_the_origin(server: Serving, method: str, path: str) -> None:
    other = f"http://127.0.0.1:{server.port + 1}"
    for origin in ("http://evil.example", "null", other, "https://friend.example.evil.example", "file://"):
        answer = send(server, method, path, Origin=origin)
        assert answer.status_code == 403, origin
        assert "access-control-allow-origin" not in answer.headers
    for site in ("cross-site", "same-site"):
        assert send(server, method, path, **{"Sec-Fetch-Site": site}).status_code == 403
        frame = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
        assert send(server, method, path, **frame).status_code == 403
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (send(server, method, path, **followed).status_code == 403) == (method == "POST")
    for fine in ({"Origin": server.url}, {"Sec-Fetch-Site": "same-origin"}, {"Origin": "https://friend.example"}):
        assert send(server, method, path, **fine).status_code != 403


def test_allowed_origin_may_read(server: Serving) -> None:
    answer = send(server, "GET", "/v1/models", Origin="https://friend.example")
    assert answer.headers["access-control-allow-origin"] == "https://friend.example"
    assert answer.headers["vary"] == "Origin"
    wanted = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type,x-stainless-os,x-evil",
    }
    answer = send(server, "OPTIONS", "/v1/completions", Origin="https://friend.example", **wanted)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-headers"] == "authorization, content-type, x-stainless-os"
    assert send(server, "OPTIONS", "/v1/completions", Origin="http://evil.example", **wanted).status_code == 403


def test_key_is_exchanged_for_a_cookie(locked: Serving) -> None:
    with httpx.Client(base_url=locked.url) as client:
        page = client.get("/")
        assert page.status_code == 401
        assert "<form>" in page.text
        assert "script-src 'sha256-" in page.headers["content-security-policy"]
        assert client.post("/v1/session", json={"key": "wrong"}).status_code == 401
        assert not client.cookies
        answer = client.post("/v1/session", json={"key": KEY})
        assert answer.status_code == 200
        held = answer.headers["set-cookie"]
        assert "HttpOnly" in held
        assert "samesite=strict" in held.lower()
        assert KEY not in held
        assert client.get("/v1/models").status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/", "/nothing", "/viewer/core/app.js", "/v1/completions"])
def test_every_response_has_security_headers(server: Serving, path: str) -> None:
    headers = send(server, "GET", path).headers
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert "server" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "/viewer/../app.py",
        "/viewer/%2e%2e/server/app.py",
        "/viewer/..%2f..%2fpyproject.toml",
        "/viewer/%2fetc%2fpasswd",
        "/viewer//etc/passwd",
        "/viewer/core/app.js%00.html",
        "/viewer/",
        "/v1/models/..%2f..%2f",
        "/v1/runs/..",
        "/v1/runs/%2e%2e%2fwriter",
        "/lab/../lab/report.html",
        "/docs",
        "/openapi.json",
        "/redoc",
    ],
)
def test_no_path_leads_outside(server: Serving, path: str) -> None:
    # Through a socket, because HTTP clients normalize such paths.
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 404"), answer[:200]
    assert b'"type":"not_found_error"' in answer


def test_bodies_are_json_and_not_too_large(server: Serving) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""):
        answer = httpx.post(f"{server.url}/v1/completions", content=b"{}", headers={"Content-Type": kind})
        assert answer.status_code == 415, kind
    fine = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert httpx.post(f"{server.url}/v1/completions", content=b"{}", headers=fine).status_code == 400
    large = b'"' + b"x" * 3001
    assert httpx.post(f"{server.url}/v1/completions", content=large, headers=fine).status_code == 413
    chunks = (b"x" * 500 for _ in range(100))
    assert httpx.post(f"{server.url}/v1/completions", content=chunks, headers=fine).status_code == 413
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert httpx.put(f"{server.url}/v1/completions").status_code == 405
    assert httpx.get(f"{server.url}/v1/completions").status_code == 405


def until_closed(connection: socket.socket, *, every: bytes = b"") -> tuple[float, bytes]:
    """Seconds until the server closes the connection, and what it sent."""
    began, received = time.monotonic(), b""
    connection.settimeout(0.05)
    while time.monotonic() - began < 5:
        try:
            if every:
                connection.sendall(every)
            part = connection.recv(65536)
            if not part:
                break
            received += part
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - began, received


@pytest.mark.parametrize(
    "begun", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"]
)
def test_incomplete_head_times_out(server: Serving, begun: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(begun)
        if begun.endswith(b"\r\n\r\n"):
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        took, _ = until_closed(connection, every=b"X" if begun else b"")
    assert 0.2 < took < 2


def test_incomplete_body_times_out(server: Serving) -> None:
    lines = (
        "POST /v1/completions HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        "Content-Length: 999",
    )
    head = "\r\n".join((*lines, "", ""))
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode())
        took, received = until_closed(connection, every=b" ")
    assert 0.3 < took < 3
    assert received.startswith(b"HTTP/1.1 408")


def test_too_many_connections_get_503(server: Serving) -> None:
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(QUICK.connections + 7)]
    try:
        time.sleep(0.05)
        held[-1].settimeout(2)
        received = held[-1].recv(4096)
        assert received.startswith(b"HTTP/1.1 503")
        assert b"Too many connections" in received
    finally:
        for one in held:
            one.close()
    time.sleep(0.4)
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}


def test_large_head_is_refused(server: Serving) -> None:
    answer = b""
    with socket.create_connection(("127.0.0.1", server.port)) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000)
        answer = connection.recv(4096)
    assert b" 200 " not in answer
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_hostname() -> None:
    assert hostname("localhost:8731") == "localhost"
    assert hostname("[::1]:8731") == "::1"
    for odd in ("a/b", "a@b", "a:b", "a?b", "[::1", "a:999999"):
        assert hostname(odd) is None, odd


def test_the_key_is_compared_in_constant_time() -> None:
    source = Path(keys.__file__).read_text(encoding="utf-8")
    assert source.count("hmac.compare_digest") == 2
    assert not re.search(r"key\s*==|==\s*self\._key|cookie\s*==", source)


def unbounded(schema: type[BaseModel]) -> list[str]:
    """Fields without a limit, at any depth."""
    return [path for name, field in schema.model_fields.items() for path in _walk(name, field.annotation, field)]


def _walk(path: str, kind: object, field: FieldInfo | None = None) -> list[str]:
    bounds = list(field.metadata) if field is not None else []
    while hasattr(kind, "__metadata__"):
        for one in kind.__metadata__:
            bounds += one.metadata if isinstance(one, FieldInfo) else [one]
        kind = kind.__origin__  # type: ignore[attr-defined]
    found = [type(bound) for bound in bounds]
    if any(getattr(bound, "func", None) is schemas.check_json_schema for bound in bounds):
        return []
    parts, origin = getattr(kind, "__args__", ()), getattr(kind, "__origin__", kind)
    if kind in (bool, type(None)) or "Literal" in str(origin):
        return []
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [f"{path}.{one}" for one in unbounded(kind)]
    if kind in (int, float):
        return [] if {Le, Lt} & {*found} and {Ge, Gt} & {*found} else [path]
    if kind is str:
        return [] if MaxLen in found else [path]
    if origin in (list, dict):
        inside = [one for part in parts for one in _walk(f"{path}[]", part)]
        return inside if MaxLen in found else [path, *inside]
    return [one for part in parts for one in _walk(path, part)] if parts else [path]


LOOKS = [one for one in vars(look_schemas).values() if isinstance(one, type) and issubclass(one, BaseModel)]


@pytest.mark.parametrize("schema", [*schemas.SCHEMAS, ResponseRequest, *(one for one in LOOKS if one is not BaseModel)])
def test_no_field_is_unbounded(schema: type[BaseModel]) -> None:
    assert not unbounded(schema)
    assert schema.model_config["extra"] == "forbid"
    assert schema.model_config["strict"]


def test_unbounded_fields_are_found() -> None:
    class Loose(BaseModel):
        text: str
        many: list[schemas.Text]
        number: float | None = None
        deep: schemas.Texts | list[list[int]] = []

    assert unbounded(Loose) == ["text", "many", "number", "deep", "deep[]", "deep[][]"]


def test_client_that_reads_nothing_is_disconnected(writer: Path) -> None:
    """The response is larger than the socket buffers, and the client reads nothing."""
    with serving({"writer": writer}, limits=Limits(body_seconds=0.5)) as running:
        ended = threading.Event()
        body = b"x" * 64_000_000

        class Large:
            def respond(self, request: object, name: str) -> object:
                from starlette.responses import Response

                return Response(body)

        app = running.server.config.loaded_app._app
        app.state.assets = Large()
        with socket.create_connection(("127.0.0.1", running.port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            end = time.monotonic() + 5
            while time.monotonic() < end and not ended.is_set():
                if not running.server.server_state.connections:
                    ended.set()
                time.sleep(0.05)
        assert ended.is_set()
