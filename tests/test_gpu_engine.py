"""Steps by our kernels equal the plain model's: on a GPU as they run, elsewhere in Triton's interpreter (float32).

Without Triton nothing can be compared; then these tests say so and pass on.
"""

from __future__ import annotations

import copy
import gc
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_lora import attach_trained

import chumoku
from chumoku.decoding.engines.base import TorchEngine
from chumoku.errors import UsageError
from chumoku.lora import LoraSettings
from chumoku.lora.adapters import get_adapters
from chumoku.models.model import DecoderModel
from chumoku.models.precision import to_precision
from chumoku.nn import quantized
from chumoku.nn.attention import attend, attend_fused

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed, so there are no kernels to test.", allow_module_level=True)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from chumoku.decoding.engines.gpu import available, launch, launch_attention  # noqa: E402 - only where Triton is installed
from chumoku.decoding.engines.gpu.engine import GpuEngine, bucket  # noqa: E402
from chumoku.decoding.engines.gpu.tables import Tables  # noqa: E402
from chumoku.decoding.engines.gpu.weights import Matrix, Norm, concatenate, unsupported  # noqa: E402

LENGTHS, SOURCES = [40, 1, 17], [7, 83, 1]
ROTARY = {"position": "rotary", "pairing": "half", "norm": "rms"}
CELLS = {
    "llama": {**ROTARY, "feedforward": "swiglu", "bias": False},
    "gpt2": {"position": "learned", "feedforward": "gelu_tanh", "kv_heads": 6},
    "post": {"position": "sinusoidal", "placement": "post", "feedforward": "relu", "embedding_norm": True},
    "interleaved": {"position": "rotary", "norm": "rms", "placement": "post", "feedforward": "silu"},
    "none": {"position": "none", "feedforward": "geglu", "output_bias": True, "tie_output": False, "kv_heads": 1},
    "qwen2": {**ROTARY, "feedforward": "geglu_tanh", "bias": False, "attention_bias": "qkv"},
    "qwen3": {**ROTARY, "feedforward": "swiglu", "bias": False, "query_key_norm": "head", "head_width": 16},
    "smollm3": {**ROTARY, "feedforward": "swiglu", "bias": False, "no_position_every": 2, "attention_scale": 0.2},
    "sandwich": {
        **{**ROTARY, "feedforward": "geglu_tanh", "placement": "sandwich", "norm_unit_offset": True},
        **{"logit_cap": 0.5, "scale_logits": True},
    },
    "olmo2": {**ROTARY, "feedforward": "swiglu", "bias": False, "query_key_norm": "all", "placement": "output"},
    "gemma2": {
        **ROTARY,
        "feedforward": "geglu_tanh",
        "attention_window": 11,
        "full_attention_every": 2,
        "score_cap": 0.7,
    },
    "gemma3": {
        **{"position": "rotary", "attention_window": 17, "full_attention_every": 2, "norm": "rms", "kv_heads": 6},
        "rotary": {"base": 500.0, "local_base": 50.0, "share": 0.4},
    },
    "phi": {**ROTARY, "rotary": {"share": 0.4}, "attention_window": 1, "first_norm": False, "embedding_norm": True},
    "alibi": {"position": "alibi", "attention_window": 23, "score_cap": 0.7},
    "gpt-j": {"position": "rotary", "parallel": True, "shared_norm": True, "output_bias": True},
    "gpt-neox": {"position": "rotary", "parallel": True, "norm_bias": False},
    "exact gelu": {"position": "learned", "feedforward": "gelu", "scale_embedding": True},
    "relative": {"position": "relative", "relative_clip": 13, "kv_heads": 6, "attention_scale": 0.2},
    "t5": {
        "position": "relative_bias",
        "relative_buckets": 8,
        "relative_max_distance": 29,
        "norm": "rms",
        "score_cap": 3.1,
    },
    "mixtral": {**ROTARY, "feedforward": "swiglu", "bias": False, "experts": 5, "experts_per_token": 3},
    "qwen-moe": {
        **{**ROTARY, "feedforward": "swiglu", "experts": 5, "normalize_experts": False, "shared_expert_width": 37},
        **{"placement": "sandwich"},
    },
    "switch": {"position": "learned", "feedforward": "relu", "experts": 3, "experts_per_token": 1, "placement": "post"},
}
TRANSLATORS = {
    "vaswani": {"position": "sinusoidal", "placement": "post", "feedforward": "relu", "kv_heads": 6},
    "flan-t5": {"position": "relative_bias", "norm": "rms", "feedforward": "geglu_tanh", "bias": False},
    "shared keys": {**ROTARY, "query_key_norm": "head", "head_width": 16, "placement": "sandwich", "score_cap": 0.7},
}


def model_of(dtype: torch.dtype = torch.float32, **changes: object) -> DecoderModel:
    sizes = {"vocabulary": 61, "context": 90, "width": 60, "layers": 2, "heads": 6, "kv_heads": 2}
    config = chumoku.ModelConfig(**{"kind": "decoder", "feedforward_width": 53, **sizes, **changes})
    model = chumoku.build(config, device=DEVICE, dtype=dtype)
    generator = torch.Generator(DEVICE).manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "gamma" in name else 0.0, 0.15, generator=generator)
    return model


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few programs, and pasts in parts, though they are short."""
    monkeypatch.setattr(launch, "PROCESSORS", 3)
    monkeypatch.setattr(launch_attention, "PROGRAMS", 24)
    monkeypatch.setattr(launch_attention, "KEY_BLOCK", 16)
    monkeypatch.setattr(launch_attention, "ALONE", 16)


def prompts(lengths: list[int] = LENGTHS) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(61, (length,), generator=generator).tolist() for length in lengths]


def steps(engine: TorchEngine, *, count: int = 2) -> torch.Tensor:
    """The logits of some steps after the prompts [steps, rows, V]."""
    sources = prompts(SOURCES) if engine.model.config.kind == "encoder-decoder" else None
    engine.add_rows(len(LENGTHS), sources)
    engine.prefill(prompts())
    tokens = torch.arange(count * len(LENGTHS), device=DEVICE).view(count, -1)
    return torch.stack([engine.step(one) for one in tokens])


def close(one: torch.Tensor, other: torch.Tensor, within: float = 1e-5) -> bool:
    return bool((one - other).abs().max() <= within * other.abs().max())


@pytest.mark.parametrize("kind", ["rms", "layer", None])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("precision", "inputs"), [("float", 67), ("int8", 67), ("int8", 96), ("int4", 96)])
def test_a_program_computes_several_blocks_of_a_product(
    precision: str, inputs: int, gated: bool, kind: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "tile_for", lambda *_, **__: launch.Tile(outputs=4, warps=4, programs=3))
    draw = partial(torch.randn, generator=torch.Generator(DEVICE).manual_seed(7), device=DEVICE)
    outputs, x, gamma = 41, draw(2, inputs), draw(inputs)
    weight, bias, residual = draw(outputs * (1 + gated), inputs), draw(outputs * (1 + gated)), draw(2, outputs)
    stored = weight if precision == "float" else quantized.quantize(weight, precision)
    norm = None if kind is None else Norm(kind, gamma, gamma, 1e-6)
    found = launch.multiply(
        launch.Launcher.on(DEVICE), x, Matrix(stored, bias),
        norm=norm, activation="silu" if gated else "none", gated=gated, residual=residual,
    )  # fmt: skip
    if kind == "layer":
        x = F.layer_norm(x, (inputs,), gamma, gamma, 1e-6)
    elif kind == "rms":
        x = F.rms_norm(x, (inputs,), gamma, 1e-6)
    if precision != "float":
        x, weight = quantized.round_inputs(x, precision), stored.dequantize()[:, :inputs]
    y = x @ weight.T + bias
    expected = residual + (F.silu(y[:, :outputs]) * y[:, outputs:] if gated else y)
    assert close(found, expected, 1e-4)  # an input between two integers may be rounded to the other one
    assert not close(found, expected + 1e-3 * expected.abs().max(), 1e-4), "seen to fail"


@pytest.mark.parametrize("few", [0, 3], ids=["library", "own"])
@pytest.mark.parametrize(("precision", "hidden"), [("int8", 64), ("int8", 67), ("int4", 64)])
def test_quantized_products_are_their_formula(
    precision: str, hidden: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "FEW_ROWS", few)
    sizes = {"width": 96, "feedforward_width": hidden, "bias": True, "output_bias": True}
    small = to_precision(model_of(**{**CELLS["none"], **sizes}), precision)
    plain = copy.deepcopy(small)
    if not few:
        monkeypatch.setattr(quantized, "round_inputs", lambda x, kind: x)  # the library's product does not round inputs
    # Prompts are longer than FEW_ROWS, so their inputs are not rounded in either case.
    within = 0.05 if DEVICE.type == "cuda" else 5e-4 if few else 1e-5
    assert available(small) == (DEVICE.type == "cuda")
    found, expected = (
        steps(kind(one, rows=3, capacity=60)) for kind, one in ((GpuEngine, small), (TorchEngine, plain))
    )
    assert close(found, expected, within)
    plain.head.scale.mul_(1.3)
    assert not close(found, steps(TorchEngine(plain, rows=3, capacity=60)), within), "seen to fail"


@pytest.mark.parametrize("few", [0, 3], ids=["library", "own"])
@pytest.mark.parametrize("cell", [*CELLS, *TRANSLATORS])
def test_steps_are_the_models(cell: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "FEW_ROWS", few)
    model = model_of(**CELLS[cell] if cell in CELLS else {**TRANSLATORS[cell], "kind": "encoder-decoder"})
    plain = steps(TorchEngine(model, rows=3, capacity=80))
    engine = GpuEngine(model, rows=3, capacity=80)
    assert close(steps(engine), plain)
    assert engine.lengths == [length + 2 for length in LENGTHS]
    if model.config.logit_cap is None:
        assert torch.equal(engine.most_likely, plain[-1].argmax(-1))
    else:
        assert engine.most_likely is None, "different logits may be equal after the cap"


def test_the_most_likely_token_is_the_first_of_the_largest_if_all_are_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PART", 16)
    logits = torch.randn(7, 61, generator=torch.Generator().manual_seed(3))
    logits[1, 40] = logits[2, 60] = torch.nan
    logits[3, 5], logits[4], logits[5, 7:] = torch.inf, -torch.inf, -torch.inf
    logits[6, [20, 50]] = 9.0
    found = launch.argmax(launch.Launcher.on(DEVICE), logits.to(DEVICE)).tolist()
    assert found == [-1 if row in (1, 2, 3, 4) else int(logits[row].argmax()) for row in range(7)]
    assert found[6] == 20


@pytest.mark.parametrize(("width", "dtype"), [(64, torch.bfloat16), (20, torch.float16), (23, torch.float32)])
def test_queries_after_a_past_attend_as_the_formula(width: int, dtype: torch.dtype) -> None:
    """The keys are a part of a longer cache, as in an engine; on a GPU no mask [T, S] is stored."""
    draw = partial(torch.randn, generator=torch.Generator(DEVICE).manual_seed(11), device=DEVICE)
    query, cached = draw(2, 6, 37, width).to(dtype), draw(2, 2, 2, 113, width).to(dtype)
    key, value = cached[:, :, :, :101]
    with torch.inference_mode():
        found = attend_fused(query, key, value, causal=True).float()
        expected = attend(query.double(), key.double(), value.double(), causal=True)[0].float()
        later = attend(query.double(), key.double(), value.double())[0].float()
    assert close(found, expected, 0.01)
    assert not close(found, later, 0.01), "seen to fail"


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_rows_are_moved_truncated_and_removed(kind: str) -> None:
    """Also the sources of an encoder-decoder: those of rows 0 and 2 of the first selection are the same."""
    model = model_of(kind=kind)
    sources = None if kind == "decoder" else prompts([131])
    answers = []
    for engine_class in (TorchEngine, GpuEngine):
        engine = engine_class(model, rows=4, capacity=80)
        steps(engine)
        engine.truncate([40, 3, 15])
        engine.select_rows([2, 0, 2])  # the old row 0 is read after row 0 is written, unless all are read first
        engine.step(torch.tensor([7, 8], device=DEVICE))  # the third row stays where it is
        engine.add_rows(1, sources)
        engine.prefill([[3, 4]], first=3)
        extended = engine.extend(torch.tensor([[9, 1], [2, 3], [4, 5], [6, 7]], device=DEVICE))
        stepped = engine.step(torch.tensor([1, 2, 3, 4], device=DEVICE))
        assert engine.lengths == [19, 44, 18, 5]
        engine.select_rows([])
        answers.append(torch.cat([extended.flatten(0, 1), stepped, steps(engine).flatten(0, 1)]))
    assert close(answers[1], answers[0])


def test_passes_with_adapted_rows_are_computed_by_pytorch() -> None:
    """In the same cache; passes without them run the kernels."""
    model, names = model_of(), [None, "poems", None]
    adapters = {"poems": get_adapters(attach_trained(copy.deepcopy(model), LoraSettings(rank=3, targets=["**"]), 7))}
    answers = []
    for kind, given in ((TorchEngine, adapters), (GpuEngine, adapters), (GpuEngine, {"poems": {}})):
        engine = kind(model, rows=3, capacity=80, adapters=given)
        engine.add_rows(3, None, names)
        prefilled = engine.prefill(prompts())
        mixed = torch.stack([engine.step(torch.tensor(one, device=DEVICE)) for one in ([7, 8, 9], [1, 2, 3])])
        engine.select_rows([2, 0])
        alone = engine.step(torch.tensor([4, 5], device=DEVICE))
        answers.append(torch.cat([prefilled, mixed.flatten(0, 1), alone]))
        assert engine.row_adapters == [None, None]
    assert close(answers[1], answers[0])
    assert not close(answers[2], answers[0]), "the adapter makes a difference"


def test_a_row_equals_the_same_row_alone() -> None:
    model = model_of()
    together = steps(GpuEngine(model, rows=3, capacity=80), count=1)
    alone = GpuEngine(model, rows=1, capacity=80)
    alone.add_rows(1)
    alone.prefill(prompts()[2:])
    assert close(alone.step(torch.tensor([2], device=DEVICE)), together[0, 2:])


@pytest.mark.parametrize("cell", ["gpt2", "llama"])
def test_a_full_row_that_is_not_in_use_reads_no_other_memory(cell: str) -> None:
    """Its position is the capacity, which is behind all tokens."""
    tables = Tables.of(model_of(**CELLS[cell]), 13)
    read = [each for each in (tables.places, *(tables.rotation or ())) if isinstance(each, torch.Tensor)]
    assert {len(table) for table in read} == {13 + 1}


def test_weights_are_joined_without_a_copy() -> None:
    model = model_of()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first, again = (GpuEngine(model, rows=1, capacity=8)._blocks.layers[0].projection.weight for _ in range(2))
    assert first.data_ptr() == again.data_ptr() == model.decoder.blocks[0].attention.query.weight.data_ptr()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    linear = model.decoder.blocks[0].attention.output
    assert concatenate([linear.weight]).data_ptr() == linear.weight.data_ptr()


def test_which_models_are_supported() -> None:
    assert available(model_of()) == (DEVICE.type == "cuda")
    assert unsupported(model_of()) is None
    assert unsupported(model_of(kind="encoder-decoder", experts=2, position="relative")) is None
    assert unsupported(model_of(kind="encoder")) == "It does not generate tokens."
    with pytest.raises(UsageError, match="norm = 'batch'"):
        GpuEngine(model_of(norm="batch"), rows=1, capacity=8)
    assert [bucket(rows) for rows in (1, 3, 64, 65, 200)] == [1, 4, 64, 128, 256]


@pytest.mark.skipif(DEVICE.type == "cpu", reason="The interpreter multiplies bf16 numbers as if they were integers.")
@pytest.mark.parametrize("cell", ["llama", "relative", "experts", "many experts", "vaswani"])
def test_bf16_is_no_worse_than_the_plain_model(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many rows, PyTorch multiplies the experts in the graph; it needs widths of a multiple of 8."""
    monkeypatch.setattr(launch, "EXPERT_ROWS", 2 if cell == "many experts" else 8)
    even = {"width": 64, "heads": 4, "feedforward_width": 72, "experts_per_token": 2}
    experts = {**CELLS["mixtral"], **even}
    changes = {**CELLS, **TRANSLATORS, "experts": experts, "many experts": experts}[cell]
    if cell in TRANSLATORS:
        changes = {**changes, "kind": "encoder-decoder"}
    exact, half = model_of(**changes), model_of(torch.bfloat16, **changes)
    half.load_state_dict(exact.state_dict())
    exact.load_state_dict(half.state_dict())
    true = steps(TorchEngine(exact, rows=3, capacity=80))
    plain, ours = (steps(kind(half, rows=3, capacity=80)).float() for kind in (TorchEngine, GpuEngine))
    # Near a tie of the router, rounding chooses another expert.
    assert (ours - true).norm() <= (1.3 if "experts" in cell else 1.1) * (plain - true).norm()


@pytest.mark.skipif(DEVICE.type == "cpu", reason="There are no graphs on a CPU.")
@pytest.mark.parametrize("grows", [False, True])
def test_graphs_outlive_other_graphs_and_their_cublas_workspace(grows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph contains the address of a workspace, which was in the memory pool of the first graph of all engines."""
    sizes = {"width": 2048, "heads": 16, "kv_heads": 4, "feedforward_width": 8192}
    model = model_of(torch.bfloat16, **{**CELLS["llama"], **sizes})
    engine, other = (GpuEngine(model, rows=3, capacity=80) for _ in range(2))
    if grows:  # and frees its first graph
        monkeypatch.setattr("chumoku.decoding.engines.gpu.engine.AT_ONCE", 0)
        engine.add_rows(1)
        engine.prefill(prompts([31]))
        engine.select_rows([])
    else:
        steps(other)
    wanted, before = steps(engine), torch.cuda.memory_reserved()
    del other
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    others = torch.full((before,), 113, dtype=torch.uint8, device=DEVICE)
    engine.select_rows([])
    assert torch.equal(steps(engine), wanted)
    assert (others == 113).all()


@pytest.mark.skipif(DEVICE.type == "cpu", reason="There are no graphs on a CPU.")
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("failure", ["interrupted", "forbidden"])
def test_a_failed_capture_leaves_the_engine_usable(failure: str, later: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(torch.bfloat16, **CELLS["llama"])
    engine, other = (GpuEngine(model, rows=3, capacity=80) for _ in range(2))
    run = engine._run_blocks

    def fail(*arguments: Any, **choices: Any) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            if failure == "interrupted":
                raise KeyboardInterrupt
            torch.cuda.synchronize()  # ends the capture with an error
        return run(*arguments, **choices)

    if later:  # there is a graph already
        engine.add_rows(3)
        engine.prefill(prompts())
        engine.select_rows([])
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_run_blocks", fail)
        with pytest.raises((KeyboardInterrupt, RuntimeError)):
            steps(engine)
    engine.select_rows([])
    assert torch.equal(steps(engine), steps(other))


@pytest.mark.skipif(DEVICE.type == "cpu", reason="tests/test_whole_step.py emulates this kernel.")
@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("past", [1, 301, 701])
@pytest.mark.parametrize("cell", ["llama", "gpt2", "wide", "wider"])
def test_one_kernel_computes_a_step_like_several(
    cell: str, past: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"width": 768, "heads": 12, "kv_heads": 4, "feedforward_width": 2048, "context": 1024}
    if cell == "wide":  # heads of 128, and rows of more parts than have room in registers
        hidden = 6144 if precision == "bf16" else 8192
        cell, sizes = "llama", {**sizes, "width": 2048, "heads": 16, "feedforward_width": hidden}
    if cell == "wider":  # rows of all matrices have several parts
        more = {"width": 4096, "heads": 32, "kv_heads": 8, "feedforward_width": 6144, "layers": 1}
        cell, sizes = "llama", {**sizes, **more}
    model = model_of(torch.bfloat16, **{**CELLS[cell], **sizes})
    model = model if precision == "bf16" else to_precision(model, precision)
    engines = [GpuEngine(model, rows=1, capacity=1024) for _ in range(3)]
    monkeypatch.setattr(engines[0], "_reserve", partial(reserve_without_kernel, engines[0], engines[0]._reserve))
    logits = []
    for engine in engines:
        engine.add_rows(1)
        engine.prefill(prompts([past]))
        logits.append(torch.cat([engine.step(torch.tensor([token], device=DEVICE)).float() for token in range(5)]))
    assert [[*engine._steps] for engine in engines] == [[1], [], []]  # the graphs of several kernels
    assert (logits[1] - logits[0]).norm() < 0.02 * logits[0].norm()
    assert torch.equal(logits[1], logits[2])


def reserve_without_kernel(engine: GpuEngine, reserve: Callable[[int, int], None], rows: int, positions: int) -> None:
    reserve(rows, positions)
    engine._open_kernel = None
