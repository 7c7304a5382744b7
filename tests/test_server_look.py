"""Looks inside a model and at training runs: maps, tensors, blocks, ablations, curves."""

from __future__ import annotations

import base64
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundles import byte_tokenizer, make_bundle
from pydantic import ValidationError

import chumoku
from chumoku.errors import AddressError, UsageError
from chumoku.inspect_prompt import question
from chumoku.models.build import build
from chumoku.models.config import SCORE_POSITIONS, ModelConfig
from chumoku.nn.quantized import Int8
from chumoku.nn.tap import addresses
from chumoku.pipeline import Pipeline
from chumoku.probe import json_values, lens
from chumoku.probe.forward_pass import run_and_record
from chumoku.probe.patching import patch
from chumoku.server import checkpoints, lab, runs
from chumoku.server.look import schemas as schemas
from chumoku.server.look import views
from chumoku.server.runs import Runs, UnknownRun

TEXT = "猫 cat"


def pipeline(kind: str, *, seed: int = 3, spread: float = 5.0, **changes: Any) -> Pipeline:
    tokenizer = byte_tokenizer()
    sizes = {"width": 30, "heads": 5, "layers": 2, "context": 61, "vocabulary": tokenizer.size + 3}
    model = build(ModelConfig(**{"kind": kind, **sizes, **changes}), seed=seed).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(spread if weight.ndim > 1 else 1)
    return Pipeline(model, tokenizer, tokenizer)


@pytest.fixture(scope="module")
def decoder() -> Pipeline:
    return pipeline("decoder", tie_output=False, spread=9.0)


@pytest.fixture(scope="module")
def translator() -> Pipeline:
    return pipeline("encoder-decoder", encoder_layers=3, tie_output=False, spread=9.0)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "text": TEXT, **fields}


def unpack(one: dict[str, Any]) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(one["weights"]), dtype="<u2") / 65535
    return flat.reshape(one["layers"], one["heads"], len(one["rows"]), len(one["columns"]))


def as_json(result: dict[str, Any]) -> dict[str, Any]:
    """The value after a round trip through strict JSON, which has no NaN."""
    text = json.dumps(result, allow_nan=False)
    assert len(text) < 9_000_000
    return json.loads(text)


SCHEMAS: dict[str, Any] = {"tensor": schemas.Tensor, "block": schemas.Block, "look": schemas.Look}
SCHEMAS |= {"ablate": schemas.Ablate, "effects": schemas.Effects, "next_tokens": schemas.Next, "patch": schemas.Patch}


def view(one: Pipeline, name: str, **fields: Any) -> dict[str, Any]:
    """A view of the server as the page gets it."""
    return as_json(getattr(views, name)(one, SCHEMAS.get(name, schemas.PromptRequest)(**body(**fields))))


VARIANTS = {
    "rotary": ("decoder", {}),
    "rotary half, shared heads": ("decoder", {"width": 36, "heads": 6, "kv_heads": 3, "pairing": "half"}),
    "relative": ("decoder", {"position": "relative", "relative_clip": 3}),
    "learned, after the sum": ("decoder", {"position": "learned", "placement": "post", "feedforward": "swiglu"}),
    "encoder": ("encoder", {"position": "sinusoidal", "norm": "rms"}),
    "relative encoder": ("encoder", {"position": "relative", "head": "vector"}),
    "translator": ("encoder-decoder", {"position": "relative"}),
    "relative_bias": ("decoder", {"position": "relative_bias", "relative_buckets": 7, "relative_max_distance": 11}),
    "alibi, window": ("decoder", {"position": "alibi", "attention_window": 2}),
    "window encoder": ("encoder", {"position": "sinusoidal", "attention_window": 2}),
    "experts": ("decoder", {"experts": 3, "position": "none", "kv_heads": 1}),
    "parallel, one norm": ("decoder", {"parallel": True, "shared_norm": True}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_block_equals_the_forward_pass(variant: str) -> None:
    kind, changes = VARIANTS[variant]
    one = pipeline(kind, **changes)
    model, config = one.model, one.config
    part = "encoder" if kind == "encoder" else "decoder"
    target = {} if kind == "encoder" else {"target": "xyz!"}
    for layer, head, place in ((0, 3, 2), (1, 4, 3)):
        result = view(one, "block", **target, part=part, layer=layer, head=head, place=place)
        ids, _ = question(one, TEXT, target.get("target"), None)
        _, tape = run_and_record(model, ids.tokens, source=ids.source)
        here = f"{part}.blocks.{layer}"
        groups = [(result, f"{here}.attention")]
        if kind == "encoder-decoder":
            groups.append((result["cross"], f"{here}.cross_attention"))
        for numbers, address in groups:
            recorded = tape[f"{address}.weights"][0, head, place].double()
            assert torch.allclose(torch.tensor(numbers["weights"]).double(), recorded, atol=1e-5)
            heads = tape[f"{address}.heads"][0, head, place].double()
            assert torch.allclose(torch.tensor(numbers["context"]).double(), heads, rtol=1e-4, atol=1e-4)
            scaled = torch.tensor(numbers["scores"]) / math.sqrt(config.key_width)
            assert torch.allclose(scaled, torch.tensor(numbers["scaled"]), rtol=1e-4, atol=1e-5)
            assert len(numbers["keys"]) == len(numbers["values"]) == len(numbers["masked"]) == len(recorded)
            assert [weight == 0 for weight in numbers["weights"]] >= numbers["masked"]
        far = config.attention_window or len(result["weights"])
        hidden = [
            (key > place and part == "decoder") or abs(key - place) >= far for key in range(len(result["weights"]))
        ]
        assert result["masked"] == hidden
        assert (result["bias"] is not None) == (config.position in SCORE_POSITIONS)
        pairs = {"input": f"{part}.embedding" if layer == 0 else f"{part}.blocks.{layer - 1}.output"}
        norm2 = "attention_norm" if config.shared_norm else "feedforward_norm"
        pairs |= {"norm1": f"{here}.attention_norm", "norm2": f"{here}.{norm2}", "out": f"{here}.output"}
        pairs |= {"output": f"{here}.attention.output", "feedforward": f"{here}.feedforward.output"}
        for name, address in pairs.items():
            expected = tape[address][0, place].double()
            assert torch.allclose(torch.tensor(result[name]).double(), expected[:64], rtol=1e-4, atol=1e-4), name
        assert result["norms"]["input"] == pytest.approx(float(tape[pairs["input"]][0, place].norm()), rel=1e-4)
        last = result.get("after_cross", result["after_attention"])
        if config.placement == "pre":
            whole = torch.tensor(last) + torch.tensor(result["feedforward"])
            assert torch.allclose(whole, torch.tensor(result["out"]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "relative", "relative_bias", "alibi", "none"])
def test_position_tables_are_named_by_the_setting(position: str) -> None:
    table = view(pipeline("decoder", position=position), "look", new=0, lens=False)["positions"]
    assert table["kind"] == position, "the page has a text for each"
    assert (table["table"] is None) == (position == "none")


def test_block_embedding_and_position() -> None:
    one = pipeline("decoder", position="learned", scale_embedding=True)
    result = view(one, "block", target="ab", part="decoder", layer=0, head=0, place=2)
    total = torch.tensor(result["embedding"]["token"]) + torch.tensor(result["embedding"]["position"])
    assert torch.allclose(total, torch.tensor(result["input"]), rtol=1e-4, atol=1e-4)
    result = view(pipeline("decoder"), "block", part="decoder", layer=0, head=0, place=2)
    assert result["embedding"].keys() == {"token", "position"}
    assert result["embedding"]["position"] is None


def test_look_maps_equal_the_forward_pass(translator: Pipeline) -> None:
    result = view(translator, "look", target="xyz")
    assert result["output"] == "xyz"
    assert result["then"]["text"] == "</s>"
    assert [one["key"] for one in result["maps"]][:3] == ["encoder", "decoder", "cross"]
    ids = [number for number, _ in result["tokens"]]
    _, tape = run_and_record(translator.model, ids, source=[number for number, _ in result["source"]])
    for one, address in zip(
        result["maps"], ("encoder.{}.attention", "decoder.{}.attention", "decoder.{}.cross_attention"), strict=False
    ):
        for layer in range(one["layers"]):
            expected = tape[address.format(f"blocks.{layer}") + ".weights"][0].numpy()
            assert np.abs(unpack(one)[layer] - expected).max() <= 0.5 / 65535 + 1e-6
        assert one["nan"] is None
    single = view(translator, "look", target="xyz", layer=1, maps=["cross"], lens=False)
    assert [one["key"] for one in single["maps"]] == ["cross"]
    assert (single["maps"][0]["layers"], single["maps"][0]["first_layer"], single["lens"]) == (1, 1, None)
    whole = next(one for one in result["maps"] if one["key"] == "cross")
    assert np.array_equal(unpack(single["maps"][0])[0], unpack(whole)[1])


def test_target_may_be_token_ids(decoder: Pipeline, translator: Pipeline) -> None:
    for one in (decoder, translator):
        wrote = view(one, "look", new=7)
        ids = [number for number, _ in wrote["tokens"]][wrote["first"] :]
        if wrote["then"] is not None:
            ids.append(wrote["then"]["id"])
        again = view(one, "look", target=ids)
        assert {**again, "maps": 0} == {**wrote, "maps": 0}
        assert [m["weights"] for m in again["maps"]] == [m["weights"] for m in wrote["maps"]]
        with pytest.raises(UsageError, match="There is no token 99999"):
            view(one, "look", target=[99999])
    ended = view(translator, "look", target=[30, 31, 2])
    assert (len(ended["tokens"]), ended["then"]["id"]) == (3, 2)
    assert view(translator, "look", target=[30, 31])["then"] is None


def test_one_layer_allows_longer_texts() -> None:
    one = pipeline("decoder", width=14, heads=7, context=9999, layers=3)
    text = "ab" * 400
    result = view(one, "look", text=text, new=0)
    assert len(result["tokens"]) == 128
    assert "only the last" in result["notices"][0][0]
    assert "トークン" in result["notices"][0][1]
    result = view(one, "look", text=text, new=0, layer=2, lens=False)
    assert len(result["tokens"]) == 512
    wide = pipeline("decoder", width=62, heads=31, context=9999, layers=7)
    result = view(wide, "look", text=text, new=0, lens=False)
    assert len(result["tokens"]) == 117, "no more than 8 MB"


def test_nan_is_shown_as_nan() -> None:
    one = pipeline("decoder")
    with torch.no_grad():
        one.model.decoder.blocks[0].feedforward.down.weight[0, 0] = math.nan
    result = view(one, "look")
    assert any("NaN" in english for english, _ in result["notices"])
    only = result["maps"][0]
    odd = np.unpackbits(np.frombuffer(base64.b64decode(only["nan"]), np.uint8), bitorder="little")
    odd = odd[: only["layers"] * only["heads"] * len(only["rows"]) ** 2].reshape(2, 5, len(only["rows"]), -1)
    assert not odd[0].any()
    assert odd[1, 0].any()
    assert result["entropy"]["decoder"][1][0] == "NaN"
    block = view(one, "block", new=0, part="decoder", layer=1, head=0, place=2)
    assert "NaN" in block["weights"]
    table = view(one, "tensor", new=0, address="decoder.blocks.1.output")
    assert table["odd"] > 0
    following = view(one, "next_tokens")
    assert following["candidates"][0]["logit"] == "NaN"
    assert view(one, "ablate", off=[{"part": "decoder", "layer": 0, "head": 1}])["change"] == "NaN"


def test_tensor_by_address(translator: Pipeline) -> None:
    base = {"target": "xyz"}
    ids, _ = question(translator, TEXT, "xyz", None)
    _, tape = run_and_record(translator.model, ids.tokens, source=ids.source)
    for address in view(translator, "addresses", **base)["addresses"]:
        result = view(translator, "tensor", **base, address=address, head=3)
        whole = tape[address][0]
        table = whole[3] if whole.ndim == 3 else whole
        assert result["shape"] == list(whole.shape)
        assert torch.allclose(torch.tensor(result["shown"]), table[:64, :64], rtol=1e-4, atol=1e-5)
        assert result["least"] == pytest.approx(float(table.min()), rel=1e-4)
        assert result["rows"] is not None
        assert len(result["rows"]) == len(result["shown"])
        if address.endswith("weights"):
            assert len(result["columns"]) == len(result["shown"][0])
    keys = view(translator, "tensor", **base, address="decoder.blocks.1.cross_attention.keys")
    assert keys["rows"] == ids.source_names
    assert view(translator, "tensor", **base, address="decoder.blocks.1.output", row=2)["rows"] == ["y"]
    shared = pipeline("decoder", width=36, heads=6, kv_heads=3)
    result = view(shared, "tensor", **base, address="decoder.blocks.0.attention.keys", head=3)
    ids, _ = question(shared, TEXT, "xyz", None)
    expected = run_and_record(shared.model, ids.tokens)[1]["decoder.blocks.0.attention.keys"][0, 1]
    assert torch.allclose(torch.tensor(result["shown"]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("work", "fields", "sentence"),
    [
        ("tensor", {"address": "decoder.blocks.0.attention.query"}, "Did you mean decoder.blocks.0.attention.queries"),
        ("tensor", {"address": "decoder.blocks.*.output"}, "This model has no address"),
        ("tensor", {"address": "decoder.norm", "row": 99}, "There is no row 99"),
        ("tensor", {"address": "decoder.blocks.0.attention.keys", "head": 5}, "There is no head 5: this model has 5"),
        ("block", {"part": "encoder", "layer": 0, "head": 0, "place": 0}, "of kind 'decoder' has no encoder"),
        ("block", {"part": "decoder", "layer": 2, "head": 0, "place": 0}, "There is no layer 2"),
        ("block", {"part": "decoder", "layer": 0, "head": 5, "place": 0}, "There is no head 5"),
        ("block", {"part": "decoder", "layer": 0, "head": 0, "place": 90}, "There is no place 90"),
        ("look", {"layer": 2}, "There is no layer 2"),
        ("ablate", {"off": [{"part": "decoder", "layer": 0}]}, "Each entry of 'off' must have either"),
        ("ablate", {"off": [{"part": "decoder", "layer": 0, "head": 1, "cross": True}]}, "has no cross-attention"),
        ("ablate", {"off": [{"part": "decoder", "layer": 0, "head": 9}]}, "There is no head 9"),
    ],
)
def test_missing_parts_are_named(decoder: Pipeline, work: str, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises((AddressError, UsageError), match=sentence.replace("*", r"\*")):
        view(decoder, work, **fields)


def test_encoder_has_no_next_token_and_no_target() -> None:
    one = pipeline("encoder")
    with pytest.raises(UsageError, match="predicts no next token"):
        view(one, "next_tokens")
    with pytest.raises(UsageError, match="An encoder generates no text"):
        view(one, "look", target="x")


@pytest.mark.parametrize(
    "fields",
    [
        {"text": ""},
        {"text": "x" * 100_001},
        {"new": 65},
        {"new": True},
        {"unknown": 1},
        {"target": [1] * 1025},
        {"target": [-1]},
        {"maps": ["other"]},
        {"layer": -1},
        {"layer": 1.5},
        {"text": "\ud800"},
    ],
)
def test_requests_are_bounded(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        schemas.Look(**body(**fields))


def test_tokens_without_a_forward_pass(
    decoder: Pipeline, translator: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in (decoder, translator):
        monkeypatch.setattr(type(one.model), "forward", None)
    result = view(decoder, "tokens")
    assert [one["id"] for one in result["tokens"]] == decoder.tokenizer.encode(TEXT)
    result = view(translator, "tokens", target="xy")
    assert [one["text"] for one in result["tokens"]] == ["x", "y"]
    assert [one["id"] for one in result["source"]] == [*translator.tokenizer.encode(TEXT), 2]


def test_next_tokens(decoder: Pipeline, translator: Pipeline) -> None:
    result = view(decoder, "next_tokens", count=11)
    tokens = torch.tensor([decoder.tokenizer.encode(TEXT)])
    logits = decoder.model(tokens).logits[0, -1].detach().double()
    best = logits.topk(11)
    assert [one["id"] for one in result["candidates"]] == best.indices.tolist()
    assert [one["logit"] for one in result["candidates"]] == pytest.approx(best.values.tolist(), rel=1e-4)
    known = torch.tensor([one["logit"] for one in result["candidates"]] + [result["rest"]]).double()
    assert float(known.logsumexp(0)) == pytest.approx(float(logits.logsumexp(0)), rel=1e-5)
    assert result["vocabulary"] == decoder.config.vocabulary
    result = view(translator, "next_tokens", target="x", count=3)
    source = torch.tensor([[*translator.tokenizer.encode(TEXT), 2]])
    target = torch.tensor([[1, *translator.tokenizer.encode("x")]])
    assert target[0, 0] == translator.tokenizer.roles.begin
    expected = translator.model(source, target).logits[0, -1].topk(3).indices.tolist()
    assert [one["id"] for one in result["candidates"]] == expected
    whole = pipeline("decoder", vocabulary=byte_tokenizer().size)
    assert whole.config.vocabulary > 200
    assert view(whole, "next_tokens", count=200)["rest"] != "-Infinity"


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_ablation_changes_the_text(kind: str, decoder: Pipeline, translator: Pipeline) -> None:
    one = decoder if kind == "decoder" else translator
    cross = kind == "encoder-decoder"
    heads = [{"part": "decoder", "layer": 1, "head": head, "cross": cross} for head in (3, 1)]
    result = view(one, "ablate", new=7, off=heads)
    ids, _ = question(one, TEXT, None, 7)
    address = f"decoder.blocks.1.{'cross_attention' if cross else 'attention'}.heads"
    change = patch(one.model, address, torch.zeros_like, ids.tokens, source=ids.source, heads=[3, 1])
    places = range(ids.prompt_length - 1, len(ids.tokens))
    bits = [float(change.effects[0, place]) / math.log(2) for place in places]
    assert [part["bits"] for part in result["places"]] == pytest.approx(bits, rel=1e-3, abs=1e-6)
    assert result["change"] == pytest.approx(sum(bits) / len(bits), rel=1e-3)
    assert max(bits) > 0.01
    chances = change.after[0, ids.prompt_length - 1].softmax(-1).topk(5)
    assert [one["id"] for one in result["after"]["candidates"]] == chances.indices.tolist()
    plain = (
        one.translate(TEXT, beam=1, max_new_tokens=7) if cross else one.generate(TEXT, max_new_tokens=7, temperature=0)
    )
    assert result["before"]["output"] == plain
    every = view(one, "ablate", new=7, off=[{"part": "decoder", "layer": 0, "feedforward": True}])
    assert every["after"]["output"] != every["before"]["output"]
    again = view(one, "look", new=7)
    assert again["output"] == plain, "switched on again"


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_patching_copies_places_of_another_text(kind: str, decoder: Pipeline, translator: Pipeline) -> None:
    one = decoder if kind == "decoder" else translator
    stack = "decoder" if kind == "decoder" else "encoder"
    heads, output = f"{stack}.blocks.0.attention.heads", f"{stack}.blocks.0.output"
    ids, _ = question(one, TEXT, None, 3)
    other, _ = question(one, "犬 dog", ids.tokens[ids.prompt_length :], 3)
    _, tape = run_and_record(one.model, other.tokens, heads, output, source=other.source)
    for address, head in ((heads, 2), (heads, None), (output, None)):
        replace = [{"address": address, "place": place, "head": head} for place in (1, 3)]
        result = view(one, "patch", new=3, other="犬 dog", replace=replace)
        chosen = None if head is None else [head]
        change = patch(one.model, address, tape, ids.tokens, source=ids.source, positions=[1, 3], heads=chosen)
        bits = [
            float(change.effects[0, place]) / math.log(2) for place in range(ids.prompt_length - 1, len(ids.tokens))
        ]
        assert [part["bits"] for part in result["places"]] == pytest.approx(bits, rel=1e-3, abs=1e-6)
        assert max(bits) > 1e-4
    most = max(range(len(bits)), key=bits.__getitem__)
    assert result["place"] == ids.prompt_length - 1 + most
    before = view(one, "look", new=3)["words"][most]["candidates"]
    assert [one["text"] for one in result["before"]["candidates"]] == [name for name, _ in before]


def test_patching_all_places_gives_the_output_of_the_other_text(decoder: Pipeline) -> None:
    last = "decoder.blocks.1.output"
    moved = {"address": last, "place": 6, "other_place": 2}
    result = view(decoder, "patch", new=0, other="dog", replace=[moved])
    assert result["after"] == result["other"] != result["before"]
    following = view(decoder, "next_tokens", text="dog", count=5)
    assert [one["id"] for one in result["other"]["candidates"]] == [one["id"] for one in following["candidates"]]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"address": "decoder.blocks.0.outputs", "place": 0}, "Did you mean decoder.blocks.0.output"),
        ({"address": "decoder.blocks.0.output", "place": 7}, "There is no position 7 at decoder.blocks.0.output"),
        ({"address": "decoder.blocks.0.output", "place": 4}, "There is no position 4 at decoder.blocks.0.output"),
        ({"address": "decoder.norm", "place": 0, "head": 1}, "decoder.norm has no heads to choose from"),
        ({"address": "decoder.blocks.0.attention.heads", "place": 0, "head": 5}, "There is no head 5"),
        ({"address": "decoder.blocks.0.attention.keys", "place": 0}, "can be recorded but not replaced"),
        ({"address": "decoder.blocks.0.attention.weights", "place": 0}, "with the same number of tokens"),
    ],
)
def test_patching_names_what_is_wrong(decoder: Pipeline, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        view(decoder, "patch", new=0, other="dogs", replace=[fields])


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_effects_of_a_layer_equal_ablations(part: str, translator: Pipeline) -> None:
    result = view(translator, "effects", new=7, part=part, layer=1)
    effects = [one["effect"] for one in result["effects"]]
    assert effects == sorted(effects, reverse=True)
    assert len(effects) == translator.config.heads * (2 if part == "decoder" else 1) + 1, "heads and the feed-forward"
    for one in (result["effects"][0], result["effects"][-1]):
        alone = view(translator, "ablate", new=7, off=[one["part"]])
        assert one["effect"] == pytest.approx(alone["change"], rel=1e-3)
        assert result["measure"] == alone["measure"]


def test_ablation_of_encoders() -> None:
    one = pipeline("encoder", head="vector")
    off = [{"part": "encoder", "layer": 0, "head": 2}]
    result = view(one, "ablate", off=off)
    assert result["measure"] == "cosine"
    assert 0 < result["change"] < 2
    every = view(one, "effects", part="encoder", layer=0)
    assert every["measure"] == "cosine"
    assert {"part": off[0], "effect": pytest.approx(result["change"], rel=1e-3)} in every["effects"]
    masked = pipeline("encoder")
    result = view(masked, "ablate", text="ab<mask>c", off=off)
    assert [part["place"] for part in result["places"]] == [2]
    assert len(result["after"]["candidates"]) == 5


@pytest.mark.parametrize("head", ["classes", "tags"])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_models_with_labels_predict_no_tokens(kind: str, head: str) -> None:
    one = pipeline(kind, head=head, labels=("a", "b", "c"))
    result = view(one, "look")
    assert (result["words"], result["lens"], result["output"]) == ([], None, "")
    assert result["entropy"][kind]
    result = view(one, "ablate", off=[{"part": kind, "layer": 0, "head": 2}])
    assert result["change"] > 0
    assert result["before"]["candidates"] == []
    result = view(one, "tensor", address="logits")
    assert (result["rows"] is None) == (head == "classes")
    with pytest.raises(UsageError, match=f"with the head '{head}' predicts no next token"):
        view(one, "next_tokens")


@pytest.mark.parametrize("length", [7, 43])
@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder-decoder"])
def test_lens_dequantizes_the_output_matrix_once(
    kind: str, length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_bundle(tmp_path / "model", kind, layers=5, width=96, heads=3)
    model = chumoku.load(path, precision="int8").model
    tokens = [5 + place % 200 for place in range(length)]
    source = tokens[:3] if kind == "encoder-decoder" else None
    output, tape = run_and_record(model, tokens, source=source)
    assert output.logits is not None
    size, dequantized, calls = model.config.vocabulary, Int8.dequantize, [0]

    def dequantize_and_count(self: Int8) -> torch.Tensor:
        calls[0] += len(self.scale) == size
        return dequantized(self)

    monkeypatch.setattr(Int8, "dequantize", dequantize_and_count)
    checks: list[int] = []
    found = lens.apply_lens(model, tape, best=3, check_interrupt=lambda: checks.append(1))
    assert calls[0] <= 1, "all layers share the output matrix"
    assert len(checks) == len(found.addresses) == 6
    for place, address in enumerate(found.addresses):
        likely = lens.compute_logits(model, tape[address]).softmax(-1)
        assert torch.allclose(found.probabilities[place], likely.topk(3).values, atol=1e-6)
    said = output.logits.softmax(-1).amax(-1)
    assert torch.allclose(found.final[-1], said, atol=1e-6), "the last layer equals the output"


# Runs


def line(step: int, **more: Any) -> str:
    return json.dumps({"step": step, "loss": 1 / step, "rate": 0.1, "norm": 2.0, "tokens_per_second": 7.0, **more})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "one"
    for step in (30, 50):
        make_bundle(run / "checkpoints" / f"step-{step:08}", "decoder")
    (run / "checkpoints" / "step-00000070.writing").mkdir()
    lines = [line(step) for step in range(10, 51, 10)] + [json.dumps({"step": 50, "validation_loss": 0.7})]
    (run / "metrics.jsonl").write_text("\n".join([*lines, "{cut", '{"step": "x"}', "[]", '{"st']) + "", "utf-8")
    (run / "recipe.json").write_text(
        json.dumps({"model": {"kind": "decoder", "heads": 3}, "train": {"steps": 90}}), "utf-8"
    )
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "metrics.jsonl").write_text(line(1) + "\n", "utf-8")
    os.symlink(tmp_path / "elsewhere", tmp_path / "runs" / "link")
    return tmp_path / "runs"


def look_at(seen: Runs, request: schemas.RunLook) -> dict[str, Any]:
    return seen.look(seen.open_model("one", request.checkpoint), request)


def test_runs_are_listed(folder: Path) -> None:
    (only,) = Runs(folder).list_runs()["runs"]
    updated = only.pop("updated")
    assert abs(updated - time.time()) < 60
    assert only == {
        **{"id": "one", "kind": "decoder", "steps": 50, "planned": 90, "live": True, "checkpoints": [30, 50]},
        **{"skipped": 3, "layers": None, "encoder_layers": None, "heads": 3},
    }
    old = time.time() - 1000
    os.utime(folder / "one" / "metrics.jsonl", (old, old))
    assert Runs(folder).list_runs()["runs"][0]["live"] is False
    assert Runs(folder / "none").list_runs() == {"runs": []}


def test_points_of_a_run(folder: Path) -> None:
    seen = Runs(folder)
    result = as_json(seen.points("one"))
    assert [point["step"] for point in result["points"]] == [10, 20, 30, 40, 50]
    assert result["points"][-1] == {
        **{"step": 50, "loss": 0.02, "rate": 0.1, "norm": 2.0, "tokens_per_second": 7.0},
        "validation": 0.7,
    }
    assert (result["total"], result["skipped"]) == (5, 3)
    assert [point["step"] for point in seen.points("one", after=30)["points"]] == [40, 50]
    with (folder / "one" / "metrics.jsonl").open("a", encoding="utf-8") as stream:
        stream.write("\n" + json.dumps({"step": 60, "loss": None}) + "\n" + '{"step": 70, "loss": 1e400}\n')
    later = as_json(seen.points("one", after=50))["points"]
    assert later == [{"step": 60, "loss": "NaN"}, {"step": 70, "loss": "Infinity"}]


def test_non_finite_numbers_in_metrics(folder: Path) -> None:
    huge = "9" * 400
    lines = (
        '"loss": NaN',
        '"loss": Infinity',
        '"loss": -Infinity',
        f'"loss": {huge}',
        f'"loss": -{huge}',
        '"loss": 1e301',
    )
    text = "".join(f'{{"step": {number}, {field}}}\n' for number, field in enumerate(lines, start=1))
    (folder / "one" / "metrics.jsonl").write_text(text, "utf-8")
    losses = [point["loss"] for point in as_json(Runs(folder).points("one"))["points"]]
    assert losses == ["NaN", "Infinity", "-Infinity", "Infinity", "-Infinity", "Infinity"]


def test_symbolic_links_out_of_a_run_are_not_followed(folder: Path, tmp_path: Path) -> None:
    recipe = folder / "one" / "recipe.json"
    recipe.rename(tmp_path / "recipe.json")
    recipe.symlink_to(tmp_path / "recipe.json")
    assert Runs(folder).list_runs()["runs"][0]["planned"] is None
    file = folder / "one" / "checkpoints" / "step-00000030" / "tokenizer.json"
    file.rename(tmp_path / "tokenizer.json")
    file.symlink_to(tmp_path / "tokenizer.json")
    base = {"text": "abc", "target": "de", "map": "decoder", "layer": 1, "head": 2}
    with pytest.raises(UsageError, match="This checkpoint cannot be read") as refused:
        look_at(Runs(folder), schemas.RunLook(checkpoint=30, **base))
    assert str(tmp_path) not in str(refused.value)
    assert look_at(Runs(folder), schemas.RunLook(checkpoint=50, **base))["step"] == 50
    (tmp_path / "elsewhere" / "report.html").write_text("<p>", "utf-8")
    (folder / "lab").symlink_to(tmp_path / "elsewhere")
    assert lab.read_report(folder / "lab") is None
    assert not lab.report_exists(folder / "lab")


def test_unreadable_run_does_not_hide_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("locked", "vanishing"):
        (folder / name).mkdir()
        (folder / name / "metrics.jsonl").write_text(line(1) + "\n", "utf-8")
    there, opened = Path.exists, checkpoints.open_regular

    def exists(self: Path) -> bool:
        if self.parent.name == "locked":
            raise PermissionError(13, "Permission denied", str(self))
        return there(self)

    def vanished(path: Path) -> Any:
        if path.parent.name == "vanishing":
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return opened(path)

    monkeypatch.setattr(Path, "exists", exists)
    monkeypatch.setattr(runs, "open_regular", vanished)
    assert [run["id"] for run in Runs(folder).list_runs()["runs"]] == ["one"]
    with pytest.raises(UnknownRun, match="The run vanishing cannot be read"):
        Runs(folder).points("vanishing")


def test_hostile_metrics_are_cheap(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "one" / "metrics.jsonl"
    path.write_text("[" * 100_000 + "\n" + line(3) + "\n" + '{"step": 1e999}\n{"step": true, "loss": 1}\n', "utf-8")
    assert [point["step"] for point in Runs(folder).points("one")["points"]] == [3]
    path.write_text("\n".join(line(step) for step in range(1, 5000)) + "\n", "utf-8")
    result = Runs(folder).points("one")
    assert result["total"] == 4999
    assert len(result["points"]) <= runs.MAX_POINTS
    assert result["points"][-1]["step"] == 4999
    assert len(runs.read_points(path, max_bytes=1000)[0]) < 12
    (folder / "one" / "recipe.json").write_text("[1]", "utf-8")
    assert Runs(folder).list_runs()["runs"][0]["planned"] is None


@pytest.mark.parametrize("name", ["../elsewhere", "link", "empty", "", "one/../one", "x" * 300])
def test_runs_are_found_by_name_only(folder: Path, name: str) -> None:
    with pytest.raises(UnknownRun, match="There is no run"):
        Runs(folder).points(name)


def test_attention_of_a_checkpoint(folder: Path) -> None:
    seen = Runs(folder)
    base = {"text": "abc", "target": "de", "map": "decoder", "layer": 1, "head": 2}
    result = as_json(look_at(seen, schemas.RunLook(checkpoint=30, **base)))
    pipeline_ = chumoku.load(folder / "one" / "checkpoints" / "step-00000030")
    ids, _ = question(pipeline_, "abc", "de", None)
    expected = run_and_record(pipeline_.model, ids.tokens)[1]["decoder.blocks.1.attention.weights"][0, 2].numpy()
    assert np.abs(unpack({**result, "layers": 1, "heads": 1})[0, 0] - expected).max() < 1e-4
    assert result["rows"] == list("abcde")
    with pytest.raises(UnknownRun, match=r"no checkpoint of step 70\. It has 30, 50"):
        look_at(seen, schemas.RunLook(checkpoint=70, **base))
    with pytest.raises(UsageError, match="has no cross-attention"):
        look_at(seen, schemas.RunLook(checkpoint=50, **{**base, "map": "cross"}))
    with pytest.raises(UsageError, match="There is no head 3"):
        look_at(seen, schemas.RunLook(checkpoint=50, **{**base, "head": 3}))


def test_only_a_few_checkpoints_are_cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    load = checkpoints.bundle.load
    monkeypatch.setattr(checkpoints.bundle, "load", lambda path: opened.append(path) or load(path))
    monkeypatch.setattr(checkpoints, "MAX_CACHED", 1)
    seen = Runs(folder)
    base = {"text": "abc", "target": "de", "map": "decoder", "layer": 1, "head": 2}
    for step in (30, 30, 50, 30):
        look_at(seen, schemas.RunLook(checkpoint=step, **base))
    assert [path.name[-2:] for path in opened] == ["30", "50", "30"]


def test_report_has_its_own_policy(tmp_path: Path) -> None:
    assert lab.read_report(tmp_path) is None
    (tmp_path / "report.html").write_text("<style>b{}</style><script>1</script>", "utf-8")
    found = lab.read_report(tmp_path)
    assert found is not None
    assert found.policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "script" not in found.policy
    assert found.policy.endswith("frame-ancestors 'self'")
    assert found.html == (tmp_path / "report.html").read_bytes()


def test_non_finite_numbers_become_strings() -> None:
    assert [json_values.json_number(one) for one in (1 / 3, math.nan, math.inf, -math.inf)] == [
        *(0.333333, "NaN", "Infinity", "-Infinity")
    ]
    assert json_values.replace_non_finite({"a": [math.nan, (1.0, "x")]}) == {"a": ["NaN", [1.0, "x"]]}
    assert len(addresses(pipeline("decoder").model)) > 20
