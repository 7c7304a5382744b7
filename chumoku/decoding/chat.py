"""Chat: messages become one prompt, and a reply ends where the user's next turn would begin.

    template   the model's own chat template (`text.chat_template`)
    others     for a model without one: `decoding.chat_formats`, by default the format that the tokenizer has tokens for

Turns that do not fit the context are left out: the oldest first, never the system message (`decoding.fit_prompt`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from chumoku.decoding.batch import forbidden_tokens
from chumoku.decoding.chat_formats import FORMATS, MARKS, STOPS, Message
from chumoku.decoding.fit_prompt import fit
from chumoku.decoding.generate import DEFAULT_SAMPLING, make_scheduler, stream_pieces
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.scheduler import Request
from chumoku.decoding.stop_strings import TextStream
from chumoku.errors import UsageError
from chumoku.models.model import DecoderModel
from chumoku.text.chat_template import ROLES
from chumoku.text.tokenizer import Tokenizer

__all__ = [
    "TEMPLATE",
    "Message",
    "Reply",
    "Turn",
    "fit",
    "format_for",
    "make_turn",
    "missing_template_notice",
    "reply",
    "to_messages",
    "turn_end_tokens",
]

TEMPLATE = "template"
Messages = str | Sequence[Message | tuple[str, str] | Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None


class Turn(NamedTuple):
    """The assistant's turn, before it is generated."""

    request: Request
    stop: list[str]  # stop strings
    dropped: int


class Reply(NamedTuple):
    pieces: Iterator[str]  # of text
    dropped: int

    @property
    def dropped_notice(self) -> str:
        return f"The {self.dropped} oldest messages no longer fit the model's context and were left out."


def reply(
    model: DecoderModel,
    messages: Messages,
    *,
    tokenizer: Tokenizer,
    max_new_tokens: int = 512,
    format: str | None = None,
    tools: Tools = None,
    sampling: SamplingOptions = DEFAULT_SAMPLING,
) -> Reply:
    """The assistant's next message; prompt and reply together stay within the model's context.

    messages    a user's text, or messages as Message, (role, text) or {"role": …, "content": …, "tool_calls": …}
    format      one of FORMATS; by default the model's chat template, or the format that the tokenizer has tokens for
    tools       JSON schemas of functions, for the chat template
    """
    turn = make_turn(
        model,
        messages,
        tokenizer=tokenizer,
        max_new_tokens=max_new_tokens,
        format=format,
        tools=tools,
        sampling=sampling,
    )
    text = TextStream(tokenizer, before=turn.request.prompt, stop=turn.stop)
    return Reply(_trimmed(stream_pieces(make_scheduler(model, [turn.request], None), text)), turn.dropped)


def make_turn(
    model: DecoderModel,
    messages: Messages,
    *,
    tokenizer: Tokenizer,
    max_new_tokens: int,
    format: str | None = None,
    tools: Tools = None,
    sampling: SamplingOptions = DEFAULT_SAMPLING,
    context: int | None = None,
) -> Turn:
    """The request for the assistant's next message, within the model's context or a smaller one."""
    format = format_for(tokenizer, format)
    template = tokenizer.chat_template if format == TEMPLATE else None
    if max_new_tokens < 1:
        raise UsageError(f"max_new_tokens must be 1 or more for a reply, not {max_new_tokens}.")
    if tools and template is None:
        raise UsageError("Tools need a model with a chat template, which describes them to the model.")
    context = min(context or model.config.context, model.config.context)
    # At most a quarter of the context is kept free for the reply, even if max_new_tokens is more.
    most = context - min(max_new_tokens, context // 4)
    found = to_messages(messages, tools=template is not None)
    tokens, dropped = fit(found, tokenizer, template or format, most=most, tools=tools)
    ends = {*tokenizer.roles.end_tokens, *tokenizer.stop_tokens, *turn_end_tokens(tokenizer, format)}
    room = min(max_new_tokens, context - len(tokens))
    request = Request(tokens, room, sampling.forbid(forbidden_tokens(model, tokenizer, ends)), [*ends])
    return Turn(request, STOPS.get(format, []), dropped)


def _trimmed(pieces: Iterator[str]) -> Iterator[str]:
    """Remove white space before the first word."""
    started = False
    for piece in pieces:
        piece = piece if started else piece.lstrip()
        started = started or bool(piece)
        yield piece


def to_messages(messages: Messages, *, tools: bool = False) -> list[Message]:
    """Messages from any of the usual forms; with `tools`, also the results of tools, and calls of them."""
    found = [Message("user", messages)] if isinstance(messages, str) else list(map(_to_message, messages))
    for number, message in enumerate(found, start=1):
        known = message.role in ROLES and (tools or message.role != "tool")
        if not known or (message.role == "system" and number > 1):
            others = ", ".join(role for role in ROLES if role != "system" and (tools or role != "tool"))
            raise UsageError(
                f"Message {number} has the role '{message.role}'. A system message may come first; all others must "
                f"have one of the roles {others}."
            )
    if not found or (found[-1].role != "tool" and (found[-1].role != "user" or not found[-1].text.strip())):
        raise UsageError("The last message must be from the user (or a tool's result) and must not be empty.")
    return found


def _to_message(message: Message | tuple[str, str] | Mapping[str, Any]) -> Message:
    if not isinstance(message, Mapping):
        return Message(*message)
    content = message.get("content")
    kept = ("role",) if content is None else ("role", "content")  # a message that only calls tools may have no content
    return Message(message["role"], content or "", {name: message[name] for name in message if name not in kept})


def format_for(tokenizer: Tokenizer, wanted: str | None = None) -> str:
    """The wanted format; by default the model's template, or the format whose marks the tokenizer has."""
    if wanted is None and tokenizer.chat_template is not None:
        return TEMPLATE
    known = [format for format, marks in MARKS.items() if tokenizer.specials.keys() >= {*marks}]
    if wanted is None:
        return known[0] if known else "plain"
    if wanted not in FORMATS:
        raise UsageError(f"There is no chat format '{wanted}'. Choose one of {', '.join(FORMATS)}.")
    if wanted in MARKS and wanted not in known:
        raise UsageError(
            f"The chat format {wanted} needs the tokens {', '.join(MARKS[wanted])}, which this tokenizer lacks. "
            "Choose plain."
        )
    return wanted


def turn_end_tokens(tokenizer: Tokenizer, format: str) -> list[int]:
    """The special token that ends a reply in a format of `format_for`, if there is one."""
    if format == TEMPLATE and tokenizer.chat_template is not None:
        return tokenizer.chat_template.find_end_tokens(tokenizer)
    return [tokenizer.specials[MARKS[format][-1]]] if format in MARKS else []


def missing_template_notice(tokenizer: Tokenizer) -> str | None:
    """A sentence for a model without a chat template; None for others."""
    if tokenizer.chat_template is not None:
        return None
    return f"This model has no chat template; messages are written in the format {format_for(tokenizer)}."
