"""Rounding does not decide:  ‖z₃₂ − z₆₄‖ / ‖z₆₄ − mean‖ is tiny, and in the recipe's 16 bits small.

z are the logits of a few real rows (of a body without a head, its vectors), computed in so many bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Batch, Patient, batch_norms
from chumoku.doctor.tools import PRECISE, answers, borrowed, quantized, sample, size
from chumoku.models.model import Model
from chumoku.training.precision import DTYPES, Cast

FAR = {"float32": 1e-3, "bf16": 0.5, "fp16": 0.1}


class Asked(nn.Module):
    """The model as something that takes a batch."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        return answers(self.model, batch)


def run(patient: Patient) -> Iterator[Finding]:
    model = patient.the_model()
    if quantized(model):
        raise Skip("quantized matrices have a precision of their own")
    if size(model) > PRECISE:
        raise Skip("this model is too large to be asked in 64 bits")
    batch = sample(patient)
    asked = "float32" if patient.recipe is None else patient.recipe.train.precision
    # A batch norm's running averages stay in 32 bits, and recipes allow it no fewer.
    precisions = ["float32"] if batch_norms(model) else list(dict.fromkeys(("float32", asked, "bf16")))
    with torch.no_grad():
        with borrowed(model):
            exact = answers(model, batch).double()
        for precision in precisions:
            with borrowed(model, precise=False):
                rounded = Cast(Asked(model), DTYPES[precision]).eval()(batch).double()
            lost = float((rounded - exact).norm() / (exact - exact.mean(-1, keepdim=True)).norm().clamp(min=1e-30))
            if math.isfinite(lost) and lost <= FAR[precision]:
                continue
            yield Finding(
                "precision",
                f"In {precision} the answers differ by {lost:.1%} from those in 64 bits."
                if math.isfinite(lost)
                else f"In {precision} the answers are not finite.",
                f"the model in {precision}",
                0.9 if precision in ("float32", asked) else 0.4,
                "Look for numbers far larger than what they differ by; a norm before them, or a wider type, helps.",
            )
            return


CHECK = Check("precision", "rounding does not change answers", cheap=False, run=run)
