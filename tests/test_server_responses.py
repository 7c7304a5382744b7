"""/v1/responses: the texts of chat completions, in the objects and events of the Responses API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from bundles import chat_tokenizer, make_bundle
from chat_templates import FAMILIES
from openai.types.responses import Response
from serving import Serving, serving

import chumoku
from chumoku.server.openai import response_events, response_schemas
from chumoku.server.openai.response_events import ResponseEvents
from chumoku.server.token_text import TokenTextCache
from chumoku.server.worker import Piece
from chumoku.text.chat_template import ChatTemplate

PLACE = {"type": "object", "properties": {"city": {"enum": ["Nara", "Kobe"]}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "weather", "description": "Tomorrow's weather", "parameters": PLACE}
SENTENCE = {"type": "json_schema", "name": "one", "schema": {"const": "It rains in Nara."}}
TALK = [
    {"role": "user", "content": "Rain?"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "No.", "annotations": [], "logprobs": []}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Snow?"}]},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder, tokenizer = tmp_path_factory.mktemp("models") / "writer", chat_tokenizer()
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    tokenizer.chat_template = ChatTemplate({"default": FAMILIES["qwen2.5"].template}, tokens)
    with serving({"writer": chumoku.load(make_bundle(folder, "decoder", tokenizer, context=1999))}) as running:
        yield running


@pytest.fixture
def client(server: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none is needed", max_retries=0) as one:
        yield one


def respond(client: openai.OpenAI, **options: Any) -> Any:
    request = {"model": "writer", "input": TALK, "max_output_tokens": 31, "temperature": 0}
    return client.responses.create(**{**request, **options})  # type: ignore[call-overload]


def test_texts_and_counts_are_those_of_chat_completions(server: Serving, client: openai.OpenAI) -> None:
    turns = [("system", "Be brief."), ("user", "Rain?"), ("assistant", "No."), ("user", "Snow?")]
    messages = [{"role": role, "content": text} for role, text in turns]
    options = {"model": "writer", "max_tokens": 31, "temperature": 0, "top_p": 0.7}
    chat = server.post("/v1/chat/completions", messages=messages, **options).json()
    answer = respond(client, instructions="Be brief.", top_p=0.7)
    Response.model_validate(answer.model_dump(), strict=True)
    assert answer.output_text == chat["choices"][0]["message"]["content"]
    usage = answer.usage
    assert (usage.input_tokens, usage.output_tokens) == (chat["usage"]["prompt_tokens"], 31)
    assert usage.total_tokens == chat["usage"]["total_tokens"]
    assert usage.input_tokens_details.cached_tokens == usage.input_tokens - 1, "the prompt is in the cache"
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.instructions, answer.temperature, answer.top_p) == ("Be brief.", 0, 0.7)
    assert (
        respond(client, input="Snow?").output_text
        == respond(client, input=[TALK[0] | {"content": "Snow?"}]).output_text
    )


def test_a_stream_has_all_events_in_order(client: openai.OpenAI) -> None:
    options = {"text": {"format": SENTENCE}, "max_output_tokens": 11}
    expected = respond(client, **options)
    events = list(respond(client, **options, stream=True))
    names = [event.type.removeprefix("response.") for event in events]
    assert names[:3] == ["created", "output_item.added", "content_part.added"]
    assert {*names[3:-4]} == {"output_text.delta"}
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == '"It rains i' == expected.output_text == events[-4].text == events[-1].response.output_text
    assert {event.item_id for event in events if "text" in event.type} == {events[-1].response.output[0].id}
    assert events[-1].response.usage.output_tokens == expected.usage.output_tokens
    assert (events[0].response.status, events[0].response.output) == ("in_progress", [])
    with client.responses.stream(model="writer", input=TALK, text={"format": SENTENCE}) as stream:  # type: ignore[typeddict-item]
        assert stream.get_final_response().output_text == '"It rains in Nara."', "the client's own accumulator"


def test_the_bytes_of_a_stream(server: Serving) -> None:
    with server.client.stream("POST", "/v1/responses", json={"model": "writer", "input": "a", "stream": True}) as body:
        lines = [line for line in body.iter_lines() if line]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    assert names == [json.loads(line.removeprefix("data: "))["type"] for line in lines[1::2]]
    assert (names[0], "[DONE]" in lines[-1]) == ("response.created", False)


def test_the_text_follows_a_schema(client: openai.OpenAI) -> None:
    wanted = {"type": "json_schema", "name": "place", "schema": PLACE | {"additionalProperties": False}}
    answer = respond(client, text={"format": wanted})
    assert json.loads(answer.output_text) in ({"city": "Nara"}, {"city": "Kobe"})
    assert (answer.status, answer.incomplete_details) == ("completed", None)
    assert list(respond(client, text={"format": wanted}, stream=True))[-1].type == "response.completed"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_functions_are_called_and_their_results_sent_back(client: openai.OpenAI, choice: Any) -> None:
    options = {"tools": [WEATHER], "tool_choice": choice, "max_output_tokens": 97}
    answer = respond(client, **options)
    (call,) = answer.output
    assert (call.type, call.name, answer.status) == ("function_call", "weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Nara", "Kobe")
    events = list(respond(client, **options, stream=True))
    assert [event.type.removeprefix("response.") for event in events] == [
        *("created", "output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]
    assert events[2].delta == call.arguments
    assert events[-1].response.output == [events[-2].item]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "It will rain."}
    called = {"id": "1", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    messages: list[Any] = [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "1", "content": "It will rain."},
    ]
    chat = client.chat.completions.create(model="writer", messages=messages, max_tokens=3)
    assert chat.usage is not None
    assert respond(client, input=[TALK[0], *answer.output, result]).usage.input_tokens == chat.usage.prompt_tokens


def test_text_beside_a_call_is_a_message() -> None:
    request = response_schemas.ResponseRequest(model="writer", input="a")
    formatter = ResponseEvents(
        "1", 1, "writer", TokenTextCache(chat_tokenizer()), frozenset({"weather"}), request=request
    )
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Nara"}}</tool_call>'
    text = response_events.GeneratedText(trim=True)
    events = formatter.chunks(Piece(0, f"I look. {call}", 7), text)
    assert not events, "whether it is a call is known at the end"
    events = formatter.chunks(Piece(0, "", finish_reason="stop"), text)
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in items] == ["message", "function_call"]
    assert [event["delta"] for event in events if "delta" in event] == ["I look.", '{"city": "Nara"}']
    assert formatter.last_chunks([text], prompt_tokens=3, cached_tokens=2)[0]["response"]["output"] == items


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"store": True}, "'store': only false is supported: this server keeps no responses"),
        ({"previous_response_id": "resp_1"}, "keeps no responses. Send the whole conversation as input"),
        ({"max_output_tokens": 1 << 19}, "'max_output_tokens' is limited to 4,096"),
        ({"input": []}, "'input' is not valid"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "text": "a"}]}]}, "'input"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "a", "arguments": "{}"}] * 129}, "at most 128"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "needs a schema"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"background": True}, "There is no field 'background'"),
        ({"input": [{"role": "assistant", "content": "a"}]}, "The last message must be from the user"),
    ],
)
def test_wrong_requests_are_refused(client: openai.OpenAI, options: Any, reason: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        respond(client, **options)
    assert reason in caught.value.message
