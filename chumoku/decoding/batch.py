"""Shared by all decoding: a context manager for inference, copies to a device, and how a batch is compacted.

a b c d e f   and b, d are finished:   a f c e    the last rows fill the gaps, so that few rows move
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import numpy.typing as npt
import torch
from torch import Tensor, nn

from chumoku.models.model import Model
from chumoku.nn.modules import eval_mode
from chumoku.text.tokenizer import Tokenizer


@contextlib.contextmanager
def inference_mode(model: Model, parts: Iterable[nn.Module] | None = None) -> Iterator[None]:
    """No gradients and no dropout inside; training modes are restored afterwards.

    parts     all modules of the model; given by callers for whom `model.modules()` is too slow
    """
    with eval_mode(model.modules() if parts is None else parts), torch.inference_mode():
        yield


def upload(numbers: npt.ArrayLike | Tensor, device: torch.device) -> Tensor:
    """Numbers on a device. The host does not wait until a GPU has them."""
    tensor = torch.as_tensor(numbers)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def compact_rows(staying: Sequence[int]) -> list[int]:
    """The previous row of each place, when only the rows `staying` (ascending) are left."""
    places = range(len(staying))
    present = set(staying)
    fillers = reversed([row for row in staying if row >= len(staying)])
    return [place if place in present else next(fillers) for place in places]


def longest(model: Model, wanted: int) -> int:
    """The most tokens of a sequence, up to `wanted`; only learned positions have a limit, the model's context."""
    return min(wanted, model.config.context) if model.config.position == "learned" else wanted


def forbidden_tokens(model: Model, tokenizer: Tokenizer, ends: Iterable[int] = ()) -> list[int]:
    """Tokens that are never generated: special tokens, and ids beyond the tokenizer's vocabulary.

    ends    special tokens that may end a text, beside the tokenizer's end token
    """
    special = {*tokenizer.specials.values(), tokenizer.roles.pad, tokenizer.roles.begin, tokenizer.roles.unknown}
    special -= {*ends, *tokenizer.stop_tokens, tokenizer.roles.end}
    beyond = range(tokenizer.size, model.config.vocabulary)
    return [*sorted(token for token in special if token is not None and token < model.config.vocabulary), *beyond]
