"""The default learning rate of a recipe.

    adamw   r(D) = 6e-4 · (768 / D)^0.8, at most 5e-3        D: the model's width
    muon    2 · r(D)
    sgd     0.01, with the default momentum and clipping

r(D) matches both ends of table 2.1 in Brown et al. 2020 (GPT-3: 6e-4 at D = 768, 0.6e-4 at D = 12,288) and is
extrapolated to small models. The tuned learning rates of our recipes are within a factor of 2 of it. Fine-tuning a
trained model (`model.init`) uses a quarter of it; an adapter ([lora]) uses all of it, but also a quarter for
preferences and rewards: a model that moves far from its start for them writes no words any more (docs/log.md).
"""

from __future__ import annotations

HIGHEST = 5e-3
SGD = 0.01
FINE_TUNING = 0.25


def default_learning_rate(kind: str, width: int, *, fine_tuning: bool = False) -> float:
    """The peak learning rate for an optimizer kind and a model width, rounded to two digits."""
    adamw = min(HIGHEST, 6e-4 * (768 / width) ** 0.8)
    rate = {"adamw": adamw, "muon": 2 * adamw, "sgd": SGD}[kind]
    return float(f"{rate * FINE_TUNING if fine_tuning else rate:.1e}")
