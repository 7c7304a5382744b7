"""The API key: its cookie is found among other cookies, and guessing is slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from serving import CERTIFICATES, KEY, Serving, serving, until
from starlette.datastructures import Headers

from chumoku.server.errors import RequestError
from chumoku.server.security.keys import BURST, MAX_ADDRESSES, MAX_WAIT, SECONDS_PER_TRY, ApiKey, cookie_name
from chumoku.server.security.middleware import client_address


@pytest.fixture
def locked(writer: Path) -> Iterator[Serving]:
    with serving({"writer": writer}, key=KEY) as running:
        yield running


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    "other", ['a={"x":1}', "foo", 'a="un', "a b=c", "x=\xe6\x97\xa5", "expires=1", "$Path=/", "=", ";"]
)
@pytest.mark.parametrize("order", [1, -1])
def test_cookie_is_found_among_others(locked: Serving, other: str, order: int) -> None:
    session = httpx.post(f"{locked.url}/v1/session", json={"key": KEY}, verify=CERTIFICATES)
    cookie = session.headers["set-cookie"].split(";")[0]
    assert cookie.startswith(f"chumoku_key_{locked.port}=")
    line = "; ".join([other, cookie][::order])

    def models(line: str) -> int:
        headers = [(b"Cookie", line.encode("latin-1"))]
        return httpx.get(f"{locked.url}/v1/models", headers=headers, verify=CERTIFICATES).status_code

    assert models(line) == 200
    wrong = line.replace(cookie, cookie[:-1] + ("0" if cookie[-1] != "0" else "1"))
    assert models(wrong) == 401


def test_two_servers_on_one_host_have_separate_cookies(locked: Serving, writer: Path) -> None:
    with serving({"writer": writer}, key=KEY + "!") as other, httpx.Client() as browser:
        assert browser.post(f"{locked.url}/v1/session", json={"key": KEY}).status_code == 200
        assert browser.post(f"{other.url}/v1/session", json={"key": KEY + "!"}).status_code == 200
        assert browser.get(f"{locked.url}/v1/models").status_code == 200
        assert browser.get(f"{other.url}/v1/models").status_code == 200
    assert [cookie_name(host) for host in ("a", "a:80", "[::1]:81")] == [
        "chumoku_key",
        "chumoku_key_80",
        "chumoku_key_81",
    ]


def test_other_cookies_are_not_accepted() -> None:
    key = ApiKey(KEY)
    for line in (
        f"chumoku_key={key.cookie}",
        f"xchumoku_key_7={key.cookie}",
        f"a=chumoku_key_7={key.cookie}",
        "chumoku_key_7=",
    ):
        assert not key.has_cookie(Headers({"host": "localhost:7", "cookie": line})), line
    assert key.has_cookie(Headers({"host": "localhost:7", "cookie": f"chumoku_key_7=old; chumoku_key_7={key.cookie}"}))


def test_wrong_keys_of_one_address_are_delayed() -> None:
    clock = Clock()
    key = ApiKey(KEY, clock)
    assert [key.record_failure("a") for _ in range(BURST)] == [0.0] * BURST
    assert key.record_failure("a") == pytest.approx(SECONDS_PER_TRY)
    assert key.record_failure("a") == pytest.approx(2 * SECONDS_PER_TRY)
    assert key.record_failure("b") == 0.0, "another address has its own count"
    clock.now += 1000
    assert key.record_failure("a") == 0.0


def test_too_many_wrong_keys_are_refused_but_never_the_correct_one() -> None:
    clock = Clock()
    key = ApiKey(KEY, clock)
    for _ in range(BURST + round(MAX_WAIT / SECONDS_PER_TRY)):
        assert not key.matches("wrong")
        assert key.record_failure("guesser") <= MAX_WAIT
    with pytest.raises(RequestError) as refusal:
        key.record_failure("guesser")
    assert (refusal.value.status, refusal.value.headers["Retry-After"]) == (429, "4")
    assert key.matches(KEY), "the correct key is always accepted"
    assert key.record_failure("stranger") == 0.0
    clock.now += 2 * SECONDS_PER_TRY
    assert key.record_failure("guesser") <= MAX_WAIT


def test_many_addresses_share_a_rate_limit_and_little_memory() -> None:
    clock = Clock()
    key = ApiKey(KEY, clock)
    refused = 0
    for number in range(3 * MAX_ADDRESSES):
        try:
            assert key.record_failure(str(number)) == 0.0
        except RequestError:
            refused += 1
    assert refused > 2 * MAX_ADDRESSES
    assert key.matches(KEY)
    assert len(key._addresses) <= MAX_ADDRESSES
    for number in range(3 * MAX_ADDRESSES):  # slow enough for the rate limit
        clock.now += 1.0
        key.record_failure(str(number))
    assert len(key._addresses) <= MAX_ADDRESSES


def test_client_address() -> None:
    def of(address: str) -> str:
        return client_address({"client": (address, 5)})

    assert of("192.0.2.7") == of("::ffff:192.0.2.7") != of("192.0.2.8")
    assert of("2001:db8:1:2::1") == of("2001:db8:1:2:ffff::9") != of("2001:db8:1:3::1")
    assert of("a socket") == "a socket"
    assert client_address({"client": None}) == ""


@pytest.mark.slow
def test_many_wrong_keys_do_not_block_the_correct_one(locked: Serving) -> None:
    def guess(number: int) -> int:
        headers = {"Authorization": f"Bearer {number}"}
        return httpx.get(f"{locked.url}/v1/models", headers=headers, timeout=30, verify=CERTIFICATES).status_code

    transport = httpx.HTTPTransport(local_address="127.0.0.9")
    with ThreadPoolExecutor(90) as pool, httpx.Client(base_url=locked.url, transport=transport) as other:
        guesses = [pool.submit(guess, number) for number in range(180)]
        until(lambda: any(one.done() and one.result() == 429 for one in guesses))
        start = time.monotonic()
        for client in (other, locked.client):
            answer = client.get("/v1/models", headers={"Authorization": f"Bearer {KEY}"})
            assert answer.status_code == 200, answer.text
            assert client.post("/v1/session", json={"key": KEY}).status_code == 200
        assert time.monotonic() - start < 10, "not delayed like the guesses"
        assert {one.result() for one in guesses} == {401, 429}


def test_guessing_is_slow_but_the_correct_key_is_not(locked: Serving) -> None:
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
            start = time.monotonic()
            assert locked.client.get("/v1/models").status_code == 200
            assert locked.post("/v1/session", key=KEY).status_code == 200
            assert time.monotonic() - start < 0.5
        assert {one.result() for one in guesses} == {401}
    assert time.monotonic() - began > 15 * SECONDS_PER_TRY
