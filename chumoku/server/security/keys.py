"""The key: compared in constant time, exchanged for a cookie, and slow to guess.

    right key    is always let in at once, whatever anybody else does
    wrong key    of one address: BURST at once, then one in PACE seconds; the answer is held back for that long
                 beyond a wait of LONGEST seconds, or when all addresses together try too often: 429 at once

Wrong keys are counted when they arrive, so leaving before the answer comes gains nothing.
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

from chumoku.server.errors import busy

COOKIE = "chumoku_key"
BURST, PACE, LONGEST = 10, 0.125, 4.0
ALL = 10  # times as many wrong keys from all addresses together
ADDRESSES = 1024  # counted one by one; of more, those that tried least recently are forgotten


class Brake:
    """Counts tries; each takes `pace` seconds, and the first `BURST` of them are free."""

    def __init__(self, pace: float) -> None:
        self._pace, self._free = pace, 0.0  # the moment at which no try has to wait any more

    def wait(self, now: float) -> float:
        """The seconds for which the next try would wait."""
        return max(0.0, max(self._free, now) - now - (BURST - 1) * self._pace)

    def count(self, now: float) -> None:
        self._free = max(self._free, now) + self._pace


class Key:
    """The key, and what a browser holds in its place, which dies with the server."""

    def __init__(self, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._digest = _digest(key.encode())
        self.cookie = hmac.new(secrets.token_bytes(32), self._digest, hashlib.sha256).hexdigest()
        self._clock = clock
        self._everyone = Brake(PACE / ALL)
        self._addresses: OrderedDict[str, Brake] = OrderedDict()

    def opens(self, key: str) -> bool:
        """Whether it is the key. No limit applies here: whoever has the key is never made to wait."""
        return hmac.compare_digest(_digest(key.encode("utf-8", "surrogatepass")), self._digest)

    def missed(self, address: str) -> float:
        """Count a wrong key; the seconds for which its answer is held back, or 429 where they would be too many."""
        now = self._clock()
        own = self._addresses.pop(address, None) or Brake(PACE)
        self._addresses[address] = own
        if len(self._addresses) > ADDRESSES:
            self._addresses.popitem(last=False)
        wait = own.wait(now)
        if wait > LONGEST or self._everyone.wait(now) > LONGEST:
            raise busy("Too many wrong keys were given. Try again later.", seconds=round(LONGEST))
        own.count(now)
        self._everyone.count(now)
        return wait

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
