"""Shared tools of the checks.

restore_after   on exit, restores weights, modes, gradients and random state bit for bit
precise         runs the model in float64: rounding is about 1e-15, so a larger difference is a different computation
distance        max |a − b| / max(1e-3, max |a|)
long_row        one row, as long as the model's context allows at low cost
many_rows       enough rows to notice a bug that leaves the first few rows correct
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from chumoku.data.batches import IGNORE, source_mask
from chumoku.doctor.finding import Skip
from chumoku.doctor.subject import Batch, Subject
from chumoku.models.count import count
from chumoku.models.model import Model, Output
from chumoku.nn import masks
from chumoku.nn.quantized import is_quantized
from chumoku.text.special_tokens import Roles
from chumoku.training.objectives import forward

MAX_DOUBLE = 30_000_000  # models with more parameters are not converted to float64
ROWS, LENGTH = 3, 24
MANY, SHORT = 11, 8  # rows of a small model, and the length of rows of a large one
NEAR, LONGEST = 128, 4096
WORK = 300_000_000  # multiplications that a long pass may take


@contextmanager
def restore_after(model: Model, *, precise: bool = True) -> Iterator[Model]:
    """Put the model in eval mode inside the block (in float64 if `precise`) and restore its whole state afterwards."""
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise Skip("the model is sharded across processes")
    tensors = [(tensor, tensor.data) for tensor in (*model.parameters(), *model.buffers())]
    flags = [(parameter, parameter.requires_grad, parameter.grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    # A quantized model is not converted: its matrix products round their inputs only in float32.
    wide = precise and not is_quantized(model) and sum(data.numel() for _, data in tensors) <= MAX_DOUBLE
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
def train_mode(model: Model) -> Iterator[None]:
    """Put the model in training mode with dropout set to 0 inside the block."""
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
    """The largest distance between outputs that should be equal; larger for quantized models, which round inputs."""
    if model.dtype == torch.float64:
        return 1e-7
    return 0.1 if model.dtype != torch.float32 else 3e-3 if is_quantized(model) else 3e-4


def check_trainable(model: Model) -> None:
    """Skip the check if the model is quantized."""
    if is_quantized(model):
        raise Skip("quantized matrices cannot be trained")


def distance(one: Tensor, other: Tensor) -> float:
    one, other = one.detach().double(), other.detach().double()
    if one.numel() == 0:
        return 0.0
    found = float((one - other).abs().max() / one.abs().max().clamp(min=1e-3))
    return found if found == found else float("inf")


def run_model(model: Model, batch: Batch) -> Tensor:
    """The logits [B, T, V] of a batch, or hidden states [B, T, D] if the model predicts no tokens."""
    return token_outputs(model, forward(model, batch))


def token_outputs(model: Model, output: Output) -> Tensor:
    return output.logits if output.logits is not None and model.config.predicts_tokens else output.hidden


def input_key(batch: Batch) -> str:
    """The key of the tokens that the model continues."""
    return "target" if "target" in batch else "tokens"


def sample_batch(subject: Subject, rows: int = ROWS, length: int = LENGTH) -> Batch:
    """A few rows of the corpus, or random ones, without padding."""
    model = subject.require_model()
    length = min(length, model.config.context)
    batches = subject.train if subject.train is not None else subject.validation
    batch = crop(batches.batch(0, 0), rows, length) if batches is not None else random_batch(model, rows, length)
    return {name: table.to(model.device) for name, table in batch.items()}


def count_parameters(model: Model) -> int:
    """The weights of a model of this config; those of quantized matrices are no parameters of PyTorch."""
    return count(model.config).parameters


def many_rows(subject: Subject) -> Batch:
    """MANY rows, or ROWS short ones of a large model; if the corpus has fewer, rolled by one position each time."""
    small = count_parameters(subject.require_model()) <= MAX_DOUBLE
    wanted = MANY if small else ROWS
    batch = sample_batch(subject, wanted, LENGTH if small else SHORT)
    rows = len(batch["labels"])
    return {
        name: torch.stack([table[[number % rows]].roll(number // rows, -1)[0] for number in range(wanted)])
        for name, table in batch.items()
    }


def long_row(subject: Subject, *, least: int = LENGTH, most: int = LONGEST) -> Batch:
    """One row of at least `least` tokens, longer as far as that is cheap, up to `most` and the model's context."""
    model = subject.require_model()
    config = model.config
    weights, pairs = count_parameters(model), config.width * (config.encoder_depth + config.decoder_depth)
    length = min(config.context, most)
    while length > least and length * (weights + length * pairs) > WORK:
        length = max(least, length - length // 8 - 1)
    batch = sample_batch(subject, 1, length)
    key = input_key(batch)
    if "documents" in batch or batch[key].shape[1] >= length:
        return batch
    times = -(-length // batch[key].shape[1])
    tables = {name: batch[name] for name in (key, "labels") if batch[name].ndim == 2}
    return {**batch, **{name: table.repeat(1, times)[:, :length] for name, table in tables.items()}}


def has_begin_and_end(batch: Batch, roles: Roles) -> Tensor:
    """[B]: whether the target starts with the begin token and its labels end with the end token."""
    has_label = batch["labels"] != IGNORE
    last = (has_label * torch.arange(1, has_label.shape[1] + 1, device=has_label.device)).argmax(1, keepdim=True)
    complete = torch.ones_like(has_label[:, 0])
    if roles.end is not None:
        complete &= batch["labels"].gather(1, last)[:, 0] == roles.end
    if roles.begin is not None:
        complete &= batch["target"][:, 0] == roles.begin
    return complete


def after_last_label(labels: Tensor) -> Tensor:
    """[B, T]: which positions come after the last label of their row."""
    return (labels != IGNORE).flip(1).cumsum(1).flip(1) == 0


def join_names(names: list[str]) -> str:
    """The first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def crop(batch: Batch, rows: int, length: int) -> Batch:
    """Rows cropped to `length`: those with the most labels, their start or the part from the first label on.

    Of sentences, the first rows; rows of texts with labels are also cropped to the shortest of them.
    """
    if "anchor" in batch:
        return crop_columns({name: table[:rows] for name, table in batch.items()}, slice(length))
    has_label = batch["labels"] != IGNORE if batch["labels"].ndim == 2 else (batch["labels"] != IGNORE)[:, None]
    start = 0
    if not has_label[:, :length].any() and has_label.any():
        start = min(int(has_label.any(0).nonzero()[0]), has_label.shape[1] - length)
    part = slice(start, start + length)
    best = has_label[:, part].sum(1).argsort(descending=True, stable=True)[:rows]
    if "mask" in batch:
        part = slice(min(length, int(batch["mask"][best].sum(1).min())))
    return crop_columns({name: table[best] for name, table in batch.items() if name != "mask"}, part)


def crop_columns(batch: Batch, part: slice) -> Batch:
    return {name: (table[:, part] if table.ndim == 2 else table).clone() for name, table in batch.items()}


def random_batch(model: Model, rows: int, length: int) -> Batch:
    random = torch.Generator().manual_seed(11)

    def tokens(vocabulary: int, width: int) -> Tensor:
        return torch.randint(vocabulary, (rows, width), generator=random)

    config = model.config
    length = max(2, length - 5)
    if config.labels is not None:
        labels = tokens(config.label_count, length)
        return {
            "tokens": tokens(config.vocabulary, length),
            "labels": labels if config.head == "tags" else labels[:, 0],
        }
    if config.kind != "encoder-decoder":
        return {"tokens": tokens(config.vocabulary, length), "labels": tokens(config.vocabulary, length)}
    source = tokens(config.source_tokens, max(2, length - 2))
    batch = {"source": source, "source_mask": torch.ones_like(source, dtype=torch.bool)}
    return {**batch, "target": tokens(config.vocabulary, length), "labels": tokens(config.vocabulary, length)}


def change_tokens(tokens: Tensor, vocabulary: int) -> Tensor:
    """A different token at every position."""
    return (tokens + 1 + torch.arange(tokens.shape[1], device=tokens.device) % max(1, vocabulary - 1)) % vocabulary


def run_model_masked(model: Model, batch: Batch) -> Tensor:
    """The same output as `run_model`, with an explicit mask, which uses other kernels."""
    tokens = batch[input_key(batch)]
    everything = torch.ones_like(tokens, dtype=torch.bool)
    if "source" in batch:
        output: Output = model(batch["source"], tokens, source_mask=source_mask(batch), target_mask=everything)
    elif "documents" in batch:
        output = forward(model, batch)
    else:
        output = model(tokens, mask=everything)
    return token_outputs(model, output)


def unpadded_source(batch: Batch, row: int) -> Tensor:
    """The source tokens of a row without padding."""
    return batch["source"][row][source_mask(batch)[row]]


def pad_rows(rows: list[Tensor], filler: int) -> tuple[Tensor, Tensor]:
    """Rows of different lengths padded to a table, and the mask of real tokens."""
    lengths = torch.tensor([len(row) for row in rows], device=rows[0].device)
    table = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=filler)
    return table, masks.real_tokens(lengths, table.shape[1])
