"""Run folders that change while they are read, or contain pipes: no request fails or blocks others."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bundles import chat_tokenizer, make_bundle
from serving import Serving, serving, until, wait_until_idle

from chumoku.server.security.limits import Limits
from chumoku.weights import bundle
from chumoku.weights.checksums import atomic_folder, delete_folder

LOOK = {"text": "abc", "target": "de", "map": "decoder", "layer": 1, "head": 2}
PLACE = Path("checkpoints") / "step-00000030"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {
        "writer": make_bundle(place / "writer", "decoder", chat_tokenizer()),
        "old": make_bundle(place / "old", "decoder"),
        "new": make_bundle(place / "new", "decoder", width=18, heads=3, layers=3),  # another shape
    }


@pytest.fixture
def runs(tmp_path: Path, models: dict[str, Path]) -> Path:
    folder = tmp_path / "runs"
    for name in ("one", "two"):
        shutil.copytree(models["old"], folder / name / PLACE)
        (folder / name / "metrics.jsonl").write_text('{"step": 30, "loss": 1.5}\n', "utf-8")
    return folder


@pytest.fixture
def server(runs: Path, models: dict[str, Path]) -> Iterator[Serving]:
    with serving({"writer": models["writer"]}, runs=runs, limits=Limits(file_seconds=20)) as running:
        yield running
        wait_until_idle(running.state)


def look(server: Serving, run: str, step: int = 30) -> Any:
    return server.post(f"/v1/runs/{run}/look", checkpoint=step, **LOOK)


def test_replaced_checkpoint_is_old_or_new_but_not_mixed(server: Serving, runs: Path, models: dict[str, Path]) -> None:
    expected = {}
    for name in ("old", "new"):
        shutil.rmtree(runs / "two" / PLACE)
        shutil.copytree(models[name], runs / "two" / PLACE)
        expected[name] = look(server, "two").json()["weights"]
    over, rotations = threading.Event(), [0]

    def rotate() -> None:
        while not over.is_set():
            name = ("new", "old")[rotations[0] % 2]
            with atomic_folder(runs / "one" / PLACE) as working:
                for file in models[name].iterdir():
                    if file.name != "manifest.json":
                        shutil.copy(file, working)
            for step in (40 + rotations[0] % 3, 50):  # add and remove others
                other = runs / "one" / "checkpoints" / f"step-{step:08}"
                if other.exists():
                    delete_folder(other)
                else:
                    shutil.copytree(models[name], other)
            rotations[0] += 1
            time.sleep(0.02 * 2 ** (rotations[0] % 5))  # the longest pauses are enough to read a checkpoint

    thread = threading.Thread(target=rotate)
    thread.start()
    seen = set()
    try:
        end = time.monotonic() + 60
        while (rotations[0] < 40 or len(seen) < 2) and time.monotonic() < end:
            answer = look(server, "one")
            assert answer.status_code == 200, answer.text
            assert answer.json()["weights"] in expected.values(), "parts of two checkpoints in one response"
            seen.add(answer.json()["weights"])
            listed = server.client.get("/v1/runs")
            assert listed.status_code == 200, listed.text
            assert [30 in run["checkpoints"] for run in listed.json()["runs"]] == [True, True]
    finally:
        over.set()
        thread.join()
    assert len(seen) == 2
    assert rotations[0] > 10
    shutil.rmtree(runs / "one" / PLACE)
    assert look(server, "one").status_code == 404


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "config.json", "tokenizer.json", "more"])
def test_pipes_in_a_checkpoint_are_refused(server: Serving, runs: Path, name: str) -> None:
    path = runs / "one" / PLACE / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    began = time.monotonic()
    answer = look(server, "one")
    assert answer.status_code == 400, answer.text
    assert f"{name} is not a regular file" in answer.json()["error"]["message"]
    assert look(server, "two").status_code == 200
    assert time.monotonic() - began < 10, "nothing blocked"


def test_pipes_in_a_run_do_not_block(server: Serving, runs: Path) -> None:
    for name in ("metrics.jsonl", "recipe.json"):
        (runs / "one" / name).unlink(missing_ok=True)
        os.mkfifo(runs / "one" / name)
    began = time.monotonic()
    listed = server.client.get("/v1/runs").json()["runs"]
    assert {run["id"] for run in listed} == {"one", "two"}
    assert server.client.get("/v1/runs/one").json()["points"] == []
    assert time.monotonic() - began < 10


def test_slow_files_do_not_block_other_requests(server: Serving, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that does not respond."""
    body = {"model": "writer", "prompt": "a", "max_tokens": 2}
    assert server.post("/v1/completions", **body).status_code == 200
    server.state.files.seconds = 2.0
    go, load, opened = threading.Event(), bundle.load, []

    def stuck(path: Path) -> object:
        opened.append(path)
        if path.parts[-3] == "one":
            go.wait(30)
        return load(path)

    monkeypatch.setattr(bundle, "load", stuck)
    try:
        with ThreadPoolExecutor(9) as pool:
            waiting = [pool.submit(look, server, "one") for _ in range(9)]
            until(lambda: bool(opened))
            began = time.monotonic()
            assert look(server, "two").status_code == 200
            assert server.post("/v1/completions", **body).status_code == 200
            assert server.client.get("/v1/runs").status_code == 200
            assert time.monotonic() - began < 2.0
            answers = [one.result() for one in waiting]
        assert {one.status_code for one in answers} == {503}
        assert "within 2 seconds" in answers[0].json()["error"]["message"]
        assert sum(path.parts[-3] == "one" for path in opened) == 1, "all requests shared one read"
    finally:
        go.set()
    until(lambda: look(server, "one").status_code == 200)
