"""A shorter context for a model that was opened, which decides the rotary frequencies of models with longrope."""

from __future__ import annotations

from dataclasses import replace

from chumoku.errors import UsageError
from chumoku.models.model import Model
from chumoku.models.stack import Stack, make_rotary


def limit_context(model: Model, context: int) -> None:
    """Give a model another context, of at most its own."""
    config = model.config
    if not 1 <= context <= config.context:
        raise UsageError(f"The context must be 1 to {config.context:,}, the model's own, not {context:,}.")
    if config.position == "learned":
        raise UsageError("The context of a model with learned positions is the size of their table.")
    model.config = replace(config, context=context)
    for stack in model.children():
        if isinstance(stack, Stack):
            stack.context, stack.rotary = context, make_rotary(model.config)


def limit_longrope(model: Model, context: int) -> None:
    """Limit a model with longrope to this context, which decides its frequencies; leave other models as they are."""
    if model.config.rotary.scaling == "longrope":
        limit_context(model, min(model.config.context, context))


def use_short_factors(model: Model) -> None:
    """Limit a model with longrope to its original length, up to which transformers has the short factors."""
    limit_longrope(model, model.config.rotary.original)
