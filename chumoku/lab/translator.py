"""A very small translator for the experiments that look into one: trained once a seed in a laboratory's run.

    encoder   3 blocks over Japanese units          decoder   2 blocks over English words, looking at the encoder
    width 64, 4 heads, rotary positions, F = 128; Adam, a half cosine, 32 pairs a step

It is always trained here, never taken from a run that happens to lie about, so that a verdict depends on the seed and
the number of steps alone; both are in the numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.data.grammar.sentence import Sentence
from chumoku.decoding.beam import search
from chumoku.decoding.beam_rules import Hypothesis
from chumoku.lab.experiment import Budget
from chumoku.lab.sentence_data import BEGIN, END, IGNORE, PAD, Sentences, english, rows, sentences, shifted, trimmed
from chumoku.lab.training import fit
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.model import EncoderDecoderModel

STEPS, LEAST, PAIRS = 800, 200, 32
LONGEST = 24


class Translator(NamedTuple):
    model: EncoderDecoderModel
    data: Sentences
    seed: int
    steps: int

    def sources(self, chosen: Sequence[Sentence]) -> Tensor:
        return rows([self.data.source.encode(one.units) for one in chosen], after=END)

    def targets(self, chosen: Sequence[Sentence]) -> tuple[Tensor, Tensor]:
        """What the decoder is fed, and what it is to say."""
        return shifted([self.data.target.encode(english(one.target)) for one in chosen])

    def say(self, source: Tensor, *, look: bool = False) -> list[Hypothesis]:
        """The greedy translation of every row."""
        found = search(self.model, source, source_mask=source != PAD, begin=BEGIN, end=END, limit=LONGEST, look=look)
        return [best for best, *_ in found]


def steps_of(budget: Budget) -> int:
    return budget.steps(STEPS, LEAST)


def translators(budget: Budget) -> list[Translator]:
    """One for each seed, trained when first asked for."""
    return [trained(seed, steps_of(budget)) for seed in range(budget.seeds)]


@functools.cache
def trained(seed: int, steps: int) -> Translator:
    data = sentences()
    translator = Translator(fresh(data, seed), data, seed, steps)
    source = translator.sources(data.train)
    fed, said = translator.targets(data.train)
    lengths = (source != PAD).sum(1)

    def loss(generator: torch.Generator) -> Tensor:
        chosen = of_like_length(lengths, generator)
        read, heard, wanted = trimmed(source, chosen), trimmed(fed, chosen), trimmed(said, chosen, filler=IGNORE)
        logits = translator.model(read, heard, source_mask=read != PAD).logits
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORE)

    fit(translator.model, loss, steps=steps, seed=seed, rate=5e-3, warmup=steps // 8, cosine=True, clip=1.0)
    return translator


def of_like_length(lengths: Tensor, generator: torch.Generator) -> Tensor:
    """A batch of sentences of like length, so that little of it is padding."""
    drawn = torch.randint(len(lengths), (8, PAIRS), generator=generator).flatten()
    part = torch.randint(8, (1,), generator=generator)
    return drawn[lengths[drawn].argsort()].view(8, PAIRS)[int(part)]


def fresh(data: Sentences, seed: int) -> EncoderDecoderModel:
    """The same model before it has learned anything."""
    config = ModelConfig(
        kind="encoder-decoder",
        vocabulary=len(data.target),
        source_vocabulary=len(data.source),
        context=2 * LONGEST,
        width=64,
        layers=2,
        encoder_layers=3,
        heads=4,
        feedforward="relu",
        feedforward_width=128,
        position="rotary",
        initialization="xavier",
    )
    return build(config, seed=seed)  # type: ignore[return-value]
