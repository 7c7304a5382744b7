"""Translation: text in, text out.

text → (language) source tokens + end → beam search from begin → tokens → text

Sentences of like length share a batch of rows × longest × beam ≤ `batch_tokens`; results keep the order given. A model
of several languages is told `into` which by a token of that language before the source.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from chumoku.decoding.batch import longest
from chumoku.decoding.beam import Going, search
from chumoku.decoding.beam_rules import Hypothesis
from chumoku.decoding.beam_tree import Tree
from chumoku.decoding.engines.base import Engine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.errors import LengthError, UsageError
from chumoku.models.model import EncoderDecoderModel
from chumoku.nn import masks
from chumoku.text.tokenizer import Tokenizer

LOOSE = 32  # positions of an engine for each that a batch may fill


def translate(
    model: EncoderDecoderModel,
    texts: Sequence[str],
    *,
    source_tokenizer: Tokenizer,
    tokenizer: Tokenizer,
    into: str | None = None,
    within: int | None = None,
    beam: int = 4,
    length_penalty: float = 1.0,
    limit: int | None = None,
    least: int = 0,
    batch_tokens: int = 4096,
    engine: Engine | None = None,
) -> list[str]:
    """The likeliest translation of each text.

    `limit` is the most tokens of one, 2 × source + 20 when not given, and `least` the fewest. Texts of more tokens than
    `within` are refused; when not given, only those that are longer than learned positions reach.
    """
    sources = encode(model, texts, source_tokenizer, into=into, within=within)
    found = hypotheses(
        model,
        sources,
        tokenizer=tokenizer,
        beam=beam,
        length_penalty=length_penalty,
        limit=limit,
        least=least,
        batch_tokens=batch_tokens,
        engine=engine,
    )
    best = [row[0].tokens if row else [] for row in found]
    return tokenizer.decode_batch(best)


def hypotheses(
    model: EncoderDecoderModel,
    sources: Sequence[Sequence[int]],
    *,
    tokenizer: Tokenizer,
    beam: int = 4,
    best: int = 1,
    length_penalty: float = 1.0,
    limit: int | None = None,
    least: int = 0,
    batch_tokens: int = 4096,
    engine: Engine | None = None,
    going: Going | None = None,
    tree: Tree | None = None,
) -> list[list[Hypothesis]]:
    """The `best` translations of each source, as tokens; none of an empty one, or of one no longer `going`."""
    begin, end = edges(tokenizer)
    limits = [2 * len(source) + 20 if limit is None else limit for source in sources]
    most_rows = max(1, engine.rows // beam) if engine is not None else len(sources)
    made = list(batches([len(source) for source in sources], most=batch_tokens // max(1, beam), rows=most_rows))
    if engine is None:
        engine = common_engine(model, made, limits, beam=beam, batch_tokens=batch_tokens)
    found: list[list[Hypothesis]] = [[] for _ in sources]
    for numbers in made:
        some = [torch.tensor(sources[number]) for number in numbers]
        rows = search(
            model,
            pad_sequence(some, batch_first=True),
            source_mask=masks.real_tokens(torch.tensor(list(map(len, some))), max(map(len, some))),
            begin=begin,
            end=end,
            beam=beam,
            length_penalty=length_penalty,
            limit=[limits[number] for number in numbers],
            least=least,
            best=best,
            forbidden=wordless(model, tokenizer),
            engine=engine,
            going=None if going is None else functools.partial(_still, going, numbers),
            tree=tree,
        )
        for number, row in zip(numbers, rows, strict=True):
            found[number] = row
    return found


def _still(going: Going, numbers: Sequence[int], live: Sequence[int]) -> Sequence[bool]:
    """The same question, by the numbers of the sentences and not by their places in a batch."""
    return going([numbers[row] for row in live])


def wordless(model: EncoderDecoderModel, tokenizer: Tokenizer) -> list[int]:
    """Models are built a little larger than their tokenizer, and what has no text cannot be written."""
    begin, end = edges(tokenizer)
    beyond = range(tokenizer.size, model.config.vocabulary)
    return [token for token in (tokenizer.roles.pad, begin, *beyond) if token is not None and token != end]


def edges(tokenizer: Tokenizer) -> tuple[int, int]:
    """The tokens a translation begins and ends with."""
    begin, end = tokenizer.roles.begin, tokenizer.roles.end
    if begin is None or end is None:
        raise UsageError("A translation starts with a begin token and stops at an end token; this tokenizer has none.")
    return begin, end


def encode(
    model: EncoderDecoderModel, texts: Sequence[str], tokenizer: Tokenizer, *, into: str | None, within: int | None
) -> list[list[int]]:
    """Source tokens and end, as in training; a text without tokens stays empty."""
    if isinstance(texts, str):
        raise UsageError("Texts are a list of sentences; one alone is a list of one.")
    ending = [] if tokenizer.roles.end is None else [tokenizer.roles.end]
    marked = [] if into is None else tokenizer.encode("", language=into)
    sources = [[*marked, *ids, *ending] if ids else [] for ids in tokenizer.encode_batch(texts)]
    for number, source in enumerate(sources):
        most = longest(model, len(source) if within is None else within)
        if len(source) > most:
            raise LengthError(
                f"Text {number + 1} has {len(source):,} tokens with its end, and this model reads {most:,} at most. "
                "Split it into sentences, or use a model with a larger context."
            )
    return sources


def common_engine(
    model: EncoderDecoderModel, made: Sequence[Sequence[int]], limits: Sequence[int], *, beam: int, batch_tokens: int
) -> Engine | None:
    """One engine for all batches; none where short and long texts would make it large, and each opens its own."""
    rows, capacity = max(map(len, made), default=0) * beam, max(limits, default=0)
    if not 0 < rows * capacity <= LOOSE * batch_tokens:
        return None
    return open_engine(model, rows=rows, capacity=capacity)


def batches(lengths: Sequence[int], *, most: int, rows: int | None = None) -> Iterator[list[int]]:
    """Numbers of sentences of like length, longest first, rows × longest ≤ `most`; one too long for that goes alone."""
    rows = len(lengths) if rows is None else rows
    batch: list[int] = []
    for number in sorted((n for n, length in enumerate(lengths) if length), key=lambda n: -lengths[n]):
        if batch and ((len(batch) + 1) * lengths[batch[0]] > most or len(batch) == rows):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
