"""Span corruption, as T5 is pre-trained: spans of a text are replaced by sentinels, and the target is what they hid.

    text     Thank you for inviting me to your party last week
    source   Thank you <extra_id_0> me to your party <extra_id_1> </s>
    target   <extra_id_0> for inviting <extra_id_1> last week </s>

A window of n tokens has round(n · density) noise tokens in round(noise / mean span) spans. Noise and the other tokens
are each divided into that many random non-empty spans, which alternate, starting with one that is kept
(`random_spans_noise_mask` in T5's code). So all windows of a length give sources of one length, and targets of one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chumoku.data.batches import ALL, Share, WindowBatches
from chumoku.data.order import Indices, generator
from chumoku.errors import UsageError
from chumoku.text.special_tokens import SENTINEL, Roles
from chumoku.text.tokenizer import Tokenizer


class Spans(NamedTuple):
    """The number of noise tokens of a window, and of the spans that they form."""

    noise: int
    spans: int


def count_spans(length: int, density: float, mean_span: float) -> Spans:
    """The noise tokens and spans of a window; at least one token is noise, and at least one is kept."""
    noise = min(max(_round(length, density), 1), length - 1)
    return Spans(noise, max(1, round(float(np.float32(noise) / np.float32(mean_span)))))


def _round(length: int, density: float) -> int:
    """length · density, rounded half to even in 32 bits, as in T5's code."""
    return round(float(np.float32(length) * np.float32(density)))


def window_length(source_length: int, density: float, mean_span: float) -> int:
    """The longest window whose source, with its sentinels and end token, has at most `source_length` tokens."""
    length = source_length if _source_length(max(2, source_length), density, mean_span) <= source_length else 1
    while _source_length(length + 1, density, mean_span) <= source_length:
        length += 1
    if length < 2:
        raise UsageError(f"{source_length} tokens are too few for span corruption; raise train.sequence_length.")
    return length


def _source_length(length: int, density: float, mean_span: float) -> int:
    noise, spans = count_spans(length, density, mean_span)
    return length - noise + spans + 1


def noise_mask(length: int, density: float, mean_span: float, random: np.random.Generator) -> NDArray[np.bool_]:
    """A random mask [length], True for noise tokens."""
    noise, spans = count_spans(length, density, mean_span)
    kept_spans = random_segments(length - noise, spans, random)
    noise_spans = random_segments(noise, spans, random)
    lengths = np.stack([kept_spans, noise_spans], 1).ravel()
    return np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)


def random_segments(items: int, segments: int, random: np.random.Generator) -> Indices:
    """The lengths of `segments` non-empty random parts of `items`; every division is equally likely."""
    starts = random.permutation(items - 1) < segments - 1
    lengths: Indices = np.diff(np.r_[0, np.flatnonzero(starts) + 1, items])
    return lengths


def replace_spans(tokens: Indices, hidden: NDArray[np.bool_], sentinels: Indices) -> Indices:
    """The tokens with the i-th hidden span replaced by the i-th sentinel."""
    first = hidden & ~np.r_[False, hidden[:-1]]
    replaced: Indices = np.where(first, sentinels[np.maximum(first.cumsum() - 1, 0)], tokens)[~hidden | first]
    return replaced


def find_sentinels(tokenizer: Tokenizer) -> list[int]:
    """The ids of <extra_id_0>, <extra_id_1> … in this order."""
    found = {int(match[1]): token for name, token in tokenizer.specials.items() if (match := SENTINEL.fullmatch(name))}
    return [found[number] for number in sorted(found)]


class SpanBatches:
    """Windows with spans replaced by sentinels: source, target and labels of an encoder-decoder, without padding."""

    def __init__(
        self, windows: WindowBatches, *, roles: Roles, sentinels: list[int], density: float, mean_span: float
    ) -> None:
        if roles.begin is None or roles.end is None:
            raise UsageError("Span corruption needs a tokenizer with begin and end tokens.")
        needed = count_spans(windows.length, density, mean_span).spans
        if len(sentinels) < needed:
            raise UsageError(
                f"Windows of {windows.length} tokens have {needed} spans, but this tokenizer has {len(sentinels)} "
                "sentinels (<extra_id_0> …). Lower train.sequence_length, raise data.mean_span_length, or train a new "
                "tokenizer, which gets them."
            )
        self.windows, self.density, self.mean_span = windows, density, mean_span
        self._begin, self._end, self._sentinels = roles.begin, roles.end, np.array(sentinels)

    def __len__(self) -> int:
        return len(self.windows)

    def samples(self, epoch: int, index: int) -> Indices:
        return self.windows.samples(epoch, index)

    def batch(self, epoch: int, index: int, share: Share = ALL) -> dict[str, Tensor]:
        samples = share.select(self.samples(epoch, index))
        rows = self.windows.batch(epoch, index, share)["tokens"].numpy()
        sources, targets = [], []
        for row, sample in zip(rows, samples.tolist(), strict=True):
            noise = noise_mask(len(row), self.density, self.mean_span, generator(self.windows.seed, epoch, sample))
            sources.append(np.r_[replace_spans(row, noise, self._sentinels), self._end])
            targets.append(np.r_[self._begin, replace_spans(row, ~noise, self._sentinels), self._end])
        source, target = (torch.from_numpy(np.stack(tables)) for tables in (sources, targets))
        return {"source": source, "target": target[:, :-1].contiguous(), "labels": target[:, 1:].contiguous()}
