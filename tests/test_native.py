"""The native engine: the same logits as the model, for every config it supports and every type of weight."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import functools
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cells import NORMS, POSITIONS, YARN, Cell, model_of
from engines import check_engine
from gguf_weights import random_blocks
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from chumoku.decoding.engines.base import TorchEngine
from chumoku.decoding.engines.native import build as build_module
from chumoku.decoding.engines.native import call, variants
from chumoku.decoding.engines.native import engine as engine_module
from chumoku.decoding.engines.native.engine import NativeEngine
from chumoku.decoding.engines.native.pack import Memory, Packed, layout_of
from chumoku.decoding.engines.native.pack_adapter import LayerAdapter
from chumoku.decoding.engines.native.ranking import Ranking
from chumoku.decoding.engines.native.structs import Batch, Layer, Norm, Norms, Packing, Product, Source, StackFields
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.decoding.engines.supported_settings import SUPPORTED
from chumoku.decoding.generate import generate
from chumoku.errors import LengthError, TooLargeError, UsageError
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.models.precision import to_precision
from chumoku.nn.gguf_blocks import BLOCK_KINDS
from chumoku.nn.quantized import (
    GROUP,
    Int4,
    Int8,
    QuantizedLinear,
    round_inputs,
    to_int8,
)

pytestmark = pytest.mark.skipif(build_module.library() is None, reason=build_module.why_not() or "")

call_library = call.call_library
FEEDFORWARDS = ("relu", "gelu", "gelu_tanh", "silu", "geglu", "swiglu")
PLACES = [
    (kind, position, norm, placement)
    for kind in ("decoder", "encoder-decoder")
    for position in POSITIONS
    for norm in NORMS
    for placement in ("pre", "post", "output", "sandwich")
]


def random_model(kind: str, position: str, **changes: object) -> Model:
    """A small model with random weights that all affect its output."""
    return model_of(Cell(kind, position), torch.float32, **changes)


@pytest.mark.sample(5)
@pytest.mark.parametrize(("number", "place"), list(enumerate(PLACES)))
def test_logits_equal_the_models(number: int, place: tuple[str, ...]) -> None:
    kind, position, norm, placement = place
    choices = {"norm": norm, "placement": placement, "feedforward": FEEDFORWARDS[number % 6]}
    choices |= {"pairing": ("half", "interleaved")[number % 2], "tie_output": number % 3 > 0}
    choices |= {"output_bias": number % 5 == 0, "bias": number % 7 > 0}
    model = random_model(kind, position, **choices)
    check_engine(NativeEngine, model, seed=number, turns=13, tolerance=2e-3)


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize(("width", "heads", "kv_heads"), [(160, 2, 1), (96, 3, 3), (66, 6, 2), (320, 10, 1)])
def test_heads_of_any_width_and_number(kind: str, width: int, heads: int, kv_heads: int) -> None:
    """80 numbers a head are one vector of 64 and a rest; ten heads share one key."""
    model = random_model(kind, "none", width=width, heads=heads, kv_heads=kv_heads)
    check_engine(NativeEngine, model, seed=3, turns=11, tolerance=3e-4)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("attention_bias", ["none", "qkv", "all"])
def test_biases_of_attention_and_yarn(kind: str, attention_bias: str) -> None:
    choices = {"attention_bias": attention_bias, "feedforward": "geglu_tanh", "rotary": YARN}
    for bias in (False, True):
        model = random_model(kind, "rotary", bias=bias, **choices)
        check_engine(NativeEngine, model, seed=5, turns=11, tolerance=2e-3)


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_any_number_of_tokens_in_a_call(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt is read in several calls, and what is asked for may lie in any of them."""
    monkeypatch.setattr(engine_module, "AT_ONCE", 3)
    for seed in range(3):
        check_engine(NativeEngine, random_model(kind, "rotary"), seed=seed, turns=13, tolerance=3e-4)


def lives(model: Model) -> None:
    for seed in range(5):
        check_engine(NativeEngine, model, seed=seed, turns=40, tolerance=3e-4)


def share_slots(engine: NativeEngine, slots: list[int | None]) -> None:
    engine._slots = [slot or 0 for slot in slots]


@pytest.mark.parametrize(
    ("name", "broken"),
    [("_assign_slots", share_slots), ("_copy_to_own_slots", lambda engine: None)],
    ids=["two rows in one slot", "shared positions are overwritten"],
)
def test_broken_slots_are_caught(name: str, broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("decoder", "rotary")
    monkeypatch.setattr(NativeEngine, name, broken)
    with pytest.raises(AssertionError):
        lives(model)


def test_beams_never_move_a_key() -> None:
    model = random_model("encoder-decoder", "sinusoidal")
    engine = NativeEngine(model, rows=6, capacity=11)
    engine.add_rows(2, [[5, 7, 3], [2, 11]])
    engine.prefill([[1], [1]])
    engine.select_rows([0, 0, 0, 1, 1, 1])
    engine.step(torch.arange(6))
    before = [layer[:, :, :, :2].clone() for layer in engine._store.layers]
    engine.select_rows([2, 2, 0, 4, 3, 4])
    engine.step(torch.arange(6))
    assert all(map(torch.equal, (layer[:, :, :, :2] for layer in engine._store.layers), before))
    assert len({source.data_ptr() for source in engine._memory}) == 2, "a source's keys lie there once"


def product(module: nn.Linear | QuantizedLinear, x: Tensor, *more: nn.Linear | QuantizedLinear) -> Tensor:
    packed = Packed.__new__(Packed)
    packed._lanes = call._library().lanes()
    packed._memory, packed._small, packed.packings, packed._sources = Memory(), Memory(), [], []
    product = packed._product([module, *more])
    call.pack_all(packed)
    y = torch.full((len(x), product.outputs), torch.nan)
    pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, y))
    call.call_library("product", ctypes.byref(product), len(x), *pointers)
    return y


@given(st.integers(1, 53), st.integers(1, 53), st.integers(1, 5), st.integers(0, 999))
def test_products_of_whole_numbers_are_the_formula(rows: int, outputs: int, groups: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for kind, inputs in (("int8", GROUP * groups - 13), ("int4", GROUP * groups)):
        x = torch.randn(rows, inputs, generator=random) * 3
        x[0] = 0
        weight, bias = (torch.randn(shape, generator=random) for shape in ((outputs, inputs), (outputs,)))
        module = QuantizedLinear(weight, bias, kind)  # type: ignore[arg-type]
        expected = round_inputs(x, module.kind).double() @ module.float_weight().double().T + bias
        torch.testing.assert_close(product(module, x).double(), expected, atol=1e-4, rtol=1e-5)


@given(st.integers(1, 53), st.integers(1, 53), st.integers(1, 5), st.integers(0, 999))
def test_products_of_groups_are_the_formula(rows: int, outputs: int, groups: int, seed: int) -> None:
    """The same from weights that lie scattered, as in a file."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, GROUP * groups, generator=random) * 3
    stored = to_int8(torch.randn(outputs, GROUP * groups, generator=random))
    file = torch.cat([stored.scale.view(torch.uint8).view(outputs, groups, 2), stored.q.view(torch.uint8)], -1)
    scattered = Int8(file[..., 2:].view(torch.int8), file.view(torch.float16)[..., 0])
    assert torch.equal(scattered.dequantize(), stored.dequantize())
    expected = round_inputs(x, "int8").double() @ stored.dequantize().double().T
    for one in (stored, scattered):
        torch.testing.assert_close(product(QuantizedLinear.of(one), x).double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@given(st.integers(1, 19), st.integers(1, 53), st.integers(1, 3), st.integers(0, 999))
def test_products_of_gguf_blocks_are_the_formula(kind: str, rows: int, outputs: int, blocks: int, seed: int) -> None:
    """Within the rounding of sums in float32; and the rows that are computed together change no bit of a row."""
    x = torch.randn(rows, 256 * blocks, generator=torch.Generator().manual_seed(seed))
    module = QuantizedLinear.of(random_blocks(kind, outputs, 256 * blocks, seed=seed))
    weight, rounded = module.float_weight().double(), round_inputs(x, kind).double()
    found = product(module, x)
    assert ((found - rounded @ weight.T).abs() <= 1e-6 * (rounded.abs() @ weight.abs().T)).all()
    assert torch.equal(product(module, x[-1:])[0], found[-1])


@pytest.mark.parametrize("kind", ["int8", "int4", *BLOCK_KINDS])
def test_the_number_of_rows_changes_no_bit(kind: str) -> None:
    """263 rows are more than a panel, and 40 groups more than are unpacked at once. Few rows take another path."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(263, 256 * 5, generator=random)
    if kind in BLOCK_KINDS:
        module = QuantizedLinear.of(random_blocks(kind, 69, 256 * 5, seed=3))
    else:
        module = matrix(kind, torch.randn(69, 256 * 5, generator=random), torch.randn(69, generator=random))
    together = product(module, x)
    for first, rows in ((0, 1), (257, 3), (5, 7), (246, 17), (11, 59)):
        assert torch.equal(product(module, x[first : first + rows]), together[first : first + rows])


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_packed_blocks_take_about_the_space_of_the_file(kind: str) -> None:
    layout, stored = layout_of(kind, 3 * 256), random_blocks(kind, 1, 3 * 256, seed=3)
    assert layout.groups * (4 * layout.words + 2 * layout.halves) <= 1.2 * stored.blocks.nbytes


KINDS = ("float32", "bf16", "int8", "int4")


def matrix(kind: str, weight: Tensor, bias: Tensor | None = None) -> nn.Linear | QuantizedLinear:
    if kind != "float32":
        return QuantizedLinear(weight, bias, kind)  # type: ignore[arg-type]
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = nn.Parameter(weight)
    linear.bias = None if bias is None else nn.Parameter(bias)
    return linear


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("first", range(4))
def test_a_layer_may_mix_kinds(kind: str, first: int) -> None:
    """Files mix kinds freely: queries, keys, values, gate and up need not be stored alike."""
    model = copy.deepcopy(random_model(kind, "rotary", width=96, heads=3, feedforward_width=64, feedforward="swiglu"))
    number = itertools.count(first)
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            quantized = matrix(KINDS[next(number) % 4], module.weight.detach(), module.bias)
            setattr(model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2], quantized)
    assert isinstance(open_engine(model, rows=1, capacity=3), NativeEngine)
    check_engine(NativeEngine, model, seed=first, turns=13, tolerance=2e-3)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_nan_survives_quantized_products(kind: str, odd: float) -> None:
    module = QuantizedLinear(torch.randn(19, 2 * GROUP), None, kind)  # type: ignore[arg-type]
    for rows in (3, 17):
        x = torch.randn(rows, 2 * GROUP)
        x[1, 5] = odd
        finite = product(module, x).isfinite()
        assert not finite[1].any()
        assert finite.sum() == 19 * (rows - 1)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_prompt_has_the_bits_of_its_last_token_alone(kind: str) -> None:
    """The output layer has one row, and the layers before it many, whose inputs have another format."""
    model = random_model("decoder", "rotary", width=96, heads=3, feedforward_width=64, tie_output=False)
    model, prompt = to_precision(model, kind), [number % 11 for number in range(20)]  # type: ignore[arg-type]
    engine = NativeEngine(model, rows=1, capacity=23)
    engine.add_rows(1)
    together = engine.prefill([prompt])
    engine.truncate([0])
    engine.prefill([prompt[:-1]])
    assert torch.equal(engine.step(torch.tensor(prompt[-1:])), together)


@given(st.integers(1, 19), st.integers(1, 53), st.integers(1, 41), st.integers(0, 999))
def test_products_of_floats_are_the_formula(rows: int, outputs: int, inputs: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=random)
    module = nn.Linear(inputs, outputs, bias=seed % 2 > 0)
    with torch.no_grad():
        module.weight.normal_(generator=random)
        for one in (module, QuantizedLinear(module.weight, module.bias, "bf16")):
            weight = one.float_weight() if isinstance(one, QuantizedLinear) else one.weight
            expected = x.double() @ weight.double().T
            if module.bias is not None:
                expected = expected + module.bias.double()
            torch.testing.assert_close(product(one, x).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("precision", "most"), [("bf16", 0.02), ("int8", 0.03), ("int4", 0.25)])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_lower_precisions_stay_near(kind: str, precision: str, most: float) -> None:
    model = build(Cell(kind, "rotary").config(width=96, feedforward_width=64, layers=3))
    engines = [
        TorchEngine(model, rows=3, capacity=17),
        NativeEngine(to_precision(model, precision), rows=3, capacity=17),
    ]
    answers = []
    for engine in engines:
        engine.add_rows(3, [[5, 3], [7, 2, 11], [13]] if kind == "encoder-decoder" else None)
        answers.append(torch.cat([engine.prefill([[5, 7], [3], [2, 11, 13]]), engine.step(torch.tensor([1, 2, 3]))]))
    error = (answers[1] - answers[0]).std() / answers[0].std()
    assert 0 < float(error) < most


def test_training_in_between_is_noticed() -> None:
    """Weights are packed once, until they change."""
    model = copy.deepcopy(random_model("decoder", "learned"))
    first = call.weights(model)
    assert call.weights(model) is first
    for optimizer in (
        torch.optim.AdamW(model.parameters(), lr=0.1, fused=True),
        torch.optim.SGD(model.parameters(), lr=0.1),
    ):
        before = NativeEngine(model, rows=1, capacity=5)
        before.add_rows(1)
        old = before.prefill([[3, 5]])
        model(torch.tensor([[3, 5, 7]])).logits.square().sum().backward()
        optimizer.step()
        check_engine(NativeEngine, model, seed=1, turns=5, tolerance=1e-3)
        after = NativeEngine(model, rows=1, capacity=5)
        after.add_rows(1)
        assert not torch.allclose(after.prefill([[3, 5]]), old)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_changed_quantized_weights_are_noticed(precision: str) -> None:
    """Their bytes are not looked at: a tensor that counts no change and is still the same one is enough."""
    model = to_precision(build(Cell("decoder", "rotary").config(width=96, feedforward_width=64)), precision)
    part = model.decoder.blocks[0].attention.key
    first = call.weights(model)
    assert call.weights(model) is first
    part.scale.mul_(1.3)
    second = call.weights(model)
    assert second is not first
    first_of = part.stored_weight._fields[0]
    setattr(part, first_of, getattr(part, first_of).clone())
    assert call.weights(model) is not second, "another tensor, that counts as many changes"


def test_packing_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(Cell("encoder-decoder", "rotary").config(width=96, feedforward_width=64))
    for one in (model, to_precision(model, "int8"), copy.deepcopy(model)):
        call.prepare(one)
        packed = call._weights[one][1]
        assert call.weights(one) is packed
        check_engine(NativeEngine, one, seed=3, turns=5, tolerance=0.2)
    late = copy.deepcopy(model)
    call.prepare(late)
    with torch.no_grad():
        late.decoder.blocks[0].attention.key.weight.mul_(2)
    assert call._weights[late][1] is not call.weights(late), "what changed meanwhile is packed again"
    call.prepare(random_model("encoder", "rotary"))  # nothing to pack, and no matter

    def refuse(*_: object) -> None:
        raise TooLargeError("no threads")

    unlucky = copy.deepcopy(model)
    with monkeypatch.context() as patched:
        patched.setattr(
            call, "call_library", lambda name, *rest: call_library(name, *rest) if name != "pack" else refuse()
        )
        call.prepare(unlucky)
        with pytest.raises(TooLargeError, match="no threads"):
            call.weights(unlucky)
    check_engine(NativeEngine, unlucky, seed=3, turns=5, tolerance=1e-3)


def test_a_forked_process_has_its_own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("decoder", "none")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)  # those of the pool; PyTorch threads do not survive a fork

    def answer() -> list[list[int]]:
        engine = NativeEngine(model, rows=1, capacity=17)
        return generate(model, [[5, 7]], max_new_tokens=11, temperature=0, engine=engine)

    here = answer()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # threads that were left behind would be waited for
        torch.set_num_threads(1)
        os.write(writing, bytes(answer()[0]))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert list(os.read(reading, 99)) == here[0]


def test_a_fork_after_many_threads_have_computed_does_not_wait_for_them() -> None:
    """PyTorch's own threads are lost in a fork; a process forked from one that has a model used to hang."""
    program = """
import os, signal, torch, chumoku
from chumoku.decoding.generate import generate
torch.set_num_threads(2)
model = chumoku.build(chumoku.preset("tiny-decoder", width=256, heads=4, context=64))
tokens = torch.arange(480).view(8, 60)
def answer():
    return generate(model, [[5, 7], list(range(50))], max_new_tokens=5, temperature=0)
with torch.inference_mode():
    model(tokens)
here = answer()
child = os.fork()
if child == 0:
    signal.alarm(30)
    os._exit(answer() != here)
raise SystemExit(os.waitpid(child, 0)[1])
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}  # also of oneDNN
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False, env=environment).returncode == 0


def test_too_few_threads_are_a_sentence() -> None:
    """A library that cannot have all its threads gives back those it has, and the process goes on."""
    program = """
import resource, torch
from chumoku.decoding.engines.native import call
from chumoku.errors import TooLargeError
call.thread_pool()
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (300 << 20)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
torch.get_num_threads = lambda: 5000
try:
    call.thread_pool()
except TooLargeError as error:
    print(error)
torch.get_num_threads = lambda: 2
call.thread_pool()
print("goes on")
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=120, check=False, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "The system cannot start 5000 threads. Use fewer, with torch.set_num_threads.",
        "goes on",
    ], done.stderr


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than there are cores, too: whoever comes late finds nothing changed, and nothing left undone."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    model = to_precision(build(Cell("decoder", "rotary").config(width=96, feedforward_width=64)), "int8")
    engine = NativeEngine(model, rows=3, capacity=17)
    engine.add_rows(3)
    expected = engine.prefill([[5, 7], [3], [2, 11, 13]])
    for _ in range(70):
        engine.truncate([0, 0, 0])
        assert torch.equal(engine.prefill([[5, 7], [3], [2, 11, 13]]), expected)
    check_engine(NativeEngine, random_model("decoder", "rotary"), seed=2, turns=23, tolerance=3e-4)


def test_calls_from_two_threads_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread pool executes one call at a time; two at once would read and write each other's."""
    model, library = random_model("decoder", "none"), call._library()
    inside: list[int] = []
    most: list[int] = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(library, name)

        def step(self, *arguments: object) -> None:
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.001)
            if most[-1] == 1:
                library.step(*arguments)
            inside.pop()

    def write(written: list[list[int]]) -> None:
        engine = NativeEngine(model, rows=1, capacity=17)
        written += generate(model, [[5, 7]], max_new_tokens=11, temperature=0, engine=engine)

    monkeypatch.setattr(call, "_library", Watched)
    texts: list[list[list[int]]] = [[] for _ in range(3)]
    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert texts == [texts[0]] * 3 != [[]] * 3


def test_a_fork_during_a_call_gets_a_free_lock() -> None:
    with call._lock:
        child = os.fork()
        if child == 0:
            os._exit(not call._lock.acquire(blocking=False))
    assert os.waitpid(child, 0)[1] == 0


def test_which_engine_a_model_gets() -> None:
    small = {"rows": 1, "capacity": 7}
    assert isinstance(open_engine(random_model("decoder", "rotary"), **small), NativeEngine)
    for odd in (
        random_model("decoder", "none", experts=3),
        copy.deepcopy(random_model("decoder", "none")).double(),
    ):
        assert isinstance(open_engine(odd, **small), TorchEngine)
        with pytest.raises(UsageError, match="cannot run this model"):
            NativeEngine(odd, **small)


def test_invalid_arguments_are_refused() -> None:
    model = random_model("decoder", "learned")
    engine = NativeEngine(model, rows=2, capacity=10**6)
    assert engine.capacity == model.config.context
    engine.add_rows(1)
    for wrong, error in (
        (lambda: engine.add_rows(2), LengthError),
        (lambda: engine.add_rows(1, [[5]]), UsageError),
        (lambda: engine.prefill([[]]), UsageError),
        (lambda: engine.prefill([[1]], first=1), LengthError),
        (lambda: engine.prefill([[1] * 99]), LengthError),
        (lambda: engine.truncate([1]), LengthError),
        (lambda: engine.select_rows([0, 0, 0]), LengthError),
        (lambda: engine.select_rows([1]), LengthError),
        (lambda: NativeEngine(model, rows=0, capacity=1), LengthError),
    ):
        with pytest.raises(error):
            wrong()
    with pytest.raises(LengthError, match="There is no token 10000"):
        engine.prefill([[10000]])
    assert engine.lengths == [0], "what was refused was not read"


def test_a_cache_too_large_for_memory_is_refused() -> None:
    with pytest.raises(TooLargeError, match="of 1,000,000 rows of 1,000,000 tokens do not fit"):
        NativeEngine(random_model("decoder", "none"), rows=10**6, capacity=10**6)


def test_missing_working_memory_is_reported() -> None:
    huge = Product(kind=0, outputs=1, inputs=1 << 30)
    with pytest.raises(TooLargeError, match="not enough memory for so many"):
        call.call_library("product", ctypes.byref(huge), (1 << 31) - 64, None, None)
    check_engine(NativeEngine, random_model("decoder", "rotary"), turns=5, tolerance=3e-4)


def test_ctypes_structures_have_the_librarys_sizes() -> None:
    library = call._library()
    structures = (Product, Norm, Norms, Layer, StackFields, Batch, Source, Packing, LayerAdapter, Ranking)
    for number, structure in enumerate(structures):
        assert library.sizes(number) == ctypes.sizeof(structure)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As if nothing had ever been compiled."""
    monkeypatch.setattr(build_module, "_open", build_module._open.__wrapped__)
    monkeypatch.setattr(variants, "FOLDER", tmp_path / "libraries")  # as installed from source
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def fresh_and_quick(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As if nothing had ever been compiled, with a source that is compiled at once."""
    source = fresh / "small.cpp"
    source.write_text('extern "C" int answer() { return 7; }')
    monkeypatch.setattr(build_module, "SOURCE", source)
    return fresh


def test_it_is_compiled_once(fresh_and_quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build_module.why_not() is None
    assert capsys.readouterr().err.startswith("Compiling the native library")
    (library,) = fresh_and_quick.glob("chumoku/*.so")
    before = library.stat()
    assert build_module.why_not() is None
    assert capsys.readouterr().err == ""
    assert library.stat() == before


def test_a_compiler_that_fails_runs_once(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build_module, "_open", functools.cache(build_module._open))
    monkeypatch.setenv("CXX", "false")
    assert [build_module.library(), build_module.library()] == [None, None]
    assert re.search("did not compile", str(build_module.why_not()))
    assert capsys.readouterr().err.count("Compiling") == 1


OLDER_NAMES = {"x86-64-v2", "avx2", "avx512", "avx512-vnni", "armv8"}
OLDER = [variant.name for variant in variants.find_suitable() if variant.name in OLDER_NAMES]


@pytest.mark.slow
@pytest.mark.parametrize("variant", OLDER)
def test_older_processors_give_the_same_results(fresh: Path, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tiles, and without products of bytes or vectors of 512 bits, the same sources compute the same."""
    monkeypatch.setenv("CHUMOKU_NATIVE", variant)
    opened = build_module.library()
    assert opened is not None
    monkeypatch.setattr(build_module, "library", lambda: opened)
    monkeypatch.setattr(call, "_pool", None)
    monkeypatch.setattr(call, "_weights", weakref.WeakKeyDictionary())  # packed for registers of another size
    for kind, inputs in (("int8", 51), ("int4", 2 * GROUP)):
        test_products_of_whole_numbers_are_the_formula.hypothesis.inner_test(19, 37, 2, 5)
        module = QuantizedLinear(torch.ones(7, inputs), None, kind)  # type: ignore[arg-type]
        ones = torch.ones(9, inputs)
        torch.testing.assert_close(product(module, ones), module(ones))
    for kind in BLOCK_KINDS:
        test_products_of_gguf_blocks_are_the_formula.hypothesis.inner_test(kind, 19, 37, 2, 5)
    for kind in ("int8", "q2_k", "q4_k"):
        test_the_number_of_rows_changes_no_bit(kind)
    test_a_prompt_has_the_bits_of_its_last_token_alone("int8")
    test_products_of_floats_are_the_formula.hypothesis.inner_test(19, 37, 23, 5)
    check_engine(NativeEngine, random_model("decoder", "rotary", feedforward="geglu"), turns=13, tolerance=3e-4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("CHUMOKU_NATIVE", "0"), "disables the native library"),
        (("PATH", ""), "needs a C.* compiler"),
        (("CXX", "false"), "did not compile"),
        (("XDG_CACHE_HOME", "/dev/null"), r"could not be stored or loaded: .*/dev/null.*\. Set XDG_CACHE_HOME to"),
    ],
)
def test_why_not_says_why_there_is_no_library(
    fresh: Path, change: tuple[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*change)
    assert build_module.library() is None
    why = build_module.why_not()
    assert why is not None
    assert re.search(sentence, why)
    assert not list(fresh.glob("chumoku/*.so"))
    assert isinstance(open_engine(random_model("decoder", "rotary"), rows=1, capacity=3), TorchEngine)


def test_a_slow_compiler_and_a_missing_home_are_no_obstacle(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = fresh / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 9\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setattr(build_module, "SECONDS", 0.1)
    assert build_module.library() is None
    assert re.search("slow took more than 0.1 seconds", str(build_module.why_not()))

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.undo()
    monkeypatch.setattr(build_module, "_open", build_module._open.__wrapped__)
    monkeypatch.setattr(variants, "FOLDER", fresh / "libraries")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert build_module.library() is None
    assert "There is no home folder" in str(build_module.why_not())


def shorten(library: Path) -> None:
    library.write_bytes(library.read_bytes()[:-100])


def link(library: Path) -> None:
    other = library.with_name("other.so")
    library.rename(other)
    library.symlink_to(other)


@pytest.mark.parametrize(
    "damage",
    [shorten, link, lambda library: library.chmod(0o666), lambda library: library.with_suffix(".sha256").unlink()],
)
@pytest.mark.usefixtures("fresh_and_quick")
def test_a_changed_library_is_compiled_again(damage: Callable[[Path], None]) -> None:
    """A truncated library would end the process when it is used; a link or an open file may be somebody else's code."""
    library = build_module._find()
    compiled = library.read_bytes()
    damage(library)
    assert not build_module._intact(library)
    assert build_module._find() == library
    assert build_module._intact(library)
    assert library.read_bytes() == compiled


def test_a_folder_others_can_write_is_not_run_from(fresh: Path) -> None:
    (fresh / "chumoku").mkdir()
    (fresh / "chumoku").chmod(0o777)
    assert build_module.library() is None
    assert "is writable by other users" in str(build_module.why_not())


def test_stored_kinds_know_their_formula() -> None:
    packed = torch.zeros(1, 1, 16, dtype=torch.uint8)
    packed[0, 0, 1] = 2 + 16 * 7
    found = Int4(packed, torch.tensor([[0.5]]).half(), torch.tensor([[-1.0]]).half()).dequantize()
    assert found[0, [0, 1, 2, 17]].tolist() == [-1.0, 0.0, -1.0, 2.5]
    q = torch.arange(-31, 33, dtype=torch.int8).view(1, 2, GROUP)
    found = Int8(q, torch.tensor([[0.5, 2.0]]).half()).dequantize()
    assert found[0, [0, 31, 32]].tolist() == [-15.5, 0.0, 2.0]


COMPUTED_BY_FAST_ENGINES = {
    *("kind", "vocabulary", "source_vocabulary", "context", "width", "layers", "encoder_layers", "heads", "kv_heads"),
    *("head_width", "attention_bias", "feedforward", "feedforward_width", "pairing", "rotary", "sinusoidal"),
    *("norm_epsilon", "bias", "scale_embedding", "embedding_norm", "segments", "share_embeddings", "tie_output"),
    *("output_bias", "head", "dropout", "initialization", "no_position_every", "norm_bias", "norm_unit_offset"),
    *("parallel", "shared_norm", "attention_scale", "logit_cap", "scale_logits", "attention_window", "first_norm"),
    *("placement", "query_key_norm", "score_cap", "full_attention_every", "full_attention_first", "position"),
    *("relative_clip", "relative_buckets", "relative_max_distance"),
}
WITH_EXPERTS = {"experts_per_token", "normalize_experts", "shared_expert_width"}
COMPUTED_BY_ONE = {"native": {"norm"}, "gpu": {"experts", *WITH_EXPERTS}}
WITH_LABELS = {"classifier_activation", "classifier_norm", "classifier_bias", "label_bias"}
NO_EFFECT_WITHOUT_ANOTHER = {"native": WITH_EXPERTS | WITH_LABELS, "gpu": WITH_LABELS}
ONLY_FOR_ENCODERS = {"pooling", "normalize", "max_seq_length", "prompts"}


@pytest.mark.parametrize("engine", ["native", "gpu"])
def test_every_config_key_is_known_to_the_fast_engines(engine: str) -> None:
    """A new key must be computed by them or refused, or they would silently ignore it."""
    computed = COMPUTED_BY_FAST_ENGINES | COMPUTED_BY_ONE[engine]
    known = computed | NO_EFFECT_WITHOUT_ANOTHER[engine] | ONLY_FOR_ENCODERS
    refused = {key for key in SUPPORTED[engine] if "." not in key}
    assert {field.name for field in dataclasses.fields(ModelConfig)} == known | refused
    assert not known & refused
