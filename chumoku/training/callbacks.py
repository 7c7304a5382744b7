"""Callbacks for `chumoku.train`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chumoku.training.loop import Callback, TrainEvent


def log_metrics(write: Callable[..., Any], *, every: int = 10) -> Callback:
    """A callback that passes metrics to an experiment tracker, as `write({"loss": …}, step=…)`.

    Weights & Biases and MLflow both have a function of this form:

        chumoku.train(recipe, callbacks=[log_metrics(wandb.init(project="mine").log)])
        chumoku.train(recipe, callbacks=[log_metrics(mlflow.log_metrics)])

    every    steps between two training losses; validation losses are always passed on
    """

    def callback(event: TrainEvent) -> None:
        if event.validation_loss is not None:
            found = {f"validation_{name}": value for name, value in event.metrics.items()}
            write({"validation_loss": event.validation_loss, **found}, step=event.step)
        elif event.step % every == 0:
            values = {"loss": event.loss, "learning_rate": event.learning_rate, "tokens": event.tokens, **event.metrics}
            write({name: value for name, value in values.items() if value is not None}, step=event.step)

    callback.uses_model = False  # type: ignore[attr-defined]
    return callback
