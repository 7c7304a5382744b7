"""Tool calls: the text in which models write them, and the calls that a client receives.

    <tool_call>{"name": "weather", "arguments": {"city": "Nara"}}</tool_call>        Qwen, SmolLM3, Hermes
    {"name": "weather", "parameters": {"city": "Nara"}}                              Llama 3

With tool_choice "auto" the model writes freely; calls in tags, and a text that is one call, are found when it is
complete, and text beside tags stays content. With "required" or a function's name, decoding is constrained to a call
whose arguments follow the function's schema.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection
from typing import Any, NamedTuple

from chumoku.errors import UsageError
from chumoku.server.openai import schemas

Object = dict[str, Any]
OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Tools(NamedTuple):
    """The functions of a request that may be called."""

    descriptions: list[Object]  # for the chat template
    names: frozenset[str]
    call: Object | None  # the JSON schema of a call, if there must be one


NO_TOOLS = Tools([], frozenset(), None)


def choose_tools(body: schemas.Chat) -> Tools:
    """The functions that tool_choice allows."""
    choice = "auto" if body.tool_choice is None else body.tool_choice
    given = body.tools or []
    if choice == "none" or (choice == "auto" and not given):
        return NO_TOOLS
    if isinstance(choice, schemas.ToolChoice):
        given = [one for one in given if one.function.name == choice.function.name]
    if not given:
        wanted = "a tool" if isinstance(choice, str) else f"the function '{choice.function.name}'"
        raise UsageError(f"tool_choice asks for {wanted}, which is not among the tools.")
    call = {"anyOf": [_call_schema(one.function) for one in given]} if choice != "auto" else None
    return Tools(
        [one.model_dump(exclude_none=True) for one in given], frozenset(one.function.name for one in given), call
    )


def _call_schema(function: schemas.Function) -> Object:
    arguments = function.parameters or {"type": "object"}
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def find_calls(text: str, names: Collection[str]) -> tuple[str, list[Object]]:
    """The text without calls, and the calls of these functions as in OpenAI's API; what is not a call stays text."""
    if (whole := _read_call(text, names)) is not None:
        return "", [whole]
    first, *tagged = text.split(OPEN)
    rest, calls = [first], []
    for part in tagged:
        inside, closed, after = part.partition(CLOSE)
        call = _read_call(inside, names) if closed else None
        if call is None:
            rest.append(OPEN + part)
        else:
            calls.append(call)
            rest.append(after)
    return ("".join(rest).strip() if calls else text), calls


def _read_call(text: str, names: Collection[str]) -> Object | None:
    try:
        call = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    call = call if isinstance(call, dict) else {}
    name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
        return None
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
