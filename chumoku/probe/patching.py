"""Putting something else in: what would the model have said, had it computed another tensor here?

    patch    the tensor of another run instead of its own, and how far the answer moves
    ablate   every head and every feed-forward switched off in turn, those first that matter most

    effect   mean over places of KL(before ‖ after) = Σ p log(p / q), in nats; for vectors 1 − cos

What a module hands on can be replaced: embeddings, norms, heads, outputs, hidden units, logits. Attention weights are
computed beside the fused kernel and go nowhere, so when they or the values are replaced, the heads are computed anew:
heads = weights · values. Queries, keys, scores and an expert's inside are for the eye alone, and refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from chumoku.errors import AddressError, ShapeError, UsageError
from chumoku.models.model import Model
from chumoku.nn.attention import Attention, repeat_kv
from chumoku.nn.moe import MixtureOfExperts
from chumoku.nn.record_check import check_same, debug_enabled
from chumoku.nn.tap import Tape, addresses, edit, select
from chumoku.probe.forward_pass import Tokens, answer, ask, given, plain

Edit = Callable[[Tensor], Tensor]
PARTS = ("**.heads", "**.feedforward.output")  # what `ablate` switches off
RECOMPUTED = ("weights", "values")


class Change(NamedTuple):
    """What a model says before and after: logits [B, T, V], or vectors [B, D]."""

    before: Tensor
    after: Tensor

    @property
    def largest(self) -> float:
        """The largest difference of any number."""
        return float((self.before.float() - self.after.float()).abs().max())

    @property
    def effects(self) -> Tensor:
        """How far the answer moved at each place [B, T]; for vectors [B]."""
        if self.before.ndim == 2:
            return 1 - torch.cosine_similarity(self.before.double(), self.after.double(), dim=-1)
        p, q = (logits.double().log_softmax(-1) for logits in self)
        return (p.exp() * (p - q)).sum(-1).clamp(min=0)

    @property
    def effect(self) -> float:
        return float(self.effects.mean())


class Effect(NamedTuple):
    """What one part is worth: how far the answer moves without it."""

    address: str
    head: int | None
    effect: float


def patch(
    model: Model,
    address: str,
    other: Tensor | Tape | Edit,
    tokens: Tokens,
    *,
    source: Tokens | None = None,
    places: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    debug: bool | None = None,
) -> Change:
    """Replace what is at an address, or at all that match, and see how the answer changes.

    `other` is a tensor, a tape of another run, or a function of the tensor that is there. With `places`, only these
    tokens are touched; with `heads`, only these heads.
    """
    model = plain(model)
    touched = select(addresses(model), (address,))
    if isinstance(other, Tensor) and len(touched) > 1:
        raise UsageError(
            f"{len(touched)} addresses match {address}, and one tensor was given. Give a tape that has all of them."
        )
    changes = {
        one: _replacing(other[one] if isinstance(other, Tape) else other, one, places=places, heads=heads)
        for one in touched
    }
    asked = given(model, tokens, source)
    before = ask(model, asked)
    if debug_enabled(debug):
        with edits(model, {one: _same for one in touched if _name(one) not in RECOMPUTED}):
            check_same(before, ask(model, asked), "with nothing replaced")
    with edits(model, changes):
        return Change(answer(before), answer(ask(model, asked)))


def ablate(
    model: Model,
    tokens: Tokens,
    *parts: str,
    source: Tokens | None = None,
    by: Literal["zero", "mean"] = "zero",
    debug: bool | None = None,
) -> list[Effect]:
    """Switch each part off in turn and rank them, the one that matters most first.

    A part is a head (of an address …heads) or all of what lies at an address; by default every head and every
    feed-forward. "zero" puts zeros there, "mean" what is there on average over the places.
    """
    if by not in ("zero", "mean"):
        raise UsageError(f"A part is replaced by 'zero' or by its 'mean'; '{by}' was asked for.")
    model = plain(model)
    asked = given(model, tokens, source)
    before = ask(model, asked)
    if debug_enabled(debug):
        touched = select(addresses(model), parts or PARTS)
        with edits(model, dict.fromkeys(touched, _same)):
            check_same(before, ask(model, asked), "with nothing switched off")
    found = []
    for address in select(addresses(model), parts or PARTS):
        every: Sequence[int | None] = range(model.config.heads) if _name(address) == "heads" else (None,)
        for head in every:
            off = _replacing(_zero if by == "zero" else _mean, address, heads=None if head is None else [head])
            with edits(model, {address: off}):
                change = Change(answer(before), answer(ask(model, asked)))
            found.append(Effect(address, head, change.effect))
    return sorted(found, key=lambda one: -one.effect)


@contextlib.contextmanager
def edits(model: Model, changes: Mapping[str, Edit]) -> Iterator[None]:
    """Put tensors through functions on their way; what goes nowhere is refused, or leads to what it is made into."""
    model = plain(model)
    whole: dict[str, Edit] = {}
    known = addresses(model)
    wanted = {address: change for one, change in changes.items() for address in select(known, (one,))}
    for address in wanted:
        _check(model, address)
    for path in {_path(address) for address in wanted if _name(address) in RECOMPUTED}:
        whole |= _recomputed(path, wanted)
    with edit(model, {**wanted, **whole}):
        yield


def _check(model: Model, address: str) -> None:
    module, name = model.get_submodule(_path(address)), _name(address)
    if isinstance(module, Attention) and name in ("queries", "keys", "scores"):
        raise AddressError(
            f"{address} is shown and goes no further: the fused kernel has used it by then. Replace "
            f"{_path(address)}.weights, .values, .heads or .output instead."
        )
    if isinstance(module, MixtureOfExperts) and name != "output":
        raise AddressError(
            f"{address} is shown and goes no further: the experts have used it by then. Replace "
            f"{_path(address)}.output instead."
        )


def _recomputed(path: str, wanted: Mapping[str, Edit]) -> dict[str, Edit]:
    """heads = weights · values, from those that were replaced and those that were there."""
    held: dict[str, Tensor] = {}

    def hold(name: str) -> Edit:
        change = wanted.get(f"{path}.{name}", _same)

        def keep(tensor: Tensor) -> Tensor:
            held[name] = change(tensor)
            return tensor

        return keep

    def heads(tensor: Tensor) -> Tensor:
        made = held["weights"].to(tensor.dtype) @ repeat_kv(held["values"], tensor)
        return wanted.get(f"{path}.heads", _same)(made)

    return {f"{path}.weights": hold("weights"), f"{path}.values": hold("values"), f"{path}.heads": heads}


def _replacing(
    other: Tensor | Edit, address: str, *, places: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> Edit:
    """The function that puts `other` where it belongs and leaves the rest as it was."""

    def replace(tensor: Tensor) -> Tensor:
        new = other(tensor) if callable(other) else other.to(tensor.device, tensor.dtype)
        if new.shape != tensor.shape and new.shape != (1, *tensor.shape[1:]):
            raise ShapeError(
                f"At {address} there is a tensor of shape {list(tensor.shape)}, and {list(new.shape)} was to replace "
                "it. Record it from a text of as many tokens."
            )
        touched = torch.ones(tensor.shape, dtype=torch.bool, device=tensor.device)
        by_head = _name(address) in ("heads", *RECOMPUTED)
        if heads is not None and not by_head:
            raise UsageError(f"{address} has no heads to choose from. Those of attention are at …attention.heads.")
        for chosen, axis in ((places, 2 if by_head else 1), (heads, 1)):
            if chosen is not None:
                touched &= _chosen(chosen, tensor, axis, address, by_head=by_head)
        return torch.where(touched, new, tensor)

    return replace


def _chosen(chosen: Sequence[int], tensor: Tensor, axis: int, address: str, *, by_head: bool) -> Tensor:
    """True at these places or heads."""
    what = "head" if axis == 1 and by_head else "place"
    there = tensor.shape[axis] if tensor.ndim > 2 else 0
    wrong = [number for number in chosen if not 0 <= number < there]
    if wrong:
        raise UsageError(f"There is no {what} {wrong[0]} at {address}: it has {there}, numbered from 0.")
    kept = torch.zeros(there, dtype=torch.bool, device=tensor.device)
    kept[list(chosen)] = True
    return kept.view(-1, *(1 for _ in tensor.shape[axis + 1 :]))


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _zero(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor)


def _mean(tensor: Tensor) -> Tensor:
    """The mean over the places, which are next to last."""
    return tensor.mean(-2, keepdim=True).expand_as(tensor) if tensor.ndim > 2 else tensor.mean(0).expand_as(tensor)


def _name(address: str) -> str:
    return address.rpartition(".")[2]


def _path(address: str) -> str:
    return address.rpartition(".")[0]
