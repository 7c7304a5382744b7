"""Training batches. Which samples are in batch i of epoch e depends only on (seed, e, i).

    windows   windows of a long text, `rows` at a time                                          next token
    masked    the same with masked tokens: 80 % <mask>, 10 % a random token, 10 % unchanged     masked token
    pairs     sources of one length where possible, as many as a token budget allows            translation

With several processes, each takes its share of every batch (rows rank, rank + world, …), so together they see the same
batches as a single process. Labels of -100 are ignored by the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chumoku.data.order import Indices, Permutation, generator
from chumoku.data.prepared import Pairs
from chumoku.data.ragged_array import RaggedArray
from chumoku.data.shards import Shards
from chumoku.errors import CorpusError, UsageError
from chumoku.text.special_tokens import Roles

IGNORE = -100  # a label without a loss


class Share(NamedTuple):
    """The part of each batch that one process takes."""

    rank: int = 0
    world: int = 1

    def select(self, samples: Indices) -> Indices:
        if len(samples) < self.world:
            raise UsageError(
                f"A batch of {len(samples)} rows cannot be divided among {self.world} processes. Use larger batches."
            )
        return samples[self.rank :: self.world]


ALL = Share()


class Batches(Protocol):
    """What the training loop needs from its data."""

    def __len__(self) -> int: ...  # batches in an epoch
    def samples(self, epoch: int, index: int) -> Indices: ...
    def batch(self, epoch: int, index: int, share: Share = ALL) -> dict[str, Tensor]: ...


class WindowBatches:
    """Windows of `length` tokens, with the next token of each position as its label.

    documents   return document numbers and positions, so that no token attends to another document
    part        the range of the text to use, as fractions: (0.9, 1.0) is the last tenth
    """

    def __init__(
        self,
        shards: Shards,
        *,
        length: int,
        rows: int,
        seed: int = 0,
        documents: bool = False,
        part: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        if length < 1 or rows < 1:
            raise UsageError(f"A batch has {rows} rows of {length} tokens; both must be 1 or more.")
        first, last = (round(edge * shards.tokens) for edge in part)
        self._windows = (last - first - 1) // length
        if self._windows < rows:
            raise CorpusError(
                f"{shards.folder} has {last - first:,} tokens in this part: {max(0, self._windows)} windows of "
                f"{length}, but a batch needs {rows}. Lower train.sequence_length or train.batch_size, or add text."
            )
        self.shards, self.length, self.rows, self.seed, self.documents = shards, length, rows, seed, documents
        self._offset = first

    def __len__(self) -> int:
        return self._windows // self.rows

    def samples(self, epoch: int, index: int) -> Indices:
        check_index(self, index)
        positions = np.arange(index * self.rows, (index + 1) * self.rows)
        return Permutation(self._windows, seed=self.seed, epoch=epoch)(positions)

    def batch(self, epoch: int, index: int, share: Share = ALL) -> dict[str, Tensor]:
        samples = share.select(self.samples(epoch, index))
        windows = np.stack([self._window(sample) for sample in samples])
        batch = {"tokens": torch.from_numpy(windows[:, :-1].copy()), "labels": torch.from_numpy(windows[:, 1:].copy())}
        if self.documents:
            numbers = np.stack([self._documents(sample) for sample in samples])
            # The token after a document's end belongs to another document, so it is not a label.
            batch["labels"][torch.from_numpy(numbers[:, 1:] != numbers[:, :-1])] = IGNORE
            batch["documents"] = torch.from_numpy(numbers[:, :-1].copy())
            batch["positions"] = torch.from_numpy(positions_within(numbers[:, :-1]))
        return batch

    def _window(self, sample: int) -> Indices:
        start = self._offset + int(sample) * self.length
        return self.shards.read(start, start + self.length + 1).astype(np.int64)

    def _documents(self, sample: int) -> Indices:
        start = self._offset + int(sample) * self.length
        return self.shards.document_numbers(start, start + self.length + 1)


def check_index(batches: Sized, index: int) -> None:
    if not 0 <= index < len(batches):
        raise UsageError(
            f"There is no batch {index}: an epoch has {len(batches):,} batches, counted from 0. Did the corpus or the "
            "batch size change?"
        )


def positions_within(documents: Indices) -> Indices:
    """0, 1, 2 … from the start of each document in each row."""
    length = documents.shape[1]
    starts = np.r_["1", np.ones((len(documents), 1), bool), documents[:, 1:] != documents[:, :-1]]
    return np.arange(length) - np.maximum.accumulate(np.where(starts, np.arange(length), 0), axis=1)


class MaskedBatches:
    """Windows with some tokens masked; the labels are the masked tokens."""

    def __init__(self, windows: WindowBatches, *, roles: Roles, vocabulary: int, mask_rate: float = 0.15) -> None:
        if roles.mask is None:
            raise UsageError("This tokenizer has no mask token, so nothing can be masked. Train one with <mask>.")
        if not 0 < mask_rate < 1:
            raise UsageError(f"The share of masked tokens is {mask_rate}; it must be between 0 and 1.")
        self.windows, self.mask, self.vocabulary, self.mask_rate = windows, roles.mask, vocabulary, mask_rate
        special = (roles.pad, roles.begin, roles.end, roles.unknown, roles.mask, *roles.languages.values())
        self._special = np.array([number for number in special if number is not None])

    def __len__(self) -> int:
        return len(self.windows)

    def samples(self, epoch: int, index: int) -> Indices:
        return self.windows.samples(epoch, index)

    def batch(self, epoch: int, index: int, share: Share = ALL) -> dict[str, Tensor]:
        samples = share.select(self.samples(epoch, index))
        batch = self.windows.batch(epoch, index, share)
        rows = [self._mask_row(row, epoch, int(s)) for row, s in zip(batch["tokens"].numpy(), samples, strict=True)]
        batch["tokens"] = torch.from_numpy(np.stack([tokens for tokens, _ in rows]))
        batch["labels"] = torch.from_numpy(np.stack([labels for _, labels in rows]))
        return batch

    def _mask_row(self, row: Indices, epoch: int, sample: int) -> tuple[Indices, Indices]:
        random = generator(self.windows.seed, epoch, sample)
        masked = (random.random(len(row)) < self.mask_rate) & ~np.isin(row, self._special)
        draw = random.random(len(row))
        replacement = np.where(draw < 0.8, self.mask, random.integers(0, self.vocabulary, len(row)))
        tokens = np.where(masked & (draw < 0.9), replacement, row)
        return tokens, np.where(masked, row, IGNORE)


class PairBatches:
    """Pairs of similar length, with rows × longest side ≤ `tokens`. Which pairs share a batch changes every epoch.

    Most batches have sources of a single length. They need no padding mask, and attention without a mask is faster.
    """

    def __init__(
        self, pairs: Pairs, *, tokens: int, source_roles: Roles, target_roles: Roles | None = None, seed: int = 0
    ) -> None:
        target_roles = source_roles if target_roles is None else target_roles
        if target_roles.begin is None or target_roles.end is None:
            raise UsageError("The target tokenizer needs begin and end tokens, but has none.")
        if not len(pairs):
            raise CorpusError(
                "There are no pairs in this part. Give more pairs (similar ones count as one), or a larger share."
            )
        self.pairs, self.seed, self.tokens = pairs, seed, tokens
        self._begin, self._end, self._source_end = target_roles.begin, target_roles.end, source_roles.end
        self.source_pad, self.target_pad = source_roles.pad or 0, target_roles.pad or 0
        self.source_lengths = pairs.source.lengths + (self._source_end is not None)
        self.target_lengths = pairs.target.lengths + 1
        longest = int(np.maximum(self.source_lengths, self.target_lengths).max())
        if longest > tokens:
            raise CorpusError(
                f"The longest pair has {longest} tokens, but a batch may have {tokens}. Raise train.batch_tokens, "
                "or drop long pairs when preparing."
            )
        self._ranks = self._rank_lengths()
        self._starts = self._plan_batches()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def samples(self, epoch: int, index: int) -> Indices:
        check_index(self, index)
        position = int(Permutation(len(self), seed=self.seed, epoch=epoch)(np.array([index]))[0])
        return self.order(epoch)[self._starts[position] : self._starts[position + 1]]

    def batch(self, epoch: int, index: int, share: Share = ALL) -> dict[str, Tensor]:
        tables = self.tables(share.select(self.samples(epoch, index)))
        batch, real = {name: table for name, (table, _) in tables.items()}, tables["source"][1]
        return batch if real.all() else {**batch, "source_mask": real}

    def tables(self, samples: Indices) -> dict[str, tuple[Tensor, Tensor]]:
        """Source, target and labels of the pairs, each padded, with a mask that is True for real tokens."""
        pairs = self.pairs
        return {
            "source": pad_sequences(pairs.source, samples, filler=self.source_pad, after=self._source_end),
            "target": pad_sequences(pairs.target, samples, filler=self.target_pad, before=self._begin),
            "labels": pad_sequences(pairs.target, samples, filler=IGNORE, after=self._end),
        }

    @property
    def padding(self) -> float:
        """The fraction of padding among all positions of an epoch, sources and targets together."""
        total = real = 0
        order = self.order(0)
        for start, stop in zip(self._starts[:-1], self._starts[1:], strict=True):
            rows = order[start:stop]
            for lengths in (self.source_lengths[rows], self.target_lengths[rows]):
                total += len(rows) * int(lengths.max())
                real += int(lengths.sum())
        return 1 - real / total

    @property
    def fewest_rows(self) -> int:
        """The number of rows in the smallest batch: the most processes that can share a batch."""
        return int(np.diff(self._starts).min())

    def order(self, epoch: int) -> Indices:
        """All pairs sorted by source length, then target length; ties in random order, so batches change by epoch."""
        if getattr(self, "_cached_order", (None, None))[0] != epoch:
            shuffled = Permutation(len(self.pairs), seed=self.seed, epoch=epoch)(np.arange(len(self.pairs)))
            self._cached_order = (epoch, shuffled[np.argsort(self._ranks[shuffled], kind="stable")])
        return self._cached_order[1]

    def _rank_lengths(self) -> NDArray[np.unsignedinteger]:
        """The place of each pair's lengths in that order; in 16 bits if possible, which sort ten times faster."""
        source, target = self.source_lengths, self.target_lengths
        # Target lengths alternately rise and fall from one source length to the next, so that neighbors stay similar.
        signed = np.where(source % 2 == 0, target, -target)
        _, ranks = np.unique(source * (2 * target.max() + 1) + signed + target.max(), return_inverse=True)
        return ranks.astype(np.min_scalar_type(ranks.max()))

    def _plan_batches(self) -> Indices:
        """Where batches start in that order. The sequence of lengths is the same every epoch, so the starts are too.

        A batch that is at least half full ends where the source length changes.
        """
        order = np.argsort(self._ranks, kind="stable")
        sources = self.source_lengths[order]
        sizes = np.maximum(sources, self.target_lengths[order])
        starts = [0]
        while starts[-1] < len(sizes):
            window = slice(starts[-1], starts[-1] + self.tokens)
            filled = np.maximum.accumulate(sizes[window]) * np.arange(1, len(sizes[window]) + 1)
            rows = int(np.searchsorted(filled, self.tokens, side="right"))
            changes = np.flatnonzero(np.diff(sources[window][:rows])) + 1
            pure = changes[2 * filled[changes - 1] >= self.tokens]
            starts.append(starts[-1] + int(pure[0] if len(pure) else rows))
        return np.array(starts)


def source_mask(batch: Mapping[str, Tensor]) -> Tensor:
    """The mask [B, S] of a batch of pairs, False for padding; all True if the batch has none."""
    return batch.get("source_mask", torch.ones_like(batch["source"], dtype=torch.bool))


def pad_sequences(
    ragged: RaggedArray, samples: Indices, *, filler: int, before: int | None = None, after: int | None = None
) -> tuple[Tensor, Tensor]:
    """The sequences as a table padded on the right with `filler`, and a mask that is True for real tokens."""
    stops = np.asarray(ragged.ends)[samples]
    starts = np.where(samples > 0, np.asarray(ragged.ends)[np.maximum(samples - 1, 0)], 0)
    lengths, shift = stops - starts, int(before is not None)
    width = int(lengths.max(initial=0)) + shift + (after is not None)
    columns = np.arange(width) - shift
    table = np.full((len(samples), width), filler, dtype=np.int64)
    inside = (columns >= 0) & (columns < lengths[:, None])
    table[inside] = ragged.tokens[(starts[:, None] + columns)[inside]]
    if before is not None:
        table[:, 0] = before
    if after is not None:
        table[np.arange(len(samples)), lengths + shift] = after
    real = columns < (lengths + (after is not None))[:, None]
    return torch.from_numpy(table), torch.from_numpy(real)
