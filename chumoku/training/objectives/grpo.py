"""GRPO: answers that a rule rewards become more likely, compared with other answers to the same prompt.

    o_1 … o_G ~ π_old( · | prompt),   r_i = rule(o_i, answer),   and 0 if o_i does not end within max_new_tokens
    A_i       grpo:     (r_i − mean r) / (std r + 10⁻⁴)      w_i = 1 / |o_i|
              dr_grpo:   r_i − mean r                        w_i = 1 / max_new_tokens
    ρ_it      π(o_it | …) / π_old(o_it | …)
    KL_it     e^d − d − 1,   d = log π_ref(o_it | …) − log π(o_it | …)                       never negative
    loss_i    −w_i Σ_t ( min(ρ_it A_i, clip(ρ_it, 1 − ε, 1 + ε) A_i) − β KL_it )

grpo is DeepSeekMath's (2024). Dr. GRPO (Liu et al., 2025) leaves out two divisions: by the standard deviation, which
favors prompts that are almost always or almost never solved, and by the length, which favors long wrong answers.

The answers are sampled at the start of each step, by our decoding engine. Their random numbers depend only on the seed,
the epoch and the prompt. All `updates` of a step use the same answers; in the first one, π is π_old and ρ is 1. The
reference of an adapter is the model without it, otherwise a copy of the first weights. In eval mode the loss of a
prompt is 1 − r of its greedy answer.

Beside the loss, a run logs the means of r (reward), of the answers that end (finished), and of KL per token (kl).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from chumoku import lora
from chumoku.data.batches import IGNORE
from chumoku.data.prompt_batches import unpad
from chumoku.data.prompts import end_token
from chumoku.decoding.generate import generate
from chumoku.decoding.sampling import SamplingOptions
from chumoku.errors import UsageError
from chumoku.models.model import DecoderModel, Model
from chumoku.text.tokenizer import Tokenizer
from chumoku.training.metrics import Metrics
from chumoku.training.objectives.answer_logprobs import eval_mode, label_logprobs
from chumoku.training.objectives.token_prediction import Objective
from chumoku.training.rewards import RULES
from chumoku.training.settings import GrpoSettings

if TYPE_CHECKING:
    from chumoku.training.distributed import World

Batch = dict[str, Tensor]
EPSILON = 1e-4


class Answer(NamedTuple):
    """A generated answer: its tokens, with the end token if it ends, its text and its reward."""

    prompt: list[int]
    tokens: list[int]
    text: str
    finished: bool
    reward: float


def advantages(rewards: Tensor, method: str) -> Tensor:
    """A of each answer: rewards [P, G] → [P, G]."""
    centered = rewards - rewards.mean(1, keepdim=True)
    return centered / (rewards.std(1, keepdim=True, correction=0) + EPSILON) if method == "grpo" else centered


def clipped_gain(ratios: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """min(ρ A, clip(ρ) A)."""
    return torch.minimum(ratios * advantage, ratios.clamp(1 - clip, 1 + clip) * advantage)


def kl_estimate(logprobs: Tensor, reference: Tensor) -> Tensor:
    """e^d − d − 1 with d = log π_ref − log π, whose mean over samples of π is KL(π ‖ π_ref)."""
    d = reference - logprobs
    return d.exp() - d - 1


class GrpoObjective(Objective):
    """Batch of `chumoku.data.prompt_batches` → loss summed over sampled answers."""

    def __init__(self, model: Model, settings: GrpoSettings, tokenizer: Tokenizer) -> None:
        super().__init__(model)
        self.settings, self.tokenizer, self.rule = settings, tokenizer, RULES[settings.reward]
        self.end, self.updates, self.validate_first = end_token(tokenizer), settings.updates, True
        self.metrics = Metrics("reward", "finished", "kl")
        copied = settings.beta > 0 and not lora.list_adapters(model)
        # Inside a tuple, it is no submodule: not trained, not cast, not in training mode, not synchronized.
        self._reference = (copy.deepcopy(model).eval().requires_grad_(False),) if copied else ()

    def forward(self, batch: Batch) -> Tensor:
        if "prompts" in batch:
            rewards = torch.tensor([one.reward for one in self.generate(batch, greedy=True)])
            self.metrics.add(len(rewards), reward=rewards.sum())
            return (1 - rewards).sum().to(self.model.device)
        tokens, labels, settings = batch["tokens"], batch["labels"], self.settings
        logprobs = label_logprobs(self.model, tokens, labels, temperature=settings.temperature)
        ratios = (logprobs - batch.get("old", logprobs.detach())).exp()
        gain = clipped_gain(ratios, batch["advantages"][:, None], settings.clip)
        real = labels != IGNORE
        lengths = real.sum(1)
        if "reference" in batch:
            kl = kl_estimate(logprobs, batch["reference"]) * real
            self.metrics.add(0, kl=(kl.sum(1) / lengths).sum() / self.updates)
            gain = gain - settings.beta * kl
        weights = lengths if settings.method == "grpo" else settings.max_new_tokens
        return -((gain * real).sum(1) / weights).sum()

    def step_batches(self, batches: list[Batch], module: nn.Module, world: World) -> Iterator[Batch]:
        """For each batch of prompts, a batch of answers that the model generates for them."""
        for batch in batches:
            yield self.sample(batch)

    def sample(self, batch: Batch) -> Batch:
        """The batch of G answers for each prompt, with the advantage of each and what the loss compares it with."""
        answers = self.generate(batch)
        rewards = torch.tensor([one.reward for one in answers])
        finished = torch.tensor([float(one.finished) for one in answers])
        self.metrics.add(len(answers), reward=rewards.sum(), finished=finished.sum())
        sampled = {**pad_answers(answers), "rewards": rewards}
        sampled["advantages"] = advantages(rewards.view(-1, self.settings.samples), self.settings.method).flatten()
        sampled = {name: table.to(self.model.device) for name, table in sampled.items()}
        with torch.no_grad(), eval_mode(self.model):
            if self.updates > 1:
                sampled["old"] = self.logprobs(self.model, sampled)
            if self._reference:
                sampled["reference"] = self.logprobs(self._reference[0], sampled)
            elif self.settings.beta > 0:
                with lora.without_adapter(self.model):
                    sampled["reference"] = self.logprobs(self.model, sampled)
        return sampled

    def logprobs(self, model: Model, batch: Batch) -> Tensor:
        return label_logprobs(model, batch["tokens"], batch["labels"], temperature=self.settings.temperature)

    def generate(self, batch: Batch, *, greedy: bool = False) -> list[Answer]:
        """G answers for each prompt, one prompt after another; with `greedy`, one."""
        count, most = 1 if greedy else self.settings.samples, self.settings.max_new_tokens
        prompts = [prompt for prompt in unpad(batch["prompts"]) for _ in range(count)]
        answers = [bytes(one).decode("utf-8", "replace") for one in unpad(batch["answers"]) for _ in range(count)]
        temperature = 0.0 if greedy else self.settings.temperature
        options = [
            SamplingOptions(temperature=temperature, top_p=None, seed=seed, row=row)
            for seed in batch["seeds"].tolist()
            for row in range(count)
        ]
        model = self.model
        if not isinstance(model, DecoderModel):
            raise UsageError("GRPO needs a model of kind 'decoder', which generates answers.")
        with eval_mode(model), warnings.catch_warnings():
            # A model with an adapter decodes slowly; the warning about that does not help during training.
            warnings.filterwarnings("ignore", "This model differs from its config")
            found = generate(model, prompts, max_new_tokens=most, sampling=options, end=self.end)
        return [self.judge(*row) for row in zip(prompts, found, answers, strict=True)]

    def judge(self, prompt: list[int], tokens: list[int], answer: str) -> Answer:
        finished = len(tokens) < self.settings.max_new_tokens
        text = self.text(tokens)
        reward = self.rule(text, answer) if finished else 0.0
        return Answer(prompt, [*tokens, self.end] if finished else tokens, text, finished, reward)

    def text(self, tokens: list[int]) -> str:
        """The text of tokens; a vocabulary may have more of them than the tokenizer."""
        return self.tokenizer.decode([token for token in tokens if token < self.tokenizer.size])


def pad_answers(answers: list[Answer]) -> Batch:
    """tokens and labels [N, T] of prompts and answers; only the tokens of answers have labels."""
    width = max(len(one.prompt) + len(one.tokens) for one in answers) - 1
    tokens, labels = np.zeros((len(answers), width), np.int64), np.full((len(answers), width), IGNORE, np.int64)
    for row, one in enumerate(answers):
        sequence, start = [*one.prompt, *one.tokens], len(one.prompt) - 1
        tokens[row, : len(sequence) - 1] = sequence[:-1]
        labels[row, start : len(sequence) - 1] = one.tokens
    return {"tokens": torch.from_numpy(tokens), "labels": torch.from_numpy(labels)}
