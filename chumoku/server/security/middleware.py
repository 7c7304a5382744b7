"""Who may ask, and how: everything that is decided before a route is looked at.

    Host      one of ours: a page of another name that points here (DNS rebinding) is refused         403
    Origin    this page, or one named by --cors; a stranger's page can neither read nor act           403
    key       Authorization: Bearer …, or the cookie it was exchanged for; every route but /health    401
    body      JSON, so many bytes, in so many seconds                                       415  413  408

A pure ASGI layer: it reads the whole body before the app begins, and puts the same headers on every answer. A refusal
waits a moment for the rest of the body, so that whoever is still sending can read it; where the rest does not come,
the connection ends with the answer, since nobody would watch it after that.
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

from chumoku.server.disconnect import Gone
from chumoku.server.errors import Refusal
from chumoku.server.security.keys import Key, bearer
from chumoku.server.security.login import login_page
from chumoku.server.state import House
from chumoku.server.streaming import refused

GONE = 499  # nobody is there to read a status; this is what proxies count
OPEN = {"/health"}  # for everyone
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
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
# What OpenAI's own clients add to every request, for pages that use them.
CLIENT_HEADERS = "x-stainless-"
PATIENCE = 1.0  # seconds for the rest of a body that nobody wants


class Guard:
    """Around the app."""

    def __init__(self, app: ASGIApp, house: House) -> None:
        self._app, self._house = app, house
        self._key = Key(house.key) if house.key is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, sent = time.monotonic(), Sent(send, self._house)
        headers = Headers(scope=scope)
        sent.origin = headers.get("origin")
        try:
            response = self._decide(scope, headers)
            if response is None:
                body = await self._body(scope, headers, receive)
                sent.whole = True
                scope["chumoku.sign_in"] = self._key
                await self._app(scope, body, sent)
            else:
                await self._instead(response, scope, receive, sent)
        except Refusal as refusal:
            await self._instead(refused(refusal), scope, receive, sent)
        except Gone:
            sent.status = GONE
        except asyncio.CancelledError:
            # At the end of the server's time; the connection is closed already, so nobody hears of it.
            if not self._house.draining:
                raise
            sent.status = GONE
        finally:
            route = scope.get("chumoku.route", "other")
            self._house.metrics.answered(route, sent.status, time.monotonic() - began)

    async def _instead(self, response: Response, scope: Scope, receive: Receive, sent: Sent) -> None:
        """An answer that the app has no part in."""
        with contextlib.suppress(Gone):
            if response.status_code != 408:  # that was waited for
                sent.whole = await self._rest(Headers(scope=scope), receive)
            await asyncio.sleep(scope.get("chumoku.held_back", 0.0))
            await response(scope, receive, sent)
            return
        sent.status = GONE

    async def _rest(self, headers: Headers, receive: Receive) -> bool:
        """Whether all of the body has come; what comes is thrown away."""
        if "expect" in headers:
            return False  # it waits to be asked for its body, and will not be
        left = 8 * self._house.limits.body
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while left > 0:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    if not message.get("more_body", False):
                        return True
                    left -= len(message.get("body", b""))
        return False

    def _decide(self, scope: Scope, headers: Headers) -> Response | None:
        """An answer where there is one already; None when the app may be asked."""
        self._check_host(headers)
        foreign = self._foreign(scope, headers)
        if scope["method"] == "OPTIONS" and headers.get("access-control-request-method"):
            return Response(status_code=204, headers={**PREFLIGHT, **_client_headers(headers)} if foreign else {})
        path = scope["path"]
        if path not in OPEN and path != "/v1/session" and not self._fits(scope, headers):
            if path == "/" and scope["method"] == "GET":
                return login_page()
            raise Refusal(
                401,
                "This server asks for a key, and none that fits was given. Send it as: Authorization: Bearer KEY.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if self._house.draining and path not in OPEN and scope["method"] == "POST":
            raise Refusal(503, "The server is about to end and takes nothing new.", headers={"Retry-After": "30"})
        return None

    def _fits(self, scope: Scope, headers: Headers) -> bool:
        """Whether the key was given, as it is or as the cookie; a wrong one is answered when its time comes."""
        if self._key is None or self._key.held(headers):
            return True
        if (given := bearer(headers)) is None:
            return False
        if self._key.opens(given):
            return True
        scope["chumoku.held_back"] = self._key.missed(address_of(scope))
        return False

    def _check_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        name = hostname(hosts[0]) if len(hosts) == 1 else None
        if name is None or not (name in self._house.hosts or (self._house.any_address and is_address(name))):
            raise Refusal(
                403, "The Host of this request is none of this server's names. Name it with: chumoku serve --host-name."
            )

    def _foreign(self, scope: Scope, headers: Headers) -> bool:
        """Whether another page asks that may; one that may not is refused."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None:
            if origin in self._house.origins:
                return True
            if not same_origin(origin, headers["host"]):
                raise Refusal(
                    403, "Pages of another origin may not ask here. Allow one with: chumoku serve --cors ORIGIN."
                )
        elif site in ("cross-site", "same-site"):
            # A link that a person follows is no act of the page it stood on; the page cannot read where it led.
            followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            if not (followed and scope["method"] == "GET"):
                raise Refusal(
                    403, "Pages of another origin may not ask here. Allow one with: chumoku serve --cors ORIGIN."
                )
        return False

    async def _body(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        """The whole body, then whatever else the client does."""
        most, limits = self._house.limits.body, self._house.limits
        if (
            scope["method"] == "POST"
            and headers.get("content-type", "").split(";")[0].strip().lower() != "application/json"
        ):
            raise Refusal(415, "Bodies are JSON here, and say so: Content-Type: application/json.")
        length = headers.get("content-length", "0")
        too_large = Refusal(413, f"The body is larger than {most:,} bytes, the most this server takes.")
        if length.isdigit() and int(length) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise too_large
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise Refusal(408, f"The body did not come within {limits.body_seconds:g} seconds.") from None
        return replayed(bytes(body), receive)


def replayed(body: bytes, receive: Receive) -> Receive:
    """What was read already, once; after it what comes."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return left.pop() if left else await receive()

    return again


class Sent:
    """The way out: every answer gets the same headers, where it has none of its own."""

    def __init__(self, send: Send, house: House) -> None:
        self._send, self._house = send, house
        self.status = 500
        self.origin: str | None = None
        self.whole = False  # whether all of the body has come

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = {name.lower(): value for name, value in message.get("headers", [])}
            for name, value in HEADERS.items():
                headers.setdefault(name.encode(), value.encode())
            if self.origin is not None and self.origin in self._house.origins:
                headers[b"access-control-allow-origin"] = self.origin.encode("latin-1")
                headers[b"cross-origin-resource-policy"] = b"cross-origin"
                headers[b"vary"] = b"Origin"
            if not self.whole:
                headers[b"connection"] = b"close"
            message = {**message, "headers": list(headers.items())}
        await self._send(message)


def _client_headers(headers: Headers) -> dict[str, str]:
    """Allowed headers of a preflight: ours, and those that OpenAI's client adds."""
    asked = [name.strip().lower() for name in headers.get("access-control-request-headers", "").split(",")][:64]
    own = [name for name in asked if name.startswith(CLIENT_HEADERS) and name.replace("-", "").isalnum()]
    return {"Access-Control-Allow-Headers": ", ".join(["authorization", "content-type", *own])}


def address_of(scope: Scope) -> str:
    """Whom a request comes from; in IPv6, where everybody has very many addresses, the network of 64 bits."""
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
    """The name in a Host header, without its port."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    if parts.path or parts.query or parts.fragment or parts.username is not None:
        return None
    return parts.hostname


def is_address(name: str) -> bool:
    """Names can be made to point anywhere; an address in numbers cannot."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def same_origin(origin: str, host: str) -> bool:
    return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")
