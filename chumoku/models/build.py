"""Config → model. Checks that the machine has enough memory before allocating it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from chumoku.errors import TooLargeError
from chumoku.models.config import ModelConfig
from chumoku.models.count import count
from chumoku.models.initialization import initialize
from chumoku.models.model import DecoderModel, EncoderDecoderModel, EncoderModel, Model

CLASSES: dict[str, type[Model]] = {
    "encoder": EncoderModel,
    "decoder": DecoderModel,
    "encoder-decoder": EncoderDecoderModel,
}


class SkipInitialization(TorchFunctionMode):
    """Skip the initialization in nn.Linear: `initialize` sets all weights later, and doing it twice is slow."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is nn.init.kaiming_uniform_:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def build(
    config: ModelConfig,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Model:
    """Build a model with random weights, in eval mode.

    seed: the same seed gives the same weights.
    device: "meta" builds a model with shapes only, without memory.
    """
    device = torch.device(device)
    with torch.device("meta"), SkipInitialization():
        model = CLASSES[config.kind](config)
    if dtype != torch.get_default_dtype():
        model = model.to(dtype)
    if device.type == "meta":
        return model.eval()
    check_memory(config, bytes_each=dtype.itemsize, device=device)
    model.to_empty(device=device)
    initialize(model, config, torch.Generator(device).manual_seed(seed))
    return model.eval()


def check_memory(config: ModelConfig, *, bytes_each: int, device: torch.device) -> None:
    """Raise if the weights, of `bytes_each` bytes, are larger than the memory of the device."""
    needed = count(config).parameters * bytes_each
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    elif device.type == "cpu" and hasattr(os, "sysconf"):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        return
    if needed > total:
        raise TooLargeError(
            f"The weights of this model need {needed:,} bytes and this machine has {total:,}. "
            "Choose a smaller width, fewer layers or a smaller vocabulary, or build it on the device 'meta'."
        )
