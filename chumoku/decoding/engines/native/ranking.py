"""The candidates of a beam search's next step, computed by the library (ranking.h) from float32 logits on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
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


def rank(logits: Tensor, totals: npt.NDArray[Any], forbidden: Sequence[int], wanted: int) -> list[npt.NDArray[Any]]:
    """The `wanted` most likely continuations of each sentence, best first: log p, rows and tokens, all [S, wanted].

    logits      [S · live, V], of the live hypotheses of each sentence
    totals      log p of each hypothesis so far [S, live]
    forbidden   tokens that are not candidates, ascending
    """
    logits = logits.contiguous()
    (sentences, live), vocabulary = totals.shape, logits.shape[1]
    before, tokens = np.ascontiguousarray(totals, dtype=np.float32), np.array(forbidden, dtype=np.int32)
    ranking = Ranking(
        sentences=sentences,
        live=live,
        vocabulary=vocabulary,
        width=min(wanted, vocabulary),
        wanted=wanted,
        logits=logits.data_ptr(),
        totals=before.ctypes.data,
        forbidden_count=len(forbidden),
        forbidden=tokens.ctypes.data,
    )
    found = np.empty((3, sentences, wanted), dtype=np.int32)
    first, size = found.ctypes.data, found.strides[0]
    places = (ctypes.c_void_p(first + nth * size) for nth in range(3))
    call_library("rank_candidates", ctypes.byref(ranking), *places)
    return [found[0].view(np.float32), found[1], found[2]]
