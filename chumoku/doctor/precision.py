"""Rounding errors are small:  ‖z₃₂ − z₆₄‖ / ‖z₆₄ − mean‖ is tiny, and still small in 16 bits.

z are the logits of a few rows (hidden states if there is no head), computed in 64, 32 or 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Batch, Subject, batch_norms
from chumoku.doctor.tools import MAX_DOUBLE, count_parameters, restore_after, run_model, sample_batch
from chumoku.models.model import Model
from chumoku.nn.quantized import is_quantized
from chumoku.training.precision import DTYPES, Cast

TOLERANCE = {"float32": 1e-3, "bf16": 0.5, "fp16": 0.1}


class BatchModel(nn.Module):
    """A model whose forward takes a batch."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        return run_model(self.model, batch)


def run(subject: Subject) -> Iterator[Finding]:
    model = subject.require_model()
    if is_quantized(model):
        raise Skip("quantized matrices have their own precision")
    if count_parameters(model) > MAX_DOUBLE:
        raise Skip("this model is too large to run in 64 bits")
    batch = sample_batch(subject)
    recipe_precision = "float32" if subject.recipe is None else subject.recipe.train.precision
    # Batch norm keeps its running averages in float32, and recipes do not allow 16 bits for it.
    precisions = ["float32"] if batch_norms(model) else list(dict.fromkeys(("float32", recipe_precision, "bf16")))
    with torch.no_grad():
        with restore_after(model):
            exact = run_model(model, batch).double()
        for precision in precisions:
            with restore_after(model, precise=False):
                rounded = Cast(BatchModel(model), DTYPES[precision]).eval()(batch).double()
            lost = float((rounded - exact).norm() / (exact - exact.mean(-1, keepdim=True)).norm().clamp(min=1e-30))
            if math.isfinite(lost) and lost <= TOLERANCE[precision]:
                continue
            yield Finding(
                "precision",
                f"In {precision} the output differs by {lost:.1%} from the output in 64 bits."
                if math.isfinite(lost)
                else f"In {precision} the output is not finite.",
                f"the model in {precision}",
                0.9 if precision in ("float32", recipe_precision) else 0.4,
                "Look for values much larger than their differences; add a norm before them, or use a wider type.",
            )
            return


CHECK = Check("precision", "rounding does not change the output", cheap=False, run=run)
