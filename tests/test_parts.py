"""Norms, feed-forward, experts, embeddings, blocks: formulas equal kernels and PyTorch's layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention import copy_attention

from chumoku.errors import LengthError, ShapeError
from chumoku.models.build import build
from chumoku.models.config import Dropout, ModelConfig
from chumoku.models.precision import to_precision
from chumoku.models.stack import make_block
from chumoku.nn import (
    BatchNorm,
    Embedding,
    FeedForward,
    LayerNorm,
    Logits,
    MixtureOfExperts,
    RMSNorm,
    RouterLosses,
    norms,
)
from chumoku.nn import feedforward as feedforward_module
from chumoku.nn.attention import AttentionContext
from chumoku.nn.block import Block
from chumoku.nn.tap import record


def assert_close(one: torch.Tensor, other: torch.Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def randomize(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()


@pytest.mark.parametrize("kind", ["layer", "rms", "batch"])
@given(rows=st.sampled_from([2, 3]), length=st.sampled_from([5, 7]), width=st.sampled_from([11, 13]))
def test_a_norm_equals_its_formula_and_torch(kind: str, rows: int, length: int, width: int) -> None:
    epsilon = 1e-3
    ours = {"layer": LayerNorm, "rms": RMSNorm, "batch": BatchNorm}[kind](width, epsilon=epsilon).double()
    randomize(ours)
    x = torch.randn(rows, length, width, dtype=torch.float64, requires_grad=True)
    if kind == "layer":
        plain = norms.layer_norm(x, ours.gamma, ours.beta, epsilon)
        theirs = torch.nn.LayerNorm(width, eps=epsilon, dtype=torch.float64)
    elif kind == "rms":
        plain = norms.rms_norm(x, ours.gamma, epsilon)
        theirs = torch.nn.RMSNorm(width, eps=epsilon, dtype=torch.float64)
    else:
        plain = norms.batch_norm(x, ours.gamma, ours.beta, epsilon)
        theirs = torch.nn.BatchNorm1d(width, eps=epsilon, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight.copy_(ours.gamma)
        if kind != "rms":
            theirs.bias.copy_(ours.beta)
    expected = theirs(x.flatten(0, 1)).view_as(x)
    upstream = torch.randn_like(x)
    gradients = []
    for output, gamma in ((plain, ours.gamma), (ours(x), ours.gamma), (expected, theirs.weight)):
        assert_close(output, expected)
        gradients.append(torch.autograd.grad(output, [x, gamma], upstream))
    for one, two, three in zip(*gradients, strict=True):
        assert_close(one, three)
        assert_close(two, three)


def test_layer_norm_of_note_002_and_error_of_note_001() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    ones, zeros = torch.ones(4), torch.zeros(4)
    assert_close(norms.layer_norm(x, ones, zeros, 0.0), torch.tensor([-1.34, -0.45, 0.45, 1.34]), 0.005)
    by_variance = (x - x.mean()) / x.var(unbiased=False)
    assert_close(by_variance, torch.tensor([-1.2, -0.4, 0.4, 1.2]), 1e-6)


def test_batch_norm_keeps_running_averages_for_eval() -> None:
    ours, theirs = BatchNorm(5), torch.nn.BatchNorm1d(5)
    for seed in range(3):
        x = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(seed)) * 3 + 1
        ours(x), theirs(x.flatten(0, 1))
    assert_close(ours.mean, theirs.running_mean, 1e-6)
    assert_close(ours.variance, theirs.running_var, 1e-6)
    ours.eval(), theirs.eval()
    assert_close(ours(x[:1, :1]), theirs(x[:1, 0]).view(1, 1, 5), 1e-6)


@pytest.mark.parametrize("kind", feedforward_module.KINDS)
@pytest.mark.parametrize("bias", [True, False])
def test_feedforward_equals_formula_at_every_position(kind: str, bias: bool) -> None:
    ours = FeedForward(11, 17, kind=kind, bias=bias).double()
    randomize(ours)
    x = torch.randn(2, 5, 11, dtype=torch.float64)

    def linear(module: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return x @ module.weight.T + (module.bias if bias else 0)

    function = {
        "relu": lambda z: z.clamp(min=0),
        "gelu": lambda z: z * 0.5 * (1 + torch.erf(z / 2**0.5)),
        "gelu_tanh": lambda z: 0.5 * z * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (z + 0.044715 * z**3))),
        "silu": lambda z: z / (1 + torch.exp(-z)),
    }
    function |= {"geglu": function["gelu"], "geglu_tanh": function["gelu_tanh"], "swiglu": function["silu"]}
    hidden = linear(ours.up, x)
    hidden = function[kind](hidden) if ours.gate is None else function[kind](linear(ours.gate, x)) * hidden
    assert_close(ours(x), linear(ours.down, hidden))
    assert_close(ours(x)[:, 3], ours(x[:, 3:4])[:, 0])
    assert (ours.gate is not None) == (kind in ("geglu", "geglu_tanh", "swiglu"))


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", feedforward_module.KINDS)
@pytest.mark.parametrize("bias", [True, False])
@settings(max_examples=30)
@given(seed=st.integers(0, 999), per_token=st.sampled_from([1, 2, 5]), tokens=st.sampled_from([1, 3, 19]))
def test_experts_grouped_equal_the_plain_sum(kind: str, bias: bool, seed: int, per_token: int, tokens: int) -> None:
    torch.manual_seed(seed)
    ours = MixtureOfExperts(11, 13, experts=5, per_token=per_token, kind=kind, bias=bias).double()
    randomize(ours)
    x = torch.randn(2, tokens, 11, dtype=torch.float64, requires_grad=True)
    plain, grouped = ours.plain(x), ours(x)
    assert_close(grouped, plain)
    upstream = torch.randn_like(x)
    chosen = [x, *ours.parameters()]
    for one, other in zip(
        torch.autograd.grad(plain, chosen, upstream), torch.autograd.grad(grouped, chosen, upstream), strict=True
    ):
        assert_close(one, other)


def test_no_token_is_dropped_if_all_choose_one_expert() -> None:
    ours = MixtureOfExperts(11, 13, experts=5, per_token=1, kind="relu", bias=False)
    randomize(ours)
    with torch.no_grad():
        ours.router.weight.zero_()
        ours.router.weight[3] = 100.0
    x = torch.rand(2, 101, 11) + 0.1
    losses = RouterLosses()
    output = ours(x, losses)
    assert_close(output, ours.experts.apply_expert(3, x), 1e-5)
    assert_close(losses.balance, torch.tensor(5.0), 1e-5)


def test_weights_of_chosen_experts_sum_to_one() -> None:
    """Identical experts give the output of one of them, however many are used."""
    ours = MixtureOfExperts(11, 13, experts=5, per_token=2, kind="swiglu", bias=True).double()
    randomize(ours)
    with torch.no_grad():
        for parameter in ours.experts.parameters():
            parameter.copy_(parameter[:1].expand_as(parameter))
    x = torch.randn(2, 7, 11, dtype=torch.float64)
    assert_close(ours(x), ours.experts.apply_expert(0, x))
    assert_close(ours.plain(x), ours.experts.apply_expert(0, x))


def test_router_losses_equal_formulas_without_padding() -> None:
    logits = torch.randn(6, 3, dtype=torch.float64)
    chosen = logits.topk(2).indices
    real = torch.tensor([[True, True, False], [True, False, True]])
    losses = RouterLosses().for_tokens(real)
    losses.add(logits, chosen)
    kept, kept_chosen = logits[real.flatten()], chosen[real.flatten()]
    share = torch.stack([(kept_chosen == e).sum() / kept_chosen.numel() for e in range(3)]).double()
    assert_close(losses.balance, 3 * (share * kept.softmax(-1).mean(0)).sum(), 1e-7)
    assert_close(losses.z, kept.logsumexp(-1).square().mean())
    even = RouterLosses()
    even.add(torch.zeros(3, 3), torch.tensor([[0], [1], [2]]))
    assert_close(even.balance, torch.tensor(1.0), 1e-6)


def test_lookup_equals_one_hot_times_matrix() -> None:
    embedding = Embedding(13, 7)
    randomize(embedding)
    tokens = torch.tensor([[0, 12, 5], [5, 5, 1]])
    assert torch.equal(embedding(tokens), F.one_hot(tokens, 13).float() @ embedding.table)
    scaled = Embedding(13, 7, scale=True)
    scaled.load_state_dict(embedding.state_dict())
    assert_close(scaled(tokens), embedding(tokens) * 7**0.5, 1e-6)


def test_logits_tied_and_untied() -> None:
    table, x = torch.randn(13, 7), torch.randn(2, 5, 7)
    tied = Logits(13, 7, tied=True)
    assert not list(tied.parameters())
    assert_close(tied(x, table), x @ table.T, 1e-6)
    untied = Logits(13, 7, tied=False, bias=True)
    randomize(untied)
    assert_close(untied(x, table), x @ untied.weight.T + untied.bias, 1e-5)


@pytest.mark.parametrize("bad", [-1, 13])
def test_token_outside_table_is_refused(bad: int) -> None:
    embedding = Embedding(13, 7)
    with pytest.raises(LengthError, match=f"There is no token {bad}: this table has 13, numbered 0 to 12"):
        embedding(torch.tensor([[0, bad]]))


def block_like_torch(norm_first: bool, activation: str, *, cross: bool) -> tuple[torch.nn.Module, Block]:
    kind = torch.nn.TransformerDecoderLayer if cross else torch.nn.TransformerEncoderLayer
    theirs = kind(
        35, 5, 41, activation=activation, norm_first=norm_first, batch_first=True, dropout=0.0, dtype=torch.float64
    )
    config = ModelConfig(
        kind="encoder-decoder",
        vocabulary=2,
        width=35,
        heads=5,
        feedforward=activation,
        feedforward_width=41,
        placement="pre" if norm_first else "post",
        position="none",
    )
    ours = make_block(config, cross=cross).double()
    randomize(theirs)
    copy_attention(theirs.self_attn, ours.attention)
    pairs = [(theirs.linear1, ours.feedforward.up), (theirs.linear2, ours.feedforward.down)]
    norm_pairs = [(theirs.norm1, ours.attention_norm), (theirs.norm2, ours.feedforward_norm)]
    if cross:
        copy_attention(theirs.multihead_attn, ours.cross_attention)
        norm_pairs = [
            (theirs.norm1, ours.attention_norm),
            (theirs.norm2, ours.cross_attention_norm),
            (theirs.norm3, ours.feedforward_norm),
        ]
    with torch.no_grad():
        for theirs_part, ours_part in pairs:
            ours_part.load_state_dict(theirs_part.state_dict())
        for theirs_norm, ours_norm in norm_pairs:
            ours_norm.gamma.copy_(theirs_norm.weight)
            ours_norm.beta.copy_(theirs_norm.bias)
    return theirs, ours


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("cross", [False, True])
def test_block_equals_torch_layers(norm_first: bool, activation: str, cross: bool) -> None:
    torch.manual_seed(6)
    theirs, ours = block_like_torch(norm_first, activation, cross=cross)
    x = torch.randn(2, 7, 35, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(2, 11, 35, dtype=torch.float64, requires_grad=True)
    if cross:
        causal = torch.nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
        expected = theirs(x, memory, tgt_mask=causal)
        output = ours(x, context=AttentionContext(causal=True), memory=memory)
    else:
        expected, output = theirs(x), ours(x)
    assert_close(output, expected)
    upstream = torch.randn_like(output)
    inputs = [x, memory] if cross else [x]
    mine = torch.autograd.grad(output, [*inputs, *ours.parameters()], upstream)
    yours = torch.autograd.grad(expected, [*inputs, *theirs.parameters()], upstream)
    for one, other in zip(mine[: len(inputs)], yours[: len(inputs)], strict=True):
        assert_close(one, other)
    ours_named = dict(zip((name for name, _ in ours.named_parameters()), mine[len(inputs) :], strict=True))
    theirs_named = dict(zip((name for name, _ in theirs.named_parameters()), yours[len(inputs) :], strict=True))
    expected_names = rename_gradients(theirs_named, cross=cross)
    assert ours_named.keys() == expected_names.keys()
    for name, gradient in ours_named.items():
        assert_close(gradient, expected_names[name])


def rename_gradients(gradients: dict[str, torch.Tensor], *, cross: bool) -> dict[str, torch.Tensor]:
    """Rename the gradients of a torch layer to the names of our block."""
    names = {"linear1": "feedforward.up", "linear2": "feedforward.down", "norm1": "attention_norm"}
    names |= {"norm2": "cross_attention_norm", "norm3": "feedforward_norm"} if cross else {"norm2": "feedforward_norm"}
    renamed = {}
    for name, gradient in gradients.items():
        module, rest = name.split(".", 1)
        if module in ("self_attn", "multihead_attn"):
            path = "attention" if module == "self_attn" else "cross_attention"
            if rest.startswith("in_proj"):
                parts = zip(("query", "key", "value"), gradient.chunk(3), strict=True)
                renamed |= {f"{path}.{part}.{rest.removeprefix('in_proj_')}": chunk for part, chunk in parts}
            else:
                renamed[f"{path}.output.{rest.removeprefix('out_proj.')}"] = gradient
        else:
            if module.startswith("norm"):
                rest = {"weight": "gamma", "bias": "beta"}[rest]
            renamed[f"{names[module]}.{rest}"] = gradient
    return renamed


def test_cross_attention_without_memory_is_refused() -> None:
    _, ours = block_like_torch(True, "relu", cross=True)
    with pytest.raises(ShapeError, match="needs an encoder output"):
        ours(torch.randn(1, 3, 35, dtype=torch.float64))


def test_parts_print_sizes_and_choices() -> None:
    config = ModelConfig(vocabulary=13, width=32, heads=4, kv_heads=2, layers=1, feedforward_width=64)
    text = repr(build(config))
    for part in (
        "(attention): Attention(\n          heads=4, kv_heads=2, head_width=8, dropout=0.0",
        "(embedding): Embedding(vocabulary=13, width=32, factor=1)",
        "(rotary): RotaryPositions(8, base=10000.0, pairing=interleaved, scaling=None)",
        "(norm): LayerNorm(32, epsilon=1e-05)",
        "(head): Logits(tied=True, bias=False)",
        "placement=pre, dropout=0.0",
        "kind=gelu",
    ):
        assert part in text, text
    assert "experts=5, width=11, hidden=13, kind=swiglu" in repr(MixtureOfExperts(11, 13, experts=5, per_token=2))
    assert "vocabulary=13, kind=bf16, factor=1" in repr(to_precision(build(config), "bf16"))


@pytest.mark.parametrize("place", ["embedding", "attention", "sublayer"])
def test_dropout_applies_at_its_place_only_in_training(place: str) -> None:
    config = ModelConfig(vocabulary=13, width=30, heads=3, layers=1, dropout=Dropout(**{place: 0.5}))
    model = build(config)
    tokens = torch.arange(11)[None]
    assert torch.equal(model(tokens).logits, model(tokens).logits)
    model.train()
    with record(model) as one:
        model(tokens)
    with record(model) as two:
        model(tokens)
    first_moved = next(address for address in one if not torch.equal(one[address], two[address]))
    # With sublayer dropout, the output of attention itself does not change.
    moved = {"embedding": "decoder.embedding", "attention": "decoder.blocks.0.attention.heads"}
    assert first_moved == moved.get(place, "decoder.blocks.0.after_attention")
    if place == "embedding":
        assert 0.3 < (one["decoder.embedding"] == 0).float().mean() < 0.7
