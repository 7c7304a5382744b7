"""A model in plain JavaScript computes what Python computes, at every address and for every choice of its config."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from torch import Tensor
from web_models import VOCABULARY, build_random, covering_configs, random_config, to_tensor, to_text, twin_page

from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.nn.tap import addresses, record
from chumoku.probe.forward_pass import final_output
from chumoku.probe.patching import apply_edits
from chumoku.web.container import write_container

TOKENS, SOURCE_TOKENS = 7, 5
FIXED = ("queries", "keys", "scores", "masked_scores")  # recorded, but not replaced
INSIDE_EXPERTS = ("router", "chosen", "pre_activation", "hidden")

EXAMINE = """
async ({ container, tokens, source, segments, edits, steps }) => {
  const model = openModel(container);
  const { output, tape } = await model.forward({ tokens, source, segments, record: () => true });
  const unrecorded = await model.forward({ tokens, source, segments });
  if (toBase64(unrecorded.output.data) !== toBase64(output.data)) throw new Error("Recording changed the output.");
  const change = ({ shape, data }) => ({ shape, data: data.map((x) => 0.9 * x + 0.01) });
  const changes = new Map(edits.map((address) => [address, change]));
  const edited = await model.forward({ tokens, source, segments, edits: changes });
  const tensors = Object.fromEntries([...tape].map(([address, tensor]) => [address, send(tensor)]));
  const outputs = { output: send(output), edited: send(edited.output), tensors };
  const decoded = steps === null ? null : await decode(model, source, steps);
  return { addresses: model.addresses(), ...outputs, steps: decoded };

  async function decode(model, source, { first, second, parents, kept, last }) {
    const session = await new modules.JavaScriptEngine(model).open({ rows: 3, capacity: 19 });
    if (source !== null) await session.encode(first.map(() => source));
    const logits = await session.append(first.map((tokens, row) => ({ row, tokens })));
    logits.push(...(await session.append(second.map((tokens, row) => ({ row, tokens })), { all: true })));
    session.reorder(parents);
    kept.forEach((length, row) => session.truncate(row, length));
    logits.push(...(await session.append(last.map((tokens, row) => ({ row, tokens })))));
    const { vocabulary } = model.config;
    return logits.map((data) => send({ shape: [data.length / vocabulary, vocabulary], data }));
  }
}
"""


def draw_tokens(seed: int, count: int) -> list[int]:
    return [random.Random(seed).randrange(VOCABULARY) for _ in range(count)]


def editable(model: Model) -> list[str]:
    """The addresses whose tensors can be replaced."""
    experts = model.config.experts > 0

    def fixed(address: str) -> bool:
        *_, module, name = ("", *address.split("."))
        inside = experts and module == "feedforward" and name in INSIDE_EXPERTS
        return inside or (module.endswith("attention") and name in FIXED)

    return [address for address in addresses(model) if not fixed(address)]


def decoding_steps(config: ModelConfig) -> dict[str, Any] | None:
    """Three rows that grow, branch and go back."""
    if config.kind == "encoder" or config.labels is not None:
        return None
    first = [draw_tokens(seed, count) for seed, count in ((1, 5), (2, 1), (3, 3))]
    second = [draw_tokens(seed, count) for seed, count in ((4, 1), (5, 4), (6, 2))]
    last = [draw_tokens(seed, count) for seed, count in ((7, 2), (8, 1))]
    return {"first": first, "second": second, "parents": [1, 1], "kept": [4, 2], "last": last}


def run(model: Model, tokens: list[int], source: list[int] | None) -> Tensor:
    """The output of one forward pass."""
    rows = [torch.tensor([ids]) for ids in (source, tokens) if ids is not None]
    options = {"segments": rows[0] % model.config.segments} if model.config.segments else {}
    with torch.inference_mode():
        return final_output(model(*rows, **options))[0]


def expected_steps(model: Model, steps: Mapping[str, Any], source: list[int] | None) -> list[Tensor]:
    both = [one + two for one, two in zip(steps["first"], steps["second"], strict=True)]
    rows = [both[parent][:kept] for parent, kept in zip(steps["parents"], steps["kept"], strict=True)]
    logits, lengths = [run(model, tokens, source) for tokens in both], list(map(len, steps["first"]))
    return [
        *(row[length - 1 : length] for row, length in zip(logits, lengths, strict=True)),
        *(row[length:] for row, length in zip(logits, lengths, strict=True)),
        *(run(model, row + new, source)[-1:] for row, new in zip(rows, steps["last"], strict=True)),
    ]


def error_of(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number if that is above 1."""
    assert found.shape == expected.shape
    expected = expected.clamp(min=-1e30)  # the lowest float32 of masked scores
    return float((found.clamp(min=-1e30) - expected).abs().max() / expected.abs().max().clamp(min=1))


def compare(page: Any, config: ModelConfig, precision: str) -> dict[str, float]:
    """The error of every result of the twin."""
    model = build_random(config, precision)
    tokens = draw_tokens(11, TOKENS)
    source = draw_tokens(13, SOURCE_TOKENS) if config.kind == "encoder-decoder" else None
    steps, edits = decoding_steps(config), editable(model)
    with record(model) as tape:
        output = run(model, tokens, source)
    with apply_edits(model, dict.fromkeys(edits, lambda tensor: 0.9 * tensor + 0.01)):
        edited = run(model, tokens, source)
    segments = [token % config.segments for token in tokens] if config.segments else None
    given = {"tokens": tokens, "source": source, "segments": segments, "edits": edits, "steps": steps}
    found = page.evaluate(EXAMINE, {"container": to_text(write_container(model, name="tiny")), **given})
    assert found["addresses"] == addresses(model)
    assert set(found["tensors"]) == set(tape)
    errors = {address: error_of(to_tensor(found["tensors"][address]), tape[address][0].float()) for address in tape}
    errors["output"] = error_of(to_tensor(found["output"]), output)
    errors["edited output"] = error_of(to_tensor(found["edited"]), edited)
    if steps is not None:
        pairs = zip(found["steps"], expected_steps(model, steps, source), strict=True)
        errors["decoded logits"] = max(error_of(to_tensor(one), other) for one, other in pairs)
    return errors


def check(page: Any, config: ModelConfig, precision: str) -> None:
    tolerance = 1e-5 if precision == "float32" else 1e-3
    errors = {what: error for what, error in compare(page, config, precision).items() if not error < tolerance}
    assert not errors, (config, precision)


def test_every_choice(browser: Any) -> None:
    with twin_page(browser) as page:
        for number, config in enumerate(covering_configs()):
            check(page, config, "float32" if config.experts or number % 3 else "int8")


@pytest.mark.slow
def test_random_models(browser: Any) -> None:
    draw = random.Random(17)
    with twin_page(browser) as page:
        for _ in range(500):
            config = random_config(draw)
            check(page, config, "float32" if config.experts else draw.choice(("float32", "int8")))
