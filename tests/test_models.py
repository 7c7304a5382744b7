"""The three models: presets, counts, heads, initialization, compilation, error messages."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
import transformers
from cells import CELLS, COVERING, EXTRAS, KINDS, POSITIONS, Cell, model_of, tokens
from laws import logits_of
from torch import nn

import chumoku
from chumoku.errors import ShapeError, TooLargeError
from chumoku.models.build import build
from chumoku.models.count import Sizes, count
from chumoku.models.heads import pool
from chumoku.models.presets import PRESETS, preset
from chumoku.nn.modules import named_parts

OTHER_SIZES = ("gpt2-medium", "gpt2-large", "gpt2-xl")  # they differ from gpt2 in numbers only


def meta_size(config: transformers.PretrainedConfig, kind: type) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in kind(config).parameters())


@pytest.mark.parametrize("name", PRESETS)
def test_count_equals_built_parameters(name: str) -> None:
    config = preset(name)
    assert count(config).parameters == sum(p.numel() for p in build(config, device="meta").parameters())


@pytest.mark.sample(101)
@pytest.mark.parametrize("cell", COVERING, ids=str)
def test_count_equals_built_parameters_in_many_cells(cell: Cell) -> None:
    for changes in ({}, {"tie_output": False, "output_bias": True, "bias": False, "embedding_norm": True}):
        config = cell.config(**changes)
        assert count(config).parameters == sum(p.numel() for p in build(config, device="meta").parameters())


def test_count_of_gpt2_by_part() -> None:
    counted = count(preset("gpt2"))
    assert {name: part.parameters for name, part in counted.parts.items()} == {
        "embeddings": 38_597_376,
        "positions": 786_432,
        "attention": 28_348_416,
        "feedforward": 56_669_184,
        "norms": 38_400,
        "head": 0,
    }
    assert counted.parameters == 124_439_808


@pytest.mark.parametrize(
    ("name", "width", "layers", "heads"),
    [("gpt2", 768, 12, 12), ("gpt2-medium", 1024, 24, 16), ("gpt2-large", 1280, 36, 20), ("gpt2-xl", 1600, 48, 25)],
)
def test_gpt2_presets_have_the_size_of_transformers(name: str, width: int, layers: int, heads: int) -> None:
    config = transformers.GPT2Config(n_embd=width, n_layer=layers, n_head=heads)
    assert count(preset(name)).parameters == meta_size(config, transformers.GPT2LMHeadModel)


def test_bert_and_llama_presets_have_the_size_of_transformers() -> None:
    assert count(preset("bert-base")).parameters == meta_size(transformers.BertConfig(), transformers.BertForMaskedLM)
    minilm = transformers.BertConfig(hidden_size=384, num_hidden_layers=6, intermediate_size=1536)
    with torch.device("meta"):
        encoder = transformers.BertModel(minilm, add_pooling_layer=False)
    assert count(preset("minilm-l6")).parameters == sum(p.numel() for p in encoder.parameters())
    shapes = {"llama-1b": (128256, 2048, 8192, 16, 32, 8), "smollm2-135m": (49152, 576, 1536, 30, 9, 3)}
    for name, (vocabulary, width, hidden, layers, heads, kv_heads) in shapes.items():
        llama = transformers.LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            tie_word_embeddings=True,
        )
        assert count(preset(name)).parameters == meta_size(llama, transformers.LlamaForCausalLM)


@pytest.mark.parametrize("name", ["transformer-base", "transformer-big"])
def test_transformer_presets_have_the_size_of_torch_transformer(name: str) -> None:
    """Compare with torch.nn.Transformer without its two final norms, plus one shared table."""
    config = preset(name)
    with torch.device("meta"):
        theirs = torch.nn.Transformer(config.width, config.heads, config.layers, config.layers, config.hidden)
    size = sum(parameter.numel() for parameter in theirs.parameters()) - 2 * 2 * config.width
    assert count(config).parameters == size + config.vocabulary * config.width
    assert (config.placement, config.position, config.feedforward, config.scale_embedding) == (
        "post",
        "sinusoidal",
        "relu",
        True,
    )


def test_forward_flops_equal_torch_flop_counter() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    for name in ("tiny-encoder", "tiny-decoder", "tiny-encoder-decoder"):
        for changes in ({}, {"feedforward": "swiglu", "kv_heads": 2}, {"head_width": 46, "placement": "sandwich"}):
            config = preset(name, **changes)
            model = build(config, device="meta")
            ids = torch.zeros(1, 64, dtype=torch.long, device="meta")
            with FlopCounterMode(display=False) as counter:
                model(*([ids] if config.kind != "encoder-decoder" else [ids, ids]))
            ours = count(config, length=64).forward_flops * 64
            assert abs(counter.get_total_flops() / ours - 1) < 0.02


def test_active_parameters_exclude_unused_experts() -> None:
    config = Cell("decoder", feedforward="experts").config()
    model = build(config, device="meta")
    per_expert = sum(p.numel() for p in model.decoder.blocks[0].feedforward.experts.parameters()) // 5
    assert count(config).parameters - count(config).active == 2 * 3 * per_expert


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"feedforward": "swiglu", "norm": "rms", "bias": False},
        {"position": "learned", "kv_heads": 2},
        {"position": "relative"},
        {"position": "alibi"},
        {"position": "relative_bias"},
        {"kind": "encoder", "position": "relative_bias"},
        {"kind": "encoder-decoder", "position": "relative_bias"},
        {"attention_window": 7},
        {"position": "alibi", "attention_window": 7},
        {"attention_window": 7, "full_attention_every": 2},
        {"head_width": 46, "query_key_norm": "head"},
        {"query_key_norm": "all", "score_cap": 5.0, "logit_cap": 5.0},
        {"placement": "sandwich", "norm": "rms", "norm_unit_offset": True},
        {"parallel": True, "placement": "output"},
        {"parallel": True, "shared_norm": True},
        {"kind": "encoder", "position": "alibi"},
        {"experts": 4},
        {"experts": 4, "shared_expert_width": 300, "normalize_experts": False},
        {"placement": "post", "position": "none"},
        {"kind": "encoder", "position": "sinusoidal"},
        {"kind": "encoder-decoder", "position": "sinusoidal", "placement": "post"},
    ],
    ids=str,
)
def test_activation_memory_is_within_ten_percent_of_autograd(changes: dict[str, object]) -> None:
    config = preset("tiny-decoder", **changes)
    model = build(config).train()
    owned = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in owned:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids = torch.randint(config.vocabulary, (2, 64))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = F.cross_entropy(logits_of(model, ids, **source_of(config, ids)).flatten(0, 1), ids.flatten())
    assert loss.requires_grad
    measured = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    assert abs(count(config, length=64, batch=2).activation_bytes / measured - 1) < 0.10


def source_of(config: chumoku.ModelConfig, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"source": ids} if config.kind == "encoder-decoder" else {}


def test_cache_bytes_equal_a_real_cache() -> None:
    config = Cell("decoder", kv_heads=1).config()
    assert count(config, length=13, batch=3).cache_bytes == build(config).new_cache(3, 13).nbytes
    both = build(Cell("encoder-decoder").config())
    memory = both.encode(tokens(3, 13))
    assert count(both.config, length=13, batch=3).cache_bytes == both.new_cache(memory, 13).nbytes


@pytest.mark.parametrize("initialization", ["gpt2", "xavier"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_initialization_follows_its_table(kind: str, initialization: str) -> None:
    model = build(
        chumoku.preset(f"tiny-{kind}", width=256, layers=8, initialization=initialization, position="learned")
    )
    values = dict(model.named_parameters())
    stack = "encoder" if kind == "encoder" else "decoder"
    additions = 24 if kind == "encoder-decoder" else 16
    block = f"{stack}.blocks.3"
    xavier_square, xavier_up = math.sqrt(2 / 512), math.sqrt(2 / (256 + 256))
    expected = {
        f"{block}.attention.query.weight": (0.02, xavier_square),
        f"{block}.attention.output.weight": (0.02 / math.sqrt(additions), xavier_square),
        f"{block}.feedforward.up.weight": (0.02, xavier_up),
        f"{block}.feedforward.down.weight": (0.02 / math.sqrt(additions), xavier_up),
        f"{stack}.embedding.table": (0.02, 256**-0.5),
    }
    for address, deviations in expected.items():
        chosen = deviations[initialization == "xavier"]
        measured = float(values.get(address, values.get("encoder.embedding.table")).std())
        assert abs(measured / chosen - 1) < 0.03, address
    assert (values[f"{block}.attention_norm.gamma"] == 1).all()
    assert (values[f"{block}.attention_norm.beta"] == 0).all()
    assert (values[f"{block}.attention.query.bias"] == 0).all()


@torch.no_grad()
def test_first_loss_is_near_uniform() -> None:
    for kind in KINDS:
        model = build(preset(f"tiny-{kind}"))
        ids, labels = torch.randint(512, (2, 5, 31), generator=torch.Generator().manual_seed(1))
        loss = F.cross_entropy(logits_of(model, ids, **source_of(model.config, ids)).flatten(0, 1), labels.flatten())
        assert abs(float(loss) - math.log(512)) < 0.1


def test_the_same_seed_gives_the_same_model() -> None:
    config = Cell("encoder-decoder", feedforward="experts").config()
    one, two, three = build(config), build(config), build(config, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.decoder.embedding.table, three.decoder.embedding.table)


def test_every_parameter_is_filled() -> None:
    """Memory is allocated uninitialized, so every parameter must be set."""
    for cell in CELLS[::11]:
        model = build(cell.config())
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            assert tensor.isfinite().all(), name
            assert tensor.abs().max() < 10, name


def test_shared_embeddings_are_one_table() -> None:
    shared = build(Cell("encoder-decoder").config(share_embeddings=True))
    assert shared.encoder.embedding is shared.decoder.embedding
    apart = build(Cell("encoder-decoder").config(source_vocabulary=31))
    assert apart.encoder.embedding.table.shape == (31, 30)
    assert apart(torch.tensor([[30]]), torch.tensor([[28]])).logits.shape == (1, 1, 29)


def test_pooling_ignores_padding() -> None:
    hidden = torch.randn(2, 5, 7)
    mask = torch.tensor([[True, True, False, False, False], [True] * 5])
    mean = pool(hidden, mask, kind="mean", normalize=False)
    torch.testing.assert_close(mean[0], hidden[0, :2].mean(0))
    torch.testing.assert_close(pool(hidden, None, kind="mean", normalize=False)[1], mean[1])
    assert torch.equal(pool(hidden, mask, kind="first", normalize=False), hidden[:, 0])
    torch.testing.assert_close(pool(hidden, mask, kind="mean", normalize=True).norm(dim=-1), torch.ones(2))


def test_an_encoder_gives_logits_or_a_vector() -> None:
    masked = model_of(Cell("encoder"))(tokens(2, 7))
    assert masked.logits.shape == (2, 7, 29)
    assert masked.vector.shape == (2, 30)
    vector = build(Cell("encoder").config(head="vector"))(tokens(2, 7))
    assert vector.logits is None
    assert vector.vector.shape == (2, 30)


def test_segments_change_the_output() -> None:
    model = build(Cell("encoder").config(segments=2))
    first, second = (model(tokens(1, 7), segments=torch.full((1, 7), s)).hidden for s in (0, 1))
    assert torch.equal(first, model(tokens(1, 7)).hidden)
    assert not torch.equal(first, second)


def test_router_losses_exist_only_in_training() -> None:
    model = build(Cell("encoder-decoder", feedforward="experts").config())
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    assert model(tokens(2, 7), tokens(2, 5)).losses is None
    losses = model.train()(tokens(2, 7), tokens(2, 5), source_mask=mask).losses
    assert losses.balance.requires_grad
    assert 0.9 < losses.balance.item() < 5
    assert losses.z.item() > 0


def test_padding_does_not_count_in_router_losses() -> None:
    model = build(Cell("decoder", feedforward="experts").config()).train()
    rows = tokens(2, 7)
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    other = torch.where(mask, rows, (rows + 1) % 29)
    one, two = (model(given, mask=mask).losses for given in (rows, other))
    torch.testing.assert_close(one.balance, two.balance)
    torch.testing.assert_close(one.z, two.z)
    assert not torch.allclose(one.z, model(other).losses.z)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((torch.zeros(3, dtype=torch.long),), {}, r"shape \[3\]. For one sequence"),
        ((torch.zeros(2, 0, dtype=torch.long),), {}, "each 1 or more"),
        ((torch.zeros(2, 3),), {}, "Tokens must be int64"),
        ((torch.zeros(2, 3, dtype=torch.long),), {"mask": torch.ones(2, 3)}, "A mask must be bool"),
        ((torch.zeros(2, 3, dtype=torch.long),), {"mask": torch.ones(2, 4, dtype=torch.bool)}, r"shape \[2, 4\]"),
        ((torch.zeros(2, 3, dtype=torch.long),), {"mask": torch.ones(1, 3, dtype=torch.bool)}, r"shape \[1, 3\]"),
        ((torch.zeros(0, 3, dtype=torch.long),), {}, "each 1 or more"),
        ((torch.zeros(2, 3, dtype=torch.uint8),), {}, "Tokens must be int64"),
        (
            (torch.zeros(2, 3, dtype=torch.long),),
            {"positions": torch.zeros(2, 4, dtype=torch.long)},
            "Positions must be",
        ),
        ((torch.zeros(2, 3, dtype=torch.long),), {"positions": torch.zeros(2, 3)}, "Positions must be integers"),
    ],
)
def test_wrong_inputs_are_refused(arguments: tuple, options: dict, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        model_of(Cell("decoder"))(*arguments, **options)


def test_different_numbers_of_sources_and_targets_are_refused() -> None:
    model = model_of(Cell("encoder-decoder"))
    with pytest.raises(ShapeError, match=r"as many sources \(2\) as targets \(3\)"):
        model(tokens(2, 7), tokens(3, 5))
    with pytest.raises(ShapeError, match=r"A source mask must be \[batch, length\]"):
        model(tokens(2, 7), tokens(2, 5), source_mask=torch.ones(2, 7, 7, dtype=torch.bool))
    with pytest.raises(ShapeError, match="Segments must have the shape of the tokens"):
        model_of(Cell("encoder"))(tokens(2, 7), segments=tokens(2, 7))


def test_a_model_larger_than_memory_is_refused_before_it_is_built() -> None:
    config = preset("llama-1b", layers=1000, width=8192)
    assert count(config).parameters < 10**12
    with pytest.raises(TooLargeError, match=r"need [\d,]+ bytes and this machine has [\d,]+"):
        build(config)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", [name for name in PRESETS if name not in OTHER_SIZES and "tiny" not in name])
def test_every_preset_compiles_as_one_graph(name: str) -> None:
    """fullgraph=True: dynamo compiles the whole forward pass or raises. Width as in the preset, depth 1.

    The smallest presets are compiled by the next test.
    """
    config = preset(name, layers=1, vocabulary=997)
    model = build(config)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    ids = torch.randint(997, (2, 13), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(13) < torch.tensor([[13], [7]])
    arguments = (ids, ids) if config.kind == "encoder-decoder" else (ids,)
    named = {"source_mask" if config.kind == "encoder-decoder" else "mask": mask}
    with torch.no_grad():
        for options in ({}, named):
            expected, output = model(*arguments, **options), compiled(*arguments, **options)
            torch.testing.assert_close(output.hidden, expected.hidden, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_tiny_presets_compile_with_inductor(kind: str) -> None:
    model = build(preset(f"tiny-{kind}", layers=1))
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True)
    ids = torch.randint(512, (2, 13))
    arguments = (ids, ids) if kind == "encoder-decoder" else (ids,)
    mask = {"source_mask" if kind == "encoder-decoder" else "mask": torch.arange(13) < torch.tensor([[13], [7]])}
    expected, output = model(*arguments, **mask), compiled(*arguments, **mask)
    torch.testing.assert_close(output.hidden, expected.hidden, atol=1e-5, rtol=1e-4)


def test_layers_of_two_kinds_compile_as_one_graph() -> None:
    changes = {
        **EXTRAS["head norms"],
        **EXTRAS["caps"],
        **EXTRAS["full attention"],
        "no_position_every": 3,
        "layers": 3,
    }
    model = build(Cell("decoder", placement="sandwich").config(**changes))
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    ids = tokens(2, 13)
    torch.testing.assert_close(compiled(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("position", POSITIONS)
def test_a_cached_step_compiles_as_one_graph(position: str) -> None:
    model = build(Cell("decoder", position).config(layers=1))
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    capacity = 7 if position == "rotary" else 11  # the step that fills a cache is compiled again: enough for one
    with torch.no_grad():
        whole = model(tokens(2, 7)).logits
        cache, logits = model.new_cache(2, capacity), []
        for step in range(7):
            out = compiled(tokens(2, 7)[:, step : step + 1], cache=cache)
            cache = out.cache
            logits.append(out.logits)
    torch.testing.assert_close(torch.cat(logits, 1), whole, atol=1e-5, rtol=1e-5)


def test_gated_kinds_are_counted_as_gated() -> None:
    from chumoku.nn.feedforward import ACTIVATIONS

    for kind, activation in ACTIVATIONS.items():
        assert Sizes(Cell("decoder", feedforward=kind).config()).gated == activation.gated


def test_named_parts_equal_pytorchs() -> None:
    shared = nn.Linear(3, 5)
    model = nn.ModuleDict({"a": nn.Sequential(shared, nn.ReLU()), "b": shared, "c": nn.ModuleList([nn.Sequential()])})
    model.register_module("none", None)
    assert named_parts(model) == list(model.named_modules(remove_duplicate=False))
