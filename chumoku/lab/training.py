"""The training loop of the lab, the same for every experiment.

    for step in 1 … steps:   L = loss(generator);   θ ← update(θ, ∇L)

    losses = fit(model, lambda g: loss_of(model, a_batch(g)), steps=300, seed=0)

`loss` samples its batch with the given generator and returns a scalar, so a run depends only on its seed, which also
seeds dropout. If the loss is no longer finite, the run ends and the rest of its curve is ∞: divergence is a result.
Global state (random state, threads) is restored.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.training.schedule import Schedule

Loss = Callable[[torch.Generator], Tensor]
TOY: dict[str, Any] = {
    **{"width": 32, "layers": 2, "heads": 2, "context": 256},
    # Scaled embeddings and a separate output layer, so that a hundred steps are enough to learn something.
    **{"scale_embedding": True, "tie_output": False, "initialization": "xavier"},
}


def build_toy(seed: int, **keys: Any) -> Model:
    """A model of this project that trains in a second; `keys` are keys of ModelConfig and must include `vocabulary`."""
    return build(ModelConfig(**{**TOY, **keys}), seed=seed)


@contextlib.contextmanager
def fixed_seed(seed: int) -> Iterator[torch.Generator]:
    """Inside, all randomness depends on the seed; global state is restored. Yields a generator for batches."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)  # faster for tiny models, and the order of summation is fixed
        flushing = float(torch.tensor(1e-30) * 1e-12) == 0.0
        torch.set_flush_denormal(True)  # CPUs are ten times slower on denormal numbers (vanished gradients)
        try:
            yield torch.Generator().manual_seed(seed)
        finally:
            torch.set_flush_denormal(flushing)
            torch.set_num_threads(threads)


def remove_norms(model: Model) -> Model:
    """Replace every norm of the model by the identity, in place."""
    for module in list(model.modules()):
        for name in [name for name, _ in module.named_children() if name == "norm" or name.endswith("_norm")]:
            setattr(module, name, nn.Identity())
    return model


def fit(
    model: nn.Module,
    loss: Loss,
    *,
    steps: int,
    seed: int,
    rate: float = 3e-3,
    warmup: int = 0,
    cosine: bool = False,
    optimizer: Literal["adam", "sgd"] = "adam",
    clip: float = math.inf,
    callback: Callable[[int], None] | None = None,
) -> list[float]:
    """Train in place and return the loss of every step. The model is left in eval mode.

    `rate` is constant after `warmup` steps, or decays to 0 with `cosine`. Gradients are clipped to the norm `clip`.
    `callback(step)` is called before each step and once at the end.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    updates = torch.optim.Adam(trained, rate, fused=True) if optimizer == "adam" else torch.optim.SGD(trained, rate)
    schedule = Schedule("cosine" if cosine else "constant", warmup=min(warmup, steps), steps=steps)
    losses: list[float] = []
    model.train()
    with fixed_seed(seed) as generator:
        for step in range(1, steps + 1):
            if callback is not None:
                callback(step - 1)
            value = loss(generator)
            losses.append(value.item())
            if not math.isfinite(losses[-1]):
                break
            updates.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            if clip < math.inf:
                nn.utils.clip_grad_norm_(trained, clip)
            for group in updates.param_groups:
                group["lr"] = rate * schedule(step)
            updates.step()
    model.eval()
    if callback is not None:
        callback(len(losses))
    return [value if math.isfinite(value) else math.inf for value in losses] + [math.inf] * (steps - len(losses))


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean of −log p(token t+1) for logits [B, T, V] and tokens [B, T]."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def final_loss(losses: Sequence[float], share: float = 0.1) -> float:
    """Mean loss over the last steps, which is less noisy than the last batch alone."""
    last = losses[-max(1, round(len(losses) * share)) :]
    return sum(last) / len(last)


def downsample(losses: Sequence[float], points: int = 60) -> list[float]:
    """A curve as at most `points` means of neighboring steps."""
    width = max(1, math.ceil(len(losses) / points))
    return [sum(part) / len(part) for part in (losses[at : at + width] for at in range(0, len(losses), width))]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
