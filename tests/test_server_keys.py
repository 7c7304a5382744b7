"""The key: found beside whatever else a browser sends, and not to be guessed in a hurry."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from bundles import chatty, made
from serving import KEY, Serving, serving
from starlette.datastructures import Headers

from chumoku.server.keys import ADDRESSES, BURST, LONGEST, PACE, Key, cookie_name
from chumoku.server.refusals import Refusal


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("models") / "writer", "decoder", chatty())


@pytest.fixture
def locked(model: Path) -> Iterator[Serving]:
    with serving({"writer": model}, key=KEY) as running:
        yield running


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    "other", ['a={"x":1}', "foo", 'a="un', "a b=c", "x=\xe6\x97\xa5", "expires=1", "$Path=/", "=", ";"]
)
@pytest.mark.parametrize("order", [1, -1])
def test_the_cookie_is_found_beside_others(locked: Serving, other: str, order: int) -> None:
    held = httpx.post(f"{locked.url}/v1/session", json={"key": KEY}).headers["set-cookie"].split(";")[0]
    assert held.startswith(f"chumoku_key_{locked.port}=")
    line = "; ".join([other, held][::order])
    answer = httpx.get(f"{locked.url}/v1/models", headers=[(b"Cookie", line.encode("latin-1"))])
    assert answer.status_code == 200
    wrong = line.replace(held, held[:-1] + ("0" if held[-1] != "0" else "1"))
    assert httpx.get(f"{locked.url}/v1/models", headers=[(b"Cookie", wrong.encode("latin-1"))]).status_code == 401


def test_two_servers_of_one_name_have_two_cookies(locked: Serving, model: Path) -> None:
    with serving({"writer": model}, key=KEY + "!") as other, httpx.Client() as browser:
        assert browser.post(f"{locked.url}/v1/session", json={"key": KEY}).status_code == 200
        assert browser.post(f"{other.url}/v1/session", json={"key": KEY + "!"}).status_code == 200
        assert browser.get(f"{locked.url}/v1/models").status_code == 200
        assert browser.get(f"{other.url}/v1/models").status_code == 200
    assert [cookie_name(host) for host in ("a", "a:80", "[::1]:81")] == [
        "chumoku_key",
        "chumoku_key_80",
        "chumoku_key_81",
    ]


def test_cookies_of_others_are_not_the_key() -> None:
    key = Key(KEY)
    for line in (
        f"chumoku_key={key.cookie}",
        f"xchumoku_key_7={key.cookie}",
        f"a=chumoku_key_7={key.cookie}",
        "chumoku_key_7=",
    ):
        assert not key.held(Headers({"host": "localhost:7", "cookie": line})), line
    assert key.held(Headers({"host": "localhost:7", "cookie": f"chumoku_key_7=old; chumoku_key_7={key.cookie}"}))


def test_guesses_wait_for_each_other() -> None:
    clock = Clock()
    key = Key(KEY, clock)
    assert [key.missed() for _ in range(BURST)] == [0.0] * BURST
    assert key.missed() == pytest.approx(PACE)
    assert key.missed() == pytest.approx(2 * PACE)
    clock.now += 1000
    assert key.missed() == 0.0


def test_strangers_that_guess_on_are_not_looked_at() -> None:
    clock = Clock()
    key = Key(KEY, clock)
    assert key.opens(KEY, "friend")
    tried = BURST + round(LONGEST / PACE) + 1
    for _ in range(tried):
        assert not key.opens("wrong", "stranger")
        assert key.missed() <= LONGEST
    with pytest.raises(Refusal) as refusal:
        key.opens("wrong", "stranger")
    assert (refusal.value.status, refusal.value.headers["Retry-After"]) == (429, "4")
    with pytest.raises(Refusal):
        key.opens(KEY, "stranger")
    assert key.opens(KEY, "friend"), "who has shown the key is not made to wait for the guesses of others"
    clock.now += 2 * PACE
    assert key.opens(KEY, "stranger")
    for number in range(3 * ADDRESSES):
        key.opens(KEY, str(number))
    assert len(key._friends) == ADDRESSES


def test_guessing_is_slow_and_the_right_key_is_not(locked: Serving) -> None:
    def guess(number: int) -> int:
        if number % 2:
            return others.post("/v1/session", json={"key": f"wrong {number}"}).status_code
        return others.get("/v1/models", headers={"Authorization": f"Bearer {number}"}).status_code

    count = BURST + 16
    with httpx.Client(base_url=locked.url, timeout=30) as others, ThreadPoolExecutor(count) as pool:
        assert locked.client.get("/v1/models").status_code == 200
        began = time.monotonic()
        guesses = [pool.submit(guess, number) for number in range(count)]
        time.sleep(0.2)
        for _ in range(3):
            asked = time.monotonic()
            assert locked.client.get("/v1/models").status_code == 200
            assert locked.post("/v1/session", key=KEY).status_code == 200
            assert time.monotonic() - asked < 0.5
        assert {one.result() for one in guesses} == {401}
    assert time.monotonic() - began > 15 * PACE
