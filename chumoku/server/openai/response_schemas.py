"""The body of /v1/responses, and the chat request that it stands for.

    instructions                                 → a system message
    {"role", "content"}, or a text               → a message
    {"type": "function_call", …}                 → a call in a message of the assistant
    {"type": "function_call_output", "output"}   → a message of a tool

The server keeps no responses, so a conversation is sent as a whole. Items of an earlier output can be sent back as they
came.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from chumoku.server.errors import RequestError
from chumoku.server.openai import schemas
from chumoku.server.openai.schemas import Count, Name, StrictModel, Text

Empty = Annotated[list[bool], Field(max_length=0)]  # a list of an output item that is always empty


class Item(StrictModel):
    """Fields of an output item that is sent back."""

    id: Name | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class Part(StrictModel):
    type: Literal["input_text", "output_text"]
    text: Text
    annotations: Empty | None = None
    logprobs: Empty | None = None


class Message(Item):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[Part], Field(min_length=1, max_length=256, fail_fast=True)]


class Call(Item):
    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: Text  # JSON


class CallOutput(Item):
    type: Literal["function_call_output"]
    call_id: Name
    output: Text


class Format(StrictModel):
    """The format of the text; a JSON schema is beside its name, unlike in chat completions."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: Text | None = None
    strict: bool | None = None
    json_schema: Annotated[schemas.JsonSchema | None, Field(alias="schema")] = None

    @model_validator(mode="after")
    def check_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("the type json_schema needs a schema, and no other type has one")
        return self


class TextOptions(StrictModel):
    format: Format = Format(type="text")


class Tool(schemas.Function):
    type: Literal["function"]


class ToolChoice(schemas.FunctionName):
    type: Literal["function"]


class ResponseRequest(schemas.ModelRequest):
    input: Text | Annotated[list[Message | Call | CallOutput], Field(min_length=1, max_length=2048, fail_fast=True)]
    instructions: Text | None = None
    max_output_tokens: Count | None = None
    temperature: schemas.Temperature | None = None
    top_p: schemas.TopP | None = None
    stream: bool | None = None
    text: TextOptions = TextOptions()
    tools: Annotated[list[Tool], Field(default_factory=list, max_length=128, fail_fast=True)]
    tool_choice: Literal["none", "auto", "required"] | ToolChoice = "auto"
    parallel_tool_calls: bool = True  # the model decides
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
        Field(default_factory=dict, max_length=16),
    ]
    user: Annotated[str, Field(max_length=1024)] | None = None
    store: Literal[False] | None = None
    previous_response_id: None = None


def to_chat(body: ResponseRequest) -> schemas.Chat:
    """The same request as one of /v1/chat/completions."""
    items = [Message(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    for item in items:
        if isinstance(item, Call):
            call = {"id": item.call_id, "function": {"name": item.name, "arguments": item.arguments}}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant"})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif isinstance(item, CallOutput):
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
        else:
            content = item.content
            text = content if isinstance(content, str) else "".join(part.text for part in content)
            messages.append({"role": item.role, "content": text})
    wanted, choice = body.text.format, body.tool_choice
    named = None if wanted.json_schema is None else {"schema": wanted.json_schema}
    if isinstance(choice, ToolChoice):
        choice = {"type": "function", "function": {"name": choice.name}}  # type: ignore[assignment]
    tools = [{"type": "function", "function": tool.model_dump(exclude={"type"})} for tool in body.tools]
    fields = {
        **body.model_dump(include={"model", "temperature", "top_p", "stream", "user"}),
        "max_completion_tokens": body.max_output_tokens,
        "messages": messages,
        "response_format": {"type": wanted.type, "json_schema": named},
        "tools": tools or None,
        "tool_choice": choice,
    }
    try:
        return schemas.Chat.model_validate(fields)
    except ValidationError as error:  # too many messages, or too many calls in one
        raise RequestError(400, f"The field 'input' is not valid: {error.errors()[0]['msg']}.", param="input") from None
