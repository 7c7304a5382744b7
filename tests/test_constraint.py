"""Texts of a random model follow their grammar, whatever it would rather write."""

from __future__ import annotations

import gc
import json
import time
import weakref
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from bundles import chat_tokenizer, make_bundle
from serving import Serving, serving

import chumoku
from chumoku.decoding import constraint as constraint_module
from chumoku.decoding.constraint import Constraint, constrain_to_json
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.scheduler import Request, Scheduler
from chumoku.errors import UsageError
from chumoku.pipeline import Pipeline

CITY = {"type": "string", "enum": ["東京", "Kyōto", "Nara"]}
COUNT = {"type": "integer", "minimum": 0, "maximum": 97}
TRIP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": CITY,
        "days": COUNT,
        "by_train": {"type": "boolean"},
        "stops": {"type": "array", "items": CITY, "minItems": 1, "maxItems": 3},
    },
    "required": ["city", "days", "by_train", "stops"],
    "additionalProperties": False,
}
SCHEMAS = {"trip": TRIP, "choice": {"anyOf": [CITY, COUNT, {"type": "null"}]}, "count": COUNT}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    place = tmp_path_factory.mktemp("models") / "writer"
    make_bundle(place, "decoder", chat_tokenizer(), context=251)
    return chumoku.load(place)


def follows(value: Any, schema: dict[str, Any]) -> bool:
    if "anyOf" in schema:
        return any(follows(value, one) for one in schema["anyOf"])
    match schema["type"]:
        case "object":
            wanted = schema["properties"]
            return value.keys() == wanted.keys() and all(follows(value[key], wanted[key]) for key in wanted)
        case "array":
            return 1 <= len(value) <= 3 and all(follows(one, schema["items"]) for one in value)
        case "string":
            return value in schema["enum"]
        case "integer":
            return type(value) is int and 0 <= value <= 97
        case "boolean":
            return type(value) is bool
    return value is None


def write(pipeline: Pipeline, constraints: list[Constraint | None], *, rows: int = 5) -> list[str]:
    tokenizer = pipeline.tokenizer
    scheduler = Scheduler(open_engine(pipeline.model, rows=rows, capacity=251), reuse=True)  # type: ignore[arg-type]
    ends = tokenizer.roles.end_tokens
    numbers = [
        scheduler.submit(Request([7, 11], 199, SamplingOptions(temperature=1.7, seed=row), ends, constraint=one))
        for row, one in enumerate(constraints)
    ]
    tokens: dict[int, list[int]] = {number: [] for number in numbers}
    while not scheduler.idle:
        for event in scheduler.step():
            assert event.finished != "failed"
            if event.token is not None:
                tokens[event.number].append(event.token)
    return [tokenizer.decode(token for token in tokens[number] if token < tokenizer.size) for number in numbers]


@pytest.mark.parametrize("name", SCHEMAS)
def test_texts_follow_the_schema(name: str, pipeline: Pipeline) -> None:
    """One constraint for all rows, each of which has its own place in the grammar; rows wait and lose their place."""
    one = constrain_to_json(pipeline.tokenizer, pipeline.tokenizer.roles.end_tokens, SCHEMAS[name])
    texts = write(pipeline, [one] * 11, rows=3)
    assert all(follows(json.loads(text), SCHEMAS[name]) for text in texts)
    assert len({*texts}) > 1


def test_rows_without_a_constraint_are_unchanged(pipeline: Pipeline) -> None:
    one = constrain_to_json(pipeline.tokenizer, pipeline.tokenizer.roles.end_tokens, TRIP)
    free = write(pipeline, [None] * 5)
    mixed = write(pipeline, [None, one, None, one, None])
    assert mixed[::2] == free[::2]
    assert all(follows(json.loads(text), TRIP) for text in mixed[1::2])


def test_a_constraint_that_stands_still_is_caught(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Constraint, "advance", lambda self, token: None)
    one = constrain_to_json(pipeline.tokenizer, pipeline.tokenizer.roles.end_tokens, TRIP)
    with pytest.raises(json.JSONDecodeError):
        json.loads(write(pipeline, [one])[0])


def test_a_grammar_that_llguidance_gives_up_fails_the_text(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a text must not look complete."""
    one = constrain_to_json(pipeline.tokenizer, pipeline.tokenizer.roles.end_tokens, TRIP)
    assert one.allowed(262).any()
    one._matcher.consume_token(0)  # a token that the grammar does not allow
    assert not one.allowed(262).any()


def test_a_tokenizer_that_is_no_longer_used_is_freed() -> None:
    tokenizer = chat_tokenizer()
    constrain_to_json(tokenizer, tokenizer.roles.end_tokens)
    freed = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert freed() is None


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "deep": (nested(997), "nested more than 64 levels"),
    "large": ({"enum": ["x" * 997] * 997}, "characters"),
    "unknown type": ({"type": "number of cats"}, "cannot be used"),
    "elsewhere": ({"$ref": "https://example.org/schema.json"}, "cannot be used"),
    "impossible": ({"type": "integer", "minimum": 7, "maximum": 5}, "cannot be used"),
    "large multiples": ({"type": "integer", "multipleOf": 999_983, "maximum": 10**15}, "multipleOf"),
    "many multiples": ({"anyOf": [{"type": "integer", "multipleOf": number} for number in range(2, 19)]}, "8 times"),
    "circle": ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "no value is possible"),
    "product": (
        {"allOf": [{"anyOf": [{"pattern": f"{a}.*{b}"} for a in "abcdefgh"]} for b in "abcdefgh"]},
        "too large",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_unusable_schemas_are_refused_at_once(name: str, pipeline: Pipeline) -> None:
    schema, reason = HOSTILE[name]
    start = time.process_time()
    with pytest.raises(UsageError, match=reason):
        constrain_to_json(pipeline.tokenizer, pipeline.tokenizer.roles.end_tokens, schema)
    assert time.process_time() - start < 5


@pytest.mark.parametrize("pattern", ["(a+)+(b|c{1,997}){997}$", "((a|b){1,997}c){1,997}", "(.*a.{19})|(.*b.{23})"])
def test_expressions_with_many_states_take_no_time(pattern: str, pipeline: Pipeline) -> None:
    start = time.process_time()
    one = constrain_to_json(pipeline.tokenizer, pipeline.tokenizer.roles.end_tokens, {"pattern": pattern})
    write(pipeline, [one])
    assert time.process_time() - start < 5


def test_a_grammar_without_llguidance_or_end_token_is_refused(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="needs an end token"):
        constrain_to_json(pipeline.tokenizer, [])
    monkeypatch.setattr(constraint_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs the package llguidance"):
        constrain_to_json(pipeline.tokenizer, [0])


@pytest.fixture(scope="module")
def server(pipeline: Pipeline) -> Iterator[Serving]:
    with serving({"writer": pipeline}) as running:
        yield running


@pytest.fixture
def client(server: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none is needed", max_retries=0) as one:
        yield one


def ask(client: openai.OpenAI, response_format: Any, **options: Any) -> Any:
    request = {"model": "writer", "messages": [{"role": "user", "content": "a"}], "max_tokens": 181, "seed": 5}
    return client.chat.completions.create(**{**request, **options}, response_format=response_format)  # type: ignore[call-overload]


def test_the_server_answers_in_json(client: openai.OpenAI) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "trip", "schema": TRIP, "strict": True}}
    answer = ask(client, wanted, n=3, temperature=1.5)
    assert all(follows(json.loads(choice.message.content), TRIP) for choice in answer.choices)
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    pieces = ask(client, wanted, stream=True)
    assert follows(json.loads("".join(piece.choices[0].delta.content or "" for piece in pieces)), TRIP)
    text = ask(client, {"type": "json_object"}).choices[0].message.content
    assert text.startswith("{")


@pytest.mark.parametrize(
    ("response_format", "options", "reason"),
    [
        ({"type": "json_schema"}, {}, "needs a json_schema"),
        ({"type": "json_object", "json_schema": {"schema": TRIP}}, {}, "no other type has one"),
        ({"type": "xml"}, {}, "response_format"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "cat"}}}, {}, "cannot be used"),
        ({"type": "json_object"}, {"extra_body": {"min_tokens": 7}}, "min_new_tokens"),
        ({"type": "json_object"}, {"extra_body": {"min_tokens": 7}, "stream": True}, "min_new_tokens"),
    ],
)
def test_wrong_formats_are_refused(client: openai.OpenAI, response_format: Any, options: Any, reason: str) -> None:
    with pytest.raises(openai.BadRequestError, match=reason):
        ask(client, response_format, **options)
