"""The forms of OpenAI's answers: whole, and in chunks.

completion   choices[i]: text, logprobs {tokens, token_logprobs, top_logprobs, text_offset}, finish_reason
chat         choices[i]: message or delta {role, content}, logprobs {content: [token, logprob, bytes, top]}, …
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from chumoku.decoding.measured import Likelihood
from chumoku.server.spelling import spelled
from chumoku.server.worker import Piece
from chumoku.text.tokenizer import Tokenizer

Object = dict[str, Any]


@dataclass
class Written:
    """What there is of a text."""

    words: list[str] = field(default_factory=list)
    tokens: list[tuple[int, Likelihood]] = field(default_factory=list)
    count: int = 0
    spelled: int = 0  # letters of the tokens told so far
    finished: str | None = None

    def add(self, piece: Piece) -> None:
        self.words.append(piece.words)
        self.finished = piece.finished
        if piece.token is not None:
            self.count += 1
            if piece.likelihood is not None:
                self.tokens.append((piece.token, piece.likelihood))

    @property
    def text(self) -> str:
        return "".join(self.words)


@dataclass(frozen=True)
class Shape:
    """One answer's form."""

    id: str
    created: int
    model: str
    tokenizer: Tokenizer

    def head(self, *, stream: bool) -> Object:
        raise NotImplementedError

    def choice(self, place: int, text: Written) -> Object:
        raise NotImplementedError

    def part(self, piece: Piece, text: Written) -> Object:
        raise NotImplementedError

    def opening(self, texts: int, *, dropped: int) -> list[Object]:
        """What a stream begins with."""
        return []

    def whole(self, texts: Sequence[Written]) -> Object:
        choices = [self.choice(place, text) for place, text in enumerate(texts)]
        return {**self.head(stream=False), "choices": choices}

    def chunk(self, piece: Piece, text: Written) -> Object | None:
        """A piece as an event; None where nothing of it can be told yet."""
        if not piece.words and piece.likelihood is None and piece.finished is None:
            return None
        return {**self.head(stream=True), "choices": [self.part(piece, text)]}


class Completion(Shape):
    def head(self, *, stream: bool) -> Object:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}

    def choice(self, place: int, text: Written) -> Object:
        return {
            "index": place,
            "text": text.text,
            "logprobs": self._logprobs(text.tokens, text),
            "finish_reason": text.finished,
        }

    def part(self, piece: Piece, text: Written) -> Object:
        return {
            "index": piece.text,
            "text": piece.words,
            "logprobs": self._logprobs(_of(piece), text),
            "finish_reason": piece.finished,
        }

    def _logprobs(self, tokens: Sequence[tuple[int, Likelihood]], text: Written) -> Object | None:
        if not tokens:
            return None
        words = [spelled(self.tokenizer, token) for token, _ in tokens]
        offsets = []
        for word in words:
            offsets.append(text.spelled)
            text.spelled += word.letters
        return {
            "tokens": [word.text for word in words],
            "token_logprobs": [likely.logprob for _, likely in tokens],
            "top_logprobs": [
                {spelled(self.tokenizer, token).text: share for token, share in reversed(likely.top)}
                for _, likely in tokens
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
            "logprobs": self._logprobs(text.tokens),
            "finish_reason": text.finished,
        }

    def part(self, piece: Piece, text: Written) -> Object:
        return {
            "index": piece.text,
            "delta": {"content": piece.words} if piece.words else {},
            "logprobs": self._logprobs(_of(piece)),
            "finish_reason": piece.finished,
        }

    def _logprobs(self, tokens: Sequence[tuple[int, Likelihood]]) -> Object | None:
        if not tokens:
            return None
        return {
            "content": [
                {
                    **self._one(token, likely.logprob),
                    "top_logprobs": [self._one(other, share) for other, share in likely.top],
                }
                for token, likely in tokens
            ],
            "refusal": None,
        }

    def _one(self, token: int, logprob: float) -> Object:
        word = spelled(self.tokenizer, token)
        return {"token": word.text, "logprob": logprob, "bytes": list(word.raw)}


SHAPES: dict[str, type[Shape]] = {"completion": Completion, "chat": Chat}


def _of(piece: Piece) -> list[tuple[int, Likelihood]]:
    return [(piece.token, piece.likelihood)] if piece.token is not None and piece.likelihood is not None else []


def usage_of(prompt: int, completion: int) -> Object:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
