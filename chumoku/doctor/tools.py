"""What checks work with: a model that may be handled roughly and comes back untouched, a few rows, and a distance.

borrowed    weights, modes, gradients and random numbers are afterwards what they were, to the last bit
precise     in 64 bits rounding is 1e-15, so that whatever is larger was computed differently
distance    max |a − b| / max(1e-3, max |a|)
far         rows as long as the model is meant for, as far as a pass of them is cheap
beside      more rows than a mistake about the first few would touch
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from chumoku.doctor.finding import Skip
from chumoku.doctor.subject import Batch, Patient
from chumoku.models.model import Model, Output
from chumoku.nn import masks
from chumoku.nn.quantized import Quantized
from chumoku.text.special_tokens import Roles
from chumoku.training.objectives import IGNORE, forward

PRECISE = 30_000_000  # numbers of a model that is examined in 64 bits; larger ones stay as they are
ROWS, LENGTH = 3, 24
MANY, SHORT = 11, 8  # rows beside each other, and how long they are where a model is large
NEAR, LONGEST = 128, 4096
WORK = 300_000_000  # products that a long pass may take


@contextmanager
def borrowed(model: Model, *, precise: bool = True) -> Iterator[Model]:
    """Inside, the model is in eval mode and anything may be done to its numbers."""
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise Skip("the model is divided among processes")
    tensors = [(tensor, tensor.data) for tensor in (*model.parameters(), *model.buffers())]
    flags = [(parameter, parameter.requires_grad, parameter.grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    # A quantized model stays as it is: its products round their inputs in 32 bits alone.
    wide = precise and not quantized(model) and sum(data.numel() for _, data in tensors) <= PRECISE
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        try:
            for parameter, _, _ in flags:
                parameter.grad = None
            for tensor, data in tensors:
                tensor.data = data.double() if wide and data.is_floating_point() else data.clone()
            model.eval()
            yield model
        finally:
            for parameter, _, _ in flags:
                parameter.grad = None
            for tensor, data in tensors:
                tensor.data = data
            for parameter, wanted, gradient in flags:
                parameter.requires_grad_(wanted)
                parameter.grad = gradient
            for module, training in modes:
                module.training = training


@contextmanager
def learning(model: Model) -> Iterator[None]:
    """Inside, the model is in training mode, and no dropout is drawn."""
    rates = [
        (module, module.dropout) for module in model.modules() if isinstance(getattr(module, "dropout", None), float)
    ]
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in rates:
            module.dropout = 0.0  # type: ignore[assignment]
        model.train()
        yield
    finally:
        for module, rate in rates:
            module.dropout = rate
        for module, training in modes:
            module.training = training


def tolerance(model: Model) -> float:
    """Of distances between what should be equal. Rounded inputs of quantized matrices (nn/quantized.py) move more."""
    if model.dtype == torch.float64:
        return 1e-7
    return 0.1 if model.dtype != torch.float32 else 3e-3 if quantized(model) else 3e-4


def check_trainable(model: Model) -> None:
    """Skip a check that trains where matrices are quantized, because those never learn."""
    if quantized(model):
        raise Skip("quantized matrices are not trained")


def quantized(model: Model) -> bool:
    return any(isinstance(module, Quantized) for module in model.modules())


def distance(one: Tensor, other: Tensor) -> float:
    one, other = one.detach().double(), other.detach().double()
    if one.numel() == 0:
        return 0.0
    found = float((one - other).abs().max() / one.abs().max().clamp(min=1e-3))
    return found if found == found else float("inf")


def answers(model: Model, batch: Batch) -> Tensor:
    """Logits [B, T, V], or vectors [B, T, D] where there are none."""
    output = forward(model, batch)
    return output.hidden if output.logits is None else output.logits


def key_of(batch: Batch) -> str:
    """What the model goes on from."""
    return "target" if "target" in batch else "tokens"


def sample(patient: Patient, rows: int = ROWS, length: int = LENGTH) -> Batch:
    """A few rows of the corpus, or made-up ones; full rows, so that padding is nobody's concern here."""
    model = patient.the_model()
    length = min(length, model.config.context)
    batches = patient.train if patient.train is not None else patient.validation
    made = cut(batches.batch(0, 0), rows, length) if batches is not None else made_up(model, rows, length)
    return {name: table.to(model.device) for name, table in made.items()}


def size(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def beside(patient: Patient) -> Batch:
    """Many rows; where the corpus gives fewer at a time, they come again, each time moved on by a place."""
    batch = sample(patient, MANY, LENGTH if size(patient.the_model()) <= PRECISE else SHORT)
    rows = len(batch["labels"])
    return {
        name: torch.stack([table[number % rows].roll(number // rows) for number in range(MANY)])
        for name, table in batch.items()
    }


def far(patient: Patient, *, least: int = LENGTH, most: int = LONGEST) -> Batch:
    """One row of up to the model's context: at least `least`, and further as far as that is cheap."""
    model = patient.the_model()
    config = model.config
    weights, pairs = size(model), config.width * (config.encoder_depth + config.decoder_depth)
    length = min(config.context, most)
    while length > least and length * (weights + length * pairs) > WORK:
        length = max(least, length - length // 8 - 1)
    batch = sample(patient, 1, length)
    key = key_of(batch)
    if "documents" in batch or batch[key].shape[1] >= length:
        return batch
    times = -(-length // batch[key].shape[1])
    return {**batch, **{name: batch[name].repeat(1, times)[:, :length] for name in (key, "labels")}}


def framed(batch: Batch, roles: Roles) -> Tensor:
    """[B]: whether a target begins with the begin token and its labels end with the end token."""
    given = batch["labels"] != IGNORE
    last = (given * torch.arange(1, given.shape[1] + 1, device=given.device)).argmax(1, keepdim=True)
    whole = torch.ones_like(given[:, 0])
    if roles.end is not None:
        whole &= batch["labels"].gather(1, last)[:, 0] == roles.end
    if roles.begin is not None:
        whole &= batch["target"][:, 0] == roles.begin
    return whole


def behind(labels: Tensor) -> Tensor:
    """[B, T]: which cells stand behind the last label of their row."""
    return (labels != IGNORE).flip(1).cumsum(1).flip(1) == 0


def named(names: list[str]) -> str:
    """The first few of many."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def cut(batch: Batch, rows: int, length: int) -> Batch:
    """The first rows with something to learn, and their first columns."""
    labeled = (batch["labels"][:, :length] != IGNORE).sum(1)
    best = labeled.argsort(descending=True, stable=True)[:rows]
    return {name: table[best][:, :length].clone() for name, table in batch.items()}


def made_up(model: Model, rows: int, length: int) -> Batch:
    random = torch.Generator().manual_seed(11)

    def tokens(vocabulary: int, width: int) -> Tensor:
        return torch.randint(vocabulary, (rows, width), generator=random)

    config = model.config
    length = max(2, length - 5)
    if config.kind != "encoder-decoder":
        return {"tokens": tokens(config.vocabulary, length), "labels": tokens(config.vocabulary, length)}
    source = tokens(config.source_tokens, max(2, length - 2))
    made = {"source": source, "source_mask": torch.ones_like(source, dtype=torch.bool)}
    return {**made, "target": tokens(config.vocabulary, length), "labels": tokens(config.vocabulary, length)}


def changed(tokens: Tensor, vocabulary: int) -> Tensor:
    """Other tokens everywhere."""
    return (tokens + 1 + torch.arange(tokens.shape[1], device=tokens.device) % max(1, vocabulary - 1)) % vocabulary


def masked_way(model: Model, batch: Batch) -> Tensor:
    """The same answers by way of an explicit mask, which goes through other kernels than none."""
    tokens = batch[key_of(batch)]
    everything = torch.ones_like(tokens, dtype=torch.bool)
    if "source" in batch:
        output: Output = model(batch["source"], tokens, source_mask=batch["source_mask"], target_mask=everything)
    elif "documents" in batch:
        output = forward(model, batch)
    else:
        output = model(tokens, mask=everything)
    return output.hidden if output.logits is None else output.logits


def real(batch: Batch, row: int) -> Tensor:
    """The source tokens of a row that are no padding."""
    return batch["source"][row][batch["source_mask"][row]]


def ragged(rows: list[Tensor], filler: int) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as a table, and which cells are real."""
    lengths = torch.tensor([len(row) for row in rows], device=rows[0].device)
    table = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=filler)
    return table, masks.real_tokens(lengths, table.shape[1])
