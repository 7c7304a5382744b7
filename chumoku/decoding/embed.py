"""Embedding: text in, vector out; texts of similar meaning get vectors of similar direction.

    text → tokens + end → encoder → pooled vector [D]              BERT's own tokenizers: [CLS] tokens [SEP]
    with a prompt: "query: " + text                                for models that were trained with prompts
    similarity(a, b) = a · b / (‖a‖ ‖b‖)

Texts of similar length share a batch of rows × longest ≤ `batch_tokens`; results keep the given order. The masked-token
head is not computed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.decoding.batch import inference_mode
from chumoku.decoding.translate import batches_by_length
from chumoku.errors import LengthError, UsageError
from chumoku.models.heads import pool
from chumoku.models.model import EncoderModel, Model
from chumoku.nn import masks
from chumoku.text.tokenizer import Tokenizer

BATCH_TOKENS = 8192
Prompt = Literal["query", "document"]


def embed(
    model: EncoderModel,
    texts: Sequence[str],
    *,
    tokenizer: Tokenizer,
    prompt: Prompt | None = None,
    width: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    note: Callable[[str], object] = warnings.warn,
) -> Tensor:
    """A vector for each text: [n, D], in float32, on the CPU.

    prompt    the model's prompt to put before each text: "query" or "document"; by default its default prompt
    width     return the first `width` elements only, for models trained with contrastive.widths (Matryoshka)
    note      called with a sentence if texts were cut
    """
    if not isinstance(model, EncoderModel):
        raise UsageError("Embedding needs a model of kind 'encoder'.")
    if width is not None and not 1 <= width <= model.config.width:
        raise UsageError(f"width is {width}; this model's vectors have 1 to {model.config.width:,} elements.")
    rows = encode(model, texts, tokenizer, prompt=prompt, note=note)
    vectors = torch.empty(len(rows), model.config.width)
    with inference_mode(model):
        for numbers in batches_by_length([len(row) for row in rows], most=batch_tokens):
            vectors[numbers] = embed_batch(model, [rows[number] for number in numbers]).float().cpu()
    if width is not None:
        vectors = F.normalize(vectors[:, :width], dim=-1) if model.config.normalize else vectors[:, :width]
    return vectors


def embed_batch(model: EncoderModel, rows: Sequence[Sequence[int]]) -> Tensor:
    """The vectors of one batch [B, D]."""
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    real = masks.real_tokens(lengths, tokens.shape[1])
    mask = None if bool(real.all()) else real.to(model.device)
    hidden = model.encoder(tokens.to(model.device), mask=mask)
    return pool(hidden, mask, kind=model.config.pooling, normalize=model.config.normalize)


def encode(
    model: Model,
    texts: Sequence[str],
    tokenizer: Tokenizer,
    *,
    prompt: Prompt | None = None,
    note: Callable[[str], object] = lambda sentence: None,
) -> list[list[int]]:
    """The tokens of each text, in the frame of its tokenizer; a tokenizer without a frame adds the end token.

    Texts are cut to the config's max_seq_length if it has one, as sentence-transformers does; then `note` is called.
    """
    if isinstance(texts, str):
        raise UsageError("texts must be a list, not one text. Put it in a list.")
    before_text = find_prompt(model, prompt)
    rows, limit = tokenizer.encode_batch([before_text + text for text in texts]), model.config.max_seq_length
    encoded, longer = cut_and_frame(rows, tokenizer, limit)
    if longer:
        note(f"{longer:,} of {len(rows):,} texts were cut: this model reads the first {limit:,} tokens of a text.")
    for number, (text, tokens, row) in enumerate(zip(texts, rows, encoded, strict=True), start=1):
        if not text.strip() or not tokens:
            raise UsageError(f"Text {number} is empty. Give a text with a word in it.")
        if len(row) > model.config.context:
            raise LengthError(
                f"Text {number} has {len(row):,} tokens with its frame, but this model reads up to "
                f"{model.config.context:,}. Split it into sentences, or use a model with a larger context."
            )
    return encoded


def cut_and_frame(
    rows: Sequence[Sequence[int]], tokenizer: Tokenizer, limit: int | None
) -> tuple[list[list[int]], int]:
    """The tokens of texts cut to `limit` and in their tokenizer's frame, and how many texts were cut."""
    before, after = tokenizer.frame
    room = None if limit is None else max(1, limit - len(before) - len(after))
    longer = 0 if room is None else sum(len(row) > room for row in rows)
    return [[*before, *row[:room], *after] for row in rows], longer


def find_prompt(model: Model, name: Prompt | None) -> str:
    """The model's prompt of this name, or its default prompt, which may be empty."""
    prompts = model.config.prompts
    if name is None:
        return prompts.default
    known = [each for each in get_args(Prompt) if getattr(prompts, each)]
    if name not in known:
        raise UsageError(f"This model has no prompt '{name}'. Its prompts: {', '.join(known) or '(none)'}.")
    return str(getattr(prompts, name))


def similarities(vectors: Tensor) -> Tensor:
    """The cosine of each pair of n vectors: [n, n]."""
    directions = F.normalize(vectors, dim=-1)
    return directions @ directions.T
