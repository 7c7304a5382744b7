"""Prompts with an answer that can be checked → tokens of the prompt, bytes of the answer, and both as a sample.

    {"prompt": "12+7=" or [messages], "answer": "19"}

A model with a chat template gets a text as a message of the user; another model continues it. A sample is what the
model would have written: the prompt, the answer and the token that ends it. Only the doctor reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chumoku.data.chat_samples import ChatSample, EncodedConversation
from chumoku.data.conversations import Messages, join_questions, parse_messages, read_records
from chumoku.data.prepared_chat import ChatSamples, open_chat, prepare_records
from chumoku.data.report import Report
from chumoku.errors import UsageError
from chumoku.text import Tokenizer
from chumoku.text.chat_template import encode_spans
from chumoku.text.progress import Progress, silent

SIDES = ("prompts", "answers", "samples")
MAX_ANSWER_BYTES = 1 << 16


class Prompt(NamedTuple):
    file: str
    line: int
    prompt: str | Messages
    answer: str
    problem: str | None = None  # the reason for dropping it

    @property
    def contents(self) -> list[str]:
        return [self.questions, self.answer]

    @property
    def identity(self) -> str:
        """A text that differs for different records."""
        return json.dumps([self.prompt, self.answer])

    @property
    def questions(self) -> str:
        """All that the user says."""
        return self.prompt if isinstance(self.prompt, str) else join_questions(self.prompt)


class CheckedPrompts(NamedTuple):
    """Encoded prompts, the UTF-8 bytes of their answers, and samples of both."""

    prompts: ChatSamples
    answers: ChatSamples
    samples: ChatSamples


def read_prompts(paths: Sequence[Path], report: Report) -> Iterator[Prompt]:
    """The prompts of JSONL files."""
    form = "prompt and answer"
    required = ("prompt", "answer")
    for name, number, record in read_records(paths, report, required=required, what="prompts", form=form):
        yield parse_prompt(name, number, record)


def parse_prompt(file: str, line: int, record: dict[str, Any]) -> Prompt:
    """The prompt of a JSONL record; an answer may be a number."""
    asked, answer = record.get("prompt"), record.get("answer")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = str(answer)
    prompt = asked if isinstance(asked, str) else parse_messages(asked)
    if prompt is None or not isinstance(answer, str):
        return Prompt(file, line, "", "", "invalid record")
    found = Prompt(file, line, prompt, answer)
    if not found.questions.strip() or not answer.strip():
        return found._replace(problem="empty")
    too_long = len(answer.encode("utf-8", "replace")) > MAX_ANSWER_BYTES
    return found._replace(problem="too many bytes in the answer" if too_long else None)


class PromptEncoder:
    """Encodes prompts for a model; a prompt has at most `most` tokens."""

    def __init__(self, tokenizer: Tokenizer, most: int) -> None:
        self._tokenizer, self._most = tokenizer, most
        self.end = end_token(tokenizer)

    def __call__(self, one: Prompt) -> EncodedConversation:
        try:
            prompt = self.encode(one.prompt)
        except UsageError as error:
            return EncodedConversation([], problem="refused by the template", detail=str(error))
        if not prompt or len(prompt) > self._most:
            return EncodedConversation([], problem="too many tokens" if prompt else "empty")
        solution = [*self._tokenizer.encode(one.answer), self.end]
        parts = (prompt, list(one.answer.encode("utf-8", "replace")), [*prompt, *solution])
        learned = (0, 0, len(solution))
        return EncodedConversation([_sample(part, count) for part, count in zip(parts, learned, strict=True)])

    def encode(self, prompt: str | Messages) -> list[int]:
        """The tokens that the model continues."""
        template = self._tokenizer.chat_template
        if template is None:
            if not isinstance(prompt, str):
                raise UsageError("This model has no chat template; a prompt must be a text, not messages.")
            return [*self._tokenizer.prefix_and_suffix[0], *self._tokenizer.encode(prompt)]
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return encode_spans(self._tokenizer, template.render(messages, add_generation_prompt=True))


def _sample(tokens: Sequence[int], learned: int) -> ChatSample:
    return ChatSample(np.array(tokens, np.int64), np.arange(len(tokens)) >= len(tokens) - learned)


def end_token(tokenizer: Tokenizer) -> int:
    """The token that ends an answer: that of the chat template, or of a text."""
    template = tokenizer.chat_template
    ends = template.find_end_tokens(tokenizer) if template is not None else []
    end = ends[0] if ends else tokenizer.roles.end
    if end is None:
        raise UsageError("The tokenizer has no token that ends a text, so no answer would ever end.")
    return end


def prepare_prompts(
    files: Sequence[str | Path],
    tokenizer: Tokenizer,
    folder: Path | str,
    *,
    length: int,
    validation: float = 0.1,
    progress: Progress = silent,
) -> Path:
    """Read, encode and split prompts into `folder`, and return it; `length` is the most tokens of a prompt."""
    return prepare_records(
        files,
        tokenizer,
        Path(folder),
        inputs={"length": length},
        sides=SIDES,
        read=read_prompts,
        encode=PromptEncoder(tokenizer, length),
        validation=validation,
        progress=progress,
    )


def open_prompts(folder: Path | str, part: str = "train") -> CheckedPrompts:
    """The prompts of a part, "train" or "validation"."""
    return CheckedPrompts(*(open_chat(folder, part, side) for side in SIDES))
