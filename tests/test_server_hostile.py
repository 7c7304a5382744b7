"""A little of tests/hostile.py, for every run of the tests; and that its own check sees what it looks for."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from chumoku.server.look import routes
from chumoku.server.security.limits import Limits
from hostile import VALID, bodies, check, models, sent
from serving import Serving, serving, settled

from chumoku.server import request_body


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    place = tmp_path_factory.mktemp("hostile")
    with serving(models(place), limits=Limits(rows=5), runs=place) as running:
        yield running
        settled(running.house)


@pytest.mark.parametrize("path", VALID)
def test_hostile_bodies_are_answered(server: Serving, path: str) -> None:
    statuses, _ = sent(server, path, 60)
    assert statuses.total() == 60
    assert statuses[400] + statuses[404] > 10
    assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize("path", VALID)
def test_the_bodies_they_come_from_are_valid(server: Serving, path: str) -> None:
    answer = server.post(path, **VALID[path])
    assert answer.status_code == (404 if "runs" in path or "session" in path else 200), answer.text


def test_a_server_that_fails_is_noticed(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setattr(request_body, "_refusal", fails)
    with pytest.raises(AssertionError, match="500 after"):
        sent(server, "/v1/completions", 60)
    monkeypatch.undo()
    assert routes.LOOKS.keys() <= VALID.keys()
    with pytest.raises(AssertionError, match="NaN"):
        check(httpx.Response(200, text='{"a": NaN}', headers={"content-type": "application/json"}))


def test_bodies_are_the_same_each_time() -> None:
    assert bodies("/v1/look", 50) == bodies("/v1/look", 50)
    assert len({*bodies("/v1/look", 300)}) > 200
