"""Parses and checks request bodies; errors name the field that is wrong."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from chumoku.errors import did_you_mean
from chumoku.server.errors import RequestError

MAX_ERRORS = 1000  # beyond this, only their number is reported
MAX_NAME = 80  # characters of a client's field name shown in messages
# OpenAI fields that this server knows but does not support.
UNSUPPORTED = {
    "echo": "only false is supported",
    "suffix": "only null is supported: these models cannot fill in the middle",
    "best_of": "only 1 is supported; /v1/translate has n and beam",
    "store": "only false is supported: this server keeps no responses",
    "previous_response_id": "only null is supported: this server keeps no responses. Send the whole conversation as "
    "input",
}
FORMER_NAMES = {"least": "min_tokens", "repetition": "repetition_penalty"}
B = TypeVar("B", bound=BaseModel)


def parse_body(schema: type[B], body: bytes) -> B:
    """The body as an instance of its schema; raises RequestError if it does not match."""
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > MAX_ERRORS:
            raise RequestError(400, f"The body has {error.error_count():,} invalid fields or values.") from None
        raise _to_error(schema, error.errors(include_url=False, include_input=False, include_context=False)) from None


def _to_error(schema: type[BaseModel], errors: list[Any]) -> RequestError:
    # Report an unknown field first: it is often a misspelled name of the missing one.
    first = min(errors, key=lambda one: one["type"] != "extra_forbidden")
    if first["type"] == "json_invalid" or not first["loc"]:
        return RequestError(400, f"The body is not a valid JSON object: {_uncapitalize(first['msg'])}.")
    field = str(first["loc"][0])
    name = printable(field)
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        known = f"Known fields: {', '.join(schema.model_fields)}."
        hint = did_you_mean(FORMER_NAMES.get(field, field), schema.model_fields, known)
        return RequestError(400, f"There is no field '{name}'. {hint}", param=name)
    if first["type"] == "missing":
        return RequestError(400, f"The field '{_path(first['loc'])}' is missing.", param=name)
    if field in UNSUPPORTED:
        return RequestError(400, f"The field '{name}': {UNSUPPORTED[field]}.", param=name)
    # A field that accepts several types has one error for each of them.
    reasons = dict.fromkeys(_uncapitalize(one["msg"]) for one in errors if one["loc"][:1] == first["loc"][:1])
    message = f"The field '{_path(first['loc'])}' is not valid: {'; or '.join(list(reasons)[:3])}."
    return RequestError(400, message, param=name)


def printable(name: str) -> str:
    """A client's field name, shortened and without control characters."""
    return "".join(char if char.isprintable() else "�" for char in name[:MAX_NAME])


def _path(location: tuple[int | str, ...]) -> str:
    """A readable path such as prompt[3]; pydantic also lists the types of a union, which are left out."""
    path = printable(str(location[0]))
    for part in location[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "bool", "float"):
            path += f".{printable(part)}"
    return path


def _uncapitalize(message: str) -> str:
    message = message.strip().rstrip(".")
    return message[:1].lower() + message[1:]
