"""Bodies into requests: JSON that is what its schema says, or a sentence that names the field."""

from __future__ import annotations

import difflib
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from chumoku.server.errors import Refusal

MANY = 1000  # mistakes of a body that are looked at
SHOWN = 80  # letters of a name that a client made up
# Fields of OpenAI's that are known and cannot be done here.
ONLY = {
    "presence_penalty": "only 0 is possible here; 'repetition' above 1 makes tokens that were written less likely",
    "echo": "only false is possible here",
    "suffix": "only null is possible here: models here do not fill in",
    "response_format": 'only text is possible here, {"type": "text"}',
    "best_of": "only 1 is possible here; /v1/translate has n and beam",
}
B = TypeVar("B", bound=BaseModel)


def parsed(schema: type[B], body: bytes) -> B:
    """The request that a body is."""
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > MANY:
            raise Refusal(400, f"The body has {error.error_count():,} fields and values that cannot be.") from None
        raise _refusal(schema, error.errors(include_url=False, include_input=False, include_context=False)) from None


def _refusal(schema: type[BaseModel], errors: list[Any]) -> Refusal:
    # A field of another name explains the one that is missing.
    first = min(errors, key=lambda one: one["type"] != "extra_forbidden")
    if first["type"] == "json_invalid" or not first["loc"]:
        return Refusal(400, f"The body is no JSON object that can be read: {_plain(first['msg'])}.")
    field = str(first["loc"][0])
    name = shown(field)
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        near = difflib.get_close_matches(field[:SHOWN], schema.model_fields, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else f"There are {', '.join(schema.model_fields)}."
        return Refusal(400, f"There is no field '{name}' here. {hint}", param=name)
    if first["type"] == "missing":
        return Refusal(400, f"The field '{_path(first['loc'])}' is missing.", param=name)
    if field in ONLY:
        return Refusal(400, f"The field '{name}': {ONLY[field]}.", param=name)
    # A field of several forms has one mistake in each of them.
    said = dict.fromkeys(_plain(one["msg"]) for one in errors if one["loc"][:1] == first["loc"][:1])
    return Refusal(400, f"The field '{_path(first['loc'])}' cannot be so: {'; or '.join(list(said)[:3])}.", param=name)


def shown(name: str) -> str:
    """A name that came from outside, short and in whole characters."""
    return "".join(char if char.isprintable() else "�" for char in name[:SHOWN])


def _path(place: tuple[int | str, ...]) -> str:
    """prompt[3]: the forms that a field may have are no part of its name."""
    path = shown(str(place[0]))
    for part in place[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "bool", "float"):
            path += f".{shown(part)}"
    return path


def _plain(message: str) -> str:
    message = message.strip().rstrip(".")
    return message[:1].lower() + message[1:]
