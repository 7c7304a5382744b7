"""Conversations: the assistant's tokens have labels, and no others.

    … <generation prompt> answer <end of turn> … <generation prompt> answer <end of turn>
                          └──── learned ─────┘                       └──── learned ─────┘

This is tested without rendering any conversation: the tokens of the template's generation prompt and of its end of a
turn are found once, and every run of learned tokens must lie between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.data.batches import IGNORE
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Batch, Subject
from chumoku.text import Tokenizer
from chumoku.text.chat_template import ChatTemplate, encode_spans

BATCHES = 10
WRONG = 0.001  # share of the learned runs, or of the answers, that may be wrong
QUESTION = [{"role": "user", "content": "Question"}]


class Answers(NamedTuple):
    """Counts over some batches."""

    runs: int = 0  # of learned tokens
    early: int = 0  # that do not begin after the generation prompt
    late: int = 0  # that do not end with the end of a turn
    unlearned: int = 0  # generation prompts without learned tokens after them


def run(subject: Subject) -> Iterator[Finding]:
    if not subject.chat or subject.tokenizer is None or subject.tokenizer.chat_template is None:
        raise Skip("the corpus has no conversations")
    prompt = find_generation_prompt(subject.tokenizer, subject.tokenizer.chat_template)
    ends = subject.tokenizer.chat_template.find_end_tokens(subject.tokenizer)
    if not prompt:
        raise Skip("the chat template has no generation prompt")
    for name, batches in (("training", subject.train), ("validation", subject.validation)):
        if batches is not None:
            first_batches = [batches.batch(0, index) for index in range(min(BATCHES, len(batches)))]
            where = f"the first {len(first_batches)} batches of {name}"
            yield from judge(count_answers(first_batches, prompt, ends), where)


def find_generation_prompt(tokenizer: Tokenizer, template: ChatTemplate) -> list[int]:
    """The tokens that a template writes before the assistant's answer."""
    with_prompt, without = (
        encode_spans(tokenizer, template.render(QUESTION, add_generation_prompt=wanted)) for wanted in (True, False)
    )
    return with_prompt[len(without) :] if with_prompt[: len(without)] == without else []


def count_answers(batches: list[Batch], prompt: list[int], ends: list[int]) -> Answers:
    counted = Answers()
    for batch in batches:
        tokens = batch["tokens"]
        learned = torch.zeros_like(tokens, dtype=torch.bool)  # whether the token itself is a label, of the one before
        learned[:, 1:] = batch["labels"][:, :-1] != IGNORE
        before, after = shifted(learned, 1), shifted(learned, -1)
        after_prompt = prompt_ends(tokens, prompt)
        first, last = learned & ~before, learned & ~after
        counted = Answers(
            counted.runs + int(first.sum()),
            counted.early + int((first & ~after_prompt).sum()),
            counted.late + (int((last & ~torch.isin(tokens, torch.tensor(ends))).sum()) if ends else 0),
            counted.unlearned + int((after_prompt & ~learned).sum()),
        )
    return counted


def shifted(table: Tensor, by: int) -> Tensor:
    """table[:, t − by] at t, and False beyond the edges."""
    moved = torch.roll(table, by, dims=1)
    (moved[:, :by] if by > 0 else moved[:, by:]).fill_(False)
    return moved


def prompt_ends(tokens: Tensor, prompt: list[int]) -> Tensor:
    """[B, T]: whether the tokens before this one are the generation prompt."""
    found = torch.ones_like(tokens, dtype=torch.bool)
    for distance, token in enumerate(reversed(prompt), start=1):
        found &= shifted(tokens == token, distance)
    return found


def judge(counted: Answers, where: str) -> Iterator[Finding]:
    if counted.runs == 0:
        yield Finding("chat", "No token has a label.", where, 0.97, "Check how the learned tokens are found.")
        return
    early, late, unlearned, runs = counted.early, counted.late, counted.unlearned, counted.runs
    answers = runs + unlearned
    for share, sure, what in (
        (early / runs, 0.95, f"{early:,} of {runs:,} learned parts do not begin right after the generation prompt."),
        (late / runs, 0.95, f"{late:,} of {runs:,} learned parts do not end with the token that ends a turn."),
        # Whole answers without labels may be intended (weight 0).
        (unlearned / answers, 0.4, f"{unlearned:,} of {answers:,} answers of the assistant are not learned."),
    ):
        if share > WRONG:
            todo = "Give labels to the assistant's tokens and its end of the turn, and to no others."
            yield Finding("chat", what, where, sure, todo)


CHECK = Check("chat", "only the assistant's tokens are learned", cheap=True, run=run, needs_model=False)
