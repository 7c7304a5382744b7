"""The laboratory's loop: the smallest training there is, the same for every experiment.

    for step in 1 … steps:   L = loss(generator);   θ ← update(θ, ∇L)

    losses = fit(model, lambda g: loss_of(model, a_batch(g)), steps=300, seed=0)

`loss` draws its batch from the generator it is handed and returns one number, so a run is a function of its seed
alone; dropout is seeded with it. A loss that is no longer finite ends the run, and the rest of its curve is ∞: here a
divergence is a result. What is global (random state, threads) is put back.
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
    # Words as long as positions, and an output of its own: so that a hundred steps are enough to learn something.
    **{"scale_embedding": True, "tie_output": False, "initialization": "xavier"},
}


def toy(seed: int, **keys: Any) -> Model:
    """A model of the project small enough to learn in a second; `keys` are those of a config, `vocabulary` at least."""
    return build(ModelConfig(**{**TOY, **keys}), seed=seed)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[torch.Generator]:
    """Everything random inside follows from the seed; outside, nothing was drawn. The generator is for batches."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)  # toys are too small to be shared out, and one thread adds up in one order
        flushing = float(torch.tensor(1e-30) * 1e-12) == 0.0
        torch.set_flush_denormal(True)  # vanished gradients are numbers on which processors are ten times slower
        try:
            yield torch.Generator().manual_seed(seed)
        finally:
            torch.set_flush_denormal(flushing)
            torch.set_num_threads(threads)


def unnormed(model: Model) -> Model:
    """The same model with every norm replaced by nothing."""
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
    watch: Callable[[int], None] | None = None,
) -> list[float]:
    """Train in place and return the loss of every step; `watch(step)` is called before each, and once at the end.

    The rate is constant after `warmup` steps, or falls to 0 along a half cosine; a warm-up longer than the
    run lasts as long as the run. Gradients are not clipped unless asked, and the model is left in eval mode.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    updates = torch.optim.Adam(trained, rate, fused=True) if optimizer == "adam" else torch.optim.SGD(trained, rate)
    schedule = Schedule("cosine" if cosine else "constant", warmup=min(warmup, steps), steps=steps)
    losses: list[float] = []
    model.train()
    with seeded(seed) as generator:
        for step in range(1, steps + 1):
            if watch is not None:
                watch(step - 1)
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
    if watch is not None:
        watch(len(losses))
    return [value if math.isfinite(value) else math.inf for value in losses] + [math.inf] * (steps - len(losses))


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """The mean of −log p(token t+1) that logits [B, T, V] after tokens [B, T] give."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def tail(losses: Sequence[float], share: float = 0.1) -> float:
    """The mean over the last steps of a curve: where a run ended up, without the noise of its last batch."""
    last = losses[-max(1, round(len(losses) * share)) :]
    return sum(last) / len(last)


def thinned(losses: Sequence[float], points: int = 60) -> list[float]:
    """A curve as at most so many means of neighboring steps: enough to draw, few enough to write down."""
    width = max(1, math.ceil(len(losses) / points))
    return [sum(part) / len(part) for part in (losses[at : at + width] for at in range(0, len(losses), width))]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
