"""Sample outputs: what the model says, in words, at each validation."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from chumoku.data.batches import PairBatches
from chumoku.decoding.generate import generate
from chumoku.decoding.translate import translate
from chumoku.models.model import DecoderModel, EncoderDecoderModel, Model
from chumoku.training.dataset import Material
from chumoku.training.objectives import IGNORE, forward

PROMPT, NEW, SHOWN = 24, 48, 40  # tokens of a prompt, of its continuation, of a text with holes


def sampler(model: Model, material: Material, count: int) -> Callable[[], list[str]]:
    """A function that gives `count` sample outputs of the model as it then is, as lines to be shown."""
    if count == 0:
        return list

    def samples() -> list[str]:
        with warnings.catch_warnings():
            # A model under an adapter decodes slowly. Whoever trains one cannot change that, nor needs to.
            warnings.filterwarnings("ignore", "This model differs from its config")
            if isinstance(model, EncoderDecoderModel):
                return _translations(model, material, count)
            if isinstance(model, DecoderModel):
                return _continuations(model, material, count)
            return _guesses(model, material, count)

    return samples


def _translations(model: EncoderDecoderModel, material: Material, count: int) -> list[str]:
    if not isinstance(material.validation, PairBatches):
        return []
    source = material.validation.pairs.source
    texts = [material.source_tokenizer.decode(source[i].tolist()) for i in range(min(count, len(source)))]
    said = translate(model, texts, source_tokenizer=material.source_tokenizer, tokenizer=material.tokenizer, beam=1)
    return [f"  {text} → {translation}" for text, translation in zip(texts, said, strict=True)]


def _continuations(model: DecoderModel, material: Material, count: int) -> list[str]:
    rows = material.validation.batch(0, 0)["tokens"][:count, :PROMPT].tolist()
    end = material.tokenizer.roles.end
    said = generate(model, rows, max_new_tokens=NEW, temperature=0.8, top_p=0.95, end=end)

    def words(ids: list[int]) -> str:
        return _flat(material.tokenizer.decode([number for number in ids if number < material.tokenizer.size]))

    return [f"  {words(row)} ▸ {words(new)}" for row, new in zip(rows, said, strict=True)]


@torch.no_grad()
def _guesses(model: Model, material: Material, count: int) -> list[str]:
    batch = {name: table[:count].to(model.device) for name, table in material.validation.batch(0, 0).items()}
    logits = forward(model, batch).logits
    if logits is None:
        return []
    decode, lines = material.tokenizer.decode, []
    for truth, guess, labels in zip(batch["tokens"], logits.argmax(-1), batch["labels"], strict=True):
        words = []
        for token, guessed, label in zip(truth[:SHOWN], guess, labels, strict=False):
            hidden, guessed = int(label) != IGNORE, min(int(guessed), material.tokenizer.size - 1)
            words.append(f"[{decode([int(label)])}→{decode([int(guessed)])}]" if hidden else decode([int(token)]))
        lines.append(f"  {_flat(''.join(words))}")
    return lines


def _flat(text: str) -> str:
    return " ".join(text.split())
