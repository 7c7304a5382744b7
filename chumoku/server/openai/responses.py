"""Responses in the format of the OpenAI API: complete, and as chunks of a stream.

completion   choices[i]: text, logprobs {tokens, token_logprobs, top_logprobs, text_offset}, finish_reason
chat         choices[i]: message or delta {role, content}, logprobs {content: [token, logprob, bytes, top]}, …
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from chumoku.decoding.logprobs import Likelihood
from chumoku.server.openai.tools import find_calls
from chumoku.server.streaming import DONE, encode_json
from chumoku.server.token_text import TokenText, TokenTextCache
from chumoku.server.worker import Piece

Object = dict[str, Any]
UTF8 = codecs.getincrementaldecoder("utf-8")


class TokenLogprob(NamedTuple):
    token: TokenText
    likelihood: Likelihood


@dataclass
class GeneratedText:
    """One text so far. A token's logprobs are released with its text; tokens cut off by a stop string have none."""

    trim: bool = False  # remove white space at the start
    parts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    count: int = 0
    characters: int = 0  # of the tokens whose logprobs were released
    finish_reason: str | None = None
    _waiting: list[tuple[int, TokenLogprob]] = field(default_factory=list)  # each with the offset of its token
    _decoder: codecs.IncrementalDecoder = field(default_factory=lambda: UTF8("replace"))
    _decoded: int = 0  # characters of all tokens
    _shown: int = 0  # characters of the text, including the trimmed ones
    _hidden: str = ""  # characters of the tokens before the first text is shown

    def add(self, piece: Piece, tokens: TokenTextCache) -> list[TokenLogprob]:
        """Add a piece; returns the logprobs that can be shown now."""
        self.parts.append(piece.text)
        self.finish_reason = piece.finish_reason
        self.count += piece.token is not None
        if piece.token is not None and piece.likelihood is not None:
            token = tokens[piece.token]
            self._waiting.append((self._decoded, TokenLogprob(token, piece.likelihood)))
            characters = self._decoder.decode(token.raw)
            self._decoded += len(characters)
            if self.trim and not self._shown:
                self._hidden += characters
        if piece.text:
            self._shown += len(self._hidden) - len(self._hidden.lstrip()) + len(piece.text)
            self._hidden = ""
        # Without a stop string all of the text is shown: the end token itself arrives as None.
        complete = piece.finish_reason == "length" or (piece.finish_reason == "stop" and piece.token is None)
        ready = [one for start, one in self._waiting if complete or start < self._shown]
        self._waiting = [] if piece.finish_reason else self._waiting[len(ready) :]
        self.logprobs += ready
        return ready

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass(frozen=True)
class ResponseFormatter:
    """Builds the response of one request, or the chunks of its stream."""

    prefix: ClassVar[str]  # of the response's id
    stream_end: ClassVar[bytes] = DONE
    id: str
    created: int
    model: str
    tokens: TokenTextCache
    functions: frozenset[str] = frozenset()  # that the model may call
    stream_usage: bool = False  # whether a stream ends with the counts of tokens

    def header(self, *, stream: bool) -> Object:
        usage = {"usage": None} if stream and self.stream_usage else {}
        return {"id": self.prefix + self.id, "created": self.created, "model": self.model, **usage}

    def choice(self, index: int, text: GeneratedText) -> Object:
        raise NotImplementedError

    def chunk_choice(self, piece: Piece, text: GeneratedText, logprobs: Sequence[TokenLogprob]) -> Object:
        raise NotImplementedError

    def first_chunks(self, texts: int, *, dropped: int) -> list[Object]:
        """Chunks to send before the first text."""
        return []

    def last_chunks(self, texts: Sequence[GeneratedText], *, prompt_tokens: int, cached_tokens: int) -> list[Object]:
        """Chunks to send after all texts."""
        usage = make_usage(prompt_tokens, sum(text.count for text in texts), cached=cached_tokens)
        return [{**self.header(stream=True), "choices": [], "usage": usage}] if self.stream_usage else []

    def response(
        self,
        pieces: Sequence[Sequence[Piece]],
        *,
        trim: bool,
        prompt_tokens: int,
        cached_tokens: int,
        **extra: Any,
    ) -> bytes:
        """The complete response as JSON. Choices are encoded one by one, because encoding blocks all other threads."""
        choices, count = [], 0
        for index, own_pieces in enumerate(pieces):
            text = GeneratedText(trim)
            for piece in own_pieces:
                text.add(piece, self.tokens)
            count += text.count
            choices.append(encode_json(self.choice(index, text)))
        usage = make_usage(prompt_tokens, count, cached=cached_tokens)
        head = encode_json({**self.header(stream=False), "usage": usage, **extra})
        return head[:-1] + b',"choices":[' + b",".join(choices) + b"]}"

    def find_calls(self, text: str, finish_reason: str | None) -> tuple[str, list[Object]]:
        """The content and the calls of functions of a complete text."""
        return find_calls(text, self.functions) if self.functions and finish_reason == "stop" else (text, [])

    def chunks(self, piece: Piece, text: GeneratedText) -> list[Object]:
        """The chunk of a piece; none if nothing of it can be shown yet."""
        logprobs = text.add(piece, self.tokens)
        if self.functions:  # whether a text is a call is known at its end
            if piece.finish_reason is None:
                return []
            piece, logprobs = piece._replace(text=text.text), text.logprobs
        if not piece.text and not logprobs and piece.finish_reason is None:
            return []
        return [{**self.header(stream=True), "choices": [self.chunk_choice(piece, text, logprobs)]}]


class Completion(ResponseFormatter):
    prefix = "cmpl-"

    def header(self, *, stream: bool) -> Object:
        return {**super().header(stream=stream), "object": "text_completion"}

    def choice(self, index: int, text: GeneratedText) -> Object:
        return {
            "index": index,
            "text": text.text,
            "logprobs": self._logprobs(text.logprobs, text),
            "finish_reason": text.finish_reason,
        }

    def chunk_choice(self, piece: Piece, text: GeneratedText, logprobs: Sequence[TokenLogprob]) -> Object:
        return {
            "index": piece.text_index,
            "text": piece.text,
            "logprobs": self._logprobs(logprobs, text),
            "finish_reason": piece.finish_reason,
        }

    def _logprobs(self, logprobs: Sequence[TokenLogprob], text: GeneratedText) -> Object | None:
        if not logprobs:
            return None
        offsets = []
        for one in logprobs:
            offsets.append(text.characters)
            text.characters += one.token.characters
        return {
            "tokens": [one.token.text for one in logprobs],
            "token_logprobs": [one.likelihood.logprob for one in logprobs],
            "top_logprobs": [
                {self.tokens[token].text: logprob for token, logprob in reversed(one.likelihood.top)}
                for one in logprobs
            ],
            "text_offset": offsets,
        }


class Chat(ResponseFormatter):
    prefix = "chatcmpl-"

    def header(self, *, stream: bool) -> Object:
        return {**super().header(stream=stream), "object": "chat.completion.chunk" if stream else "chat.completion"}

    def first_chunks(self, texts: int, *, dropped: int) -> list[Object]:
        extra = {"dropped_messages": dropped} if dropped else {}
        role = {"role": "assistant", "content": ""}
        return [
            {
                **self.header(stream=True),
                **extra,
                "choices": [{"index": index, "delta": role, "logprobs": None, "finish_reason": None}],
            }
            for index in range(texts)
        ]

    def choice(self, index: int, text: GeneratedText) -> Object:
        content, calls = self.find_calls(text.text, text.finish_reason)
        fields: Object = {"content": content or None, "tool_calls": calls} if calls else {"content": content}
        return {
            "index": index,
            "message": {"role": "assistant", **fields, "refusal": None},
            "logprobs": self._logprobs(text.logprobs),
            "finish_reason": "tool_calls" if calls else text.finish_reason,
        }

    def chunk_choice(self, piece: Piece, text: GeneratedText, logprobs: Sequence[TokenLogprob]) -> Object:
        content, calls = self.find_calls(piece.text, piece.finish_reason)
        delta: Object = {"content": content} if content else {}
        if calls:
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        return {
            "index": piece.text_index,
            "delta": delta,
            "logprobs": self._logprobs(logprobs),
            "finish_reason": "tool_calls" if calls else piece.finish_reason,
        }

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> Object | None:
        if not logprobs:
            return None
        return {
            "content": [
                {
                    **_token_object(one.token, one.likelihood.logprob),
                    "top_logprobs": [_token_object(self.tokens[token], value) for token, value in one.likelihood.top],
                }
                for one in logprobs
            ],
            "refusal": None,
        }


def _token_object(token: TokenText, logprob: float) -> Object:
    return {"token": token.text, "logprob": logprob, "bytes": list(token.raw)}


def make_usage(prompt: int, completion: int, *, cached: int = 0) -> Object:
    """The counts of tokens; `cached` is the part of the prompt that was not computed again."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def count_cached(pieces: Iterable[Piece], n: int) -> int:
    """The cached tokens of all prompts: of the first of the n texts of each."""
    return sum({piece.text_index: piece.cached_tokens for piece in pieces if piece.text_index % n == 0}.values())
