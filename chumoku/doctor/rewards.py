"""Rewards fit the prompts:

rule       the right answer of a prompt gets 1, and the answers of other prompts get less on average
answers    a sampled answer follows its own prompt, its labels are its own tokens, its reward is that of its own text
           with the answer of its own prompt
advantages sum to 0 over the answers of a prompt, and a better answer has a higher one
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from chumoku.data.batches import IGNORE
from chumoku.data.prompt_batches import PromptBatches, unpad
from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Batch, Subject
from chumoku.doctor.tools import restore_after
from chumoku.training.objectives import grpo
from chumoku.training.objectives.grpo import GrpoObjective
from chumoku.training.rewards import RULES

PROMPTS = 200  # whose rule is tested
SAMPLED = 5  # prompts for which answers are generated
WRONG = 0.01  # share of prompts whose own answer may get less than 1
TOLERANCE = 1e-4


def run(subject: Subject) -> Iterator[Finding]:
    if subject.prompts is None or subject.grpo is None or subject.tokenizer is None:
        raise Skip("the corpus has no prompts with answers")
    yield from check_rule(subject.prompts, subject.grpo.reward)
    yield from check_advantages(subject.grpo.method)
    if subject.model is not None:
        objective = GrpoObjective(subject.model, subject.grpo, subject.tokenizer)
        batch = {name: table[:SAMPLED] for name, table in subject.prompts.batch(0, 0).items()}
        with restore_after(subject.model, precise=False):
            sampled = {name: table.cpu() for name, table in objective.sample(batch).items()}
        yield from check_answers(batch, sampled, objective)


def check_rule(batches: PromptBatches, rule: str) -> Iterator[Finding]:
    count = min(PROMPTS, len(batches.prompts.answers))
    texts = [decode_bytes(batches.prompts.answers[place].tokens.tolist()) for place in range(count)]
    own = [RULES[rule](text, text) for text in texts]
    others = [
        RULES[rule](one, other) for one, other in zip(texts, [*texts[1:], *texts[:1]], strict=True) if one != other
    ]
    where = f"the first {count} prompts, grpo.reward = '{rule}'"
    failed = [text for text, reward in zip(texts, own, strict=True) if reward < 1]
    if len(failed) > WRONG * count:
        yield Finding(
            "rewards",
            f"{len(failed):,} of {count:,} right answers get no full reward, such as {failed[0][:40]!r}.",
            where,
            0.97,
            "Choose another rule with grpo.reward, or write the answers in the form that it compares.",
        )
    elif others and min(others) >= 1:
        yield Finding(
            "rewards",
            "Answers of other prompts get full reward, too, so there is nothing to learn.",
            where,
            0.9,
            "Check the rule and the answers.",
        )


def check_answers(batch: Batch, sampled: Batch, objective: GrpoObjective) -> Iterator[Finding]:
    count, wrong = objective.settings.samples, {"prompt": 0, "labels": 0, "reward": 0}
    prompts, answers = unpad(batch["prompts"]), [decode_bytes(row) for row in unpad(batch["answers"])]
    for row, (tokens, labels) in enumerate(zip(sampled["tokens"].tolist(), sampled["labels"].tolist(), strict=True)):
        prompt, written = prompts[row // count], [label for label in labels if label != IGNORE]
        start = len(prompt) - 1
        wrong["prompt"] += tokens[: len(prompt)] != prompt
        follows = tokens[start + 1 : start + len(written)] == written[:-1]
        wrong["labels"] += not follows or labels[start : start + len(written)] != written
        answer = written[:-1] if written[-1:] == [objective.end] else written
        judged = objective.judge(prompt, answer, answers[row // count])
        wrong["reward"] += abs(judged.reward - float(sampled["rewards"][row])) > TOLERANCE
    where = f"{len(sampled['tokens'])} answers that the model samples for {len(prompts)} prompts"
    for count, what in (
        (wrong["prompt"], f"{wrong['prompt']} sampled answers do not begin with their own prompt."),
        (wrong["labels"], f"{wrong['labels']} sampled answers have labels that are not their own tokens."),
        (wrong["reward"], f"{wrong['reward']} sampled answers do not have the reward of their own text and answer."),
    ):
        if count:
            todo = "Check the order in which prompts, samples and answers are repeated and put together."
            yield Finding("rewards", what, where, 0.97, todo)


def check_advantages(method: str) -> Iterator[Finding]:
    rewards = torch.linspace(0, 1, 2 * 5).view(2, 5)
    found = grpo.advantages(rewards, method)
    if float(found.sum(1).abs().max()) > TOLERANCE or not bool((found.diff(dim=1) > 0).all()):
        yield Finding(
            "rewards",
            "The advantages of a prompt's answers do not sum to 0, or a better answer has a lower one.",
            "two prompts with five answers each, whose rewards differ",
            0.97,
            "Compare each answer with the mean reward of its own prompt.",
        )


def decode_bytes(row: list[int]) -> str:
    return bytes(row).decode("utf-8", "replace")


CHECK = Check("rewards", "right answers are rewarded", cheap=True, run=run, needs_model=False)
