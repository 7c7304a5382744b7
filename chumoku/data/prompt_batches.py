"""Batches of prompts with their answers, P in each:

    prompts [P, T] tokens      answers [P, A] UTF-8 bytes       both padded on the right with −1
    seeds [P]                  of the random numbers with which the answers of a prompt are sampled
    terms [P]                  how many losses each prompt has: one for each sampled answer

A seed depends only on (seed, epoch, prompt), so a sampled answer does not depend on how prompts are divided into
batches and processes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chumoku.data.batches import ALL, Share
from chumoku.data.order import random_numbers
from chumoku.data.prompts import CheckedPrompts
from chumoku.data.shuffled_rows import ShuffledRows
from chumoku.errors import CorpusError, UsageError

NOTHING = -1  # padding, which is no token and no byte


class PromptBatches(ShuffledRows):
    """Up to `rows` prompts; the batches of an epoch differ by at most one prompt.

    terms    the number of answers that are sampled for each prompt
    """

    def __init__(self, prompts: CheckedPrompts, *, rows: int, terms: int = 1, seed: int = 0) -> None:
        if rows < 1:
            raise UsageError(f"A batch has {rows} prompts; it must have 1 or more.")
        if not len(prompts.prompts):
            raise CorpusError("There are no prompts in this part. Give more of them, or a larger share.")
        super().__init__(len(prompts.prompts), rows=rows, seed=seed)
        self.prompts, self.terms = prompts, terms

    @property
    def mean_length(self) -> float:
        """The mean number of tokens of a prompt."""
        return float(self.prompts.prompts.tokens.lengths.mean())

    def batch(self, epoch: int, index: int, share: Share = ALL) -> dict[str, Tensor]:
        places = share.select(self.samples(epoch, index)).tolist()
        seeds = [int(random_numbers(1, self.seed, epoch, place)[0]) for place in places]
        return {
            "prompts": pad([self.prompts.prompts[place].tokens for place in places]),
            "answers": pad([self.prompts.answers[place].tokens for place in places]),
            "seeds": torch.tensor(seeds),
            "terms": torch.full((len(places),), float(self.terms)),
        }


def pad(rows: Sequence[NDArray[np.int64]]) -> Tensor:
    """One table of rows of different lengths."""
    table = np.full((len(rows), max(map(len, rows))), NOTHING, np.int64)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return torch.from_numpy(table)


def unpad(table: Tensor) -> list[list[int]]:
    """The rows of a table without their padding."""
    return [row[row != NOTHING].tolist() for row in table.cpu()]
