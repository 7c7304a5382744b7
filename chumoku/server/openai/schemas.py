"""Request bodies: every field has a type and bounds, and unknown fields are refused.

    completions   prompt → texts              chat   messages → texts
    embeddings    input → vectors             translate   text → translations
    classify      input → labels

`server.request_body` parses a body into one of these. The bounds hold for every server; the `Limits` of a server are
checked afterwards. The length of texts is limited by the size of the body. OpenAI fields that are not supported are
listed, so that the error message can say so.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from chumoku.decoding.constraint import check_schema
from chumoku.decoding.defaults import BEAM, LENGTH_PENALTY
from chumoku.errors import UsageError

MAX_CHARACTERS = 1 << 24
MAX_TOKENS = 1 << 20
Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Token = Annotated[int, Field(ge=0, lt=1 << 24)]
Tokens = Annotated[list[Token], Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=1024, fail_fast=True)]
Rows = Annotated[list[Tokens], Field(min_length=1, max_length=1024, fail_fast=True)]
Stop = Annotated[str, Field(min_length=1, max_length=4096)]
Count = Annotated[int, Field(ge=1, le=1 << 20)]
Temperature = Annotated[float, Field(ge=0, le=100)]
TopP = Annotated[float, Field(gt=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)] | None


def check_json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Refuse a JSON schema that is too large or nested too deeply."""
    try:
        check_schema(schema)
    except UsageError as error:
        raise ValueError(str(error)) from error
    return schema


JsonSchema = Annotated[dict[str, Any], AfterValidator(check_json_schema)]
Bias = Annotated[
    dict[Annotated[str, Field(max_length=9)], Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)
]


class StrictModel(BaseModel):
    """The base of all bodies: no unknown fields, no conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ModelRequest(StrictModel):
    """The base of all requests to a model."""

    model: Name


class StreamOptions(StrictModel):
    include_usage: bool = False


class GenerationOptions(ModelRequest):
    """Fields shared by completions and chat."""

    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 20)] | None = None  # 0: off
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None  # 0: off
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=64, fail_fast=True)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: Bias | None = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    user: Annotated[str, Field(max_length=1024)] | None = None


class Completion(GenerationOptions):
    prompt: Text | Texts | Tokens | Rows
    logprobs: Annotated[int, Field(ge=0, le=100)] | None = None
    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None
    best_of: Literal[1] | None = None


class Part(StrictModel):
    type: Literal["text"]
    text: Text


class FunctionCall(StrictModel):
    name: Name
    arguments: Text  # JSON


class ToolCall(StrictModel):
    id: Name
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(StrictModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    name: Name | None = None  # accepted from clients, but not shown to the model
    content: Text | Annotated[list[Part], Field(min_length=1, max_length=256, fail_fast=True)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(min_length=1, max_length=128, fail_fast=True)] | None = None
    tool_call_id: Name | None = None

    @model_validator(mode="after")
    def check_content(self) -> Self:
        if self.content is None and self.tool_calls is None:
            raise ValueError("a message needs content, or tool_calls if it is the assistant's")
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError("only a message of the assistant has tool_calls")
        return self

    @property
    def text(self) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)

    @property
    def fields(self) -> dict[str, Any]:
        """The message as chat templates read it: arguments of calls are objects."""
        extra: dict[str, Any] = {} if self.tool_call_id is None else {"tool_call_id": self.tool_call_id}
        if self.tool_calls is not None:
            extra["tool_calls"] = [_call_fields(call) for call in self.tool_calls]
        content = None if self.content is None else self.text
        return {"role": "system" if self.role == "developer" else self.role, "content": content, **extra}


def _call_fields(call: ToolCall) -> dict[str, Any]:
    arguments: Any = call.function.arguments
    with contextlib.suppress(ValueError, RecursionError):
        arguments = json.loads(arguments)
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


class Function(StrictModel):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]+$", max_length=64)]
    description: Text | None = None
    parameters: JsonSchema | None = None
    strict: bool | None = None


class Tool(StrictModel):
    type: Literal["function"]
    function: Function


class FunctionName(StrictModel):
    name: Name


class ToolChoice(StrictModel):
    type: Literal["function"]
    function: FunctionName


class NamedSchema(StrictModel):
    """A JSON schema as OpenAI wraps it; `strict` makes no difference, because the output always follows the schema."""

    model_config = ConfigDict(populate_by_name=True)

    name: Name | None = None
    description: Text | None = None
    strict: bool | None = None
    json_schema: Annotated[JsonSchema, Field(alias="schema")]


class ResponseFormat(StrictModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def check_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("the type json_schema needs a json_schema, and no other type has one")
        return self


class Chat(GenerationOptions):
    messages: Annotated[list[Message], Field(min_length=1, max_length=2048, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=100)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(min_length=1, max_length=128, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None  # the model decides


class Embedding(ModelRequest):
    input: Text | Texts | Tokens | Rows
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    prompt: Literal["query", "document"] | None = None
    user: Annotated[str, Field(max_length=1024)] | None = None


class Classification(ModelRequest):
    input: Text | Texts | Tokens | Rows
    user: Annotated[str, Field(max_length=1024)] | None = None


Language = Annotated[str, Field(min_length=1, max_length=64)]


class Translation(ModelRequest):
    text: Text | Texts
    beam: Annotated[int, Field(ge=1, le=16)] = BEAM
    n: Annotated[int, Field(ge=1, le=16)] = 1
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = LENGTH_PENALTY
    max_tokens: Count | None = None
    into: Language | None = None
    source_language: Language | None = None
    split: bool = True
    alignment: bool = False
    tree: bool = False
    stream: Literal[False] = False


class Session(StrictModel):
    key: Annotated[str, Field(max_length=1024)]


SCHEMAS: tuple[type[BaseModel], ...] = (Completion, Chat, Embedding, Translation, Session)


def as_list(given: str | list[str] | list[int] | list[list[int]]) -> Sequence[str | list[int]]:
    """The inputs as a list, each one a text or a list of token ids."""
    if isinstance(given, str):
        return [given]
    return [given] if isinstance(given[0], int) else given
