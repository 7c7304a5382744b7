"""Every claim of the notes, by id, in reading order. A claim's file is its id with _ for -."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from chumoku.errors import UsageError

ARITHMETIC = (
    *("norm", "dot", "dot-proof", "matmul", "gram", "rows-cols", "onehot", "loss-window", "log-underflow"),
    *("sgd", "autodiff", "exploding", "residual-slope", "attention-cat", "saturation", "variance", "temperature"),
    *("softmax-1234", "scores-exercise", "pe-exercise", "ln-exercise", "ln-formula", "head-cost", "rank"),
    *("ffn-params", "ffn-share", "learned-pe", "pe-range", "rope-users", "mask-future", "softmax-axis"),
    *("broadcast", "shapes", "slices"),
)
TRIED = (
    *("pe-heatmap", "pe-dot", "pe-linear", "order", "rejected-pe", "rope-relative", "extrapolate", "rnn", "scale"),
    *("skip", "depth", "ln-rate", "pre-post", "bn-ln", "covariate"),
    *("heads", "ffn-needed", "ffn-memory", "gated", "moe", "dropout", "lora", "word-vectors", "contextual", "kotatsu"),
    *("layers", "leak", "self-cross", "pretrain-shift"),
)
TOGETHER = ("kotatsu", "layers", "self-cross", "pretrain-shift")  # these look into the same trained translator
ONCE = (*ARITHMETIC, "pe-heatmap", "pe-dot", "pe-linear", "rope-relative")  # nothing is learned, so one seed will do
# Verdicts that do not depend on how long a model was trained: a short run may give them, too.
UNTRAINED = (*ONCE, "scale", "self-cross", "pretrain-shift")
CLAIMS: tuple[str, ...] = ARITHMETIC + TRIED
ALL = "all"


def chosen(ids: Sequence[str]) -> list[str]:
    """The ids asked for, each once, in reading order; `all` is every one."""
    for id in ids:
        if id not in (*CLAIMS, ALL):
            near = difflib.get_close_matches(id.lower(), (*CLAIMS, ALL), n=1, cutoff=0.4)
            hint = f"Did you mean {near[0]}?" if near else "`chumoku lab` lists them all."
            raise UsageError(f"There is no claim called '{id[:60]}'. {hint}")
    return [id for id in CLAIMS if id in ids or ALL in ids]
