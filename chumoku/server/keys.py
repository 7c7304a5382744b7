"""The key: never compared letter by letter, exchanged for a cookie, and not to be guessed in a hurry.

    wrong key    BURST at once, then PACE seconds from one to the next: whoever guesses waits for the answer
    too many     a line of LONGEST seconds is full: strangers are not looked at (429) until it is shorter
    right key    is never made to wait, where an address has shown it before or the line is not full

Wrong keys are counted when they are seen, so leaving before the answer comes gains nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from chumoku.server.refusals import busy

COOKIE = "chumoku_key"
BURST, PACE, LONGEST = 10, 0.125, 4.0
ADDRESSES = 256  # remembered for having shown the key


class Key:
    """The key, and what a browser holds in its place, which dies with the server."""

    def __init__(self, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._digest = _digest(key.encode())
        self.cookie = hmac.new(secrets.token_bytes(32), self._digest, hashlib.sha256).hexdigest()
        self._clock = clock
        self._free = 0.0  # the moment at which no wrong key has to wait any more
        self._friends: dict[str, None] = {}

    def opens(self, key: str, address: str = "") -> bool:
        """Whether it is the key; whoever guessed too often is not told."""
        if self._wait() > LONGEST and address not in self._friends:
            raise busy("Too many wrong keys were given. Try again later.", seconds=round(LONGEST))
        if not hmac.compare_digest(_digest(key.encode("utf-8", "surrogatepass")), self._digest):
            return False
        self._friends.pop(address, None)
        self._friends[address] = None
        if len(self._friends) > ADDRESSES:
            del self._friends[next(iter(self._friends))]
        return True

    def missed(self) -> float:
        """Count a wrong key; the seconds for which its answer is held back."""
        self._free = max(self._free, self._clock()) + PACE
        return min(self._wait(), LONGEST)

    def _wait(self) -> float:
        return max(0.0, self._free - self._clock() - BURST * PACE)

    def held(self, headers: Headers) -> bool:
        """Whether the cookie is there. It cannot be guessed, and an old one is no guess."""
        found = [hmac.compare_digest(_digest(value), _digest(self.cookie.encode())) for value in cookies(headers)]
        return any(found)


def cookie_name(host: str) -> str:
    """Browsers keep one set of cookies for all ports of a name; two servers there must not overwrite each other's."""
    port = urlsplit(f"//{host}").port
    return COOKIE if port is None else f"{COOKIE}_{port}"


def cookies(headers: Headers) -> Iterator[bytes]:
    """The values of our name. By hand: one cookie of others that is oddly written must not hide the rest."""
    name = cookie_name(headers["host"])
    for line in headers.getlist("cookie"):
        for pair in line.split(";"):
            found, _, value = pair.strip().partition("=")
            if found == name:
                yield value.encode("utf-8", "surrogatepass")


def bearer(headers: Headers) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
