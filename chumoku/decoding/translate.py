"""Translation: text in, text out. Every command, the server and Python translate with `hypotheses`.

text → sentences, addresses replaced → (language) source tokens + end → beam search from begin (language) → text

    source    a sentence of at most the model's context
    output    at most 2 × source + 20 tokens by default, and none of `forbidden_tokens`

Sentences of similar length share a batch of rows × longest × beam ≤ `batch_tokens`; results keep the given order. The
tokens of languages are those of `text.languages`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from chumoku.decoding.batch import forbidden_tokens, longest
from chumoku.decoding.beam import StillWanted, search
from chumoku.decoding.beam_rules import Hypothesis
from chumoku.decoding.beam_tree import Tree
from chumoku.decoding.defaults import BEAM, LENGTH_PENALTY
from chumoku.decoding.engines.base import Engine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.errors import LengthError, UsageError
from chumoku.models.model import EncoderDecoderModel, Model
from chumoku.nn import masks
from chumoku.nn.html_view import html_table
from chumoku.text.kept_words import STAND_INS, KeptWords, keep_words, restore_words
from chumoku.text.languages import source_frame, target_prompt
from chumoku.text.progress import Progress, silent
from chumoku.text.sentences import join_sentences, split_sentences
from chumoku.text.tokenizer import Tokenizer

OnFinished = Callable[[Sequence[int]], None]
BATCH_TOKENS = 4096
SPARE_FACTOR = 32  # a shared engine may have this many times the positions that a batch fills


class Translations(list[str]):
    """The translation of each text, as a list; a notebook draws it as a table beside the texts."""

    def __init__(self, translations: Sequence[str], sources: Sequence[str]) -> None:
        super().__init__(translations)
        self.sources = list(sources)

    def _repr_html_(self) -> str:
        return html_table(("text", "translation"), zip(self.sources, self, strict=False))


def translate(
    model: EncoderDecoderModel,
    texts: Sequence[str],
    *,
    source_tokenizer: Tokenizer,
    tokenizer: Tokenizer,
    into: str | None = None,
    source_language: str | None = None,
    within: int | None = None,
    beam: int = BEAM,
    length_penalty: float = LENGTH_PENALTY,
    max_new_tokens: int | None = None,
    min_new_tokens: int = 0,
    batch_tokens: int = BATCH_TOKENS,
    split: bool = True,
    engine: Engine | None = None,
    progress: Progress = silent,
) -> Translations:
    """The most likely translation of each text.

    split       translate the sentences of a text one by one, keep addresses and unknown words, and join the results
    into        target language, for multilingual models
    source_language    language of the texts, for models that have a token for it (M2M100, NLLB, mBART)
    within      most tokens of a sentence; by default the model's context
    max_new_tokens    most tokens of a translated sentence; by default 2 × source + 20
    progress    called as progress(step, done, total, unit)
    """
    parts = split_texts(texts, source_tokenizer, split=split)
    numbers = [number for number, part in enumerate(parts) for _ in part]
    sentences = [sentence.kept.text for part in parts for sentence in part]
    sources = encode(
        model,
        sentences,
        source_tokenizer,
        into=into,
        source_language=source_language,
        within=within,
        numbers=numbers,
    )
    found = hypotheses(
        model,
        sources,
        tokenizer=tokenizer,
        begin=target_prompt(tokenizer, into),
        beam=beam,
        length_penalty=length_penalty,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        batch_tokens=batch_tokens,
        engine=engine,
        on_finished=count_finished_texts(numbers, sources, len(texts), progress),
    )
    outputs = iter(tokenizer.decode_batch([row[0].tokens if row else [] for row in found]))
    return Translations([join_translations([next(outputs) for _ in part], part) for part in parts], texts)


def count_finished_texts(
    numbers: Sequence[int], sources: Sequence[Sequence[int]], total: int, progress: Progress
) -> OnFinished:
    """A function to call with finished sentences, which reports how many of the `total` texts are finished.

    numbers     the text that each sentence is a part of
    sources     the tokens of each sentence; one without tokens needs no translation
    """
    unfinished = Counter(number for number, source in zip(numbers, sources, strict=True) if source)

    def report(finished: Sequence[int]) -> None:
        unfinished.subtract(numbers[sentence] for sentence in finished)
        done = total - sum(map(bool, unfinished.values()))
        progress("translating", done, total, unit="texts")

    return report


class SourceSentence(NamedTuple):
    """A sentence to translate."""

    kept: KeptWords  # what the model reads, and the words to put back
    space: str = ""  # after it


def split_texts(texts: Sequence[str], tokenizer: Tokenizer, *, split: bool = True) -> list[list[SourceSentence]]:
    """The sentences of each text, with stand-ins for words to keep; with split=False, each text is one, as it is."""
    if isinstance(texts, str):
        raise UsageError("texts must be a list of texts, not one text. Put it in a list.")
    if not split:
        return [[SourceSentence(KeptWords(text))] for text in texts]
    keeping = not any(map(tokenizer.is_unknown, "".join(STAND_INS)))  # a vocabulary of words has no stand-ins

    def source(text: str, space: str) -> SourceSentence:
        return SourceSentence(keep_words(text, tokenizer.is_unknown) if keeping else KeptWords(text), space)

    return [[source(*sentence) for sentence in split_sentences(text)] for text in texts]


def join_translations(translations: Sequence[str], sentences: Sequence[SourceSentence]) -> str:
    """The translation of a text from those of its sentences."""
    restored = [restore_words(text, sentence.kept) for text, sentence in zip(translations, sentences, strict=True)]
    return join_sentences(restored, [sentence.space for sentence in sentences])


def hypotheses(
    model: EncoderDecoderModel,
    sources: Sequence[Sequence[int]],
    *,
    tokenizer: Tokenizer,
    begin: Sequence[int] | None = None,
    beam: int = BEAM,
    best: int = 1,
    length_penalty: float = LENGTH_PENALTY,
    max_new_tokens: int | None = None,
    min_new_tokens: int = 0,
    batch_tokens: int = BATCH_TOKENS,
    engine: Engine | None = None,
    still_wanted: StillWanted | None = None,
    tree: Tree | None = None,
    on_finished: OnFinished = lambda numbers: None,
) -> list[list[Hypothesis]]:
    """The `best` translations of each source, as tokens; none for an empty source or one that is no longer wanted.

    begin          the tokens that a translation begins with; by default the tokenizer's begin token
    on_finished    called after each batch with the numbers of its sources
    """
    first, end = begin_and_end(tokenizer)
    begin = begin or [first]
    limits = [default_limit(source) if max_new_tokens is None else max_new_tokens for source in sources]
    most_rows = max(1, engine.rows // beam) if engine is not None else len(sources)
    groups = list(
        batches_by_length([len(source) for source in sources], most=batch_tokens // max(1, beam), rows=most_rows)
    )
    if engine is None:
        lengths = [len(begin) - 1 + each for each in limits]
        engine = shared_engine(model, groups, lengths, beam=beam, batch_tokens=batch_tokens)
    found: list[list[Hypothesis]] = [[] for _ in sources]
    for numbers in groups:
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
            min_new_tokens=min_new_tokens,
            best=best,
            forbidden=forbidden_tokens(model, tokenizer),
            engine=engine,
            still_wanted=None if still_wanted is None else functools.partial(_by_number, still_wanted, numbers),
            tree=tree,
        )
        for number, row in zip(numbers, rows, strict=True):
            found[number] = row
        on_finished(numbers)
    return found


def default_limit(source: Sequence[int]) -> int:
    """The most tokens of a translation, unless another limit is given."""
    return 2 * len(source) + 20


def _by_number(still_wanted: StillWanted, numbers: Sequence[int], live: Sequence[int]) -> Sequence[bool]:
    """Call `still_wanted` with the numbers of sentences, not with their rows in a batch."""
    return still_wanted([numbers[row] for row in live])


def begin_and_end(tokenizer: Tokenizer) -> tuple[int, int]:
    """The tokens that a translation begins and ends with."""
    begin, end = tokenizer.roles.begin, tokenizer.roles.end
    if begin is None or end is None:
        raise UsageError("Translation needs a begin token and an end token; this tokenizer does not have both.")
    return begin, end


def encode(
    model: EncoderDecoderModel,
    texts: Sequence[str],
    tokenizer: Tokenizer,
    *,
    into: str | None = None,
    source_language: str | None = None,
    within: int | None = None,
    numbers: Sequence[int] | None = None,
) -> list[list[int]]:
    """The source tokens of each sentence with the end token, as in training; one without tokens stays empty.

    numbers     the text that each sentence belongs to, counted from 0, for messages; by default its own
    """
    sources = _source_tokens(texts, tokenizer, into, source_language)
    most = longest(model, model.config.context if within is None else within)
    for number, source in zip(numbers or range(len(sources)), sources, strict=True):
        if len(source) > most:
            raise LengthError(
                f"Text {number + 1}: a sentence has {len(source):,} tokens with the end token, and this model reads "
                f"{most:,} at most. Split it, or use a model with a larger context."
            )
    return sources


def fits_context(
    model: Model,
    texts: Sequence[str],
    tokenizer: Tokenizer,
    *,
    into: str | None = None,
    source_language: str | None = None,
    split: bool = True,
) -> list[bool]:
    """Whether the sentences of each text, with the end token, are not longer than the model's context."""
    parts = split_texts(texts, tokenizer, split=split)
    sentences = [sentence.kept.text for part in parts for sentence in part]
    sources = iter(_source_tokens(sentences, tokenizer, into, source_language))
    return [max((len(next(sources)) for _ in part), default=0) <= model.config.context for part in parts]


def _source_tokens(
    texts: Sequence[str], tokenizer: Tokenizer, into: str | None, source_language: str | None
) -> list[list[int]]:
    before, after = source_frame(tokenizer, into=into, source_language=source_language)
    return [[*before, *ids, *after] if ids else [] for ids in tokenizer.encode_batch(texts)]


def shared_engine(
    model: EncoderDecoderModel, groups: Sequence[Sequence[int]], limits: Sequence[int], *, beam: int, batch_tokens: int
) -> Engine | None:
    """One engine for all batches; None if it would be too large, and each batch opens its own."""
    rows, capacity = max(map(len, groups), default=0) * beam, max(limits, default=0)
    if not 0 < rows * capacity <= SPARE_FACTOR * batch_tokens:
        return None
    return open_engine(model, rows=rows, capacity=capacity)


def batches_by_length(lengths: Sequence[int], *, most: int, rows: int | None = None) -> Iterator[list[int]]:
    """Groups of sentences of similar length, longest first, with rows × longest ≤ `most` where possible."""
    rows = len(lengths) if rows is None else rows
    batch: list[int] = []
    for number in sorted((n for n, length in enumerate(lengths) if length), key=lambda n: -lengths[n]):
        if batch and ((len(batch) + 1) * lengths[batch[0]] > most or len(batch) == rows):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
