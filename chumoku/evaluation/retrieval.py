"""Scores of sentence vectors.

    recall@k   share of a query's relevant documents among the k nearest, mean over the queries
    nDCG@k     Σ_{relevant at rank r ≤ k} 1 / log₂(r + 1), divided by the largest possible sum; mean over the queries
    Spearman   correlation of the ranks of cosines and of human scores (semantic textual similarity, STS)

The documents are all different texts of the second column; a query is relevant to those it is paired with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from chumoku.decoding.vector_index import nearest
from chumoku.errors import UsageError

RANKS = 10  # nearest documents that are looked at
Embed = Callable[[list[str], str], Tensor]  # texts, and "query" or "document" → vectors [n, D]


@dataclass(frozen=True)
class RetrievalScore:
    recall_at_1: float
    recall_at_5: float
    recall_at_10: float
    ndcg_at_10: float
    queries: int
    documents: int

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)


@dataclass(frozen=True)
class SimilarityScore:
    spearman: float
    pairs: int

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)


def score_retrieval(pairs: Sequence[tuple[str, str]], embed: Embed) -> RetrievalScore:
    """How well the document of each pair (query, document) is found among the documents of all pairs."""
    queries, documents = (list(dict.fromkeys(texts)) for texts in zip(*pairs, strict=True))
    if len(documents) < 2:
        raise UsageError("Retrieval needs two different documents or more. Give more pairs.")
    number = {text: place for place, text in enumerate(documents)}
    relevant: dict[str, set[int]] = {query: set() for query in queries}
    for query, document in pairs:
        relevant[query].add(number[document])
    directions = F.normalize(embed(documents, "document"), dim=-1)
    places = nearest(embed(queries, "query"), directions, RANKS)[1].tolist()
    sets = [relevant[query] for query in queries]
    recalls = {
        k: mean(recall(found, wanted, k) for found, wanted in zip(places, sets, strict=True)) for k in (1, 5, 10)
    }
    gain = mean(ndcg(found, wanted) for found, wanted in zip(places, sets, strict=True))
    return RetrievalScore(recalls[1], recalls[5], recalls[10], gain, len(queries), len(documents))


def score_similarity(pairs: Sequence[tuple[str, str]], scores: Sequence[float], embed: Embed) -> SimilarityScore:
    """The rank correlation of the cosines of pairs of texts with human scores."""
    if len(set(scores)) < 2:
        raise UsageError("All scores are equal, so there is no correlation. Check the third column.")
    ones, others = (embed([pair[side] for pair in pairs], "query") for side in (0, 1))
    cosines = torch.cosine_similarity(ones, others)
    return SimilarityScore(spearman(cosines.numpy(), np.array(scores, dtype=np.float64)), len(pairs))


def recall(found: Sequence[int], relevant: set[int], k: int) -> float:
    return len(relevant.intersection(found[:k])) / len(relevant)


def ndcg(found: Sequence[int], relevant: set[int]) -> float:
    """nDCG of a ranking, with a gain of 1 for each relevant document."""
    gains = [1 / math.log2(rank + 2) for rank in range(len(found))]
    total = sum(gain for gain, place in zip(gains, found, strict=True) if place in relevant)
    return total / sum(gains[: len(relevant)])


def spearman(one: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    """Spearman's rank correlation; equal values share their mean rank."""
    return float(np.corrcoef(mean_ranks(one), mean_ranks(other))[0, 1])


def mean_ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks


def mean(values: object) -> float:
    return float(np.mean(list(values)))  # type: ignore[call-overload]
