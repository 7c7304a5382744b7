"""The API key: compared in constant time, exchanged for a cookie, and slow to guess.

    correct key    accepted at once, whatever other clients do
    wrong key      per address: BURST at once, then one in SECONDS_PER_TRY seconds; the response is delayed that long.
                   Status 429 if the delay exceeds MAX_WAIT seconds, or if all addresses together try too often

A wrong key is counted when it arrives, so disconnecting before the response does not help an attacker.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from chumoku.server.errors import busy_error

COOKIE = "chumoku_key"
BURST, SECONDS_PER_TRY, MAX_WAIT = 10, 0.125, 4.0
ALL_ADDRESSES_FACTOR = 10  # all addresses together may try this many times as often as one
MAX_ADDRESSES = 1024  # counted separately; beyond this, the least recently used ones are dropped


class RateLimiter:
    """Allows one try in `seconds` seconds, and `BURST` tries at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._free_at = seconds, 0.0  # when the time used by all tries so far ends

    def wait(self, now: float) -> float:
        """Seconds that the next try has to wait."""
        return max(0.0, max(self._free_at, now) - now - (BURST - 1) * self._seconds)

    def record(self, now: float) -> None:
        self._free_at = max(self._free_at, now) + self._seconds


class ApiKey:
    """The API key and the cookie that replaces it in a browser; the cookie is valid until the server stops."""

    def __init__(self, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._digest = _digest(key.encode())
        self.cookie = hmac.new(secrets.token_bytes(32), self._digest, hashlib.sha256).hexdigest()
        self._clock = clock
        self._all_addresses = RateLimiter(SECONDS_PER_TRY / ALL_ADDRESSES_FACTOR)
        self._addresses: OrderedDict[str, RateLimiter] = OrderedDict()

    def matches(self, key: str) -> bool:
        """Whether this is the key. There is no rate limit here, so the correct key never has to wait."""
        return hmac.compare_digest(_digest(key.encode("utf-8", "surrogatepass")), self._digest)

    def record_failure(self, address: str) -> float:
        """Count a wrong key; returns the seconds to delay the response, or raises 429 if they are too many."""
        now = self._clock()
        limiter = self._addresses.pop(address, None) or RateLimiter(SECONDS_PER_TRY)
        self._addresses[address] = limiter
        if len(self._addresses) > MAX_ADDRESSES:
            self._addresses.popitem(last=False)
        wait = limiter.wait(now)
        if wait > MAX_WAIT or self._all_addresses.wait(now) > MAX_WAIT:
            raise busy_error("Too many wrong keys were given. Try again later.", seconds=round(MAX_WAIT))
        limiter.record(now)
        self._all_addresses.record(now)
        return wait

    def has_cookie(self, headers: Headers) -> bool:
        """Whether the request has the right cookie. A wrong one is not counted: it cannot be guessed and may be old."""
        cookie = _digest(self.cookie.encode())
        results = [hmac.compare_digest(_digest(value), cookie) for value in cookie_values(headers)]
        return any(results)  # compare all, in constant time


def cookie_name(host: str) -> str:
    """The cookie's name, with the port: browsers share cookies between all ports of a host."""
    port = urlsplit(f"//{host}").port
    return COOKIE if port is None else f"{COOKIE}_{port}"


def cookie_values(headers: Headers) -> Iterator[bytes]:
    """Values of our cookie. Parsed by hand, so that a malformed cookie of another site does not hide it."""
    name = cookie_name(headers["host"])
    for line in headers.getlist("cookie"):
        for pair in line.split(";"):
            pair_name, _, value = pair.strip().partition("=")
            if pair_name == name:
                yield value.encode("utf-8", "surrogatepass")


def bearer_token(headers: Headers) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
