"""The WebAssembly engine of web pages: it is compiled from the current C++, and its sessions give Python's logits."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from web_models import (
    ENTRY,
    RANDOM_MODELS,
    VOCABULARY,
    build_random,
    covering_configs,
    random_config,
    to_tensor,
    to_text,
    twin_page,
)

from chumoku.models.config import ModelConfig
from chumoku.models.model import Model
from chumoku.web import build_wasm
from chumoku.web.build_wasm import LIBRARY, hash_libraries, hash_sources, read_hashes
from chumoku.web.container import write_container

MODULES = f'{ENTRY}import {{ WasmEngine }} from "./wasm/engine.js";\nwindow.modules.WasmEngine = WasmEngine;\n'
ROWS, CAPACITY, LONGEST_SOURCE = 5, 19, 11

# Opens a session and runs operations, each [name, …arguments]; returns the logits of all `append`.
DECODE = """
async ({ container, library, sources, operations, rows, capacity }) => {
  const model = openModel(container);
  const engine = await modules.WasmEngine.open(model, toBytes(library));
  const session = await engine.open({ rows, capacity });
  if (sources !== null) {
    const known = new Map(sources.map((source) => [String(source), source]));
    await session.encode(sources.map((source) => known.get(String(source))));
  }
  const logits = [];
  for (const [name, ...values] of operations) {
    if (name === "append") logits.push(...(await session.append(values[0], { all: values[1] })));
    else session[name](...values);
  }
  session.close();
  const { vocabulary } = model.config;
  return logits.map((data) => send({ shape: [data.length / vocabulary, vocabulary], data }));
}
"""


class Rows:
    """Random operations of a session, and the logits that they give."""

    def __init__(self, model: Model, seed: int) -> None:
        self.model, self.random = model, random.Random(seed)
        self.tokens: list[list[int]] = [[] for _ in range(ROWS)]
        both = [self.draw(LONGEST_SOURCE), self.draw(LONGEST_SOURCE)]
        sourced = model.config.kind == "encoder-decoder"
        self.first_sources = self.sources = [self.random.choice(both) for _ in range(ROWS)] if sourced else None
        self.operations: list[list[Any]] = []
        self.expected: list[Tensor] = []

    def draw(self, most: int) -> list[int]:
        return [self.random.randrange(VOCABULARY) for _ in range(self.random.randint(1, most))]

    def append(self, most: int) -> None:
        rows = [row for row, tokens in enumerate(self.tokens) if len(tokens) + most <= CAPACITY]
        entries = [{"row": row, "tokens": self.draw(most)} for row in rows if self.random.random() < 0.8]
        every = self.random.random() < 0.5
        for entry in entries:
            self.tokens[entry["row"]] = self.tokens[entry["row"]] + entry["tokens"]
            self.expected.append(self.logits(entry["row"])[-len(entry["tokens"]) if every else -1 :])
        self.operations.append(["append", entries, every])

    def logits(self, row: int) -> Tensor:
        """The logits after every token of a row, by the model, without a cache."""
        sources = [] if self.sources is None else [self.sources[row]]
        with torch.inference_mode():
            return self.model(*(torch.tensor([ids]) for ids in (*sources, self.tokens[row]))).logits[0]

    def reorder(self) -> None:
        parents = [self.random.randrange(len(self.tokens)) for _ in range(self.random.randint(2, ROWS))]
        self.tokens = [self.tokens[row] for row in parents]
        self.sources = None if self.sources is None else [self.sources[row] for row in parents]
        self.operations.append(["reorder", parents])

    def truncate(self) -> None:
        row = self.random.randrange(len(self.tokens))
        self.tokens[row] = self.tokens[row][: self.random.randint(0, len(self.tokens[row]))]
        self.operations.append(["truncate", row, len(self.tokens[row])])


def is_supported(config: ModelConfig) -> bool:
    return config.kind != "encoder" and config.labels is None and not config.experts


def check(page: Any, config: ModelConfig, precision: str, seed: int) -> None:
    """Rows grow, branch and go back; all their logits are the model's."""
    model = build_random(config, precision)
    rows = Rows(model, seed)
    for most in (7, 1, 5):
        rows.append(most)
        rows.reorder()
        rows.append(1)
        rows.truncate()
    given = {"sources": rows.first_sources, "operations": rows.operations, "rows": ROWS, "capacity": CAPACITY}
    content = {"container": write_container(model, name="tiny"), "library": LIBRARY.read_bytes()}
    found = page.evaluate(DECODE, {**given, **{name: to_text(value) for name, value in content.items()}})
    tolerance = 1e-5 if precision == "float32" else 1e-3
    for one, other in zip(map(to_tensor, found), rows.expected, strict=True):
        error = float((one - other).abs().max() / other.abs().max().clamp(min=1))
        assert error < tolerance, (error, config, precision)


def test_library_is_compiled_from_the_current_sources() -> None:
    """After a change of the C++, `make wasm` compiles it for web pages, too."""
    assert read_hashes() == [hash_sources(), *hash_libraries()]


def test_another_compiler_exits_with_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(build_wasm, "version", lambda _: "0.0.7")
    with pytest.raises(SystemExit) as stopped:
        build_wasm.main()
    assert stopped.value.code == 2
    assert "The package ziglang is 0.0.7" in capsys.readouterr().err


def test_every_choice(browser: Any) -> None:
    with twin_page(browser, entry=MODULES) as page:
        for number, config in enumerate(covering_configs(accept=is_supported)):
            check(page, config, ("float32", "int8")[number % 2], number)


def test_random_models(browser: Any) -> None:
    draw = random.Random(19)
    with twin_page(browser, entry=MODULES) as page:
        for number in range(RANDOM_MODELS):
            config = random_config(draw)
            if is_supported(config):
                check(page, config, draw.choice(("float32", "int8")), number)


EXAMINE = """
async ({ container, experts, library, prompt }) => {
  const model = openModel(container);
  const engine = await modules.WasmEngine.open(model, toBytes(library));
  const message = async (run) => {
    try {
      await run();
    } catch (error) {
      return error.message;
    }
  };
  const size = () => engine.library.memory.buffer.byteLength;
  const decode = async (capacity) => {
    const session = await engine.open({ rows: 3, capacity });
    const [logits] = await session.append([{ row: 1, tokens: prompt }]);
    session.close();
    return logits;
  };
  const logits = await decode(prompt.length);
  const before = size();
  for (let number = 0; number < 30; number++) await decode(prompt.length);
  const grown = size() - before;
  const messages = [
    await message(() => modules.WasmEngine.open(openModel(experts), toBytes(library))),
    await message(() => engine.open({ rows: 1000, capacity: 1000000 })),
    await message(() => decode(prompt.length - 1)),
    await message(async () => (await engine.open({ rows: 1, capacity: 7 })).encode([[1]])),
  ];
  model.multiply = engine.multiply;
  const { output } = await model.forward({ tokens: prompt });
  return { messages, grown, logits: send({ shape: [logits.length], data: logits }), output: send(output) };
}
"""


def test_long_prompts_memory_and_wrong_use(browser: Any) -> None:
    """A prompt of several calls; closed sessions leave no memory behind; the model's products by the library."""
    sizes = {"vocabulary": VOCABULARY, "width": 30, "heads": 3, "layers": 2}
    model = build_random(ModelConfig(**sizes), "int8")
    experts = build_random(ModelConfig(**sizes, experts=3), "float32")
    prompt = [number % VOCABULARY for number in range(131)]
    content = {"container": write_container(model, name="tiny"), "library": LIBRARY.read_bytes()}
    content["experts"] = write_container(experts, name="tiny")
    with twin_page(browser, entry=MODULES) as page:
        found = page.evaluate(EXAMINE, {"prompt": prompt, **{name: to_text(value) for name, value in content.items()}})
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(to_tensor(found["output"]), expected, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(to_tensor(found["logits"]), expected[-1], atol=1e-3, rtol=1e-3)
    assert found["grown"] == 0
    assert found["messages"] == [
        "The WebAssembly engine cannot run this model: it has experts.",
        "There is not enough memory in this browser. Close other pages, or use fewer tokens or rows at once.",
        "A row would have 131 tokens, but there is room for only 130. Shorten the text.",
        "Sources were given, but this model has no encoder.",
    ]
