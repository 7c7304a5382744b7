"""What several trained experiments share: a small language model of English lines, facts to be learned by heart, and
how numbers of several seeds are told.

    lines   (begin) Tom eats an apple .  →  Tom eats an apple . (end)        loss in nats a word
    facts   (subject, relation) → object, all drawn at random: nothing to be understood, only remembered
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.data.grammar.sentence import Sentence
from chumoku.lab.experiment import PARTLY, Words
from chumoku.lab.sentence_data import IGNORE, PAD, english, sentences, shifted, trimmed
from chumoku.lab.training import mean
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.model import DecoderModel
from chumoku.nn import Attention, Block, LayerNorm, RouterLosses

ROWS = 32
WIDTH = 64


def told(values: Sequence[float], form: str = "{:.2f}") -> str:
    """Mean, and from the least to the greatest of the seeds: 0.52 (0.48–0.55)."""
    shown = [form.format(value) for value in (mean(values), min(values), max(values))]
    return f"{shown[0]} ({shown[1]}–{shown[2]})"


def only_when(verdict: str, condition: Words) -> Words | None:
    """The condition, for a verdict that has one."""
    return condition if verdict == PARTLY else None


class Nothing(nn.Module):
    """In the place of a sub-layer: adds nothing, so that a block hands x on."""

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        return torch.zeros_like(x)


class Lines(NamedTuple):
    fed: Tensor
    said: Tensor

    def drawn(self, generator: torch.Generator, number: int = ROWS) -> Lines:
        chosen = torch.randint(len(self.fed), (number,), generator=generator)
        return Lines(trimmed(self.fed, chosen), trimmed(self.said, chosen, filler=IGNORE))


def lines(chosen: Sequence[Sentence]) -> Lines:
    """The English side of these sentences."""
    return Lines(*shifted([sentences().target.encode(english(one.target)) for one in chosen]))


@functools.cache
def learned_and_unseen() -> tuple[Lines, Lines]:
    """All English lines to learn from, and those of unseen combinations to be judged by."""
    return lines(sentences().train), lines(sentences().test)


def language_model(seed: int, **changes: Any) -> DecoderModel:
    """Two blocks of width 32 with four heads over the words of `sentences`, unless told otherwise."""
    values = {"width": 32, "layers": 2, "heads": 4, "context": 32, "position": "rotary", "initialization": "xavier"}
    config = ModelConfig(kind="decoder", vocabulary=len(sentences().target), **{**values, **changes})
    return build(config, seed=seed)  # type: ignore[return-value]


def line_loss(model: DecoderModel, part: Lines, *, balance: float = 0.0) -> Tensor:
    output = model(part.fed, mask=part.fed != PAD if not model.decoder.causal else None)
    loss = F.cross_entropy(output.logits.flatten(0, 1), part.said.flatten(), ignore_index=IGNORE)
    return loss if output.losses is None else loss + balance * output.losses.balance


@torch.no_grad()
def judged(model: DecoderModel, part: Lines) -> float:
    """The loss a word over all lines, in eval mode."""
    training = model.training
    model.eval()
    value = line_loss(model, part).item()
    model.train(training)
    return value


def guessed(part: Lines) -> float:
    """The loss of somebody who knows how often each word comes, and nothing else."""
    words = part.said[part.said != IGNORE]
    share = torch.bincount(words).double() / len(words)
    return -(share[share > 0] * share[share > 0].log()).sum().item()


class Facts(NamedTuple):
    subject: Tensor  # [N]
    relation: Tensor
    answer: Tensor

    def drawn(self, generator: torch.Generator, number: int = 256) -> Facts:
        chosen = torch.randint(len(self.subject), (number,), generator=generator)
        return Facts(self.subject[chosen], self.relation[chosen], self.answer[chosen])


def facts(seed: int, *, subjects: int, relations: int, objects: int) -> Facts:
    """One answer for every subject and relation."""
    generator = torch.Generator().manual_seed(seed)
    subject, relation = torch.cartesian_prod(torch.arange(subjects), torch.arange(relations)).unbind(1)
    return Facts(subject, relation, torch.randint(objects, (len(subject),), generator=generator))


class Rememberer(nn.Module):
    """One block that reads (subject, relation) and answers. Its tables are random and stay so: a fact can only be
    remembered in the block."""

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
    def recalled(self, known: Facts) -> int:
        return int((self(known).argmax(-1) == known.answer).sum())
