"""One model gives one answer: with any engine, at any precision, recorded or not, modified or not.

engine × precision × {record, cache, batch mates, padding, packing, hooks, replaced modules, edits}
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import laws
import pytest
import torch
import torch.nn.functional as F
from cells import FAMILIES, Cell, model_of
from engines import check_engine, check_rows
from gguf_weights import SIZES as BLOCK_SIZES
from gguf_weights import with_blocks
from torch import Tensor, nn

from chumoku import lora
from chumoku.decoding import translate
from chumoku.decoding.beam import search
from chumoku.decoding.engines import open_engine as opening
from chumoku.decoding.engines.base import Engine, TorchEngine
from chumoku.decoding.engines.native import build as native_build
from chumoku.decoding.engines.native.engine import NativeEngine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.decoding.engines.recorded import RecordedEngine
from chumoku.decoding.engines.unmodified import modification
from chumoku.decoding.generate import generate
from chumoku.errors import UsageError
from chumoku.evaluation.perplexity import score_text
from chumoku.lora.settings import LoraSettings
from chumoku.models.model import Model
from chumoku.models.precision import PRECISIONS as CONVERTIBLE
from chumoku.models.precision import to_precision
from chumoku.nn import attention, norms, quantized
from chumoku.nn.attention import Attention
from chumoku.nn.tap import addresses, edit, record
from chumoku.probe.cancellation import interruptible
from chumoku.text import train

KINDS = ("encoder", "decoder", "encoder-decoder")
DECODING = ("decoder", "encoder-decoder")
SIZES = {"width": 96, "heads": 3, "feedforward_width": 64, "layers": 3, "feedforward": "swiglu"}
# Rounding of sums: float32, and the 16 bits of an input's group.
CLOSE = {"float32": 1e-5, "bf16": 1e-5, "int8": 1e-3, "int4": 1e-3, "gguf": 1e-3}
PRECISIONS = (*CONVERTIBLE, "gguf")  # the last one: blocks of all types, as in a file
NATIVE = native_build.library() is not None
needs_library = pytest.mark.skipif(not NATIVE, reason=native_build.why_not() or "")
ENGINES = [TorchEngine, *([NativeEngine] if NATIVE else [])]

# Every family at every precision; a sample of as many cases as there are families has each of them once.
FAMILY_CASES = [
    (family, PRECISIONS[(number + turn) % len(PRECISIONS)])
    for number, family in enumerate(FAMILIES)
    for turn in range(len(PRECISIONS))
]


def model_at(kind: str, precision: str, **changes: Any) -> Model:
    sizes = {**SIZES, **(BLOCK_SIZES if precision == "gguf" else {}), **changes}
    return at_precision(model_of(Cell(kind, "rotary"), torch.float32, **sizes), precision)


def family_at(family: str, precision: str) -> Model:
    changes = dict(FAMILIES[family])
    if precision == "gguf" and "head_width" in changes:
        changes["head_width"] = BLOCK_SIZES["width"]
    return model_at(str(changes.pop("kind", "decoder")), precision, **changes)


def at_precision(model: Model, precision: str) -> Model:
    return with_blocks(model) if precision == "gguf" else to_precision(model, precision)


def prompts(count: int = 3) -> list[list[int]]:
    return [[5 + row, 7, 11 * row % 29] for row in range(count)]


# The laws of models


@pytest.mark.sample(5)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_laws_hold_at_every_precision(kind: str, precision: str) -> None:
    model = model_at(kind, precision)
    for length, seed in ((5, 1), (13, 2)):
        assert laws.padding_error(model, length, seed) < CLOSE[precision]
        if kind != "encoder-decoder":
            assert laws.packing_error(model, length, seed) < CLOSE[precision]
        if kind != "encoder":
            assert laws.future_leak(model, length, seed) < CLOSE[precision]
            assert laws.cache_error(model, length, seed) < CLOSE[precision]


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_last_digit_moves_an_input_by_little(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why an input has 16 bits: with 8, a sum in another order moves some inputs by whole steps of 1/127."""
    random = torch.Generator().manual_seed(5)
    x, noise = torch.randn(503, 96, generator=random), 1e-6 * torch.randn(503, 96, generator=random)
    moved = []
    for levels in (quantized.LEVELS, 127.0):
        monkeypatch.setattr(quantized, "LEVELS", levels)
        far = quantized.round_inputs(x, kind) - quantized.round_inputs(x + noise, kind)  # type: ignore[arg-type]
        moved.append(float((far / x.abs().amax(-1, keepdim=True)).abs().max()))
    assert moved[0] < 4e-5
    assert moved[1] > 5e-3


@pytest.mark.sample(5)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rows", [1, 31, 37])
def test_the_number_of_rows_changes_nothing(precision: str, rows: int) -> None:
    model = model_at("decoder", precision)
    table = torch.randint(29, (rows, 19), generator=torch.Generator().manual_seed(rows))
    together = model(table).logits
    for row in range(0, rows, 7):
        assert laws.distance(model(table[row : row + 1]).logits[0], together[row]) < CLOSE[precision]


# Engines compute what the model computes


@pytest.mark.sample(3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", DECODING)
def test_every_engine_equals_the_model(engine: Any, kind: str, precision: str) -> None:
    check_engine(engine, model_at(kind, precision), seed=3, turns=23, tolerance=20 * CLOSE[precision])


@needs_library
@pytest.mark.sample(len(FAMILIES))
@pytest.mark.parametrize(("family", "precision"), FAMILY_CASES)
def test_every_family_runs_on_the_native_engine(family: str, precision: str) -> None:
    """As the PyTorch model, whatever the other rows are, and recorded or not."""
    model = family_at(family, precision)
    assert isinstance(open_engine(model, rows=1, capacity=3), NativeEngine)
    check_engine(NativeEngine, model, seed=5, turns=11, tolerance=20 * CLOSE[precision])
    if model.config.kind == "decoder" or precision != "float32":  # the encoder of a float32 model runs in PyTorch
        check_rows(NativeEngine, model, (2, 11))
    check_recording(model, "recorded")


# For each family, a field of its first layer or of the stack that an engine might ignore, and what it would be then.
IGNORED_FIELDS: list[tuple[str, str, Any]] = [
    *(("qwen3", "layer.query_norm.kind", 0), ("qwen3", "layer.key_norm.kind", 0), ("smollm3", "last_layer.base", 0)),
    *(("phi", "rotated", 32), ("gpt-neox", "parallel", 0), ("gpt-neox", "rotated", 32), ("gemma2", "scale", 0.125)),
    *(("gemma2", "score_cap", 0.0), ("gemma2", "layer.attention_norms.output.kind", 0)),
    *(("gemma2", "layer.window", 1 << 30), ("gemma3", "layer.base", 0), ("gemma3", "last_layer.window", 5)),
    *(("gemma3", "layer.feed_norms.output.kind", 0), ("olmo2", "joint_norms", 0), ("ettin", "layer.window", 5)),
    *(("olmo2", "layer.feed_norms.output.kind", 0), ("t5", "scale", 0.125), ("no family", "layer.relative", None)),
    *(("no family", "clip", 3), ("no family", "layer.cross_query_norm.kind", 0), ("no family", "joint_norms", 0)),
    *(("no family", "layer.cross_norms.output.kind", 0), ("phi-2", "layer.feed_norms.input.kind", 0)),
]


@needs_library
@pytest.mark.sample(3)
@pytest.mark.parametrize(("family", "field", "value"), IGNORED_FIELDS)
def test_an_engine_that_ignores_a_key_is_caught(family: str, field: str, value: Any) -> None:
    def wrong(model: Model, **sizes: Any) -> Engine:
        engine = NativeEngine(model, **sizes)
        stack = engine._weights.decoder.fields
        layers = {"layer": stack.layer[0], "last_layer": stack.layer[stack.layers - 1]}
        *path, name = field.split(".")
        fields = functools.reduce(getattr, path[1:], layers[path[0]]) if path else stack
        assert getattr(fields, name) != value
        setattr(fields, name, value)
        return engine

    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        check_engine(wrong, copy.deepcopy(family_at(family, "float32")), seed=5, turns=11, tolerance=2e-4)


@pytest.mark.sample(2)
@needs_library
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_engine_with_other_numbers_is_caught(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_at("decoder", precision)
    changed = copy.deepcopy(model)
    part = changed.decoder.blocks[1].feedforward.down
    with torch.no_grad():
        if precision == "gguf":
            part.get_buffer("blocks")[:, 0] ^= 16
        else:
            tensors = {**dict(part.named_parameters()), **dict(part.named_buffers())}
            tensors["scale" if precision in ("int8", "int4") else "weight"].mul_(1.1)

    def wrong(given: Model, **sizes: Any) -> Engine:
        return NativeEngine(changed, **sizes)

    with pytest.raises(AssertionError):
        check_engine(wrong, model, seed=3, turns=23, tolerance=20 * CLOSE[precision])


NON_FINITE_CELLS = [
    *(Cell("decoder", norm=norm) for norm in ("layer", "rms", "batch")),
    *(Cell("decoder", norm="rms", placement="sandwich", extra=extra) for extra in ("caps", "unit offset")),
]


@pytest.mark.sample(7)
@needs_library
@pytest.mark.parametrize("cell", NON_FINITE_CELLS, ids=str)
@pytest.mark.parametrize("feedforward", ["relu", "gelu", "gelu_tanh", "silu", "geglu", "swiglu"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_non_finite_values_are_not_hidden(cell: Cell, feedforward: str, precision: str) -> None:
    """NaN and ∞ anywhere in the weights: where PyTorch's logits are not finite, no engine's are."""
    sizes = {**SIZES, **(BLOCK_SIZES if precision == "gguf" else {}), "feedforward": feedforward}
    base = model_of(cell, torch.float32, **sizes)
    for odd, name in itertools.product((math.nan, math.inf, -math.inf), ("attention.query", "feedforward.up")):
        broken = copy.deepcopy(base)
        linear = broken.decoder.blocks[1].get_submodule(name)
        with torch.no_grad():
            linear.bias[3] = odd
        model = at_precision(broken, precision)
        finite = []
        for engine in (kind(model, rows=1, capacity=7) for kind in (TorchEngine, NativeEngine)):
            engine.add_rows(1)
            finite.append(engine.extend(torch.tensor([[5, 7, 11]])).isfinite().all(-1))
        # Some of PyTorch's own attention kernels lose a NaN, so it is asked in one direction.
        assert not (finite[1] & ~finite[0]).any(), (odd, name)


# Recording


@contextlib.contextmanager
def looked(model: Model, how: str) -> Iterator[None]:
    with contextlib.nullcontext() if how == "unseen" else record(model, debug=how == "debug"):
        yield


@pytest.mark.sample(3)
@pytest.mark.parametrize("how", ["recorded", "debug"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_recording_changes_no_token_and_no_bit(precision: str, how: str) -> None:
    model = model_at("decoder", precision)
    check_recording(model, how)
    for options in ({"temperature": 0}, {"temperature": 0.9, "top_p": 0.9, "seed": 3}):
        plain = generate(model, prompts(), max_new_tokens=13, **options)
        with looked(model, how):
            assert generate(model, prompts(), max_new_tokens=13, **options) == plain


def check_recording(model: Model, how: str) -> None:
    """No bit of an engine's logits changes."""
    sources = [[5, 3, 11], [7, 2], [13]] if model.config.kind == "encoder-decoder" else None
    logits = []
    for one in ("unseen", how):
        with looked(model, one):
            engine = open_engine(model, rows=3, capacity=17)
            engine.add_rows(3, sources)
            output = [
                engine.prefill(prompts()),
                engine.step(torch.tensor([3, 1, 2])),
                engine.extend(torch.ones(3, 2).long()),
            ]
            engine.select_rows([2, 0])
            engine.truncate([3, 4])
            logits.append([*output, engine.step(torch.tensor([2, 2]))])
    assert all(torch.equal(*pair) for pair in zip(*logits, strict=True))


@pytest.mark.sample(2)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_recording_changes_no_translation(precision: str) -> None:
    model = model_at("encoder-decoder", precision)
    sources = torch.tensor([[5, 3, 11, 2], [7, 2, 3, 9], [13, 1, 4, 8]])
    plain = search(model, sources, beam=3, limit=11, begin=1, end=2, best=3)
    with record(model) as tape:
        seen = search(model, sources, beam=3, limit=11, begin=1, end=2, best=3)
    assert [[(one.tokens, one.score) for one in row] for row in seen] == [
        [(one.tokens, one.score) for one in row] for row in plain
    ]
    assert set(tape) == set(addresses(model))


@pytest.mark.sample(4)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", DECODING)
def test_the_recording_belongs_to_the_generated_text(kind: str, precision: str) -> None:
    """Every tensor of every step is what the plain model has there, given the same tokens; logits are the engine's."""
    model, source = model_at(kind, precision), [[5, 3, 11]]
    with record(model) as tape:
        engine = open_engine(model, rows=1, capacity=11)
        engine.add_rows(1, source if kind == "encoder-decoder" else None)
        chosen, text = [engine.prefill([[7, 2]])], [7, 2]
        for _ in range(4):
            text.append(int(chosen[-1].argmax()))
            chosen.append(engine.step(torch.tensor(text[-1:])))
    assert all(torch.equal(a.flatten(), b.flatten()) for a, b in zip(tape.history["logits"], chosen, strict=True))
    with record(model) as whole, torch.inference_mode():
        tokens = torch.tensor([text])
        model(torch.tensor(source), tokens) if kind == "encoder-decoder" else model(tokens)
    for address in ("decoder.norm", "decoder.blocks.2.attention.queries", "decoder.blocks.1.feedforward.hidden"):
        steps = torch.cat(list(tape.history[address]), dim=-2)
        assert laws.distance(whole[address], steps) < 20 * CLOSE[precision], address


@needs_library
def test_an_engine_that_changes_while_recorded_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: while somebody recorded, another engine computed."""
    model = model_at("decoder", "int8")
    assert isinstance(open_engine(model, rows=1, capacity=5), NativeEngine)
    monkeypatch.setattr(opening, "RecordedEngine", lambda engine: TorchEngine(model, rows=3, capacity=17))
    with pytest.raises(AssertionError):
        test_recording_changes_no_token_and_no_bit("int8", "recorded")


# Changed models


class Louder(Attention):
    def forward(self, *given: Any, **named: Any) -> Tensor:
        return 2 * super().forward(*given, **named)


class Other(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *given: Any, **named: Any) -> Tensor:
        return -self.inner(*given, **named)


class Twice(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def hook(model: Model) -> None:
    model.decoder.blocks[1].register_forward_hook(lambda module, given, out: 2 * out)


def pre_hook(model: Model) -> None:
    model.decoder.blocks[1].feedforward.register_forward_pre_hook(lambda module, given: (3 * given[0],))


def replace_module(model: Model) -> None:
    model.decoder.blocks[0].attention = Other(model.decoder.blocks[0].attention)


def subclass(model: Model) -> None:
    model.decoder.blocks[0].attention.__class__ = Louder


def own_forward(model: Model) -> None:
    norm = model.decoder.norm
    norm.forward = lambda x: type(norm).forward(norm, x).flip(-1)


def parametrize(model: Model) -> None:
    nn.utils.parametrize.register_parametrization(model.decoder.blocks[0].attention.output, "weight", Twice())


def setting(model: Model) -> None:
    model.decoder.blocks[2].placement = "post"


def other_scale(model: Model) -> None:
    model.decoder.blocks[0].attention_norm.epsilon = 0.5


def without_a_block(model: Model) -> None:
    model.decoder.blocks = model.decoder.blocks[:2]


def adapter(model: Model) -> None:
    lora.attach(model, LoraSettings(rank=3))
    for name, tensor in model.named_parameters():
        if name.endswith(".b"):
            tensor.data.normal_(generator=torch.Generator().manual_seed(1))


CHANGES: dict[str, tuple[Callable[[Model], None], str]] = {
    "hook": (hook, "decoder.blocks.1 has a forward hook"),
    "pre-hook": (pre_hook, "decoder.blocks.1.feedforward has a forward hook"),
    "replaced": (replace_module, "decoder.blocks.0.attention is of class Other, not Attention"),
    "subclass": (subclass, "decoder.blocks.0.attention is of class Louder, not Attention"),
    "own forward": (own_forward, "decoder.norm has a forward of its own"),
    "parametrization": (parametrize, "decoder.blocks.0.attention.output is of class ParametrizedLinear, not Linear"),
    "setting": (setting, "decoder.blocks.2 has placement = 'post', not 'pre'"),
    "epsilon": (other_scale, "decoder.blocks.0.attention_norm has epsilon = 0.5, not 1e-05"),
    "fewer blocks": (without_a_block, "it has no module decoder.blocks.2"),
    "adapter": (adapter, "is of class Adapted, not Linear"),
}


def by_hand(model: Model, prompt: list[int], new: int) -> list[int]:
    """Greedy decoding without a cache or an engine."""
    text = list(prompt)
    with torch.inference_mode():
        for _ in range(new):
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    return text[len(prompt) :]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CHANGES)
def test_a_modified_model_decodes_itself(name: str) -> None:
    change, message = CHANGES[name]
    model = copy.deepcopy(model_of(Cell("decoder", "rotary"), torch.float32, **SIZES))
    assert modification(model) is None
    before = generate(model, prompts(), max_new_tokens=13, temperature=0)
    assert before == [by_hand(model, prompt, 13) for prompt in prompts()]
    change(model)
    assert message in str(modification(model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        after = generate(model, prompts(), max_new_tokens=13, temperature=0)
    assert after == [by_hand(model, prompt, 13) for prompt in prompts()]
    assert after != before, "the change is seen in the text"


@needs_library
@pytest.mark.parametrize("name", ["hook", "replaced", "own forward"])
def test_an_engine_that_ignores_a_change_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "modification", lambda model: None)
    with pytest.raises((AssertionError, AttributeError)):
        test_a_modified_model_decodes_itself(name)


@pytest.mark.parametrize(
    ("owner", "name"), [(Attention, "forward"), (attention, "attend_fused"), (norms.LayerNorm, "forward")]
)
def test_replaced_code_is_used_for_decoding(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(Cell("decoder", "rotary"), torch.float32, **SIZES)
    usual = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **named: -usual(*given, **named))
    assert f"{name} was replaced" in str(modification(model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert generate(model, prompts(1), max_new_tokens=7, temperature=0) == [by_hand(model, prompts(1)[0], 7)]


@needs_library
def test_a_changed_model_says_why_it_is_slow() -> None:
    model = copy.deepcopy(model_of(Cell("decoder", "rotary"), torch.float32, **SIZES))
    hook(model)
    with pytest.warns(
        UserWarning, match=r"differs from its config: decoder\.blocks\.1 has a forward hook\. It is decoded in PyTorch"
    ):
        assert type(open_engine(model, rows=1, capacity=3)) is TorchEngine


def test_quantized_models_are_as_their_config_says() -> None:
    for kind, precision in itertools.product(KINDS, PRECISIONS):
        assert modification(model_at(kind, precision)) is None


@pytest.mark.sample(2)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_edits_work_while_text_is_written(precision: str) -> None:
    """A head that is switched off stays off from the first token to the last."""
    model = model_at("decoder", precision)

    def off(heads: Tensor) -> Tensor:
        return heads * (torch.arange(heads.shape[1]) > 0)[:, None, None]

    before = generate(model, prompts(), max_new_tokens=13, temperature=0)
    with edit(model, {"decoder.blocks.0.attention.heads": off}), record(model, "logits") as tape:
        after = generate(model, prompts(), max_new_tokens=13, temperature=0)
        expected = [by_hand(model, prompt, 13) for prompt in prompts()]
    assert after == expected != before
    assert "logits" in tape
    assert generate(model, prompts(), max_new_tokens=13, temperature=0) == before


@needs_library
@pytest.mark.parametrize("kind", DECODING)
@pytest.mark.parametrize("late", ["record", "edit", "edit of a recorded generation"])
def test_recording_after_start_is_refused(kind: str, late: str) -> None:
    """An engine that does not call the model's modules can neither show nor change what is inside."""
    model, other = model_at(kind, "float32"), model_at("decoder", "int8")
    changes = {"decoder.blocks.0.attention.heads": torch.zeros_like}
    with contextlib.ExitStack() as stack:
        if late == "edit of a recorded generation":
            stack.enter_context(record(model, "logits"))
        engine = open_engine(model, rows=1, capacity=11)
        engine.add_rows(1, [[3, 5]] if kind == "encoder-decoder" else None)
        engine.prefill([[2, 3]])
        with record(other, "logits"):  # another model's is nobody's business here
            engine.step(torch.tensor([5]))
        watching = record(model, "logits") if late == "record" else edit(model, changes)
        with watching, pytest.raises(UsageError, match="started after generation had started"):
            engine.step(torch.tensor([7]))
        engine.step(torch.tensor([7]))


def test_a_hook_is_called_while_text_is_translated() -> None:
    model = copy.deepcopy(model_of(Cell("encoder-decoder", "rotary"), torch.float32, **SIZES))
    plain = search(model, torch.tensor([[5, 3, 11]]), beam=2, limit=7, begin=1, end=2)
    calls: list[int] = []
    model.encoder.blocks[0].register_forward_hook(lambda module, given, out: calls.append(1))
    model.decoder.blocks[0].register_forward_hook(lambda module, given, out: -out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        changed = search(model, torch.tensor([[5, 3, 11]]), beam=2, limit=7, begin=1, end=2)
    assert calls
    assert changed[0][0].score != plain[0][0].score


# What is measured is what runs


@pytest.mark.parametrize("precision", PRECISIONS)
def test_perplexity_is_of_the_engine_that_writes(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = train(["abcdefgh ijklm nop"], kind="character")
    model = model_at("decoder", precision, vocabulary=tokenizer.size)
    text = "an old man and a lamp, a fan, a plan " * 2
    opened: list[Engine] = []

    def watched(*given: Any, **named: Any) -> Engine:
        opened.append(open_engine(*given, **named))
        return opened[-1]

    monkeypatch.setattr("chumoku.evaluation.predictions.open_engine", watched)
    score = score_text(model, [text[:20]], tokenizer=tokenizer)
    assert type(opened[0]) is type(open_engine(model, rows=1, capacity=5))
    ids = [*tokenizer.prefix_and_suffix[0], *tokenizer.encode(text[:20])]
    edge = [] if tokenizer.roles.end is None else [tokenizer.roles.end]
    ids = [*(edge if not tokenizer.prefix_and_suffix[0] else []), *ids, *edge]
    engine = open_engine(model, rows=1, capacity=len(ids))
    engine.add_rows(1)
    logits = torch.stack([engine.step(torch.tensor([token]))[0] for token in ids[:-1]])
    expected = F.cross_entropy(logits, torch.tensor(ids[1:]))
    assert score.loss == pytest.approx(float(expected), abs=1e-5)
    assert score.tokens == len(ids) - 1


def test_the_recording_engine_is_used_only_while_recording() -> None:
    model = model_at("decoder", "float32")
    assert not isinstance(open_engine(model, rows=1, capacity=3), RecordedEngine)
    with record(model, "logits"):
        assert isinstance(open_engine(model, rows=1, capacity=3), RecordedEngine) == NATIVE
    assert translate.open_engine is open_engine


def test_checks_for_interruption_do_not_change_the_engine() -> None:
    model = copy.deepcopy(model_at("decoder", "float32"))
    with interruptible(model, lambda: None):
        assert modification(model) is None
        model.decoder.blocks[0].register_forward_pre_hook(lambda module, given: None)
        assert modification(model) == "decoder.blocks.0 has a forward hook"
