"""Translation: text in, text out.

text → source tokens + end → beam search from begin → tokens → text

Sentences of like length share a batch of rows × longest × beam ≤ `batch_tokens`; results keep the order given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from chumoku.decoding.batch import longest
from chumoku.decoding.beam import search
from chumoku.errors import LengthError, UsageError
from chumoku.models.model import EncoderDecoderModel
from chumoku.text.tokenizer import Tokenizer


def translate(
    model: EncoderDecoderModel,
    texts: Sequence[str],
    *,
    source_tokenizer: Tokenizer,
    tokenizer: Tokenizer,
    beam: int = 4,
    length_penalty: float = 1.0,
    limit: int | None = None,
    batch_tokens: int = 4096,
) -> list[str]:
    """The likeliest translation of each text. `limit` is the most tokens of one: 2 × source + 20 when not given."""
    sources = encode(model, texts, source_tokenizer)
    begin, end = tokenizer.roles.begin, tokenizer.roles.end
    if begin is None or end is None:
        raise UsageError("A translation starts with a begin token and stops at an end token; this tokenizer has none.")
    # Models are built a little larger than their tokenizer, and what has no text cannot be written.
    wordless = range(tokenizer.size, model.config.vocabulary)
    forbidden = [token for token in (tokenizer.roles.pad, begin, *wordless) if token not in (None, end)]
    translations = [""] * len(texts)
    for numbers in batches([len(source) for source in sources], most=batch_tokens // max(1, beam)):
        rows = [torch.tensor(sources[number]) for number in numbers]
        source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows])
        mask = torch.arange(source.shape[1]) < lengths[:, None]
        found = search(
            model,
            source.to(model.device),
            source_mask=None if mask.all() else mask.to(model.device),
            begin=begin,
            end=end,
            beam=beam,
            length_penalty=length_penalty,
            limit=[2 * len(row) + 20 if limit is None else limit for row in rows],
            forbidden=[token for token in forbidden if token is not None],
        )
        for number, text in zip(numbers, tokenizer.decode_batch([best.tokens for best, *_ in found]), strict=True):
            translations[number] = text
    return translations


def encode(model: EncoderDecoderModel, texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Source tokens and end, as in training; a text without tokens stays empty."""
    if isinstance(texts, str):
        raise UsageError("Texts are a list of sentences; one alone is a list of one.")
    ending = [] if tokenizer.roles.end is None else [tokenizer.roles.end]
    sources = [[*ids, *ending] if ids else [] for ids in tokenizer.encode_batch(texts)]
    for number, source in enumerate(sources):
        if longest(model, len(source)) < len(source):
            raise LengthError(
                f"Text {number + 1} has {len(source)} tokens with its end, and the learned positions of this model end "
                f"at {model.config.context}. Split it into sentences, or use a model with a larger context."
            )
    return sources


def batches(lengths: Sequence[int], *, most: int) -> Iterator[list[int]]:
    """Numbers of sentences of like length, longest first, rows × longest ≤ `most`; one too long for that goes alone."""
    batch: list[int] = []
    for number in sorted((n for n, length in enumerate(lengths) if length), key=lambda n: -lengths[n]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > most:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
