"""Laws of models, each as a function that returns the error of a model; it is 0 up to rounding if the law holds."""

from __future__ import annotations

import torch
from cells import tokens
from torch import Tensor

from chumoku.models.model import Model
from chumoku.nn import masks


def logits_of(model: Model, target: Tensor, *, source: Tensor | None = None, **options: object) -> Tensor:
    """Return the logits (or the vector) of any kind of model for `target`."""
    if model.config.head_kind == "vector":
        return model(target, **options).vector
    if model.config.kind == "encoder-decoder":
        options = {f"target_{key}": value for key, value in options.items()}
        return model(tokens(target.shape[0], 7, seed=3) if source is None else source, target, **options).logits
    return model(target, **options).logits


def distance(one: Tensor, other: Tensor) -> float:
    """Return the largest difference, divided by the largest number if that is above 1."""
    one, other = one.detach(), other.detach()
    return float((one - other).abs().max() / one.abs().max().clamp(min=1))


def future_leak(model: Model, length: int, seed: int) -> float:
    """Change the tokens from some position on: logits before it must not change."""
    before = tokens(2, length, seed)
    place = 1 + seed % (length - 1)
    after = before.clone()
    after[:, place:] = (after[:, place:] + 1) % model.config.vocabulary
    return distance(logits_of(model, before)[:, :place], logits_of(model, after)[:, :place])


def order_error(model: Model, length: int, seed: int) -> float:
    """Permute the input of an encoder: its output is permuted the same way, and the decoder's output is unchanged."""
    given = tokens(2, length, seed)
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + 1))
    if model.config.kind == "encoder":
        return distance(model(given).logits[:, order], model(given[:, order]).logits)
    target = tokens(2, 3, seed)
    return distance(logits_of(model, target, source=given), logits_of(model, target, source=given[:, order]))


def padding_error(model: Model, length: int, seed: int) -> float:
    """Add padding and other rows to a batch: the output of a row must not change."""
    short, mates = tokens(1, length, seed), tokens(2, length + 4, seed + 1)
    alone = logits_of(model, short, **_source(model, short[:, :5]))
    rows = mates.clone()
    rows[0, :length] = short[0]
    lengths = torch.tensor([length, length + 4])
    mask = masks.real_tokens(lengths, length + 4)
    if model.config.kind != "encoder-decoder":
        together = model(rows, mask=mask)
        error = 0.0
        if together.vector is not None:
            error = distance(model(short).vector[0], together.vector[0])
        return max(error, distance(alone[0], together.logits[0, :length]))
    source = tokens(2, 11, seed + 2)
    source[0, :5] = short[0, :5]
    real = masks.real_tokens(torch.tensor([5, 11]), 11)
    together = model(source, rows, source_mask=real, target_mask=mask).logits
    return distance(alone[0], together[0, :length])


def packing_error(model: Model, length: int, seed: int) -> float:
    """Two documents packed in one row, separated by mask and positions, give the same output as each alone."""
    one, two = tokens(1, length, seed), tokens(1, 3, seed + 1)
    documents = torch.tensor([[0] * length + [1] * 3])
    positions = torch.tensor([[*range(length), *range(3)]])
    together = model(torch.cat([one, two], 1), mask=masks.same_document(documents), positions=positions).logits
    return distance(together, torch.cat([model(one).logits, model(two).logits], 1))


def cache_error(model: Model, length: int, seed: int) -> float:
    """Decode rows of different lengths in steps of different sizes: the logits equal those of a pass without cache."""
    lengths = [length, length - 2, 1]
    rows, later = tokens(3, length, seed), tokens(3, 5, seed + 1)
    source = tokens(3, 7, seed + 2)
    with torch.no_grad():
        if model.config.kind == "encoder-decoder":
            memory = model.encode(source)
            cache, step = model.new_cache(memory, length + 5), model.decode
        else:
            cache, step = model.new_cache(3, length + 5), model
        prompt = step(rows, cache=cache, lengths=torch.tensor(lengths))
        pieces, cache = [], prompt.cache
        for start, end in ((0, 1), (1, 2), (2, 5)):
            out = step(later[:, start:end], cache=cache)
            cache = out.cache
            pieces.append(out.logits)
        stepped = torch.cat(pieces, 1)
        worst = 0.0
        for row, real in enumerate(lengths):
            whole = torch.cat([rows[row, :real], later[row]])[None]
            expected = logits_of(model, whole, **_source(model, source[row : row + 1]))[0]
            worst = max(worst, distance(expected[:real], prompt.logits[row, :real]))
            worst = max(worst, distance(expected[real:], stepped[row]))
    return worst


def _source(model: Model, source: Tensor) -> dict[str, Tensor]:
    return {"source": source} if model.config.kind == "encoder-decoder" else {}
