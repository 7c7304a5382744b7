"""What all ways of decoding share: a model that only answers, and a batch that its finished rows leave.

a b c d e f   and b, d are finished:   a f c e    the last rows fill the gaps, so that few are moved
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from chumoku.models.model import Model


@contextlib.contextmanager
def answering(model: Model, parts: Iterable[nn.Module] | None = None) -> Iterator[None]:
    """No gradients and no dropout inside; afterwards every part is in the mode it was in.

    Whoever comes here for every token hands in the model's `parts`, which take longer to be found than to be asked.
    """
    training = [part for part in (model.modules() if parts is None else parts) if part.training]
    for part in training:
        part.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        for part in training:
            part.training = True


def close_ranks(staying: Sequence[int]) -> list[int]:
    """Which of the rows `staying` (in rising order) stands at each place once the others have left."""
    places = range(len(staying))
    present = set(staying)
    fillers = reversed([row for row in staying if row >= len(staying)])
    return [place if place in present else next(fillers) for place in places]


def longest(model: Model, wanted: int) -> int:
    """How long a sequence may become: learned positions end at the model's context, others nowhere."""
    return min(wanted, model.config.context) if model.config.position == "learned" else wanted
