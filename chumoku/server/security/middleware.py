"""Checks that every request passes before it reaches a route.

    Host      must be a name of this server, so that DNS rebinding does not work                      403
    Origin    must be this page or listed in --cors; other pages can neither read nor act             403
    key       Authorization: Bearer …, or the cookie it was exchanged for; every route but /health    401
    body      JSON, limited in size and time                                                415  413  408

This is a pure ASGI middleware. It reads the complete body before the app is called and adds the same headers to every
response. An early error waits a moment for the rest of the body, so that a client that is still sending can read it.
If the rest does not arrive, the connection is closed after the response, because no timer would watch it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chumoku.server.disconnect import ClientDisconnected
from chumoku.server.errors import RequestError
from chumoku.server.security.keys import ApiKey, bearer_token
from chumoku.server.security.login import login_page
from chumoku.server.state import ServerState
from chumoku.server.streaming import error_response

CLIENT_CLOSED_REQUEST = 499  # nginx's status, for metrics; the client never receives it
PUBLIC_PATHS = {"/health"}  # no key needed
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Max-Age": "600",
}
# Headers that OpenAI's JavaScript client adds to every request.
CLIENT_HEADERS = "x-stainless-"
DISCARD_SECONDS = 1.0  # for the rest of the body of a refused request


class SecurityMiddleware:
    """The app, protected by the checks above."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app, self._state = app, state
        self._key = ApiKey(state.key) if state.key is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, sender = time.monotonic(), ResponseSender(send, self._state)
        headers = Headers(scope=scope)
        sender.origin = headers.get("origin")
        try:
            response = self._check_request(scope, headers)
            if response is None:
                body = await self._read_body(scope, headers, receive)
                sender.body_complete = True
                scope["chumoku.api_key"] = self._key
                await self._app(scope, body, sender)
            else:
                await self._respond(response, scope, receive, sender)
        except RequestError as error:
            await self._respond(error_response(error), scope, receive, sender)
        except ClientDisconnected:
            sender.status = CLIENT_CLOSED_REQUEST
        except asyncio.CancelledError:
            # At shutdown the connection is already closed, so there is nobody to inform.
            if not self._state.draining:
                raise
            sender.status = CLIENT_CLOSED_REQUEST
        finally:
            route = scope.get("chumoku.route", "other")
            self._state.metrics.record_request(route, sender.status, time.monotonic() - began)

    async def _respond(self, response: Response, scope: Scope, receive: Receive, sender: ResponseSender) -> None:
        """Send a response without calling the app."""
        with contextlib.suppress(ClientDisconnected):
            if response.status_code != 408:  # 408 has already waited for the body
                sender.body_complete = await self._discard_body(Headers(scope=scope), receive)
            await asyncio.sleep(scope.get("chumoku.delay", 0.0))
            await response(scope, receive, sender)
            return
        sender.status = CLIENT_CLOSED_REQUEST

    async def _discard_body(self, headers: Headers, receive: Receive) -> bool:
        """Read and drop the rest of the body; True if it was complete."""
        if "expect" in headers:
            return False  # the client waits for "100 Continue" and will not get it
        remaining = 8 * self._state.limits.body
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                while remaining > 0:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnected
                    if not message.get("more_body", False):
                        return True
                    remaining -= len(message.get("body", b""))
        return False

    def _check_request(self, scope: Scope, headers: Headers) -> Response | None:
        """A response that needs no route, or None if the app should handle the request."""
        self._check_host(headers)
        cross_origin = self._check_origin(scope, headers)
        if scope["method"] == "OPTIONS" and headers.get("access-control-request-method"):
            return Response(status_code=204, headers={**PREFLIGHT, **_allowed_headers(headers)} if cross_origin else {})
        path = scope["path"]
        if path not in PUBLIC_PATHS and path != "/v1/session" and not self._has_valid_key(scope, headers):
            if path == "/" and scope["method"] == "GET":
                return login_page()
            raise RequestError(
                401,
                "This server requires a key, and the request has no valid one. Send it as: Authorization: Bearer KEY.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if self._state.draining and path not in PUBLIC_PATHS and scope["method"] == "POST":
            raise RequestError(503, "The server is shutting down. Try again later.", headers={"Retry-After": "30"})
        return None

    def _has_valid_key(self, scope: Scope, headers: Headers) -> bool:
        """Whether the request has the key or the cookie; for a wrong key, sets the delay of the response."""
        if self._key is None or self._key.has_cookie(headers):
            return True
        if (key := bearer_token(headers)) is None:
            return False
        if self._key.matches(key):
            return True
        scope["chumoku.delay"] = self._key.record_failure(client_address(scope))
        return False

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        name = hostname(hosts[0]) if len(hosts) == 1 else None
        if name is None or not (name in self._state.hosts or (self._state.any_address and is_address(name))):
            raise RequestError(
                403, "The Host of this request is not a name of this server. Allow it with: chumoku serve --host-name."
            )

    def _check_origin(self, scope: Scope, headers: Headers) -> bool:
        """Whether the request comes from another page listed in --cors; raises an error for all other pages."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin in self._state.origins:
            return True
        refused = origin is not None and not same_origin(origin, headers["host"])
        if origin is None and site in ("cross-site", "same-site"):
            # A link that a person clicked is allowed: the page that contains it cannot read the response.
            clicked = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            refused = not (clicked and scope["method"] == "GET")
        if refused:
            message = "Pages of other origins may not call this server. Allow one with: chumoku serve --cors ORIGIN."
            raise RequestError(403, message)
        return False

    async def _read_body(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        """Read the complete body; returns a `receive` that yields it first."""
        limits = self._state.limits
        content_type = headers.get("content-type", "").split(";")[0].strip().lower()
        if scope["method"] == "POST" and content_type != "application/json":
            raise RequestError(415, "The body must be JSON, with the header Content-Type: application/json.")
        length = headers.get("content-length", "0")
        too_large = RequestError(413, f"The body is larger than the limit of {limits.body:,} bytes.")
        if length.isdigit() and int(length) > limits.body:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnected
                    body += message.get("body", b"")
                    if len(body) > limits.body:
                        raise too_large
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise RequestError(408, f"The body did not arrive within {limits.body_seconds:g} seconds.") from None
        return replay_body(bytes(body), receive)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that yields the body once, and then what the client sends."""
    remaining: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return remaining.pop() if remaining else await receive()

    return receive_again


class ResponseSender:
    """Sends a response and adds the common headers that it does not have."""

    def __init__(self, send: Send, state: ServerState) -> None:
        self._send, self._state = send, state
        self.status = 500
        self.origin: str | None = None
        self.body_complete = False  # whether the request body was received completely

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = {name.lower(): value for name, value in message.get("headers", [])}
            for name, value in HEADERS.items():
                headers.setdefault(name.encode(), value.encode())
            if self.origin is not None and self.origin in self._state.origins:
                headers[b"access-control-allow-origin"] = self.origin.encode("latin-1")
                headers[b"cross-origin-resource-policy"] = b"cross-origin"
                headers[b"vary"] = b"Origin"
            if not self.body_complete:
                headers[b"connection"] = b"close"
            message = {**message, "headers": list(headers.items())}
        await self._send(message)


def _allowed_headers(headers: Headers) -> dict[str, str]:
    """Headers allowed in a preflight response: ours, and those of OpenAI's client."""
    requested = [name.strip().lower() for name in headers.get("access-control-request-headers", "").split(",")][:64]
    extra = [name for name in requested if name.startswith(CLIENT_HEADERS) and name.replace("-", "").isalnum()]
    return {"Access-Control-Allow-Headers": ", ".join(["authorization", "content-type", *extra])}


def client_address(scope: Scope) -> str:
    """The client's IP address; for IPv6 its /64 network, since one client can use all addresses in it."""
    client = scope.get("client")
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return client[0] if client else ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)


def hostname(host: str) -> str | None:
    """The host name in a Host header, without its port; None if it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    if parts.path or parts.query or parts.fragment or parts.username is not None:
        return None
    return parts.hostname


def is_address(name: str) -> bool:
    """Whether this is an IP address; unlike a name, it cannot be redirected by DNS."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def same_origin(origin: str, host: str) -> bool:
    return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")
