"""Sample outputs of the model, shown at each validation."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F

from chumoku.data.batches import IGNORE, PairBatches
from chumoku.data.chat_batches import ChatBatches
from chumoku.data.preference_batches import PreferenceBatches
from chumoku.data.prompt_batches import PromptBatches, unpad
from chumoku.data.prompts import end_token
from chumoku.data.sentence_batches import SentenceBatches
from chumoku.decoding.generate import generate
from chumoku.decoding.translate import hypotheses
from chumoku.messages import translate
from chumoku.models.model import DecoderModel, EncoderDecoderModel, Model
from chumoku.training.datasets import TrainingData
from chumoku.training.objectives import ContrastiveObjective, forward

PROMPT, NEW, SHOWN = 24, 48, 40  # tokens of a prompt, of its continuation, of a text with masks
RETRIEVED = 1000  # validation rows among which positives are searched


def make_sampler(model: Model, data: TrainingData, count: int) -> Callable[[], list[str]]:
    """A function that returns `count` sample outputs of the current model as printable lines."""
    if count == 0:
        return list

    def samples() -> list[str]:
        with warnings.catch_warnings():
            # A model with an adapter decodes slowly; the warning about that does not help during training.
            warnings.filterwarnings("ignore", "This model differs from its config")
            if model.config.labels is not None:
                return _labels(model, data, count)
            if isinstance(model, EncoderDecoderModel):
                return _translations(model, data, count)
            if isinstance(model, DecoderModel):
                return _continuations(model, data, count)
            if isinstance(data.validation, SentenceBatches):
                return _retrieval(model, data.validation)
            return _masked_predictions(model, data, count)

    return samples


def _translations(model: EncoderDecoderModel, data: TrainingData, count: int) -> list[str]:
    if not isinstance(data.validation, PairBatches):
        return []
    source = data.validation.pairs.source
    rows = [[*source[i].tolist(), *data.source_tokenizer.roles.end_tokens] for i in range(min(count, len(source)))]
    found = hypotheses(model, rows, tokenizer=data.tokenizer, beam=1)
    return [
        f"  {data.source_tokenizer.decode(row)} → {data.tokenizer.decode(best.tokens)}"
        for row, (best, *_) in zip(rows, found, strict=True)
    ]


def _continuations(model: DecoderModel, data: TrainingData, count: int) -> list[str]:
    if isinstance(data.validation, PromptBatches):
        rows = unpad(data.validation.batch(0, 0)["prompts"][:count])
        outputs = generate(model, rows, max_new_tokens=NEW, temperature=0.0, end=end_token(data.tokenizer))
    elif isinstance(data.validation, ChatBatches | PreferenceBatches):
        rows, ends = _questions(data.validation, count)
        outputs = generate(model, rows, max_new_tokens=NEW, temperature=0.0, end=ends)
    else:
        rows = data.validation.batch(0, 0)["tokens"][:count, :PROMPT].tolist()
        outputs = generate(model, rows, max_new_tokens=NEW, temperature=0.8, top_p=0.95, end=data.tokenizer.roles.end)

    def words(ids: list[int]) -> str:
        return _flat(data.tokenizer.decode([number for number in ids if number < data.tokenizer.size]))

    return [f"  {words(row)} ▸ {words(new)}" for row, new in zip(rows, outputs, strict=True)]


def _questions(batches: ChatBatches | PreferenceBatches, count: int) -> tuple[list[list[int]], list[int]]:
    """The first conversations up to the first answer, and the tokens that end an answer."""
    conversations = batches.conversations if isinstance(batches, ChatBatches) else batches.pairs.chosen
    samples = [conversations[index] for index in range(min(count, len(conversations)))]
    return [tokens[: int(learned.argmax())].tolist() for tokens, learned in samples], [
        int(s.tokens[-1]) for s in samples
    ]


@torch.no_grad()
def _labels(model: Model, data: TrainingData, count: int) -> list[str]:
    """Texts with the predicted label, and the right one if it differs; at each word if there are tags."""
    batch = {name: table[:count].to(model.device) for name, table in data.validation.batch(0, 0).items()}
    names, logits = model.config.labels or (), forward(model, batch).logits
    if logits is None:
        return []
    lines = []
    for tokens, labels, found in zip(batch["tokens"], batch["labels"], logits.argmax(-1), strict=True):
        places = (
            [(-1, int(labels), int(found))]
            if labels.ndim == 0
            else [
                (place, int(labels[place]), int(found[place]))
                for place in range(len(tokens))
                if labels[place] != IGNORE
            ]
        )
        shown = (
            ("" if place < 0 else f"{data.tokenizer.decode([int(tokens[place])]).strip()}:")
            + names[predicted]
            + ("" if predicted == label else f" (not {names[label]})")
            for place, label, predicted in places[:SHOWN]
        )
        text = f"{_flat(data.tokenizer.decode(tokens[:SHOWN].tolist()))} ▸ " if labels.ndim == 0 else ""
        lines.append(f"  {text}{' '.join(shown)}")
    return lines


@torch.no_grad()
def _masked_predictions(model: Model, data: TrainingData, count: int) -> list[str]:
    batch = {name: table[:count].to(model.device) for name, table in data.validation.batch(0, 0).items()}
    logits = forward(model, batch).logits
    if logits is None:
        return []
    decode, lines = data.tokenizer.decode, []
    for tokens, prediction, labels in zip(batch["tokens"], logits.argmax(-1), batch["labels"], strict=True):
        words = []
        for token, predicted, label in zip(tokens[:SHOWN], prediction, labels, strict=False):
            hidden, predicted = int(label) != IGNORE, min(int(predicted), data.tokenizer.size - 1)
            words.append(f"[{decode([int(label)])}→{decode([int(predicted)])}]" if hidden else decode([int(token)]))
        lines.append(f"  {_flat(''.join(words))}")
    return lines


@torch.no_grad()
def _retrieval(model: Model, batches: SentenceBatches) -> list[str]:
    """How often the positive of an anchor is nearest among those of all validation rows, up to RETRIEVED rows."""
    objective = ContrastiveObjective(model).eval()
    chosen = [batches.batch(0, index) for index in range(min(len(batches), -(-RETRIEVED // batches.rows)))]
    tables = [{name: table.to(model.device) for name, table in batch.items()} for batch in chosen]
    vectors = F.normalize(torch.cat([objective.embed(batch)[0] for batch in tables]), dim=-1)
    nearest = (vectors[:, 0] @ vectors[:, 1].T).argmax(1)
    groups = torch.cat([batch["group"] for batch in tables])
    share = float((groups[nearest] == groups).float().mean())
    return [translate(f"  recall@1 among {len(vectors):,} validation rows: {share:.3f}")]


def _flat(text: str) -> str:
    return " ".join(text.split())
