"""A model in plain JavaScript computes what Python computes, at every address and for every choice of its config."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor
from web_models import (
    CHOICES,
    RANDOM_MODELS,
    VOCABULARY,
    build_random,
    covering_configs,
    random_config,
    to_tensor,
    to_text,
    twin_page,
)

from chumoku.models.config import ModelConfig, RotarySettings
from chumoku.models.model import Model
from chumoku.nn.tap import addresses, record
from chumoku.probe.edits import apply_edits
from chumoku.probe.forward_pass import final_output
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
  const decoded = steps === null ? null : await decode(model, source, steps);
  return { addresses: model.addresses(), output: send(output), edited: send(edited.output), tensors, steps: decoded };

  async function decode(model, source, { first, second, parents, kept, last }) {
    const session = await new modules.JavaScriptEngine(model).open({ rows: 3, capacity: 19 });
    if (source !== null) await session.encode(first.map(() => source));
    const logits = await session.append(first.map((tokens, row) => ({ row, tokens })));
    logits.push(...(await session.append(second.map((tokens, row) => ({ row, tokens })), { all: true })));
    session.reorder(parents);
    kept.forEach((length, row) => session.truncate(row, length));
    const entries = last.map((tokens) => tokens.map((token, row) => ({ row, tokens: [token] })));
    for (const step of entries) logits.push(...(await session.append(step)));
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
    last = [draw_tokens(seed, 2) for seed in (7, 8)]  # two steps of both rows
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
    ends = [
        run(model, row + list(new), source) for row, new in zip(rows, zip(*steps["last"], strict=True), strict=True)
    ]
    logits, lengths = [run(model, tokens, source) for tokens in both], list(map(len, steps["first"]))
    return [
        *(row[length - 1 : length] for row, length in zip(logits, lengths, strict=True)),
        *(row[length:] for row, length in zip(logits, lengths, strict=True)),
        *(each[-2:-1] for each in ends),
        *(each[-1:] for each in ends),
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
    tolerance = 5e-5 if precision == "float32" else 1e-3
    errors = {what: error for what, error in compare(page, config, precision).items() if not error < tolerance}
    assert not errors, (config, precision)


def test_every_setting_is_tested() -> None:
    """A setting that a model has in Python has a value other than the default in the models of these tests."""
    no_effect = {"labels", "prompts", "max_seq_length", "dropout", "initialization", "vocabulary", "context"}
    names = {field.name for field in dataclasses.fields(ModelConfig)}  # type: ignore[arg-type]
    assert names == set(CHOICES) | no_effect
    for name, hint in get_type_hints(ModelConfig).items():
        if name in CHOICES and name != "rotary":
            literals = {value for part in (hint, *get_args(hint)) for value in get_args(part) if isinstance(value, str)}
            assert literals <= set(CHOICES[name]) or name == "head", name
    assert {rotary.scaling for rotary in CHOICES["rotary"]} == set(get_args(get_type_hints(RotarySettings)["scaling"]))


def test_every_choice(browser: Any) -> None:
    with twin_page(browser) as page:
        for number, config in enumerate(covering_configs()):
            check(page, config, "float32" if config.experts or number % 3 else "int8")


# What else a session and a pass promise, each with its error.
PROMISES = """
async ({ container, sourced }) => {
  const model = openModel(container);
  const { heads, layers, vocabulary } = model.config;
  const tokens = Array.from({ length: 277 }, (_, at) => (at * 11 + 3) % vocabulary);
  const source = sourced ? tokens.slice(0, 5) : null;
  const open = async (options = {}) => {
    const session = await new modules.JavaScriptEngine(model).open({ rows: 2, capacity: 300, ...options });
    if (sourced) await session.encode([source, tokens.slice(3, 6)]);
    return session;
  };
  const distance = (one, other) => {
    if (one.length !== other.length) return Infinity;
    return one.reduce((most, x, at) => Math.max(most, Math.abs(x - other[at])), 0);
  };
  const refusal = async (work) => work().then(() => "no error", (error) => error.message);
  const off = ({ shape, data }) => ({ shape, data: data.map((x, at) => (at < data.length / heads ? 0 : x)) });
  let most = 0;
  const half = ({ shape, data }) => {
    most = Math.max(most, shape[0]);
    return { shape, data: data.map((x) => x / 2) };
  };
  const edits = new Map([["decoder.blocks.1.attention.heads", off], ["decoder.blocks.0.feedforward.output", half]]);
  const found = {};

  const whole = await model.forward({ tokens, source });
  const long = await (await open()).append([{ row: 0, tokens }], { all: true });
  found["a long prompt is read in pieces"] = distance(long[0], whole.output.data);

  const changed = await model.forward({ tokens: tokens.slice(0, 7), source, edits });
  const editing = await open({ edits });
  const other = { row: 1, tokens: [2] };
  most = 0;
  const [first] = await editing.append([{ row: 0, tokens: tokens.slice(0, 4) }, other], { all: true });
  const [, second] = await editing.append([other, { row: 0, tokens: tokens.slice(4, 7) }], { all: true });
  found["edits apply to sessions"] = distance([...first, ...second], changed.output.data);
  found["to one row at a time"] = most - 4;
  const effect = distance(changed.output.data, whole.output.data.subarray(0, 7 * vocabulary));
  found["edits change the output"] = effect > 0.01 ? 0 : 1;

  let calls = 0;
  const check = async () => {
    if (++calls === 2) throw new Error("stop");
  };
  const session = await open();
  const stopped = await refusal(() => session.append([{ row: 0, tokens: [3, 5, 7] }], { check }));
  found["a stopped step leaves no tokens"] = stopped === "stop" && session.length(0) === 0 ? 0 : 1;
  const [again] = await session.append([{ row: 0, tokens: tokens.slice(0, 3) }]);
  found["and the session goes on"] = distance(again, whole.output.data.subarray(2 * vocabulary, 3 * vocabulary));
  calls = 2;
  await model.forward({ tokens, source, check });
  found["every block is preceded by a check"] = calls - 2 - layers * (sourced ? 2 : 1);

  const products = new Map();
  const multiply = model.multiply;
  model.multiply = (name, x, rows) => products.set(name, rows) && multiply(name, x, rows);
  const fast = await model.forward({ tokens: [3, 14], source });
  found["products can be replaced"] = distance(fast.output.data, whole.output.data.subarray(0, 2 * vocabulary));
  const matrices = [...model.container.entries.keys()].filter((name) => name.endsWith(".weight"));
  found["all of them"] = matrices.filter((name) => !products.has(name)).length;

  const inside = "decoder.blocks.0.attention.queries";
  const smaller = new Map([["decoder.norm", ({ data }) => ({ shape: [1], data: data.slice(1) })]]);
  const refusals = [
    await refusal(() => model.forward({ tokens: [vocabulary], source })),
    await refusal(() => model.forward({ tokens: [], source })),
    await refusal(() => model.forward({ tokens, source: sourced ? null : tokens })),
    await refusal(() => model.forward({ tokens, source, segments: [0] })),
    await refusal(() => model.forward({ tokens, source, edits: new Map([["decoder.nothing", off]]) })),
    await refusal(() => model.forward({ tokens, source, edits: new Map([[inside, off]]) })),
    await refusal(() => model.forward({ tokens, source, edits: smaller })),
    await refusal(() => session.append([{ row: 0, tokens: Array(298).fill(1) }])),
    await refusal(() => session.append([{ row: 0, tokens: [1] }, { row: 0, tokens: [1] }])),
    await refusal(() => session.append([{ row: 2, tokens: [1] }])),
    await refusal(() => session.append([{ row: 0, tokens: [] }])),
    await refusal(async () => session.reorder([0, 0, 0])),
    await refusal(() => open({ edits: new Map([[inside, off]]) })),
  ];
  return { found, refusals, output: send(whole.output) };
}
"""
REFUSALS = (
    "There is no token",
    "The tokens must be a list of at least one token",
    "source.",
    "Segments must be as many as the tokens",
    "No address of this model matches decoder.nothing",
    "can be recorded but not replaced",
    "but the replacement has [1]",
    "and 298 more do not fit",
    "must name different rows",
    "must name different rows",
    "needs at least one token",
    "This session has 2 rows",
    "can be recorded but not replaced",
)


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_sessions_edits_and_errors(browser: Any, kind: str) -> None:
    config = ModelConfig(
        **{"kind": kind, "vocabulary": VOCABULARY, "width": 10, "layers": 2, "heads": 5, "feedforward_width": 13},
        **{"attention_window": 37, "full_attention_every": 2, "tie_output": False, "initialization": "xavier"},
    )
    model = build_random(config, "float32")
    given = {"container": to_text(write_container(model, name="tiny")), "sourced": kind == "encoder-decoder"}
    with twin_page(browser) as page:
        answer = page.evaluate(PROMISES, given)
    tokens = [(place * 11 + 3) % VOCABULARY for place in range(277)]
    expected = run(model, tokens, tokens[:5] if kind == "encoder-decoder" else None)
    assert error_of(to_tensor(answer["output"]), expected) < 1e-5
    broken = {promise: error for promise, error in answer["found"].items() if not abs(error) < 1e-5}
    assert not broken
    for sentence, message in zip(REFUSALS, answer["refusals"], strict=True):
        assert sentence in message


def test_random_models(browser: Any) -> None:
    draw = random.Random(17)
    with twin_page(browser) as page:
        for _ in range(RANDOM_MODELS):
            config = random_config(draw)
            check(page, config, "float32" if config.experts else draw.choice(("float32", "int8")))
