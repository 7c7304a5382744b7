"""The response of /v1/responses, and the events of its stream.

response    output: [{"type": "message", "content": [{"type": "output_text", …}]}, {"type": "function_call", …}, …]
stream      response.created, of each item output_item.added … output_item.done, response.completed or .incomplete
            of a message content_part.added, output_text.delta …, output_text.done, content_part.done
            of a call function_call_arguments.delta, function_call_arguments.done

Whether a text is a call of a function is known at its end; with tools, all of the text is one delta.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from chumoku.server.openai.response_schemas import ResponseRequest
from chumoku.server.openai.responses import GeneratedText, Object, ResponseFormatter
from chumoku.server.streaming import encode_json
from chumoku.server.worker import Piece


@dataclass(frozen=True)
class ResponseEvents(ResponseFormatter):
    prefix = "resp_"
    stream_end = b""
    request: ResponseRequest = field(kw_only=True)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _output: list[Object] = field(default_factory=list)  # the items of the complete text

    def response(
        self, pieces: Sequence[Sequence[Piece]], *, trim: bool, prompt_tokens: int, cached_tokens: int, **extra: Any
    ) -> bytes:
        text = GeneratedText(trim)
        for piece in pieces[0]:
            self.chunks(piece, text)
        return encode_json({**self._response(text, prompt_tokens, cached_tokens), **extra})

    def first_chunks(self, texts: int, *, dropped: int) -> list[Object]:
        extra = {"dropped_messages": dropped} if dropped else {}
        created = self._event("created", response={**self._response(), **extra})
        return [created, *([] if self.functions else self._open(0, self._message("", "in_progress")))]

    def chunks(self, piece: Piece, text: GeneratedText) -> list[Object]:
        text.add(piece, self.tokens)
        events = [] if self.functions or not piece.text else [self._delta(piece.text)]
        if piece.finish_reason is None:
            return events
        self._output.extend(self._items(text))
        for index, item in enumerate(self._output):
            if self.functions:
                events += self._open(index, item)
            events += self._close(index, item)
        return events

    def last_chunks(self, texts: Sequence[GeneratedText], *, prompt_tokens: int, cached_tokens: int) -> list[Object]:
        response = self._response(texts[0], prompt_tokens, cached_tokens)
        return [self._event(response["status"], response=response)]

    def _response(self, text: GeneratedText | None = None, prompt: int = 0, cached: int = 0) -> Object:
        """The response object; without a text, at the beginning of a stream."""
        status = "in_progress" if text is None else self._status(text)
        count = 0 if text is None else text.count
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": count,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + count,
        }
        return {
            **self.request.model_dump(by_alias=True, exclude={"input", "stream"}),
            "id": self.prefix + self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": list(self._output),
            "store": False,
            "truncation": "auto",
            "usage": None if text is None else usage,
        }

    def _status(self, text: GeneratedText) -> str:
        return "completed" if text.finish_reason == "stop" else "incomplete"

    def _items(self, text: GeneratedText) -> list[Object]:
        content, calls = self.find_calls(text.text, text.finish_reason)
        message = [self._message(content, self._status(text))] if content or not calls else []
        return message + [
            {
                "type": "function_call",
                "id": call["id"].replace("call_", "fc_"),
                "call_id": call["id"],
                **call["function"],
                "status": "completed",
            }
            for call in calls
        ]

    def _message(self, text: str, status: str) -> Object:
        content = [] if status == "in_progress" else [text_part(text)]
        return {"type": "message", "id": f"msg_{self.id}", "role": "assistant", "status": status, "content": content}

    def _open(self, index: int, item: Object) -> list[Object]:
        """The events that begin an item; with all of its text, if it has some. Only the first item can be a message."""
        empty: Object = {"content": []} if item["type"] == "message" else {"arguments": ""}
        started = {**item, "status": "in_progress", **empty}
        events = [self._event("output_item.added", output_index=index, item=started)]
        if item["type"] == "message":
            events.append(self._event("content_part.added", **self._place, part=text_part("")))
            events += [self._delta(part["text"]) for part in item["content"] if part["text"]]
        return events

    def _close(self, index: int, item: Object) -> list[Object]:
        """The events that end an item."""
        if item["type"] == "message":
            (part,) = item["content"]
            events = [
                self._event("output_text.done", **self._place, text=part["text"], logprobs=[]),
                self._event("content_part.done", **self._place, part=part),
            ]
        else:
            place, arguments = {"item_id": item["id"], "output_index": index}, item["arguments"]
            events = [
                self._event("function_call_arguments.delta", **place, delta=arguments),
                self._event("function_call_arguments.done", **place, arguments=arguments),
            ]
        return [*events, self._event("output_item.done", output_index=index, item=item)]

    @property
    def _place(self) -> Object:
        return {"item_id": f"msg_{self.id}", "output_index": 0, "content_index": 0}

    def _delta(self, text: str) -> Object:
        return self._event("output_text.delta", **self._place, delta=text, logprobs=[])

    def _event(self, name: str, /, **fields: Any) -> Object:
        return {"type": f"response.{name}", "sequence_number": next(self._numbers), **fields}


def text_part(text: str) -> Object:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
