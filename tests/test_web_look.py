"""The view Look in a web page: its handlers in Chromium, against the functions that the server calls."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
import torch
from browser import module_page
from bundles import byte_tokenizer

from chumoku.errors import UsageError
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.generation_config import GenerationConfig
from chumoku.pipeline import Pipeline
from chumoku.server.errors import RequestError, to_request_error
from chumoku.server.look.routes import LOOKS
from chumoku.server.request_body import parse_body
from chumoku.server.streaming import encode_json
from chumoku.web.container import prepare_model, write_container
from chumoku.web.generation_data import generation_data
from chumoku.web.tokenizer_data import tokenizer_data

ENTRY = """
import { LOOK_ROUTES } from "./look/routes.js";
import { openRuntime } from "./runtime.js";

const check = async () => {};
const bytesOf = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0)).buffer;

async function answer(runtime, [path, body]) {
  try {
    return { result: await LOOK_ROUTES[path](runtime, body, check) };
  } catch (error) {
    if (error.name !== "RequestError") throw error;
    return { error: error.message, status: error.status };
  }
}

window.answers = async (model, wasm, requests) => {
  const runtime = await openRuntime({ model: bytesOf(model), wasm: wasm && bytesOf(wasm) });
  if (Boolean(wasm) !== (runtime.fallback === null)) throw new Error(runtime.fallback ?? "WebAssembly is used.");
  const found = [];
  for (const request of requests) found.push(await answer(runtime, request));
  return found;
};
"""
LIBRARY = base64.b64encode((files("chumoku") / "viewer/in_page/wasm/step.wasm").read_bytes()).decode()
TEXT = "猫 cat"
# Significant digits differ between the parts of a snapshot; a number at the edge may be rounded up or down.
DIGITS = {"lens": 3, "words": 3, "positions": 3, "entropy": 4, "streams": 4}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "learned, after the sum": ("decoder", {"position": "learned", "placement": "post", "feedforward": "gelu"}),
    "rotary, shared heads": (
        "decoder",
        {"width": 36, "heads": 6, "kv_heads": 3, "norm": "rms", "feedforward": "swiglu", "tie_output": False},
    ),
    "alibi, window, experts": (
        "decoder",
        {"position": "alibi", "attention_window": 3, "experts": 3, "score_cap": 11.0},
    ),
    "translator": ("encoder-decoder", {"encoder_layers": 3, "position": "sinusoidal", "placement": "post"}),
    "buckets": ("encoder-decoder", {"position": "relative_bias", "relative_buckets": 7, "relative_max_distance": 11}),
    "masked": ("encoder", {"position": "learned", "placement": "post", "segments": 2, "embedding_norm": True}),
    "vector": ("encoder", {"position": "relative", "relative_clip": 3, "head": "vector"}),
    "tags": ("encoder", {"position": "none", "head": "tags", "labels": ("a", "b", "c"), "norm": "rms"}),
    "one norm": ("decoder", {"parallel": True, "shared_norm": True, "pairing": "half"}),
}


def make_pipeline(kind: str, changes: dict[str, Any], precision: str = "float32") -> Pipeline:
    tokenizer = byte_tokenizer()
    sizes = {"width": 30, "heads": 5, "layers": 2, "context": 61, "vocabulary": tokenizer.size + 3}
    model = build(ModelConfig(**{"kind": kind, **sizes, **changes}), seed=3).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(5 if weight.ndim > 1 else 1)
    return Pipeline(prepare_model(model, precision), tokenizer, tokenizer)


def pack(pipeline: Pipeline) -> str:
    generation = generation_data(pipeline.model, pipeline.tokenizer, GenerationConfig())
    tokenizer = tokenizer_data(pipeline.tokenizer)
    content = write_container(pipeline.model, name="m", tokenizer=tokenizer, generation=generation)
    return base64.b64encode(content).decode()


@pytest.fixture(scope="module")
def page(browser_process: Any) -> Iterator[Any]:
    """A page with the handlers."""
    with module_page(browser_process, ENTRY) as one:
        yield one


def expected(pipeline: Pipeline, path: str, body: Any) -> dict[str, Any]:
    """What the server answers."""
    schema, function = LOOKS[path]
    try:
        result = function(pipeline, parse_body(schema, json.dumps(body).encode()))
    except (RequestError, UsageError) as error:
        refused = to_request_error(error)
        return {"error": refused.message, "status": refused.status}
    return {"result": json.loads(encode_json(result))}


def unordered(value: Any) -> Any:
    """The value without the names of candidates whose probabilities are NaN: their order has no meaning."""
    if isinstance(value, list):
        return [None, "NaN"] if value[1:] == ["NaN"] else [unordered(one) for one in value]
    if not isinstance(value, dict):
        return value
    nameless = "NaN" in (value.get("logit"), value.get("probability"))
    return {key: None if nameless and key in ("id", "text") else unordered(one) for key, one in value.items()}


def assert_same(found: Any, wanted: Any, tolerance: float, where: str, digits: int = 6) -> None:
    """Equal, with numbers up to the tolerance or one unit of their last digit."""
    assert type(found) is type(wanted) or {type(found), type(wanted)} == {int, float}, (where, found, wanted)
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for key in wanted:
            one, other = found[key], wanted[key]
            if key == "weights" and isinstance(other, str):
                one, other = (np.frombuffer(base64.b64decode(each), "<u2").astype(int) for each in (one, other))
                assert np.abs(one - other).max() <= 65536 * tolerance, where
                continue
            assert_same(one, other, tolerance, f"{where}.{key}", DIGITS.get(key, digits))
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), (where, found, wanted)
        for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_same(one, other, tolerance, f"{where}[{place}]", digits)
    elif isinstance(wanted, float):
        relative = max(tolerance, 1.1 * 10 ** (1 - digits))
        assert math.isclose(found, wanted, rel_tol=relative, abs_tol=tolerance), (where, found, wanted)
    else:
        assert found == wanted, (where, found, wanted)


def ask(page: Any, pipeline: Pipeline, requests: list[tuple[str, Any]], *, wasm: bool = True) -> list[dict[str, Any]]:
    """The answers of the page, with products in WebAssembly or in plain JavaScript."""
    script = "([model, wasm, requests]) => answers(model, wasm, requests)"
    answers: list[dict[str, Any]] = page.evaluate(script, [pack(pipeline), LIBRARY if wasm else None, requests])
    return answers


def compare(
    page: Any, pipeline: Pipeline, requests: list[tuple[str, Any]], *, wasm: bool = True, tolerance: float = 1e-4
) -> list[dict[str, Any]]:
    """The answers of the page, which must be those of the server."""
    answers = ask(page, pipeline, requests, wasm=wasm)
    for (path, body), found in zip(requests, answers, strict=True):
        where, wanted = f"{path} {str(body)[:200]}", expected(pipeline, path, body)
        assert found.keys() == wanted.keys(), (where, found.get("error"), wanted.get("error"))
        assert_same(unordered(found), unordered(wanted), tolerance, where)
    return answers


def make_requests(pipeline: Pipeline) -> list[tuple[str, Any]]:
    kind = pipeline.config.kind
    part = "encoder" if kind == "encoder" else "decoder"
    text = {"model": "m", "text": "ab<mask>c" if kind == "encoder" else TEXT}
    given = text if kind == "encoder" else {**text, "target": "xyz!"}
    here = f"{part}.blocks.1"
    off = [{"part": part, "layer": 1, "head": 2}, {"part": part, "layer": 1, "head": 0}]
    off += [{"part": part, "layer": 0, "feedforward": True}]
    replaced = [{"address": f"{part}.blocks.0.output", "place": 1, "other_place": 2}]
    replaced += [{"address": f"{here}.attention.heads", "place": 2, "head": 1}]
    found = [
        ("/v1/look", {**text, "new": 5} if kind != "encoder" else text),
        ("/v1/look", {**given, "layer": 1, "lens": False}),
        ("/v1/look", {**given, "maps": ["rollout", "cross"], "lens": False}),
        ("/v1/look/tokens", given),
        ("/v1/look/addresses", text),
        ("/v1/look/next", {**given, "count": 7}),
        ("/v1/look/block", {**given, "part": part, "layer": 0, "head": 1, "place": 2}),
        ("/v1/look/ablate", {**text, "new": 5, "off": off}),
        ("/v1/look/effects", {**text, "new": 5, "part": part, "layer": 1}),
        ("/v1/look/patch", {**given, "other": "dog", "replace": replaced}),
    ]
    names = ("attention.keys", "attention.masked_scores", "attention.weights", "feedforward.hidden", "output")
    addresses = [f"{here}.{name}" for name in names] + ["logits", "vector"]
    found += [("/v1/look/tensor", {**given, "address": address, "head": 2}) for address in addresses]
    if kind == "encoder-decoder":
        cross = [{"part": "decoder", "layer": 0, "head": 1, "cross": True}, {"part": "encoder", "layer": 2, "head": 0}]
        found += [
            ("/v1/look/ablate", {**given, "off": cross}),
            ("/v1/look/block", {**given, "part": "encoder", "layer": 1, "head": 0, "place": 4}),
            ("/v1/look/tensor", {**given, "address": f"{here}.cross_attention.weights", "row": 2}),
            ("/v1/look/tensor", {**given, "address": "encoder.blocks.1.attention.values"}),
        ]
    return found


@pytest.mark.parametrize("name", MODELS)
def test_looks_equal_the_servers(page: Any, name: str) -> None:
    pipeline = make_pipeline(*MODELS[name])
    compare(page, pipeline, make_requests(pipeline))


def test_texts_are_cut_and_targets_are_tokens(page: Any) -> None:
    for name in ("rotary, shared heads", "translator"):
        pipeline = make_pipeline(MODELS[name][0], {**MODELS[name][1], "context": 31})
        text = {"model": "m", "text": "abcdefg " * 7}
        end = pipeline.tokenizer.roles.end
        found = compare(
            page,
            pipeline,
            [
                ("/v1/look", {**text, "new": 7, "lens": False}),
                ("/v1/look", {**text, "target": "hijk " * 7, "lens": False}),
                ("/v1/look/tokens", {**text, "target": [30, 31, end]}),
                ("/v1/look", {**text, "target": [30, 31, end], "lens": False}),
                ("/v1/look/next", {**text, "target": []}),
                ("/v1/look/next", text),
            ],
        )
        assert len(found[1]["result"]["notices"]) == 2
        assert found[3]["result"]["then"]["text"] == "</s>"


def test_a_model_whose_logits_are_nan(page: Any) -> None:
    pipeline = make_pipeline("decoder", {})
    with torch.no_grad():
        pipeline.model.get_parameter("decoder.blocks.0.feedforward.down.weight")[0, 0] = math.nan
    found = compare(page, pipeline, [request for request in make_requests(pipeline) if request[0] != "/v1/look/patch"])
    assert any("NaN" in english for english, _ in found[0]["result"]["notices"])
    assert found[0]["result"]["maps"][0]["nan"] is not None


def test_looks_at_int8_weights(page: Any) -> None:
    kind, changes = MODELS["translator"]
    pipeline = make_pipeline(kind, {**changes, "width": 64, "heads": 4}, "int8")
    requests = [one for one in make_requests(pipeline) if one[0] in ("/v1/look", "/v1/look/block", "/v1/look/ablate")]
    for wasm in (True, False):
        compare(page, pipeline, requests, wasm=wasm, tolerance=1e-3)


BODY = {"model": "m", "text": "x"}
PLACE = {"part": "decoder", "layer": 0, "head": 0, "place": 0}
OFF = {"part": "decoder", "layer": 0, "head": 1}
AT = {"address": "decoder.blocks.0.output", "place": 0}
WRONG: list[tuple[str, Any]] = [
    ("", []),
    ("", {"model": "m"}),
    ("", {**BODY, "txt": 1}),
    ("", {**BODY, "unknown\n": 1}),
    ("", {**BODY, "text": ""}),
    ("", {**BODY, "text": "x" * 100_001}),
    ("", {**BODY, "model": 5}),
    ("", {**BODY, "new": 65}),
    ("", {**BODY, "new": True}),
    ("", {**BODY, "target": [1] * 1025}),
    ("", {**BODY, "target": [-1]}),
    ("", {**BODY, "target": 5}),
    ("", {**BODY, "target": [99999]}),
    ("", {**BODY, "maps": ["other"]}),
    ("", {**BODY, "maps": ["cross"] * 7}),
    ("", {**BODY, "layer": 1.5}),
    ("", {**BODY, "layer": 2}),
    ("", {**BODY, "lens": 1}),
    ("/tensor", BODY),
    ("/tensor", {**BODY, "address": "decoder.blocks.0.attention.query"}),
    ("/tensor", {**BODY, "address": "nothing like it"}),
    ("/tensor", {**BODY, "address": "decoder.norm", "row": 99}),
    ("/tensor", {**BODY, "address": "decoder.blocks.0.attention.keys", "head": 5}),
    ("/block", {**BODY, **PLACE, "part": "encoder"}),
    ("/block", {**BODY, **PLACE, "part": "other"}),
    ("/block", {**BODY, **PLACE, "layer": 2}),
    ("/block", {**BODY, **PLACE, "head": 5}),
    ("/block", {**BODY, **PLACE, "place": 90}),
    ("/next", {**BODY, "count": 0}),
    ("/ablate", {**BODY, "off": []}),
    ("/ablate", {**BODY, "off": [5]}),
    ("/ablate", {**BODY, "off": [{**OFF, "hea": 1}]}),
    ("/ablate", {**BODY, "off": [{**OFF, "head": None}]}),
    ("/ablate", {**BODY, "off": [{**OFF, "feedforward": True}]}),
    ("/ablate", {**BODY, "off": [{**OFF, "cross": True}]}),
    ("/ablate", {**BODY, "off": [{**OFF, "head": 9}]}),
    ("/patch", {**BODY, "other": "y"}),
    ("/patch", {**BODY, "other": "y", "replace": [{**AT, "address": "decoder.blocks.0.outputs"}]}),
    ("/patch", {**BODY, "other": "y", "replace": [{**AT, "place": 99}]}),
    ("/patch", {**BODY, "other": "y", "replace": [{**AT, "other_place": 99}]}),
    ("/patch", {**BODY, "other": "y", "replace": [{**AT, "head": 1}]}),
    ("/patch", {**BODY, "other": "y", "replace": [{**AT, "address": "decoder.blocks.0.attention.keys"}]}),
    ("/patch", {**BODY, "other": "y", "replace": [{**AT, "address": "decoder.blocks.0.attention.heads", "head": 5}]}),
    ("/patch", {**BODY, "other": "yz", "replace": [{**AT, "address": "decoder.blocks.0.attention.weights"}]}),
]


def test_wrong_requests_get_the_servers_sentences(page: Any) -> None:
    found = compare(page, make_pipeline("decoder", {}), [(f"/v1/look{path}", body) for path, body in WRONG])
    assert all("error" in one for one in found)
    encoder = make_pipeline("encoder", {})
    assert ask(page, encoder, [("/v1/look", {**BODY, "model": "n"})]) == [
        {"error": "There is no model with this name. Available: m.", "status": 404}
    ]
    found = compare(page, encoder, [("/v1/look/next", BODY), ("/v1/look", {**BODY, "target": "y"})])
    assert all("error" in one for one in found)
