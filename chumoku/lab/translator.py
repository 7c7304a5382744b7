"""A very small translator shared by several experiments, trained once per seed in a run of the lab.

    encoder   3 blocks over Japanese units          decoder   2 blocks over English words, with cross-attention
    width 64, 4 heads, rotary positions, F = 128; Adam, cosine schedule, 32 pairs per step

It is always trained here and never loaded from disk, so verdicts depend only on the seed and the number of steps.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.data.batches import IGNORE
from chumoku.data.grammar.sentence import Sentence
from chumoku.decoding.beam import search
from chumoku.decoding.beam_rules import Hypothesis
from chumoku.lab.experiment import Budget
from chumoku.lab.sentence_data import (
    BEGIN,
    END,
    PAD,
    Sentences,
    load_sentences,
    pad_rows,
    shift_right,
    split_english,
    take_rows,
)
from chumoku.lab.training import fit
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.model import EncoderDecoderModel

STEPS, MIN_STEPS, BATCH = 800, 200, 32
MAX_LENGTH = 24


class Translator(NamedTuple):
    model: EncoderDecoderModel
    data: Sentences
    seed: int
    steps: int

    def encode_sources(self, chosen: Sequence[Sentence]) -> Tensor:
        return pad_rows([self.data.source.encode(one.units) for one in chosen], after=END)

    def encode_targets(self, chosen: Sequence[Sentence]) -> tuple[Tensor, Tensor]:
        """Decoder inputs and targets."""
        return shift_right([self.data.target.encode(split_english(one.target)) for one in chosen])

    def translate(self, source: Tensor, *, look: bool = False) -> list[Hypothesis]:
        """Greedy translation of every row."""
        found = search(
            self.model, source, source_mask=source != PAD, begin=BEGIN, end=END, limit=MAX_LENGTH, return_attention=look
        )
        return [best for best, *_ in found]


def training_steps(budget: Budget) -> int:
    return budget.steps(STEPS, MIN_STEPS)


def get_translators(budget: Budget) -> list[Translator]:
    """One translator per seed, trained on the first call and then cached."""
    return [train_translator(seed, training_steps(budget)) for seed in range(budget.seeds)]


@functools.cache
def train_translator(seed: int, steps: int) -> Translator:
    data = load_sentences()
    translator = Translator(build_translator(data, seed), data, seed, steps)
    source = translator.encode_sources(data.train)
    inputs, targets = translator.encode_targets(data.train)
    lengths = (source != PAD).sum(1)

    def loss(generator: torch.Generator) -> Tensor:
        chosen = sample_similar_lengths(lengths, generator)
        batch, labels = take_rows(source, chosen), take_rows(targets, chosen, filler=IGNORE)
        logits = translator.model(batch, take_rows(inputs, chosen), source_mask=batch != PAD).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)

    fit(translator.model, loss, steps=steps, seed=seed, rate=5e-3, warmup=steps // 8, cosine=True, clip=1.0)
    return translator


def sample_similar_lengths(lengths: Tensor, generator: torch.Generator) -> Tensor:
    """Indices of a batch of sentences with similar lengths, so that there is little padding."""
    candidates = torch.randint(len(lengths), (8, BATCH), generator=generator).flatten()
    part = torch.randint(8, (1,), generator=generator)
    return candidates[lengths[candidates].argsort()].view(8, BATCH)[int(part)]


def build_translator(data: Sentences, seed: int) -> EncoderDecoderModel:
    """The untrained model."""
    config = ModelConfig(
        kind="encoder-decoder",
        vocabulary=len(data.target),
        source_vocabulary=len(data.source),
        context=2 * MAX_LENGTH,
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
