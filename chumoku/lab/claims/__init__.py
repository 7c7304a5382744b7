"""The ids of all claims in reading order. The file of a claim is its id with _ instead of -."""

from __future__ import annotations

from collections.abc import Sequence

from chumoku.errors import UsageError, did_you_mean

ARITHMETIC = (
    *("norm", "dot", "dot-proof", "matmul", "gram", "rows-cols", "onehot", "loss-window", "log-underflow"),
    *("sgd", "autodiff", "exploding", "residual-slope", "attention-cat", "saturation", "variance", "temperature"),
    *("softmax-1234", "scores-exercise", "pe-exercise", "ln-exercise", "ln-formula", "head-cost", "rank"),
    *("ffn-params", "ffn-share", "learned-pe", "pe-range", "rope-users", "mask-future", "softmax-axis"),
    *("broadcast", "shapes", "slices"),
)
EXPERIMENTS = (
    *("pe-heatmap", "pe-dot", "pe-linear", "order", "rejected-pe", "rope-relative", "extrapolate", "rnn", "scale"),
    *("skip", "depth", "ln-rate", "pre-post", "bn-ln", "covariate"),
    *("heads", "ffn-needed", "ffn-memory", "gated", "moe", "dropout", "lora", "word-vectors", "contextual", "kotatsu"),
    *("layers", "leak", "self-cross", "pretrain-shift"),
)
SAME_TRANSLATOR = ("kotatsu", "layers", "self-cross", "pretrain-shift")  # these use the same trained translator
SINGLE_SEED = (*ARITHMETIC, "pe-heatmap", "pe-dot", "pe-linear", "rope-relative")  # no training, so one seed is enough
# Verdicts that do not depend on the length of training, so a short run can give them too.
TRAINING_INDEPENDENT = (*SINGLE_SEED, "scale", "self-cross", "pretrain-shift")
CLAIMS: tuple[str, ...] = ARITHMETIC + EXPERIMENTS
ALL = "all"


def select_claims(ids: Sequence[str]) -> list[str]:
    """These ids without duplicates, in reading order; `all` selects every claim."""
    for id in ids:
        if id not in (*CLAIMS, ALL):
            hint = did_you_mean(id, (*CLAIMS, ALL), "`chumoku lab` lists all claims.", cutoff=0.4)
            raise UsageError(f"There is no claim called '{id[:60]}'. {hint}")
    return [id for id in CLAIMS if id in ids or ALL in ids]
