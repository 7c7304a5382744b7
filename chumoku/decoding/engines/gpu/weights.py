"""The weights of a stack with causal attention for its kernels: query, key and value as one matrix, gate and up too.

[W_q; W_k; W_v] [H K + 2 G K, D]      [W_gate; W_up] [2 F, D]

Nothing is stored twice: the model's parameters become views of the concatenated matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from chumoku.decoding.engines.supported_settings import find_unsupported
from chumoku.errors import UsageError
from chumoku.models.model import DecoderModel, EncoderDecoderModel
from chumoku.nn.attention import Attention
from chumoku.nn.block import Block
from chumoku.nn.embeddings import Logits
from chumoku.nn.feedforward import FeedForward
from chumoku.nn.moe import MixtureOfExperts
from chumoku.nn.norms import LayerNorm, RMSNorm
from chumoku.nn.quantized import Int4, Int8, QuantizedLinear

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
GATES = {"geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}  # activations of gated feed-forwards
WIDEST, WIDEST_HEAD = 1 << 15, 256  # a program holds whole rows of weights, and whole keys


class Matrix(NamedTuple):
    weight: Tensor | Int8 | Int4  # [N, K]
    bias: Tensor | None  # [N]

    @property
    def outputs(self) -> int:
        return len(self.weight if isinstance(self.weight, Tensor) else self.weight[0])


class Norm(NamedTuple):
    kind: str
    gamma: Tensor
    beta: Tensor  # for RMSNorm, which has none, a copy of gamma that is not read
    epsilon: float


class SublayerNorms(NamedTuple):
    """Of a sublayer f: x ← sum(x + output(f(input(x)))), where some are None."""

    input: Norm | None = None
    output: Norm | None = None
    sum: Norm | None = None


class CrossAttention(NamedTuple):
    """Cross-attention without the matrices of keys and values, which PyTorch multiplies once for each source."""

    norms: SublayerNorms
    query: Matrix
    query_norm: Norm | None
    output: Matrix


class UpDown(NamedTuple):
    """A feed-forward; with a gate, its matrix is above `up` in one."""

    up: Matrix
    down: Matrix


class ExpertWeights(NamedTuple):
    """Experts of one layer, with the module that computes many rows."""

    router: Matrix
    module: MixtureOfExperts
    shared: UpDown | None
    shared_router: Matrix | None


class Layer(NamedTuple):
    attention_norms: SublayerNorms
    projection: Matrix
    query_norm: Norm | None
    key_norm: Norm | None
    relative: Tensor | None  # the vectors of relative positions [2 clip + 1, K]
    output: Matrix
    cross: CrossAttention | None
    feedforward_norms: SublayerNorms
    feedforward: UpDown | ExpertWeights
    local: bool  # with the attention window, if the model has one
    rotated: bool  # with rotary positions, if the model has them


def unsupported(model: nn.Module) -> str | None:
    """Why the kernels cannot run this model, as a sentence; None if they can."""
    if not isinstance(model, DecoderModel | EncoderDecoderModel):
        return "It does not generate tokens."
    config = model.config
    if setting := find_unsupported("gpu", config):
        return f"It has the setting {setting}."
    if model.dtype not in DTYPES:
        return f"Its dtype is {model.dtype}."
    if max(config.width, config.hidden, config.shared_expert_width or 0) > WIDEST or config.key_width > WIDEST_HEAD:
        return "It is too wide."
    parts = [part for block in model.decoder.blocks for part in linears(block)]
    kinds = {part.kind if isinstance(part, QuantizedLinear) else type(part).__name__ for part in parts}
    if kinds not in ({"Linear"}, {"int8"}, {"int4"}):
        return f"Its matrices are {', '.join(sorted(kinds))}."
    head = model.head
    known = not isinstance(head, QuantizedLinear) or head.kind in ("int8", "int4")
    return None if known else f"Its output matrix is {head.kind}."


def linears(block: nn.Module) -> list[nn.Module]:
    """The matrices that the kernels multiply, except those of routed experts."""
    names = [f"attention.{name}" for name in ("query", "key", "value", "output")]
    if getattr(block, "cross_attention", None) is not None:
        names += ["cross_attention.query", "cross_attention.output"]
    feed = block.get_submodule("feedforward")
    return [block.get_submodule(name) for name in names] + [
        part for part in feed.modules() if isinstance(part, nn.Linear | QuantizedLinear)
    ]


def read_norm(norm: nn.Module | None) -> Norm:
    if isinstance(norm, LayerNorm):
        beta = torch.zeros_like(norm.gamma) if norm.beta is None else norm.beta
        return Norm("layer", norm.gamma.detach(), beta.detach(), norm.epsilon)
    if isinstance(norm, RMSNorm):
        gamma = norm.factor().detach()
        return Norm("rms", gamma, gamma, norm.epsilon)
    raise UsageError(f"There is no GPU kernel for {type(norm).__name__}.")


def read_layers(model: DecoderModel | EncoderDecoderModel) -> list[Layer]:
    kinds = zip(model.decoder.blocks, model.decoder.layer_kinds, strict=True)
    return [
        read_layer(block, local=local, rotated=rotated) for block, (local, rotated) in kinds if isinstance(block, Block)
    ]


def read_norms(block: Block, sublayer: str) -> SublayerNorms:
    own = getattr(block, f"{sublayer}_norm")
    own = block.attention_norm if own is None else own
    if isinstance(own, nn.Identity):  # the first norm, which a model may lack
        return SublayerNorms()
    norm = read_norm(own)
    match block.placement:
        case "pre":
            return SublayerNorms(input=norm)
        case "post":
            return SublayerNorms(sum=norm)
        case "output":
            return SublayerNorms(output=norm)
        case "sandwich":
            return SublayerNorms(input=norm, output=read_norm(getattr(block, f"{sublayer}_output_norm")))
    raise UsageError(f"There is no GPU kernel for placement = '{block.placement}'.")


def read_layer(block: Block, *, local: bool, rotated: bool) -> Layer:
    attention, cross, feed = block.attention, block.cross_attention, block.feedforward
    return Layer(
        read_norms(block, "attention"),
        matrix([attention.query, attention.key, attention.value]),
        None if attention.query_norm is None else read_norm(attention.query_norm),
        None if attention.key_norm is None else read_norm(attention.key_norm),
        None if attention.relative is None else attention.relative.table.detach(),
        matrix([attention.output]),
        None if cross is None else read_cross_attention(cross, read_norms(block, "cross_attention")),
        read_norms(block, "feedforward"),
        read_feedforward(feed) if isinstance(feed, FeedForward) else read_experts(feed),
        local,
        rotated,
    )


def read_cross_attention(attention: Attention, norms: SublayerNorms) -> CrossAttention:
    query_norm = None if attention.query_norm is None else read_norm(attention.query_norm)
    return CrossAttention(norms, matrix([attention.query]), query_norm, matrix([attention.output]))


def read_feedforward(feed: FeedForward) -> UpDown:
    return UpDown(matrix([feed.up] if feed.gate is None else [feed.gate, feed.up]), matrix([feed.down]))


def read_experts(experts: MixtureOfExperts) -> ExpertWeights:
    shared, router = experts.shared, experts.shared_router
    return ExpertWeights(
        matrix([experts.router]),
        experts,
        None if shared is None else read_feedforward(shared),
        None if router is None else matrix([router]),
    )


def matrix(parts: Sequence[nn.Linear | QuantizedLinear]) -> Matrix:
    """Several linear layers of the same input as one matrix."""
    biases = [part.bias for part in parts if part.bias is not None]
    bias = concatenate(biases) if biases else None
    stored = [part.stored_weight for part in parts if isinstance(part, QuantizedLinear)]
    if stored:
        weight = type(stored[0])(*(concatenate(tensors) for tensors in zip(*stored, strict=True)))
        return Matrix(weight, bias)  # type: ignore[arg-type]
    return Matrix(concatenate([part.weight for part in parts if isinstance(part, nn.Linear)]), bias)


def read_logits(head: nn.Module, table: Tensor) -> Matrix:
    """The output matrix: the head's own, or the embedding's table."""
    if isinstance(head, QuantizedLinear):
        return matrix([head])
    weight, bias = (head.weight, head.bias) if isinstance(head, Logits) else (None, None)
    return Matrix((table if weight is None else weight).detach(), None if bias is None else bias.detach())


def concatenate(parameters: Sequence[Tensor]) -> Tensor:
    """Concatenate parameters along the first axis; they become views of the result."""
    first, count = parameters[0].detach(), sum(len(one) for one in parameters)
    ends = [one.data_ptr() + one.nbytes for one in parameters]
    follow = all(one.data_ptr() == end for one, end in zip(parameters[1:], ends, strict=False))
    whole = all(one.is_contiguous() for one in parameters)
    same = len({one.untyped_storage().data_ptr() for one in parameters}) == 1
    if follow and whole and same:
        return first.as_strided((count, *first.shape[1:]), first.stride())
    # Outside inference mode, because inference tensors could not be trained again.
    with torch.inference_mode(False), torch.no_grad():
        together = torch.cat([one.detach() for one in parameters])
        parts = torch.split(together, [len(one) for one in parameters])
        for one, part in zip(parameters, parts, strict=True):
            one.data = part
    return together
