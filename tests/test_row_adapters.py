"""Rows with different adapters in one batch: each text is that of the model with its adapter alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_decoding import END, prompts, varied_model
from test_lora import EVERYTHING, attach_trained

from chumoku import lora
from chumoku.decoding import prefix_cache
from chumoku.decoding.engines import base as base_module
from chumoku.decoding.engines.base import Engine, TorchEngine
from chumoku.decoding.engines.native.engine import NativeEngine
from chumoku.decoding.engines.native.pack_adapter import PackedAdapter
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.decoding.requests import ActiveRequest
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.scheduler import Request, Scheduler
from chumoku.errors import UsageError
from chumoku.lora import LoraSettings
from chumoku.lora.adapters import get_adapters
from chumoku.models.model import Model
from chumoku.models.precision import to_precision
from chumoku.nn.lora import Adapter

CAPACITY, ROWS = 37, 5
ENGINES = {"torch": TorchEngine, "native": NativeEngine}
MODEL = copy.deepcopy(varied_model("decoder", "rotary")).float()
SETTINGS = {
    "poems": LoraSettings(rank=3, alpha=5.0, targets=EVERYTHING),
    "news": LoraSettings(rank=19, alpha=7.0, stabilized=True, targets=["**.attention.{query,value}", "**.down"]),
}


def adapted_model(name: str | None) -> Model:
    model = copy.deepcopy(MODEL)
    return model if name is None else attach_trained(model, SETTINGS[name], 11, name)


NAMES = (None, *SETTINGS)
ADAPTERS: dict[str, Adapter] = {name: get_adapters(adapted_model(name), name) for name in SETTINGS}
MERGED = {name: MODEL if name is None else lora.merged_copy(adapted_model(name)) for name in NAMES}


def requests() -> list[Request]:
    """Greedy and sampled texts; each adapter and the model itself continue the same prompts."""
    return [
        Request(prompt, 7, SamplingOptions(temperature=(0.0, 0.9)[row % 2], seed=row), (END,), adapter=name, logprobs=0)
        for row, prompt in enumerate(prompts()[:5])
        for name in NAMES
    ]


def decode(
    engine: Engine, wanted: list[Request], arrivals: list[int] | None = None, *, reuse: bool = True, chunk: int = 13
) -> list[list[tuple[int, float]]]:
    scheduler = Scheduler(engine, chunk=chunk, reuse=reuse)
    texts: list[list[tuple[int, float]]] = [[] for _ in wanted]
    places: dict[int, int] = {}
    step = 0
    while len(places) < len(wanted) or not scheduler.idle:
        for place, request in enumerate(wanted):
            if (arrivals or [0] * len(wanted))[place] == step:
                places[scheduler.submit(request)] = place
        for event in scheduler.step():
            if event.token is not None and event.likelihood is not None:
                texts[places[event.number]].append((event.token, event.likelihood.logprob))
        step += 1
    return texts


def tokens_of(texts: list[list[tuple[int, float]]]) -> list[list[int]]:
    return [[token for token, _ in text] for text in texts]


@pytest.fixture(autouse=True)
def short_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "MIN_COMMON_TOKENS", 3)


@pytest.mark.parametrize("kind", ENGINES)
def test_texts_equal_those_of_each_adapter_alone(kind: str) -> None:
    wanted = requests()
    texts = decode(ENGINES[kind](MODEL, rows=ROWS, capacity=CAPACITY, adapters=ADAPTERS), wanted)
    for request, text in zip(wanted, texts, strict=True):
        alone = decode(ENGINES[kind](MODEL, rows=1, capacity=CAPACITY, adapters=ADAPTERS), [request])[0]
        merged = MERGED[request.adapter]
        assert isinstance(merged, type(MODEL))
        plain = Request(request.prompt, 7, request.sampling, request.end, logprobs=0)
        expected = decode(TorchEngine(merged, rows=1, capacity=CAPACITY), [plain])[0]
        for other in (alone, expected):
            assert [token for token, _ in text] == [token for token, _ in other]
            assert [value for _, value in text] == pytest.approx([value for _, value in other], abs=1e-4)
        if kind == "native":
            assert text == alone, "to the last bit"
    assert len({str(tokens_of(texts[place::3])) for place in range(3)}) == 3, "the adapters make a difference"


@pytest.mark.parametrize("kind", ENGINES)
@settings(max_examples=5, deadline=None)
@given(arrivals=st.lists(st.integers(0, 17), min_size=15, max_size=15), chunk=st.integers(1, 29))
def test_arrivals_and_copied_beginnings_change_no_text(kind: str, arrivals: list[int], chunk: int) -> None:
    wanted = requests()
    engine = ENGINES[kind](MODEL, rows=ROWS, capacity=CAPACITY, adapters=ADAPTERS)
    plain = decode(engine, wanted, reuse=False)
    texts = decode(engine, wanted, arrivals, chunk=chunk)
    assert texts == plain if kind == "native" else tokens_of(texts) == tokens_of(plain)


def same_prompt() -> list[Request]:
    prompt = prompts()[1] * 2
    return [Request(prompt, 5, SamplingOptions(temperature=0.0), logprobs=0, adapter=name) for name in NAMES]


def test_adapters_share_no_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same prompt, one after the other; with a shared key, the second text starts from the first one's cache."""
    wanted, arrivals = same_prompt(), [0, 11, 23]
    engine = NativeEngine(MODEL, rows=ROWS, capacity=CAPACITY, adapters=ADAPTERS)
    plain = decode(engine, wanted, arrivals, reuse=False)
    assert decode(engine, wanted, arrivals) == plain
    assert decode(engine, wanted * 2, [*arrivals, 31, 37, 41]) == plain * 2
    monkeypatch.setattr(ActiveRequest, "cache_key", property(lambda self: self.owner[0]))
    assert decode(engine, wanted, arrivals) != plain, "a planted shared key is noticed"


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_quantized_models_stay_quantized(precision: str) -> None:
    """The native engine and PyTorch agree; the adapter gets the unrounded inputs."""
    model: Any = to_precision(copy.deepcopy(MODEL), precision)  # type: ignore[arg-type]
    texts = [
        decode(engine(model, rows=ROWS, capacity=CAPACITY, adapters=ADAPTERS), requests())
        for engine in ENGINES.values()
    ]
    assert tokens_of(texts[0]) == tokens_of(texts[1])
    for one, other in zip(*texts, strict=True):
        assert [value for _, value in one] == pytest.approx([value for _, value in other], abs=1e-2)


@pytest.mark.parametrize("kind", ENGINES)
def test_an_adapter_that_overflows_fails_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows fail; rows that use their places later are not affected."""
    broken = copy.deepcopy(ADAPTERS["poems"])
    with torch.no_grad():
        for matrix in broken.values():
            matrix.b.fill_(3e38)

    def run(second: str) -> list[list[int]]:
        engine = ENGINES[kind](MODEL, rows=3, capacity=CAPACITY, adapters={**ADAPTERS, "broken": broken})
        long, short, greedy = prompts()[1] * 2, prompts()[3], SamplingOptions(temperature=0.0)
        wanted = [Request(long, 13, greedy, logprobs=0), Request(long, 3, greedy, logprobs=0, adapter=second)]
        wanted += [Request(short, 13, greedy, logprobs=0, adapter=name) for name in NAMES]
        return tokens_of(decode(engine, wanted, [0, 0, 5, 5, 5], reuse=False, chunk=97))

    first, failed, *later = run("broken")
    assert failed == []
    assert [first, *later] == [text for place, text in enumerate(run("news")) if place != 1]
    if kind == "torch":
        monkeypatch.setattr(base_module, "find_invalid", lambda hidden: [])
        assert run("broken")[2:] != later, "NaN in the cache is noticed"


def test_a_model_without_adapted_rows_is_decoded_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same engine and the same bits; no adapter is given to the library, and PyTorch calls the model itself."""
    wanted = [request for request in requests() if request.adapter is None]
    assert isinstance(open_engine(MODEL, rows=ROWS, capacity=CAPACITY, adapters=ADAPTERS), NativeEngine)
    plain = {kind: decode(engine(MODEL, rows=ROWS, capacity=CAPACITY), wanted) for kind, engine in ENGINES.items()}
    monkeypatch.setattr(PackedAdapter, "address", None, raising=False)
    for kind, engine in ENGINES.items():
        loaded = engine(MODEL, rows=ROWS, capacity=CAPACITY, adapters=ADAPTERS)
        loaded._adapted = None
        assert decode(loaded, wanted) == plain[kind]


def test_the_weights_are_shared() -> None:
    engine = TorchEngine(MODEL, rows=ROWS, capacity=CAPACITY, adapters=ADAPTERS)
    own = {tensor.data_ptr() for tensor in MODEL.parameters()}
    assert {tensor.data_ptr() for tensor in engine._adapted.parameters()} == own


@pytest.mark.parametrize("kind", ENGINES)
def test_wrong_adapters_are_refused(kind: str) -> None:
    engine = ENGINES[kind](MODEL, rows=ROWS, capacity=CAPACITY, adapters=ADAPTERS)
    with pytest.raises(UsageError, match=r"no adapter 'prose'\. Known adapters: poems, news"):
        Scheduler(engine).submit(Request([5], 1, adapter="prose"))
    with pytest.raises(UsageError, match="this engine has poems, news"):
        engine.add_rows(1, None, ["prose"])
    dora = attach_trained(copy.deepcopy(MODEL), LoraSettings(rank=2, dora=True), 3)
    with pytest.raises(UsageError, match="DoRA"):
        ENGINES[kind](MODEL, rows=1, capacity=CAPACITY, adapters={"dora": get_adapters(dora)})


def test_the_native_engine_refuses_matrices_that_it_does_not_know() -> None:
    adapter = {"decoder.router": next(iter(ADAPTERS["poems"].values()))}
    with pytest.raises(UsageError, match=r"an adapter of decoder\.router"):
        NativeEngine(MODEL, rows=1, capacity=CAPACITY, adapters={"one": adapter})


@pytest.mark.parametrize(
    "changes",
    [
        {"placement": "sandwich", "norm": "rms"},
        {"placement": "output", "query_key_norm": "all", "norm": "rms", "feedforward": "swiglu"},
        {"parallel": True, "head_width": 14},
    ],
)
def test_blocks_of_every_kind_are_adapted(changes: dict[str, Any]) -> None:
    """The output of an adapter joins its product before that is normalized."""
    model = copy.deepcopy(varied_model("decoder", "rotary", **changes)).float()
    adapted = attach_trained(copy.deepcopy(model), SETTINGS["poems"], 11, "poems")
    engine = NativeEngine(model, rows=2, capacity=CAPACITY, adapters={"poems": get_adapters(adapted, "poems")})
    engine.add_rows(2, adapters=[None, "poems"])
    prompt = prompts()[0]
    for row, expected in enumerate((model, lora.merged_copy(adapted))):
        logits = engine.prefill([prompt], first=row)
        torch.testing.assert_close(logits[0], expected(torch.tensor([prompt])).logits[0, -1], atol=1e-4, rtol=1e-4)
