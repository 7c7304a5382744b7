"""The candidates of a beam search's next step, computed by the library (ranking.h) from float32 logits on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from chumoku.decoding.engines.native import build
from chumoku.decoding.engines.native.call import call_library


class Ranking(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("sentences", "live", "vocabulary", "width", "wanted")),
        *((name, ctypes.c_void_p) for name in ("logits", "totals")),
        *(("forbidden_count", ctypes.c_int32), ("forbidden", ctypes.c_void_p)),
    )


def can_rank(logits: Tensor) -> bool:
    return logits.device.type == "cpu" and logits.dtype == torch.float32 and build.library() is not None


def rank(
    logits: Tensor, totals: Sequence[Sequence[float]], forbidden: Sequence[int], wanted: int
) -> list[list[tuple[float, int, int]]]:
    """The `wanted` most likely continuations of each sentence, best first: (log p, row, token).

    logits      [S · live, V], of the live hypotheses of each sentence
    totals      log p of each hypothesis so far [S][live]
    forbidden   tokens that are not candidates, ascending
    """
    logits = logits.contiguous()
    sentences, live, vocabulary = len(totals), len(totals[0]), logits.shape[1]
    before = (ctypes.c_float * (sentences * live))(*(total for sentence in totals for total in sentence))
    tokens = (ctypes.c_int32 * len(forbidden))(*forbidden)
    ranking = Ranking(
        sentences=sentences,
        live=live,
        vocabulary=vocabulary,
        width=min(wanted, vocabulary),
        wanted=wanted,
        logits=logits.data_ptr(),
        totals=ctypes.cast(before, ctypes.c_void_p),
        forbidden_count=len(forbidden),
        forbidden=ctypes.cast(tokens, ctypes.c_void_p),
    )
    found = [(kind * (sentences * wanted))() for kind in (ctypes.c_float, ctypes.c_int32, ctypes.c_int32)]
    call_library("rank_candidates", ctypes.byref(ranking), *found)
    ranked = list(zip(*found, strict=True))
    return [ranked[first : first + wanted] for first in range(0, len(ranked), wanted)]
