"""The forms of OpenAI's answers: whole, and in chunks.

completion   choices[i]: text, logprobs {tokens, token_logprobs, top_logprobs, text_offset}, finish_reason
chat         choices[i]: message or delta {role, content}, logprobs {content: [token, logprob, bytes, top]}, …
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chumoku.decoding.logprobs import Likelihood
from chumoku.server.streaming import encoded
from chumoku.server.token_text import Spelled, Spellings
from chumoku.server.worker import Piece

Object = dict[str, Any]
UTF8 = codecs.getincrementaldecoder("utf-8")


class Told(NamedTuple):
    word: Spelled
    likely: Likelihood


@dataclass
class Written:
    """What there is of a text. A token is told when something of its text is: what a stop string cuts off never is."""

    trim: bool = False  # the text begins with its first word, whatever tokens came before
    words: list[str] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    count: int = 0
    letters: int = 0  # of the tokens told so far
    finished: str | None = None
    _waiting: list[tuple[int, Told]] = field(default_factory=list)  # each with the letter it begins in
    _reader: codecs.IncrementalDecoder = field(default_factory=lambda: UTF8("replace"))
    _read: int = 0  # letters of all tokens
    _shown: int = 0  # and of the text, what was trimmed before it included
    _before: str = ""  # of the tokens, while nothing is shown

    def add(self, piece: Piece, tokens: Spellings) -> list[Told]:
        """The tokens that can be told now."""
        self.words.append(piece.words)
        self.finished = piece.finished
        self.count += piece.token is not None
        if piece.token is not None and piece.likelihood is not None:
            word = tokens[piece.token]
            self._waiting.append((self._read, Told(word, piece.likelihood)))
            letters = self._reader.decode(word.raw)
            self._read += len(letters)
            if self.trim and not self._shown:
                self._before += letters
        if piece.words:
            self._shown += len(self._before) - len(self._before.lstrip()) + len(piece.words)
            self._before = ""
        # Where no stop string ends it, all of the text is shown: a token that is an end comes without a number.
        whole = piece.finished == "length" or (piece.finished == "stop" and piece.token is None)
        ready = [one for start, one in self._waiting if whole or start < self._shown]
        self._waiting = [] if piece.finished else self._waiting[len(ready) :]
        self.told += ready
        return ready

    @property
    def text(self) -> str:
        return "".join(self.words)


@dataclass(frozen=True)
class Shape:
    """One answer's form."""

    id: str
    created: int
    model: str
    tokens: Spellings

    def head(self, *, stream: bool) -> Object:
        raise NotImplementedError

    def choice(self, place: int, text: Written) -> Object:
        raise NotImplementedError

    def part(self, piece: Piece, text: Written, told: Sequence[Told]) -> Object:
        raise NotImplementedError

    def opening(self, texts: int, *, dropped: int) -> list[Object]:
        """What a stream begins with."""
        return []

    def whole(self, pieces: Sequence[Sequence[Piece]], *, trim: bool, **besides: Any) -> bytes:
        """The pieces of every text as one answer. Choice by choice: encoding lets nobody else run meanwhile."""
        choices, count = [], 0
        for place, some in enumerate(pieces):
            text = Written(trim)
            for piece in some:
                text.add(piece, self.tokens)
            count += text.count
            choices.append(encoded(self.choice(place, text)))
        usage = usage_of(besides.pop("prompt_tokens"), count)
        head = encoded({**self.head(stream=False), "usage": usage, **besides})
        return head[:-1] + b',"choices":[' + b",".join(choices) + b"]}"

    def chunk(self, piece: Piece, text: Written) -> Object | None:
        """A piece as an event; None where nothing of it can be told yet."""
        told = text.add(piece, self.tokens)
        if not piece.words and not told and piece.finished is None:
            return None
        return {**self.head(stream=True), "choices": [self.part(piece, text, told)]}


class Completion(Shape):
    def head(self, *, stream: bool) -> Object:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}

    def choice(self, place: int, text: Written) -> Object:
        return {
            "index": place,
            "text": text.text,
            "logprobs": self._logprobs(text.told, text),
            "finish_reason": text.finished,
        }

    def part(self, piece: Piece, text: Written, told: Sequence[Told]) -> Object:
        return {
            "index": piece.text,
            "text": piece.words,
            "logprobs": self._logprobs(told, text),
            "finish_reason": piece.finished,
        }

    def _logprobs(self, told: Sequence[Told], text: Written) -> Object | None:
        if not told:
            return None
        offsets = []
        for one in told:
            offsets.append(text.letters)
            text.letters += one.word.letters
        return {
            "tokens": [one.word.text for one in told],
            "token_logprobs": [one.likely.logprob for one in told],
            "top_logprobs": [
                {self.tokens[token].text: share for token, share in reversed(one.likely.top)} for one in told
            ],
            "text_offset": offsets,
        }


class Chat(Shape):
    def head(self, *, stream: bool) -> Object:
        kind = "chat.completion.chunk" if stream else "chat.completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def opening(self, texts: int, *, dropped: int) -> list[Object]:
        told = {"dropped_messages": dropped} if dropped else {}
        role = {"role": "assistant", "content": ""}
        return [
            {
                **self.head(stream=True),
                **told,
                "choices": [{"index": place, "delta": role, "logprobs": None, "finish_reason": None}],
            }
            for place in range(texts)
        ]

    def choice(self, place: int, text: Written) -> Object:
        return {
            "index": place,
            "message": {"role": "assistant", "content": text.text, "refusal": None},
            "logprobs": self._logprobs(text.told),
            "finish_reason": text.finished,
        }

    def part(self, piece: Piece, text: Written, told: Sequence[Told]) -> Object:
        return {
            "index": piece.text,
            "delta": {"content": piece.words} if piece.words else {},
            "logprobs": self._logprobs(told),
            "finish_reason": piece.finished,
        }

    def _logprobs(self, told: Sequence[Told]) -> Object | None:
        if not told:
            return None
        return {
            "content": [
                {
                    **_likely(one.word, one.likely.logprob),
                    "top_logprobs": [_likely(self.tokens[other], share) for other, share in one.likely.top],
                }
                for one in told
            ],
            "refusal": None,
        }


SHAPES: dict[str, type[Shape]] = {"completion": Completion, "chat": Chat}


def _likely(word: Spelled, logprob: float) -> Object:
    return {"token": word.text, "logprob": logprob, "bytes": list(word.raw)}


def usage_of(prompt: int, completion: int) -> Object:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
