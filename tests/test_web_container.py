"""The container of a web page, which JavaScript reads and computes with; a damaged one is refused with a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from web_models import VOCABULARY, build_random, floats_to_text, text_to_floats, to_tensor, to_text, twin_page

from chumoku import lora
from chumoku.errors import UsageError
from chumoku.lora.settings import LoraSettings
from chumoku.models.build import build
from chumoku.models.config import ModelConfig
from chumoku.models.heads import CLASSIFIERS
from chumoku.models.precision import to_precision
from chumoku.nn.quantized import quantize
from chumoku.web.container import ALIGNMENT, _Data, _Stored, prepare_model, write_container

READ = """
(text) => {
  const container = new modules.Container(toBytes(text));
  const tensors = [...container.entries.keys()].map((name) => {
    const { kind, shape, data, q, groups, scale } = container.tensor(name);
    if (kind === "float32") return [name, send({ shape, data })];
    const numbers = Float32Array.from(q, (value, at) => value * scale[Math.floor(at / 32)]);
    return [name, send({ shape: [shape[0], groups * 32], data: numbers })];
  });
  return { header: { ...container.header, tensors: null }, tensors: Object.fromEntries(tensors) };
}
"""
# Every result must be a container whose tensors can be read, or a refusal.
DAMAGE = """
({ text, cuts, headers }) => {
  const bytes = toBytes(text);
  const encode = (header) => {
    const json = new TextEncoder().encode(header);
    const whole = new Uint8Array(8 + json.length + 4096);
    whole.set(new Uint8Array(bytes, 0, 4));
    new DataView(whole.buffer).setUint32(4, json.length, true);
    whole.set(json, 8);
    return whole.buffer;
  };
  const read = (given) => {
    try {
      const container = new modules.Container(given);
      for (const name of container.entries.keys()) container.tensor(name);
      return "read";
    } catch (error) {
      return `${error.name}: ${error.message}`;
    }
  };
  const other = new Uint8Array(bytes.slice(0));
  other[0] += 1;
  const entry = { kind: "float32", shape: [1], at: 0 };
  const tensors = Object.fromEntries(Array.from({ length: (1 << 17) + 1 }, (_, number) => [number, entry]));
  const many = encode(JSON.stringify({ format: 1, config: {}, tensors }));
  return [other.buffer, many, ...cuts.map((end) => bytes.slice(0, end)), ...headers.map(encode)].map(read);
}
"""


def tiny(**changes: Any) -> ModelConfig:
    sizes = {"vocabulary": VOCABULARY, "width": 10, "layers": 1, "heads": 5, "feedforward_width": 13}
    return ModelConfig(**{**sizes, **changes})


def header_of(content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(content[8 : 8 + int.from_bytes(content[4:8], "little")])
    return found


def test_tensors_are_read_as_they_were_written(browser: Any) -> None:
    parts: dict[str, Any] = {"tokenizer": {"a": "ä注"}, "generation": {"b": 2}, "checks": {"c": [3]}}
    with twin_page(browser) as page:
        for precision, width in (("float32", 10), ("int8", 10), ("int8", 64)):
            model = build_random(tiny(width=width, heads=width // 2), precision)
            content = write_container(model, name="x", **parts)
            found = page.evaluate(READ, to_text(content))
            assert found["header"] == {**header_of(content), "tensors": None}
            assert found["header"].items() >= {"precision": precision, "source_tokenizer": None, **parts}.items()
            state = model.state_dict()
            for name, received in found["tensors"].items():
                path, _, _ = name.rpartition(".")
                q, scale = state.get(f"{path}.q"), state.get(f"{path}.scale")
                quantized = q is not None and name.endswith((".weight", ".table"))
                expected = (q.float() * scale.float()[..., None]).flatten(1) if quantized else state[name]
                torch.testing.assert_close(to_tensor(received), expected, atol=0, rtol=0)


def test_one_tensor_with_two_names_is_stored_once() -> None:
    config = tiny(kind="encoder-decoder", width=64, heads=4, share_embeddings=True)
    content = write_container(prepare_model(build(config)), name="x")
    entries = header_of(content)["tensors"]
    names = ("encoder.embedding.table", "decoder.embedding.table", "head.weight")
    assert len({json.dumps(entries[name]) for name in names}) == 1
    places = [entry[key] for entry in entries.values() for key in ("at", "scale_at") if key in entry]
    assert all(place % 64 == 0 for place in places)
    assert len(content) < sum(64 + torch.tensor(entry["shape"]).prod() * 4 for entry in entries.values())


def test_int8_weights_stay_as_they_are() -> None:
    """A model that is int8 already is not rounded again."""
    once = prepare_model(build(tiny(width=64, heads=4)))
    twice = prepare_model(once)
    assert all(torch.equal(tensor, twice.state_dict()[name]) for name, tensor in once.state_dict().items())
    assert "decoder.embedding.q" in once.state_dict()


def test_damaged_containers_are_refused(browser: Any) -> None:
    content = write_container(build_random(tiny(), "int8"), name="x")
    header = header_of(content)
    name = "decoder.blocks.0.attention.query.weight"

    def changed(**entry: Any) -> str:
        return json.dumps({**header, "tensors": {name: {**header["tensors"][name], **entry}}})

    sizes = ([0, 10], [-10, 10], [1e300, 1e300], [2.5, 10], [10, "10"], [1 << 26, 1 << 26], [1] * 9)
    places = (None, -64, 3, "64", 1 << 30, 1e300)
    wrong = {
        "its header is not JSON": ["", "{"],
        "its header has no model": ["[]", "null", '{"format": 1}', json.dumps({**header, "tensors": []})],
        "its format is not 1": [json.dumps({**header, "format": 2})],
        "has no shape": [json.dumps({**header, "tensors": {name: None}}), *(changed(shape=one) for one in (None, "1"))],
        "is of an unknown kind": [
            *(changed(kind=kind) for kind in ("int4", None, 3)),
            *(changed(shape=shape) for shape in ([], [10])),
        ],
        "has a wrong shape": [changed(shape=shape) for shape in sizes],
        "is not inside the file": [
            *(changed(**{key: at}) for key in ("at", "scale_at") for at in places),
            changed(kind="float32", shape=[1, 2048], at=0),  # of 4 bytes each
        ],
    }
    headers = [(one, reason) for reason, some in wrong.items() for one in some]
    end = 8 + int.from_bytes(content[4:8], "little")
    cuts = [(at, "it is too short") for at in range(8)]
    cuts += [(at, "it ends inside its header") for at in (8, 11, end // 2, end - 7, end - 1)]
    cuts += [(at, "is not inside the file") for at in (end, (end + len(content)) // 2, len(content) - 64)]
    with twin_page(browser) as page:
        given = {"cuts": [at for at, _ in cuts], "headers": [text for text, _ in headers]}
        answers = page.evaluate(DAMAGE, {"text": to_text(content), **given})
        assert page.evaluate(READ, to_text(content))
    reasons = ["it is not a model", "it has too many tensors", *(reason for _, reason in (*cuts, *headers))]
    for answer, reason in zip(answers, reasons, strict=True):
        assert answer.startswith("ContainerError: This file is damaged or incomplete: ")
        assert answer.endswith(f"{reason}.")


def test_a_container_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_random(tiny(), "int8")
    size = len(write_container(model, name="x"))
    monkeypatch.setattr("chumoku.web.container.MAX_BYTES", size)
    assert len(write_container(model, name="x")) == size
    monkeypatch.setattr("chumoku.web.container.MAX_BYTES", size - 1)
    with pytest.raises(UsageError, match=f"a web page can hold at most {size - 1:,}"):
        write_container(model, name="x")


def test_a_tensor_and_its_first_part_have_their_own_places() -> None:
    data, whole = _Data(), torch.arange(37.0)
    entries = [data.add_tensor(_Stored(tuple(one.shape), one)) for one in (whole[:3], whole, whole[:3])]
    assert [entry["at"] for entry in entries] == [0, ALIGNMENT, 0]
    assert b"".join(data.pieces)[ALIGNMENT : ALIGNMENT + 4 * 37] == whole.numpy().tobytes()


def test_models_that_a_page_cannot_compute_are_refused() -> None:
    model = build(tiny())
    with pytest.raises(UsageError, match="int8 or float32 weights, not 'int4'"):
        prepare_model(model, "int4")
    with pytest.raises(UsageError, match="experts; choose float32"):
        prepare_model(build(tiny(experts=3)))
    adapted = build(tiny())
    lora.attach(adapted, LoraSettings(rank=3))
    with pytest.raises(UsageError, match=r"lora\.merged_copy"):
        prepare_model(adapted)
    model.decoder.norm.register_forward_hook(lambda *_: None)
    with pytest.raises(UsageError, match=r"decoder\.norm has a forward hook"):
        prepare_model(model)


def test_other_precisions_become_int8() -> None:
    model = build(tiny(width=32, heads=4, feedforward_width=64))
    for precision in ("bf16", "int4"):
        rounded = to_precision(model, precision, tables=True)
        weight = rounded.decoder.blocks[0].attention.query.float_weight()
        found = prepare_model(rounded).decoder.blocks[0].attention.query.stored_weight
        assert torch.equal(found.q, quantize(weight, "int8").q)


PARTS = """
({ container, x, inputs, numbers, kinds }) => {
  const model = openModel(container);
  const rows = toFloats(x).length / inputs;
  const name = "decoder.blocks.0.feedforward.up.weight";
  const products = Array.from({ length: rows }, (_, row) => {
    const data = modules.multiply(model.container.tensor(name), toFloats(x).subarray(0, (row + 1) * inputs), row + 1);
    return send({ shape: [row + 1, data.length / (row + 1)], data });
  });
  const activations = kinds.map((kind) => toBase64(modules.activate(toFloats(numbers), modules.ACTIVATIONS[kind].f)));
  const halves = toBase64(Float32Array.from({ length: 65536 }, (_, bits) => modules.halfToFloat(bits)));
  return { products, activations, halves };
}
"""


def test_products_activations_and_half_precision(browser: Any) -> None:
    """Each part alone, where an error of rounding is not lost among those of the others."""
    config = ModelConfig(vocabulary=VOCABULARY, width=38, layers=1, heads=1, feedforward_width=13, bias=False)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(6, 38, generator=generator) * torch.logspace(-3, 3, 38)
    x[2, :32] = 0.0
    x[3, :32] = torch.arange(32) + 0.5  # with the next line, halfway between two of the levels
    x[3, 0] = 32512.0
    numbers = torch.linspace(-9, 9, 4001)
    kinds = list(CLASSIFIERS)
    with twin_page(browser) as page:
        for precision in ("float32", "int8"):
            model = build_random(config, precision)
            given = {"container": to_text(write_container(model, name="tiny")), "inputs": 38, "kinds": kinds}
            found = page.evaluate(PARTS, {**given, "x": floats_to_text(x), "numbers": floats_to_text(numbers)})
            expected = model.decoder.blocks[0].feedforward.up(x)
            for rows, product in enumerate(found["products"], start=1):
                for one, other in zip(to_tensor(product), expected[:rows], strict=True):
                    assert float((one - other).abs().max() / other.abs().max()) < 1e-6
    for kind, values in zip(kinds, found["activations"], strict=True):
        expected = CLASSIFIERS[kind](numbers.double()).float()
        torch.testing.assert_close(text_to_floats(values), expected, atol=1e-6, rtol=1e-6)
    bits = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    torch.testing.assert_close(
        text_to_floats(found["halves"]), bits.view(torch.float16).float(), atol=0, rtol=0, equal_nan=True
    )
