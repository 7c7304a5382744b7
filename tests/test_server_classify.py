"""/v1/classify: the labels of the pipeline, in vLLM's form, and errors in OpenAI's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bundles import make_bundle
from serving import Serving, serving, wait_until_idle

import chumoku
from chumoku.pipeline import Pipeline
from chumoku.server.security.limits import Limits

LABELS = ("good", "bad", "none", "mixed", "odd")
TEXTS = ["one", "the cat sat on the mat", "猫が好きだ", "x y"]


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pipeline]:
    place = tmp_path_factory.mktemp("models")
    make_bundle(place / "classes", "encoder", head="classes", labels=LABELS, max_seq_length=53)
    make_bundle(place / "decoder", "decoder", head="classes", labels=LABELS[:3], pooling="last", label_bias=False)
    make_bundle(place / "tags", "encoder", head="tags", labels=LABELS)
    make_bundle(place / "encoder", "encoder")
    return {path.name: chumoku.load(path) for path in sorted(place.iterdir())}


@pytest.fixture(scope="module")
def server(pipelines: dict[str, Pipeline]) -> Iterator[Serving]:
    with serving(dict(pipelines), limits=Limits(texts=7)) as running:
        yield running
        wait_until_idle(running.state)


@pytest.mark.parametrize("name", ["classes", "decoder"])
def test_classes_equal_the_pipeline(name: str, server: Serving, pipelines: dict[str, Pipeline]) -> None:
    expected = pipelines[name].classify(TEXTS)
    found = server.post("/v1/classify", model=name, input=TEXTS).json()
    assert (found["object"], found["model"], found["id"][:9]) == ("list", name, "classify-")
    assert [one["index"] for one in found["data"]] == [0, 1, 2, 3]
    for one, labels in zip(found["data"], expected, strict=True):
        assert one["label"] == next(iter(labels))
        assert dict(zip(found["labels"], one["probs"], strict=True)) == pytest.approx(labels, abs=1e-6)
        assert one["num_classes"] == len(labels)
    tokens = [pipelines[name].tokenizer.encode(text) for text in TEXTS]
    framed = [[*before, *row, *after] for row in tokens for before, after in [pipelines[name].tokenizer.frame]]
    assert server.post("/v1/classify", model=name, input=framed).json()["data"] == found["data"]
    assert found["usage"]["prompt_tokens"] == sum(map(len, framed))
    with ThreadPoolExecutor(4) as pool:  # of several clients at once
        alone = pool.map(lambda text: server.post("/v1/classify", model=name, input=text).json()["data"][0], TEXTS)
    assert [one["label"] for one in alone] == [one["label"] for one in found["data"]]


def test_tags_equal_the_pipeline(server: Serving, pipelines: dict[str, Pipeline]) -> None:
    found = server.post("/v1/classify", model="tags", input=TEXTS[:2]).json()["data"]
    for one, words in zip(found, pipelines["tags"].classify(TEXTS[:2]), strict=True):
        assert [(word["word"], word["label"]) for word in one["words"]] == [(word.word, word.tag) for word in words]
        assert [word["probability"] for word in one["words"]] == pytest.approx([word.probability for word in words])


def test_a_long_text_is_cut_and_said(server: Serving) -> None:
    found = server.post("/v1/classify", model="classes", input="x" * 100).json()
    assert found["notices"] == ["1 of 1 texts were cut: this model reads the first 53 tokens of a text."]


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        ("classify", {"model": "encoder", "input": "a"}, "model", "cannot classify. Use /v1/embeddings"),
        ("classify", {"model": "classes", "input": " "}, "input", "empty"),
        ("classify", {"model": "classes", "input": ["a"] * 8}, "input", "8 texts were given; the limit is 7"),
        ("classify", {"model": "classes", "input": [[9999]]}, "input", "Token ids must be from 0 to"),
        ("classify", {"model": "tags", "input": [[5, 6]]}, "input", "send text, not token ids"),
        ("classify", {"model": "tags", "input": "x" * 99}, "input", "Text 1 has"),
        ("classify", {"model": "classes"}, "input", "input"),
        ("classify", {"model": "classes", "input": "a", "top": 3}, "top", "top"),
        ("completions", {"model": "decoder", "prompt": "a"}, "model", "has the head 'classes' and .*Use /v1/classify"),
    ],
)
def test_wrong_requests_are_refused(path: str, body: dict[str, Any], param: str, said: str, server: Serving) -> None:
    answer = server.post(f"/v1/{path}", **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert re.search(said, error["message"]), error["message"]
