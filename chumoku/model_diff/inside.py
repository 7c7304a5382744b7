"""Which blocks and heads of two models of one shape differ.

    weights    ‖W_B − W_A‖ / ‖W_A‖             of all weights of a block, of its parts and of each head, dequantized
    pattern    ½ Σ_s |p_A(s) − p_B(s)|         total variation of a head's attention weights, mean over queries
    stream     1 − cos(x_A, x_B)               of the residual stream after each block, mean over tokens

A head's weights are its rows of the query, key and value matrices and its columns of the output matrix; heads that
share keys and values share the change of those. Patterns and stream are recorded while both models read the same texts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from chumoku.model_diff.tasks import Task
from chumoku.model_diff.transplant import REST, block_paths
from chumoku.models.model import Model
from chumoku.nn.attention import Attention
from chumoku.nn.embeddings import Logits
from chumoku.nn.lora import dense_weight
from chumoku.nn.modules import named_parts
from chumoku.nn.quantized import QuantizedEmbedding, QuantizedLinear
from chumoku.probe.forward_pass import run_and_record
from chumoku.text.progress import Progress, silent
from chumoku.weights.assign import output_stack

PATTERNS = "*.blocks.*.{attention,cross_attention}.weights"
STREAM = "*.blocks.*.output"
RECORDED_FLOATS = 1 << 25  # attention weights of one text that are kept at a time
RECORDED_TOKENS = 256  # of one text
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class BlockChange:
    """How much one block differs; `address` may also be REST, everything outside the blocks, which has no stream."""

    address: str
    weights: float
    parts: dict[str, float]  # the same of its parts: attention, feedforward, …
    stream: float | None


@dataclass(frozen=True)
class HeadsChange:
    """How much the heads of one attention differ, a number for each head."""

    address: str  # decoder.blocks.3.attention
    patterns: list[float]
    weights: list[float]


@dataclass(frozen=True)
class Inside:
    blocks: list[BlockChange]
    heads: list[HeadsChange]
    texts: int  # that were recorded
    tokens: int


def compare_inside(a: Model, b: Model, task: Task, numbers: Sequence[int], progress: Progress = silent) -> Inside:
    """The changes of weights, attention patterns and stream; patterns and stream on the texts with these numbers."""
    patterns, streams, tokens = _record_changes(a, b, task, numbers, progress)
    blocks: list[BlockChange] = []
    heads: list[HeadsChange] = []
    for address in (*block_paths(a), REST):
        progress("comparing weights", len(blocks), len(block_paths(a)) + 1, unit="blocks")
        pair = [
            _rest(model) if address == REST else dict(named_floats(model.get_submodule(address))) for model in (a, b)
        ]
        parts = {name: relative_change(*side) for name, side in _by_part(*pair).items()}
        change = relative_change(list(pair[0].values()), [pair[1][name] for name in pair[0]])
        blocks.append(BlockChange(address, change, parts, streams.get(f"{address}.output")))
    for address, pattern in patterns.items():
        path = address.removesuffix(".weights")
        own = [head_weights(model.get_submodule(path)) for model in (a, b)]  # type: ignore[arg-type]
        changes = [relative_change([one], [other]) for one, other in zip(*own, strict=True)]
        heads.append(HeadsChange(path, pattern, changes))
    return Inside(blocks, heads, len(numbers), tokens)


def relative_change(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """‖b − a‖ / ‖a‖ of several tensors together; if a is 0, ‖b − a‖ / ‖b‖; 0 if both are 0."""
    moved, own, other = (
        math.sqrt(sum(float(part.double().square().sum()) for part in parts))
        for parts in ([y - x for x, y in zip(a, b, strict=True)], a, b)
    )
    return moved / (own or other or 1.0)


def head_weights(attention: Attention) -> Tensor:
    """The weights of each head [H, n]: query, key and value with their biases, and output."""
    width = attention.head_width
    heads = attention.query.out_features // width
    parts = []
    for layer in (attention.query, attention.key, attention.value):
        weight = dense_weight(layer).detach()
        rows = weight if layer.bias is None else torch.cat([weight, layer.bias.detach()[:, None]], 1)
        grouped = rows.reshape(layer.out_features // width, -1)
        parts.append(grouped.repeat_interleave(heads // len(grouped), 0))
    output = dense_weight(attention.output).detach()
    parts.append(output.view(len(output), heads, width).transpose(0, 1).flatten(1))
    return torch.cat(parts, 1)


def named_floats(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights of a module by name, quantized ones dequantized; norms' statistics too."""
    for path, part in named_parts(module):
        stored: tuple[str, ...] = ()
        if isinstance(part, QuantizedEmbedding):
            stored = part.stored_weight._fields
            yield f"{path}.table", part.stored_weight.dequantize()
        elif isinstance(part, QuantizedLinear):
            stored = part.stored_weight._fields
            yield f"{path}.weight", part.float_weight()
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None and name not in stored and tensor.is_floating_point():
                yield f"{path}.{name}", tensor.detach()


def _rest(model: Model) -> Tensors:
    """Everything outside the blocks; a tied output matrix counts as a tensor of its own."""
    containers = {part for path, part in named_parts(model) if path.endswith(".blocks")}
    inner = {id(part) for container in containers for part in container.modules()}
    found: Tensors = {}
    for path, part in named_parts(model):
        if id(part) in inner or next(part.children(), None) is not None:
            continue
        found |= {f"{path}{name}": tensor for name, tensor in named_floats(part)}
        if isinstance(part, Logits) and part.weight is None:
            found[f"{path}.weight"] = getattr(model, output_stack(model)).embedding.table.detach()
    return found


def _by_part(a: Tensors, b: Tensors) -> dict[str, tuple[list[Tensor], list[Tensor]]]:
    """The tensors of each part of a block: attention, cross_attention, feedforward, and norms."""
    found: dict[str, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
    for name, tensor in a.items():
        part = name.partition(".")[0]
        sides = found["norms" if part.endswith("_norm") else part]
        sides[0].append(tensor)
        sides[1].append(b[name])
    return found


def _record_changes(
    a: Model, b: Model, task: Task, numbers: Sequence[int], progress: Progress
) -> tuple[dict[str, list[float]], dict[str, float], int]:
    """The change of each head's pattern and of the stream by address, and the number of recorded tokens."""
    sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64))
    counts: dict[str, int] = defaultdict(int)
    layers, tokens = len(block_paths(a)), 0
    # Dequantized once, not for every text.
    floats = [part.float_weight() for model in (a, b) for part in model.modules() if isinstance(part, QuantizedLinear)]
    most = min(RECORDED_TOKENS, math.isqrt(RECORDED_FLOATS // (2 * layers * a.config.heads)))
    for done, number in enumerate(numbers, start=1):
        inputs = task.model_input(number, max(2, most))
        tapes = [run_and_record(model, inputs.tokens, PATTERNS, STREAM, source=inputs.source)[1] for model in (a, b)]
        for address in tapes[0]:
            one, other = (tape[address][0].double() for tape in tapes)
            if address.endswith(".weights"):
                change = (one - other).abs().sum((-1, -2)) / 2
            else:
                change = (1 - torch.cosine_similarity(one, other, dim=-1)).clamp(min=0).sum()
            same = torch.equal(one, other)
            sums[address] = sums[address] + (torch.zeros_like(change) if same else change)
            counts[address] += one.shape[-2]
        tokens += inputs.tokens.shape[1]
        progress("recording", done, len(numbers), unit="texts")
    del floats
    means = {address: total / counts[address] for address, total in sums.items()}
    patterns = {address: mean.tolist() for address, mean in means.items() if address.endswith(".weights")}
    return patterns, {address: float(mean) for address, mean in means.items() if address.endswith(".output")}, tokens
