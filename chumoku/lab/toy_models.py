"""What several experiments share: a small language model of English lines, random facts, and formatting of seeds.

lines   (begin) Tom eats an apple .  →  Tom eats an apple . (end)        loss in nats per word
facts   (subject, relation) → object, all random, so they can only be memorized
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.data.batches import IGNORE
from chumoku.data.grammar.sentence import Sentence
from chumoku.lab.sentence_data import PAD, load_sentences, shift_right, split_english, take_rows
from chumoku.lab.training import fit, mean
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.model import DecoderModel, Model
from chumoku.nn import Attention, Block, LayerNorm, RouterLosses

ROWS = 32
WIDTH = 64


def format_seeds(values: Sequence[float], form: str = "{:.2f}") -> str:
    """Mean, minimum and maximum over the seeds: 0.52 (0.48–0.55)."""
    shown = [form.format(value) for value in (mean(values), min(values), max(values))]
    return f"{shown[0]} ({shown[1]}–{shown[2]})"


class ZeroLayer(nn.Module):
    """Replaces a sub-layer and returns zeros, so that the block passes x on unchanged."""

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        return torch.zeros_like(x)


class Lines(NamedTuple):
    inputs: Tensor
    targets: Tensor

    def sample(self, generator: torch.Generator, number: int = ROWS) -> Lines:
        chosen = torch.randint(len(self.inputs), (number,), generator=generator)
        return Lines(take_rows(self.inputs, chosen), take_rows(self.targets, chosen, filler=IGNORE))


def make_lines(chosen: Sequence[Sentence]) -> Lines:
    """The English side of these sentences as token ids."""
    return Lines(*shift_right([load_sentences().target.encode(split_english(one.target)) for one in chosen]))


@functools.cache
def train_and_test_lines() -> tuple[Lines, Lines]:
    """English lines for training, and lines with unseen combinations of words for testing."""
    return make_lines(load_sentences().train), make_lines(load_sentences().test)


def build_language_model(seed: int, **changes: Any) -> DecoderModel:
    """A decoder over the words of `load_sentences`: two blocks of width 32 with four heads, unless `changes` differ."""
    values = {"width": 32, "layers": 2, "heads": 4, "context": 32, "position": "rotary", "initialization": "xavier"}
    config = ModelConfig(kind="decoder", vocabulary=len(load_sentences().target), **{**values, **changes})
    return build(config, seed=seed)  # type: ignore[return-value]


def line_loss(model: DecoderModel, part: Lines, *, balance: float = 0.0) -> Tensor:
    output = model(part.inputs, mask=part.inputs != PAD if not model.decoder.causal else None)
    loss = F.cross_entropy(output.logits.flatten(0, 1), part.targets.flatten(), ignore_index=IGNORE)
    return loss if output.losses is None else loss + balance * output.losses.balance


def fit_lines(
    model: DecoderModel, part: Lines, *, steps: int, seed: int, rate: float = 5e-3, cosine: bool = True
) -> list[float]:
    """Train a language model on lines, in place; returns the loss of every step."""

    def loss(generator: torch.Generator) -> Tensor:
        return line_loss(model, part.sample(generator))

    return fit(model, loss, steps=steps, seed=seed, rate=rate, warmup=steps // 10, cosine=cosine, clip=1.0)


@torch.no_grad()
def evaluate_loss(model: DecoderModel, part: Lines) -> float:
    """Loss per word over all lines, in eval mode."""
    training = model.training
    model.eval()
    value = line_loss(model, part).item()
    model.train(training)
    return value


def unigram_loss(part: Lines) -> float:
    """Loss of predicting every word by its frequency alone."""
    words = part.targets[part.targets != IGNORE]
    share = torch.bincount(words).double() / len(words)
    return -(share[share > 0] * share[share > 0].log()).sum().item()


class Facts(NamedTuple):
    subject: Tensor  # [N]
    relation: Tensor
    answer: Tensor

    def sample(self, generator: torch.Generator, number: int = 256) -> Facts:
        chosen = torch.randint(len(self.subject), (number,), generator=generator)
        return Facts(self.subject[chosen], self.relation[chosen], self.answer[chosen])


def make_facts(seed: int, *, subjects: int, relations: int, objects: int) -> Facts:
    """A random answer for every pair of subject and relation."""
    generator = torch.Generator().manual_seed(seed)
    subject, relation = torch.cartesian_prod(torch.arange(subjects), torch.arange(relations)).unbind(1)
    return Facts(subject, relation, torch.randint(objects, (len(subject),), generator=generator))


class FactModel(nn.Module):
    """One block that reads (subject, relation) and predicts the object. Its embeddings are random and frozen, so facts
    can only be stored in the block."""

    def __init__(self, known: Facts, feedforward: nn.Module, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        sizes = [int(column.max()) + 1 for column in known]
        for name, size in zip(("subjects", "relations", "objects"), sizes, strict=True):
            self.register_buffer(name, torch.randn(size, WIDTH, generator=generator))
        self.block = Block(Attention(WIDTH, 4), feedforward, norm=lambda: LayerNorm(WIDTH))  # type: ignore[arg-type]
        self.norm = LayerNorm(WIDTH)

    def forward(self, known: Facts, losses: RouterLosses | None = None) -> Tensor:
        x = torch.stack([self.subjects[known.subject], self.relations[known.relation]], 1)  # type: ignore[index]
        answer = self.norm(self.block(x, losses=losses)[:, 1])
        return answer @ self.objects.T / WIDTH**0.5  # type: ignore[no-any-return]

    @torch.no_grad()
    def count_recalled(self, known: Facts) -> int:
        return int((self(known).argmax(-1) == known.answer).sum())


def substitution_loss(model: Model, words: Tensor) -> Tensor:
    """Loss of predicting 3w + 1 for every word w."""
    targets = (3 * words + 1) % model.config.vocabulary
    return F.cross_entropy(model(words).logits.flatten(0, 1), targets.flatten())
