"""Tools: the model reads their descriptions, a required call follows its schema, and such texts become calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from bundles import chat_tokenizer, make_bundle
from chat_templates import FAMILIES
from serving import Serving, serving

import chumoku
from chumoku.server.openai.responses import Chat
from chumoku.server.openai.tools import find_calls
from chumoku.server.token_text import TokenTextCache
from chumoku.server.worker import Piece
from chumoku.text.chat_template import ChatTemplate

CITY = {"type": "string", "enum": ["Nara", "東京"]}
PLACE = {"type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False}
DAYS = {"type": "integer", "minimum": 1, "maximum": 7}
SPAN = {"type": "object", "properties": {"days": DAYS}, "required": ["days"], "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Tomorrow's weather", "parameters": PLACE}},
    {"type": "function", "function": {"name": "book_hotel", "parameters": SPAN}},
]
ASK = [{"role": "user", "content": "Rain?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    place, tokenizer = tmp_path_factory.mktemp("models"), chat_tokenizer()
    make_bundle(place / "plain", "decoder", tokenizer, context=1999)
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    tokenizer.chat_template = ChatTemplate({"default": FAMILIES["qwen2.5"].template}, tokens)
    make_bundle(place / "writer", "decoder", tokenizer, context=1999)
    with serving({name: chumoku.load(place / name) for name in ("plain", "writer")}) as running:
        yield running


@pytest.fixture
def client(server: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none is needed", max_retries=0) as one:
        yield one


def ask(client: openai.OpenAI, **options: Any) -> Any:
    request = {"model": "writer", "messages": ASK, "max_tokens": 97, "seed": 3, "temperature": 1.5, "tools": TOOLS}
    return client.chat.completions.create(**{**request, **options})  # type: ignore[call-overload]


def check(name: str, arguments: str) -> None:
    value = json.loads(arguments)
    assert name in ("weather", "book_hotel")
    if name == "weather":
        assert value in ({"city": "Nara"}, {"city": "東京"})
    else:
        assert list(value) == ["days"]
        assert value["days"] in range(1, 8)


def test_required_calls_follow_their_schema(client: openai.OpenAI) -> None:
    answer = ask(client, tool_choice="required", n=11)
    calls = [choice.message.tool_calls[0] for choice in answer.choices]
    for choice, call in zip(answer.choices, calls, strict=True):
        assert (choice.finish_reason, choice.message.content, len(choice.message.tool_calls)) == ("tool_calls", None, 1)
        check(call.function.name, call.function.arguments)
    assert {call.function.name for call in calls} == {"weather", "book_hotel"}
    assert len({call.id for call in calls}) == 11


def test_a_named_function_is_called(client: openai.OpenAI) -> None:
    wanted = {"type": "function", "function": {"name": "book_hotel"}}
    answer = ask(client, tool_choice=wanted, n=5)
    assert {choice.message.tool_calls[0].function.name for choice in answer.choices} == {"book_hotel"}


def test_a_stream_ends_with_the_call(client: openai.OpenAI) -> None:
    pieces = list(ask(client, tool_choice="required", stream=True))
    (delta,) = [piece.choices[0].delta for piece in pieces if piece.choices[0].delta.tool_calls]
    check(delta.tool_calls[0].function.name, delta.tool_calls[0].function.arguments)
    assert pieces[-1].choices[0].finish_reason == "tool_calls"
    assert not any(piece.choices[0].delta.content for piece in pieces)


def test_tools_calls_and_results_are_in_the_prompt(client: openai.OpenAI) -> None:
    """Counted by the tokens of the prompt, of which every byte is one; "none" leaves the tools out."""
    counts = {choice: ask(client, tool_choice=choice).usage.prompt_tokens for choice in ("auto", "none")}
    assert counts["auto"] - counts["none"] > len(json.dumps(TOOLS)) // 2
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Nara"}'}}
    talk = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "It will rain."},
    ]
    more = ask(client, messages=talk).usage.prompt_tokens - counts["auto"]
    assert more > len("weather" + '{"city": "Nara"}' + "It will rain.")


def test_texts_without_a_call_are_content(client: openai.OpenAI) -> None:
    free = ask(client, tool_choice="none").choices[0]
    assert (free.message.tool_calls, free.finish_reason in ("stop", "length")) == (None, True)
    assert free.message.content
    auto = ask(client)
    streamed = list(ask(client, stream=True))
    assert "".join(piece.choices[0].delta.content or "" for piece in streamed) == auto.choices[0].message.content


WEATHER = '{"name": "weather", "arguments": {"city": "Nara"}}'


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (f"<tool_call>\n{WEATHER}\n</tool_call>", ["weather"]),
        (f"I look.\n<tool_call>{WEATHER}</tool_call>\n<tool_call>{WEATHER}</tool_call>", ["weather", "weather"]),
        (WEATHER, ["weather"]),
        (WEATHER.replace("arguments", "parameters"), ["weather"]),
        (f"<tool_call>{WEATHER}</tool_call><tool_call>nothing</tool_call>", ["weather"]),
        ("<tool_call>" * 100_000, []),
        ('{"name": ["weather"], "arguments": {}}', []),
        ('{"name": "weather", "arguments": {"city": NaN}}', []),
        (WEATHER.replace("weather", "delete_all"), []),
        ('{"name": "weather", "arguments": "Nara"}', []),
        (f"It rains. {WEATHER}", []),
        ("[" * 100_000, []),
        ("", []),
    ],
)
def test_which_texts_are_calls(text: str, names: list[str]) -> None:
    content, calls = find_calls(text, {"weather"})
    assert [call["function"]["name"] for call in calls] == names
    assert content == text if not names else "weather" not in content


def test_text_beside_a_call_is_content() -> None:
    assert find_calls(f"I look. <tool_call>{WEATHER}</tool_call>\n", {"weather"})[0] == "I look."
    broken = f"<tool_call>nothing</tool_call><tool_call>{WEATHER}</tool_call>"
    assert find_calls(broken, {"weather"})[0] == "<tool_call>nothing</tool_call>"


def test_a_call_in_free_text_is_found() -> None:
    formatter = Chat("1", 1, "writer", TokenTextCache(chat_tokenizer()), frozenset({"weather"}))
    pieces = [Piece(0, part, 7) for part in ("I look. <tool_call>", WEATHER, "</tool_call>")]
    answer = json.loads(
        formatter.response([[*pieces, Piece(0, "", finish_reason="stop")]], trim=True, prompt_tokens=1, cached_tokens=0)
    )
    choice = answer["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Nara"}'}
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "I look.")
    cut = [*pieces[:2], Piece(0, "", finish_reason="length")]
    answer = json.loads(formatter.response([cut], trim=True, prompt_tokens=1, cached_tokens=0))
    assert answer["choices"][0]["message"]["content"] == f"I look. <tool_call>{WEATHER}"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": "plain"}, "chat template"),
        ({"tool_choice": {"type": "function", "function": {"name": "delete_all"}}}, "'delete_all', which is not among"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [{**TOOLS[0], "type": "browser"}]}, "tools"),
        ({"messages": [{"role": "assistant", "content": None}]}, "needs content"),
        ({"messages": [{**ASK[0], "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": ""}}]}]}, "only"),
        ({"messages": [*ASK, {"role": "tool", "content": "x"}], "model": "plain", "tools": openai.NOT_GIVEN}, "role"),
    ],
)
def test_wrong_tools_are_refused(client: openai.OpenAI, options: Any, reason: str) -> None:
    with pytest.raises(openai.BadRequestError, match=reason):
        ask(client, **options)
