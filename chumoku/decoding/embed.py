"""Embedding: a text becomes a vector, and texts of like meaning become vectors of like direction.

    text → tokens + end → encoder → pooled vector [D]              BERT's own tokenizers: [CLS] tokens [SEP]
    similarity(a, b) = a · b / (‖a‖ ‖b‖)

Texts of like length share a batch of rows × longest ≤ `batch_tokens`; results keep the order given. The masked-token
head is left out: a vector needs no logits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from chumoku.decoding.batch import answering
from chumoku.decoding.translate import batches_by_length
from chumoku.errors import LengthError, UsageError
from chumoku.models.heads import pool
from chumoku.models.model import EncoderModel
from chumoku.nn import masks
from chumoku.text.tokenizer import Tokenizer


def embed(
    model: EncoderModel,
    texts: Sequence[str],
    *,
    tokenizer: Tokenizer,
    batch_tokens: int = 8192,
    note: Callable[[str], object] = warnings.warn,
) -> Tensor:
    """A vector for each text: [n, D], in float32, on the CPU. `note` gets a sentence when texts were cut."""
    if not isinstance(model, EncoderModel):
        raise UsageError("Embedding needs a model of kind 'encoder'.")
    rows = encode(model, texts, tokenizer, note=note)
    vectors = torch.empty(len(rows), model.config.width)
    with answering(model):
        for numbers in batches_by_length([len(row) for row in rows], most=batch_tokens):
            vectors[numbers] = read(model, [rows[number] for number in numbers]).float().cpu()
    return vectors


def read(model: EncoderModel, rows: Sequence[Sequence[int]]) -> Tensor:
    """The vectors of one batch [B, D]."""
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    real = masks.real_tokens(lengths, tokens.shape[1])
    mask = None if bool(real.all()) else real.to(model.device)
    hidden = model.encoder(tokens.to(model.device), mask=mask)
    return pool(hidden, mask, kind=model.config.pooling, normalize=model.config.normalize)


def encode(
    model: EncoderModel,
    texts: Sequence[str],
    tokenizer: Tokenizer,
    *,
    note: Callable[[str], object] = lambda sentence: None,
) -> list[list[int]]:
    """Tokens as the encoder knows them: in the frame of its tokenizer, or ended with an end token, as ours are.

    Texts are cut to the config's max_seq_length where it has one, as sentence-transformers does; then `note` is told.
    """
    if isinstance(texts, str):
        raise UsageError("Texts are a list; one alone is a list of one.")
    before, after = tokenizer.frame
    if not before and not after and tokenizer.roles.end is not None:
        after = (tokenizer.roles.end,)
    rows, limit = tokenizer.encode_batch(texts), model.config.max_seq_length
    if limit is not None:
        room = max(1, limit - len(before) - len(after))
        longer = sum(len(row) > room for row in rows)
        rows = [row[:room] for row in rows]
        if longer:
            note(f"{longer:,} of {len(rows):,} texts were cut: this model reads the first {limit:,} tokens of a text.")
    encoded = [[*before, *row, *after] for row in rows]
    for number, (text, row) in enumerate(zip(texts, encoded, strict=True), start=1):
        if not text.strip() or len(row) == len(before) + len(after):
            raise UsageError(f"Text {number} is empty, so there is nothing to embed. Give one with a word in it.")
        if len(row) > model.config.context:
            raise LengthError(
                f"Text {number} has {len(row):,} tokens with those around it, and this model reads up to "
                f"{model.config.context:,}. Split it into sentences, or use a model with a larger context."
            )
    return encoded


def similarities(vectors: Tensor) -> Tensor:
    """The cosine between each two of n vectors: [n, n]."""
    directions = F.normalize(vectors, dim=-1)
    return directions @ directions.T
