"""A small sample of tests/hostile.py, and tests that its checks find errors."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from hostile import VALID, bodies, check, models, send_bodies
from serving import Serving, serving, wait_until_idle

from chumoku.server import request_body
from chumoku.server.look import routes
from chumoku.server.security.limits import Limits


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    place = tmp_path_factory.mktemp("hostile")
    with serving(models(place), limits=Limits(rows=5), runs=place) as running:
        yield running
        wait_until_idle(running.state)


@pytest.mark.sample(5)
@pytest.mark.parametrize("path", VALID)
def test_hostile_bodies_are_answered(server: Serving, path: str) -> None:
    statuses, _ = send_bodies(server, path, 60)
    assert statuses.total() == 60
    assert statuses[400] + statuses[404] > 10
    assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize("path", VALID)
def test_unchanged_bodies_are_valid(server: Serving, path: str) -> None:
    answer = server.post(path, **VALID[path])
    assert answer.status_code == (404 if "runs" in path or "session" in path else 200), answer.text


def test_server_errors_are_noticed(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setattr(request_body, "_to_error", fails)
    with pytest.raises(AssertionError, match="500 after"):
        send_bodies(server, "/v1/completions", 60)
    monkeypatch.undo()
    assert routes.LOOKS.keys() <= VALID.keys()
    with pytest.raises(AssertionError, match="NaN"):
        check(httpx.Response(200, text='{"a": NaN}', headers={"content-type": "application/json"}))


def test_bodies_are_deterministic() -> None:
    assert bodies("/v1/look", 50) == bodies("/v1/look", 50)
    assert len({*bodies("/v1/look", 300)}) > 200
