"""The OpenAI-compatible API: the same texts as the command line gives, alone and in a full batch."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from bundles import byte_tokenizer, chat_tokenizer, make_bundle
from serving import Serving, serving, wait_until_idle

import chumoku
from chumoku.decoding import beam
from chumoku.pipeline import Pipeline
from chumoku.server.openai.responses import ResponseFormatter

PROMPTS = [f"{word} {number}" for number in range(7) for word in ("猫と", "one", "the cat sat")]


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pipeline]:
    place = tmp_path_factory.mktemp("models")
    make_bundle(place / "writer", "decoder", chat_tokenizer(), context=127)
    make_bundle(place / "translator", "encoder-decoder", byte_tokenizer(("ja", "en")))
    make_bundle(place / "encoder", "encoder")
    return {name: chumoku.load(place / name) for name in ("writer", "translator", "encoder")}


@pytest.fixture(scope="module")
def server(pipelines: dict[str, Pipeline]) -> Iterator[Serving]:
    with serving(dict(pipelines)) as running:
        yield running
        wait_until_idle(running.state)


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none is needed", max_retries=0) as one:
        yield one


def test_models_are_listed(client: openai.OpenAI) -> None:
    listed = {one.id: one for one in client.models.list()}
    assert list(listed) == ["writer", "translator", "encoder"]
    assert listed["writer"].owned_by == "chumoku"
    assert client.models.retrieve("writer").model_dump()["chat"] is True
    assert client.models.retrieve("translator").model_dump()["into"] == ["en", "ja"]
    with pytest.raises(openai.NotFoundError, match="Available: writer, translator, encoder"):
        client.models.retrieve("other")


def test_completions_equal_the_command_line(client: openai.OpenAI, pipelines: dict[str, Pipeline]) -> None:
    expected = [pipelines["writer"].generate(prompt, max_new_tokens=17, temperature=0) for prompt in PROMPTS]
    for prompt, text in zip(PROMPTS[:3], expected, strict=False):
        answer = client.completions.create(model="writer", prompt=prompt, max_tokens=17, temperature=0)
        assert answer.choices[0].text == text
    # In a full batch of separate requests.
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        futures = [
            pool.submit(client.completions.create, model="writer", prompt=one, max_tokens=17, temperature=0)
            for one in PROMPTS
        ]
        assert [one.result().choices[0].text for one in futures] == expected
    together = client.completions.create(model="writer", prompt=PROMPTS, max_tokens=17, temperature=0)
    assert [one.text for one in together.choices] == expected
    assert [one.index for one in together.choices] == list(range(len(PROMPTS)))


def test_a_seed_gives_the_same_texts(client: openai.OpenAI, pipelines: dict[str, Pipeline]) -> None:
    words = {"temperature": 0.9, "top_p": 0.8, "seed": 5}
    answer = client.completions.create(model="writer", prompt="猫", max_tokens=13, n=3, **words)  # type: ignore[call-overload]
    expected = pipelines["writer"].generate(["猫"] * 3, max_new_tokens=13, **words)
    assert [one.text for one in answer.choices] == expected
    assert len({*expected}) == 3
    shared = {"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.7}
    ours, extra = {**shared, "seed": 3}, {**shared, "min_tokens": 2}
    answer = client.completions.create(model="writer", prompt="猫", max_tokens=13, seed=3, extra_body=extra)
    assert answer.choices[0].text == pipelines["writer"].generate("猫", max_new_tokens=13, min_new_tokens=2, **ours)
    unseeded = {client.completions.create(model="writer", prompt="猫", max_tokens=13).choices[0].text for _ in range(5)}
    assert len(unseeded) > 1


def test_prompt_may_be_token_ids(client: openai.OpenAI, pipelines: dict[str, Pipeline]) -> None:
    tokens = pipelines["writer"].tokenizer.encode("the cat")
    expected = pipelines["writer"].generate("the cat", max_new_tokens=11, temperature=0)
    for prompt in (tokens, [tokens]):
        answer = client.completions.create(model="writer", prompt=prompt, max_tokens=11, temperature=0)
        assert answer.choices[0].text == expected
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(tokens)


def test_usage_and_finish_reasons(client: openai.OpenAI, pipelines: dict[str, Pipeline]) -> None:
    prompt, tokenizer = "one two", pipelines["writer"].tokenizer
    answer = client.completions.create(model="writer", prompt=prompt, max_tokens=19, temperature=0)
    text, usage = answer.choices[0].text, answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (7, 19, 26)
    assert answer.choices[0].finish_reason == "length"
    stop = text[3:5]
    cut = client.completions.create(model="writer", prompt=prompt, max_tokens=19, temperature=0, stop=[stop])
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].text == pipelines["writer"].generate(prompt, max_new_tokens=19, temperature=0, stop=[stop])
    # The end token ends a text and is not counted.
    end = str(tokenizer.roles.end)
    ended = client.completions.create(model="writer", prompt=prompt, max_tokens=19, logit_bias={end: 100})
    assert (ended.choices[0].text, ended.choices[0].finish_reason) == ("", "stop")
    assert ended.usage is not None
    assert ended.usage.completion_tokens == 0
    # The end of the context (127 positions) ends it too.
    whole = client.completions.create(model="writer", prompt=[5] * 125, max_tokens=19, temperature=0)
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (2, "length")


def test_streams_give_the_same_text(client: openai.OpenAI, server: Serving) -> None:
    request = {"model": "writer", "prompt": ["猫と", "one"], "max_tokens": 23, "n": 2, "seed": 1}
    whole = client.completions.create(**request)  # type: ignore[call-overload]
    texts, ends, usage = [""] * 4, [None] * 4, None
    for chunk in client.completions.create(**request, stream=True, stream_options={"include_usage": True}):  # type: ignore[call-overload]
        for one in chunk.choices:
            texts[one.index] += one.text
            ends[one.index] = ends[one.index] or one.finish_reason
        usage = chunk.usage or usage
    assert texts == [one.text for one in whole.choices]
    assert ends == [one.finish_reason for one in whole.choices]
    assert usage == whole.usage
    with httpx.stream("POST", f"{server.url}/v1/completions", json={**request, "stream": True}) as raw:
        assert raw.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = [json.loads(line[6:]) for line in raw.iter_lines() if line.startswith("data: {")]
    assert all("usage" not in one for one in events)


def test_chat_equals_the_command_line(client: openai.OpenAI, pipelines: dict[str, Pipeline]) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "猫?"}]},
    ]
    plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "猫?"}]
    expected = pipelines["writer"].chat(plain, max_new_tokens=19, temperature=0)
    request = {"model": "writer", "messages": messages, "max_completion_tokens": 19, "temperature": 0}
    answer = client.chat.completions.create(**request)  # type: ignore[call-overload]
    assert answer.choices[0].message.content == expected
    assert answer.choices[0].message.role == "assistant"
    pieces = list(client.chat.completions.create(**request, stream=True))  # type: ignore[call-overload]
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == expected
    assert pieces[-1].choices[0].finish_reason == answer.choices[0].finish_reason


def test_chat_replies_are_trimmed(server: Serving, pipelines: dict[str, Pipeline]) -> None:
    space = str(pipelines["writer"].tokenizer.encode(" ")[0])
    body = {"model": "writer", "max_tokens": 5, "logit_bias": {space: 100}}
    reply = server.post("/v1/chat/completions", messages=[{"role": "user", "content": "a"}], **body).json()
    assert (reply["choices"][0]["message"]["content"], reply["usage"]["completion_tokens"]) == ("", 5)
    assert server.post("/v1/completions", prompt="a", **body).json()["choices"][0]["text"] == " " * 5


def test_messages_that_do_not_fit_are_dropped(server: Serving, pipelines: dict[str, Pipeline]) -> None:
    old = [{"role": "user", "content": "x" * 90}, {"role": "assistant", "content": "y" * 9}]
    new = [{"role": "user", "content": "z"}]
    body = {"model": "writer", "max_tokens": 5, "temperature": 0}
    answer = server.post("/v1/chat/completions", messages=[*old, *new], **body).json()
    assert answer["dropped_messages"] == 2
    alone = server.post("/v1/chat/completions", messages=new, **body).json()
    assert answer["choices"] == alone["choices"]
    assert "dropped_messages" not in alone


def test_logprobs_equal_the_model(client: openai.OpenAI, pipelines: dict[str, Pipeline]) -> None:
    pipeline = pipelines["writer"]
    prompt = pipeline.tokenizer.encode("one")
    # Penalties, bias and temperature change the choice, not the logprobs.
    changed = {
        "temperature": 0.7,
        "seed": 2,
        "extra_body": {"repetition_penalty": 1.5, "top_k": 40},
        "logit_bias": {"7": 3},
    }
    answer = client.completions.create(model="writer", prompt="one", max_tokens=5, logprobs=3, **changed)  # type: ignore[call-overload]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert (len(logprobs.tokens), [len(top) for top in logprobs.top_logprobs]) == (5, [3] * 5)
    lengths = [0 if token.startswith("bytes:") else len(token) for token in logprobs.tokens]
    assert logprobs.text_offset == [sum(lengths[:place]) for place in range(5)]
    assert {*lengths} == {0, 1}, "some tokens are parts of characters"
    # Compare with the model itself, without a cache.
    written = list(prompt)
    for place in range(5):
        with torch.no_grad():
            shares = pipeline.model(torch.tensor([written])).logits[0, -1].log_softmax(-1)
        assert sorted(logprobs.top_logprobs[place].values()) == pytest.approx(
            sorted(shares.topk(3).values.tolist()), abs=1e-4
        )
        near = (shares - logprobs.token_logprobs[place]).abs().argmin()
        assert float(shares[near]) == pytest.approx(logprobs.token_logprobs[place], abs=1e-4)
        written.append(int(near))
    assert pipeline.tokenizer.decode(written[len(prompt) :]) == answer.choices[0].text
    messages: Any = [{"role": "user", "content": "a"}]
    chat = client.chat.completions.create(
        model="writer", messages=messages, max_tokens=3, seed=2, logprobs=True, top_logprobs=2
    )
    content = chat.choices[0].logprobs
    assert content is not None
    assert content.content is not None
    assert [len(one.top_logprobs) for one in content.content] == [2, 2, 2]
    assert all(one.logprob <= 0 and one.bytes is not None for one in content.content)


@pytest.mark.parametrize("stream", [False, True])
def test_a_beginning_that_was_read_before_is_cached(client: openai.OpenAI, server: Serving, stream: bool) -> None:
    """The second turn begins with the first turn's prompt, and the text is that of a server without a cache."""
    first = {"model": "writer", "prompt": f"{stream} The cat sat on the mat.", "max_tokens": 7, "temperature": 0}
    start = client.completions.create(**first)  # type: ignore[call-overload]
    assert start.usage.prompt_tokens_details.cached_tokens == 0
    more = {**first, "prompt": f"{first['prompt']} And then"}
    if stream:
        chunks = list(client.completions.create(**more, stream=True, stream_options={"include_usage": True}))  # type: ignore[call-overload]
        usage, text = chunks[-1].usage, "".join(chunk.choices[0].text for chunk in chunks[:-1])
    else:
        answer = client.completions.create(**more)  # type: ignore[call-overload]
        usage, text = answer.usage, answer.choices[0].text
    assert start.usage.prompt_tokens <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens
    assert text == server.state.models["writer"].pipeline.generate(more["prompt"], max_new_tokens=7, temperature=0)


@pytest.mark.parametrize("stream", [False, True])
def test_no_logprobs_after_a_stop_string(client: openai.OpenAI, stream: bool) -> None:
    request = {"model": "writer", "prompt": "one", "max_tokens": 29, "seed": 3, "logprobs": 2}
    free = client.completions.create(**request).choices[0]  # type: ignore[call-overload]
    assert len(free.logprobs.tokens) == 29
    letter = next(place for place, token in enumerate(free.logprobs.tokens) if place > 5 and len(token) == 1)
    stop = free.logprobs.tokens[letter]
    assert free.text.index(stop) > 0
    before = free.logprobs.tokens.index(stop)
    if stream:
        chunks = client.completions.create(**request, stop=[stop], stream=True)  # type: ignore[call-overload]
        logprobs = [one for chunk in chunks if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.tokens]
    else:
        logprobs = client.completions.create(**request, stop=[stop]).choices[0].logprobs.tokens  # type: ignore[call-overload]
    assert logprobs == free.logprobs.tokens[:before]


def test_additional_client_fields_are_accepted(client: openai.OpenAI) -> None:
    plain = {"model": "writer", "max_tokens": 7, "temperature": 0}
    named = [{"role": "user", "content": "a", "name": "Natsume"}]
    answer = client.chat.completions.create(messages=named, response_format={"type": "text"}, **plain)  # type: ignore[call-overload]
    alone = client.chat.completions.create(messages=[{"role": "user", "content": "a"}], **plain)  # type: ignore[call-overload]
    assert answer.choices[0].message.content == alone.choices[0].message.content


def test_large_responses_are_encoded_in_a_reader(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The responses are equal except for their ids."""
    threads: list[str] = []
    response = ResponseFormatter.response

    def record_thread(*arguments: Any, **options: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return response(*arguments, **options)

    monkeypatch.setattr(ResponseFormatter, "response", record_thread)
    request = {"model": "writer", "prompt": ["a", "猫"], "max_tokens": 60, "min_tokens": 60, "seed": 3, "logprobs": 20}
    large = server.post("/v1/completions", **request).json()
    monkeypatch.setattr("chumoku.server.openai.routes.LARGE", 1 << 30)
    small = server.post("/v1/completions", **request).json()
    assert threads[0].startswith("reader")
    assert not threads[1].startswith("reader")
    assert (large["choices"], large["usage"]) == (small["choices"], small["usage"])


def test_embeddings_equal_the_pipeline(client: openai.OpenAI, server: Serving, pipelines: dict[str, Pipeline]) -> None:
    texts = ["猫", "a longer text, which is cut into more", "one"]
    expected = pipelines["encoder"].embed(texts).numpy()
    answer = client.embeddings.create(model="encoder", input=texts)  # as base64
    assert np.abs(np.array([one.embedding for one in answer.data]) - expected).max() < 1e-5
    plain = server.post("/v1/embeddings", model="encoder", input=texts[0], encoding_format="float").json()
    assert np.abs(np.array(plain["data"][0]["embedding"]) - expected[0]).max() < 1e-5
    assert plain["usage"]["prompt_tokens"] == len("猫".encode()) + 1
    end = pipelines["encoder"].tokenizer.roles.end
    tokens = server.post("/v1/embeddings", model="encoder", input=[*pipelines["encoder"].tokenizer.encode("one"), end])
    assert np.abs(np.array(tokens.json()["data"][0]["embedding"]) - expected[2]).max() < 1e-5


def test_translations_equal_the_command_line(server: Serving, pipelines: dict[str, Pipeline]) -> None:
    pipeline, texts = pipelines["translator"], ["猫と", "one two three", "a"]
    for options, words in (({}, {}), ({"beam": 3, "length_penalty": 0.5, "max_tokens": 7}, {"max_new_tokens": 7})):
        answer = server.post("/v1/translate", model="translator", text=texts, **options).json()
        request = {**{key: value for key, value in options.items() if key != "max_tokens"}, **words}
        output = [one["hypotheses"][0]["text"] for one in answer["translations"]]
        assert output == pipeline.translate(texts, **request)
        assert output == [pipeline.translate(text, **request) for text in texts]
    into = server.post("/v1/translate", model="translator", text="猫", into="en").json()
    assert into["translations"][0]["hypotheses"][0]["text"] == pipeline.translate("猫", into="en")
    # Concurrent requests with the same options share a search.
    with ThreadPoolExecutor(11) as pool:
        many = list(
            pool.map(lambda n: server.post("/v1/translate", model="translator", text=f"text {n}").json(), range(11))
        )
    output = [one["translations"][0]["hypotheses"][0]["text"] for one in many]
    assert output == [pipeline.translate(f"text {n}") for n in range(11)]


def test_translation_alignment_and_tree(server: Serving, pipelines: dict[str, Pipeline]) -> None:
    body = {"model": "translator", "text": "猫と", "beam": 5, "n": 3, "max_tokens": 9, "alignment": True, "tree": True}
    answer = server.post("/v1/translate", **body).json()
    one, pipeline = answer["translations"][0], pipelines["translator"]
    source = [token["id"] for token in one["source"]]
    assert len(one["hypotheses"]) == 3
    for hypothesis in one["hypotheses"]:
        tokens = hypothesis["tokens"]
        total = sum(token["logprob"] for token in tokens)
        assert hypothesis["score"] == pytest.approx(total / ((5 + len(tokens)) / 6), abs=1e-4)
        ids = [token["id"] for token in tokens if token["id"] != pipeline.tokenizer.roles.end]
        attention = beam.cross_attention(pipeline.model, source, ids, pipeline.tokenizer.roles.begin).mean((0, 1))  # type: ignore[arg-type]
        assert np.abs(np.array(hypothesis["alignment"]) - attention.numpy()[: len(tokens)]).max() < 1e-5
        assert [sum(row) for row in hypothesis["alignment"]] == pytest.approx([1.0] * len(tokens), abs=1e-5)
        assert [len(row) for row in hypothesis["candidates"]] == [5] * len(tokens)
        for token, best in zip(tokens, hypothesis["candidates"], strict=True):
            shares = [each["probability"] for each in best]
            assert shares == sorted(shares, reverse=True)
            own = next((each["probability"] for each in best if each["id"] == token["id"]), None)
            assert own is None or math.log(own) == pytest.approx(token["logprob"], abs=1e-3)
    check_tree(one["tree"]["nodes"], one["hypotheses"][0]["tokens"])
    two = {**body, "text": "猫と。犬と。"}
    (found,) = server.post("/v1/translate", **two).json()["translations"]
    check_tree(found["tree"]["nodes"], found["hypotheses"][0]["tokens"])
    (other,) = server.post("/v1/translate", **two | {"tree": False}).json()["translations"]
    assert found["source"] == other["source"], "split into sentences as without a tree"
    assert [one["text"] for one in found["hypotheses"]] == [one["text"] for one in other["hypotheses"]]


def check_tree(nodes: list[dict], best: list[dict]) -> None:
    chosen = [node for node in nodes if node["state"] == "chosen"]
    assert [node["id"] for node in chosen] == [token["id"] for token in best]
    for node in nodes:
        before = nodes[node["parent"]] if node["parent"] >= 0 else {"score": 0.0, "step": 0, "state": "live"}
        assert node["step"] == before["step"] + 1
        assert node["score"] == pytest.approx(before["score"] + node["logprob"], abs=1e-4)
        if node["state"] in ("ended", "live", "chosen"):
            assert before["state"] in ("live", "chosen"), "a dropped branch has no children"
    assert {"dropped"} < {node["state"] for node in nodes}


@pytest.mark.parametrize(
    ("path", "body", "param", "sentence"),
    [
        ("completions", {"promt": "a"}, "promt", "Did you mean prompt"),
        ("completions", {"prompt": "a", "least": 3}, "least", "Did you mean min_tokens?"),
        ("chat/completions", {"messages": [], "least": 3}, "least", "Did you mean min_tokens?"),
        ("completions", {"prompt": "a", "min_tokens": 5000}, "min_tokens", "limited to 4,096"),
        ("completions", {"prompt": "a", "echo": True}, "echo", "only false is supported"),
        ("completions", {"prompt": "a", "suffix": "x"}, "suffix", "cannot fill in"),
        ("completions", {"prompt": "a", "best_of": 2}, "best_of", "only 1 is supported"),
        ("completions", {"prompt": "a", "repetition": 1.5}, "repetition", "Did you mean repetition_penalty?"),
        ("completions", {"prompt": "a", "presence_penalty": 2.5}, "presence_penalty", "less than or equal to 2"),
        ("completions", {"prompt": "a", "frequency_penalty": 3}, "frequency_penalty", "2"),
        ("completions", {"prompt": "a", "n": 17}, "n", "'n' is limited to 16 on this server; the request asks for 17"),
        ("completions", {"prompt": ["a"] * 9, "n": 8}, "n", "72 texts"),
        ("completions", {"prompt": "a", "logprobs": 21}, "logprobs", "limited to 20"),
        ("completions", {"prompt": "a", "stop": ["x"] * 9}, "stop", "limited to 8"),
        ("completions", {"prompt": "a", "stop": "x" * 257}, "stop", "257 characters"),
        ("completions", {"prompt": "a", "stop": ""}, "stop", "at least 1 character"),
        ("completions", {"prompt": "a", "max_tokens": 5000}, "max_tokens", "limited to 4,096"),
        ("completions", {"prompt": "a", "max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ("completions", {"prompt": "a", "temperature": "hot"}, "temperature", "number"),
        ("completions", {"prompt": "a", "top_p": 0}, "top_p", "greater than 0"),
        ("completions", {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "'x' is not a number"),
        ("completions", {"prompt": "a", "logit_bias": {"99999": 1}}, "logit_bias", "names token 99999"),
        ("completions", {"prompt": ["a"] * 65}, "prompt", "65 texts"),
        ("completions", {"prompt": [[5]] * 65, "n": 2}, "prompt", "130 texts"),
        ("completions", {"prompt": "a", "stream_options": {}}, "stream_options", "stream to be true"),
        ("completions", {"prompt": "x" * 200}, "prompt", "200 tokens"),
        ("completions", {"prompt": [9999]}, "prompt", "from 0 to"),
        ("completions", {"prompt": []}, "prompt", "at least 1 item"),
        ("completions", {"prompt": [1, "a"]}, "prompt", "prompt"),
        ("completions", {"model": "translator", "prompt": "a"}, "model", "/v1/translate"),
        ("completions", {"model": "encoder", "prompt": "a"}, "model", "/v1/embeddings"),
        ("chat/completions", {"messages": []}, "messages", "at least 1 item"),
        ("chat/completions", {"messages": [{"role": "robot", "content": "x"}]}, "messages", "messages[0].role"),
        (
            "chat/completions",
            {"messages": [{"role": "assistant", "content": "x"}]},
            "messages",
            "must be from the user",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "functions": []},
            "functions",
            "no field 'functions'",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2},
            "top_logprobs",
            "true",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 21},
            "top_logprobs",
            "asks for 21",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "xml"}},
            "response_format",
            "input should be 'text', 'json_object' or 'json_schema'",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x", "name": "y" * 257}]},
            "messages",
            "messages[0].name",
        ),
        ("chat/completions", {"messages": [{"role": "user", "content": "x" * 200}]}, "messages", "Shorten it"),
        ("embeddings", {"input": "a"}, "model", "kind 'decoder'"),
        ("embeddings", {"model": "encoder", "input": ""}, "input", "empty"),
        ("embeddings", {"model": "encoder", "input": ["a"] * 65}, "input", "65 texts"),
        ("embeddings", {"model": "encoder", "input": "a", "dimensions": 5}, "dimensions", "12 dimensions"),
        ("embeddings", {"model": "encoder", "input": [9999]}, "input", "from 0 to"),
        ("translate", {"text": "a"}, "model", "cannot translate"),
        ("translate", {"model": "translator", "text": " "}, "text", "Text 1 is empty"),
        ("translate", {"model": "translator", "text": "a", "n": 5}, "n", "at most beam"),
        ("translate", {"model": "translator", "text": ["a", "b"], "tree": True}, "tree", "one text"),
        ("translate", {"model": "translator", "text": "a", "into": "fr"}, "into", "no language 'fr'"),
        ("translate", {"model": "translator", "text": "a", "stream": True}, "stream", "False"),
        ("translate", {"model": "translator", "text": "x" * 99}, "text", "reads 61 at most"),
    ],
)
def test_errors_name_the_field(server: Serving, path: str, body: dict, param: str, sentence: str) -> None:
    answer = server.post(f"/v1/{path}", **{"model": "writer", **body})
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert sentence in error["message"]


def test_errors_become_openai_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no field 'functions'"):
        client.chat.completions.create(model="writer", messages=[{"role": "user", "content": "a"}], functions=[])
    with pytest.raises(openai.NotFoundError, match="no model with this name"):
        client.completions.create(model="gpt-4", prompt="a")
