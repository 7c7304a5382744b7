"""Chat templates: jinja2 programs that write a conversation as a model was trained on it.

    messages  →  spans (text, own)  →  token ids

A span is `own` if the template itself contains its text. Special tokens are recognized only there: text that a user
types never becomes one, also if the template trims, splits or changes it (`chat_template_worker`). For other text the
ids are those of transformers' `apply_chat_template`, which encodes the whole prompt at once.

The templates of a tokenizer are kept as in tokenizer_config.json: `chat_template`, a string or a list of {name,
template}, and the tokens that templates know by name, such as `bos_token`.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chumoku.errors import LengthError, UsageError
from chumoku.text import chat_template_process
from chumoku.text.byte_chars import fix_surrogates
from chumoku.text.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant", "tool")
TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DEFAULT, WITH_TOOLS = "default", "tool_use"
MAX_TEMPLATES = 16
MAX_TEMPLATE_CHARACTERS = 1 << 18
MAX_CHAT_CHARACTERS = 1 << 21
EXTRA_CHARACTERS = 1 << 18  # of a prompt, beside four times the conversation
QUESTION, ANSWER = "question", "answer"


class Span(NamedTuple):
    text: str
    own: bool  # whether the template itself contains this text


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a model, or several by name."""

    sources: Mapping[str, str]  # name → jinja2 program
    tokens: Mapping[str, str] = field(default_factory=dict)  # key of TOKEN_KEYS → special token

    def __post_init__(self) -> None:
        if len(self.sources) > MAX_TEMPLATES:
            raise UsageError(f"This model has {len(self.sources)} chat templates; at most {MAX_TEMPLATES} are allowed.")
        for name, source in self.sources.items():
            if len(source) > MAX_TEMPLATE_CHARACTERS:
                limit = f"at most {MAX_TEMPLATE_CHARACTERS:,} are allowed"
                raise UsageError(f"The chat template '{name[:60]}' has {len(source):,} characters; {limit}.")

    def select(self, *, tools: bool) -> str:
        """The program for a conversation with or without tools."""
        named = self.sources.get(WITH_TOOLS) if tools else None
        return named or self.sources.get(DEFAULT) or next(iter(self.sources.values()))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[Span]:
        """The prompt for these messages. `tools` are JSON schemas of functions."""
        characters = len(json.dumps([messages, tools], ensure_ascii=False))
        if characters > MAX_CHAT_CHARACTERS:
            raise LengthError(f"The messages have {characters:,} characters; the limit is {MAX_CHAT_CHARACTERS:,}.")
        variables = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        request = {
            "template": self.select(tools=tools is not None),
            "variables": variables,
            "own": {**self.tokens, "roles": ROLES},
            "limit": 4 * characters + EXTRA_CHARACTERS,
        }
        result = chat_template_process.ask(request)
        if not result.get("spans"):
            error = result.get("error", "it writes nothing")
            problem = "".join(char if char.isprintable() else " " for char in error).rstrip(".")
            raise UsageError(
                f"The model's chat template cannot render this conversation: {problem}. Change the messages, or choose "
                "another format, such as chatml or plain."
            )
        return [Span(*span) for span in result["spans"]]

    def find_end_tokens(self, tokenizer: Tokenizer) -> list[int]:
        """The special token that follows the assistant's messages, if there is one."""
        return [mark.id for mark in find_marks(tokenizer, self._after_answer)[:1]]

    @functools.cached_property
    def _after_answer(self) -> list[Span]:
        """What the template writes after a message of the assistant."""
        messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
        try:
            spans = self.render(messages, add_generation_prompt=False)
        except chat_template_process.TemplateStopped:
            raise  # it may render next time
        except UsageError:
            return []
        answers = [place for place, span in enumerate(spans) if not span.own and ANSWER in span.text]
        return spans[answers[-1] + 1 :] if answers else []


def parse_chat_template(settings: Mapping[str, Any]) -> ChatTemplate | None:
    """The chat template in the content of tokenizer_config.json, if there is one."""
    template = settings.get("chat_template")
    if not template:
        return None
    named = [{"name": DEFAULT, "template": template}] if isinstance(template, str) else template
    if not isinstance(named, list) or not all(map(_is_named_template, named)):
        raise UsageError("The chat_template of this tokenizer is neither a string nor a list of {name, template}.")
    values = {key: settings.get(key) for key in TOKEN_KEYS}
    names = {key: value.get("content") if isinstance(value, dict) else value for key, value in values.items()}
    tokens = {key: name for key, name in names.items() if isinstance(name, str) and name}
    return ChatTemplate({one["name"]: one["template"] for one in named}, tokens)


def _is_named_template(one: Any) -> bool:
    return isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("template"), str)


def template_settings(template: ChatTemplate | None) -> dict[str, Any]:
    """The entries of tokenizer_config.json for a chat template, the inverse of `parse_chat_template`."""
    if template is None:
        return {}
    named = [{"name": name, "template": source} for name, source in template.sources.items()]
    single = template.sources.keys() == {DEFAULT}
    return {**template.tokens, "chat_template": template.sources[DEFAULT] if single else named}


class Mark(NamedTuple):
    """A special token at the characters [start, end) of a prompt."""

    id: int
    start: int
    end: int


def find_marks(tokenizer: Tokenizer, spans: Sequence[Span]) -> list[Mark]:
    """The special tokens in the template's own text."""
    specials = {*tokenizer.specials.values()}
    found = {text: _select(tokenizer.encode_with_offsets(text), specials) for text in {s.text for s in spans if s.own}}
    starts = itertools.accumulate((len(span.text) for span in spans), initial=0)
    return [
        Mark(mark.id, start + mark.start, start + mark.end)
        for start, span in zip(starts, spans, strict=False)
        if span.own
        for mark in found[span.text]
    ]


def _select(encoded: Sequence[tuple[int, tuple[int, int]]], specials: Set[int]) -> list[Mark]:
    return [Mark(token_id, *offsets) for token_id, offsets in encoded if token_id in specials]


def encode_spans(tokenizer: Tokenizer, spans: Sequence[Span]) -> list[int]:
    """The ids of a prompt; special tokens come only from the template's own text."""
    spans = [Span(fix_surrogates(text), own) for text, own in spans]
    text, marks = "".join(span.text for span in spans), find_marks(tokenizer, spans)
    if not tokenizer.segments:
        encoded = tokenizer.encode_with_offsets(text)
        found = _select(encoded, {*tokenizer.specials.values()})
        if len(found) == len(marks) and all(_is_same(text, *pair) for pair in zip(found, marks, strict=True)):
            return [token_id for token_id, _ in encoded]
    # A user typed a special token, so the text between the template's own ones is encoded without any.
    edges = [0, *(place for mark in marks for place in (mark.start, mark.end)), len(text)]
    between = [text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]
    first, *rest = tokenizer.encode_batch(between)
    return first + [token_id for mark, ids in zip(marks, rest, strict=True) for token_id in (mark.id, *ids)]


def _is_same(text: str, found: Mark, mark: Mark) -> bool:
    """Whether a token is that mark; some tokens also take the spaces around them."""
    around = text[found.start : mark.start] + text[mark.end : found.end]
    inside = found.start <= mark.start and mark.end <= found.end
    return found.id == mark.id and inside and not around.strip()
