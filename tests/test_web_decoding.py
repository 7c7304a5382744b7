"""Decoding in a web page: searches, sampling and generation in Chromium, against Python's on tables of logits."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from browser import module_page

from chumoku.decoding.beam import run_search
from chumoku.decoding.beam_rules import Rules
from chumoku.decoding.beam_tree import Tree
from chumoku.decoding.sampling import SamplingOptions, process_logits
from chumoku.decoding.stop_strings import StopStrings

VOCABULARY, END, CLASSES = 11, 3, 3

# An engine whose logits are rows of a table: by the number of tokens read and the class of the last one.
TABLE_ENGINE = """
class TableSession {
  constructor(table, rows) {
    Object.assign(this, { table, rows: Array.from({ length: rows }, () => []), closed: false });
  }
  encode(sources) {
    this.sources = sources;
  }
  async append(entries, { check }) {
    const { first, steps } = this.table;
    const logits = [];
    for (const { row, tokens } of entries) {
      const read = this.rows[row];
      for (const token of tokens) {
        if (read.length) await check();
        read.push(token);
      }
      logits.push(Float32Array.from(steps[(read.length - first) % steps.length][read.at(-1) % steps[0].length]));
    }
    return logits;
  }
  reorder(parents) {
    this.rows = parents.map((row) => [...this.rows[row]]);
  }
  truncate(row, length) {
    this.rows[row].length = length;
  }
  close() {
    this.closed = true;
  }
}
const tableEngine = (table, log = []) => ({
  open: ({ rows }) => log[log.push(new TableSession(table, rows)) - 1],
});
"""
ENTRY = """
import { search } from "./decoding/beam.js";
import { Tree } from "./decoding/beam_tree.js";
import { generate } from "./decoding/generate.js";
import { likelihood } from "./decoding/logprobs.js";
import { draw, Sampler } from "./decoding/sampling.js";
import { makeRandom, randomSeed } from "./decoding/random.js";
import { StopStrings } from "./decoding/stop_strings.js";
Object.assign(window, { search, Tree, generate, likelihood, draw, Sampler, makeRandom, randomSeed, StopStrings });
Object.assign(window, { tableEngine });
"""


@pytest.fixture(scope="module")
def page(browser_process: Any) -> Iterator[Any]:
    """A page with the modules of in_page/decoding as names of its window."""
    with module_page(browser_process, TABLE_ENGINE + ENTRY) as one:
        yield one


class TableEngine:
    """Python's side of the table."""

    device = torch.device("cpu")

    def __init__(self, table: dict[str, Any]) -> None:
        self.first, self.steps = table["first"], torch.tensor(table["steps"])
        self.rows: list[list[int]] = []

    def select_rows(self, rows: Sequence[int]) -> None:
        self.rows = [[*self.rows[row]] for row in rows]

    def add_rows(self, count: int, sources: object) -> None:
        self.rows += [[] for _ in range(count)]

    def prefill(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        self.rows = [[*row, *prompt] for row, prompt in zip(self.rows, prompts, strict=True)]
        return self.logits()

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        self.rows = [[*row, token] for row, token in zip(self.rows, tokens.tolist(), strict=True)]
        return self.logits()

    def logits(self) -> torch.Tensor:
        rows = [
            self.steps[(len(row) - self.first) % len(self.steps)][row[-1] % self.steps.shape[1]] for row in self.rows
        ]
        return torch.stack(rows)


def make_table(seed: int) -> dict[str, Any]:
    """Logits with equal numbers in a row, and in some steps with a likely end; some rows are equal.

    Each step has its own, or hypotheses with the same numbers in another order would be ranked by rounding.
    """
    chance = random.Random(seed)

    def row() -> list[float]:
        logits = [chance.gauss(0, 2) for _ in range(VOCABULARY)]
        for _ in range(chance.randrange(4)):
            logits[chance.randrange(VOCABULARY)] = logits[chance.randrange(VOCABULARY)]
        logits[END] += chance.choice([-3, 0, 3])
        return torch.tensor(logits).tolist()

    steps = [[row() for _ in range(CLASSES)] for _ in range(13)]
    for step in steps[::2]:
        step[2] = step[0]
    return {"first": 2, "steps": steps}


def make_rules(seed: int, rows: int) -> dict[str, Any]:
    chance = random.Random(1000 + seed)
    beam = chance.choice([1, 2, 3, 5, 7])
    return {
        "end": END,
        "beam": beam,
        "best": chance.randint(1, beam),
        "lengthPenalty": chance.choice([-1.5, 0, 0.5, 1, 2]),
        "forbidden": sorted(chance.sample([0, 1, 2, 5], chance.randrange(3))),
        "limits": [chance.randint(2, 13) for _ in range(rows)],
        "minNewTokens": chance.choice([0, 0, 1]),
    }


SEARCH = """
async (cases) => {
  const found = [];
  for (const { table, prompts, rules } of cases) {
    const [tree, log] = [new Tree(), []];
    let steps = 0;
    const check = async () => steps++;
    const hypotheses = await search(tableEngine(table, log), prompts, prompts, { rules, check, tree });
    tree.finish(hypotheses[0][0].tokens, rules.end);
    found.push({ hypotheses, nodes: tree.nodes, steps, closed: log.map((one) => one.closed) });
  }
  return found;
}
"""


def test_beam_search_equals_pythons(page: Any) -> None:
    """Hypotheses, scores and the tree, over random tables with equal logits, early ends and several sentences."""
    cases: list[dict[str, Any]] = []
    for seed in range(60):
        prompts = [[1, token] for token in ([4] if seed % 2 else [4, 2, 9])]
        cases.append({"table": make_table(seed), "prompts": prompts, "rules": make_rules(seed, len(prompts))})
    for case, found in zip(cases, page.evaluate(SEARCH, cases), strict=True):
        given, tree = case["rules"], Tree()
        names = ("end", "beam", "best", "lengthPenalty", "forbidden", "limits", "minNewTokens")
        rules = Rules(*(given[name] for name in names))
        engine: Any = TableEngine(case["table"])
        expected = run_search(engine, case["prompts"], None, rules, tree=tree)
        assert [[one["tokens"] for one in row] for row in found["hypotheses"]] == [
            [one.tokens for one in row] for row in expected
        ], given
        for ours, theirs in zip(*(itertools.chain(*rows) for rows in (found["hypotheses"], expected)), strict=True):
            assert ours["score"] == pytest.approx(theirs.score, rel=1e-5, abs=1e-5)
            assert ours["logprobs"] == pytest.approx(theirs.logprobs, rel=1e-5, abs=1e-5)
            assert ours["ended"] == theirs.ended
        tree.finish(expected[0][0].tokens, END)
        if len(case["prompts"]) == 1:
            assert_same_trees(found["nodes"], tree)
        assert found["closed"] == [True]
        assert found["steps"] >= max(len(row[0].tokens) for row in expected)


def assert_same_trees(nodes: list[dict[str, Any]], tree: Tree) -> None:
    assert [(one["parent"], one["token"], one["step"], one["state"]) for one in nodes] == [
        (one.parent, one.token, one.step, one.state) for one in tree.nodes
    ]
    assert [one["score"] for one in nodes] == pytest.approx([one.score for one in tree.nodes], abs=1e-5)


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 2.5, "top_k": 5},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.3, "min_p": 0.1},
    {"temperature": 1.7, "top_k": 7, "top_p": 0.9, "min_p": 0.07},
    {"temperature": 1.1, "repetition_penalty": 1.7, "presence_penalty": 0.3},
    {"temperature": 0.9, "frequency_penalty": 0.6, "bias": {"7": 1.5, "2": -2.0}, "forbidden": [0, 5]},
    {"temperature": 0.0, "repetition_penalty": 1.9, "bias": {"4": 0.7}},
]
PROMPT, GENERATED, DRAWS = [1, 4, 4, 6], [6, 2, 2, 2], 20_000
SAMPLE = """
({ logits, options, prompt, generated, ends, draws }) => {
  return options.map((one, seed) => {
    const sampler = new Sampler(one, { prompt, ends, minNewTokens: 5 });
    for (const token of generated) {
      sampler.seen.add(token);
      sampler.counts.set(token, (sampler.counts.get(token) ?? 0) + 1);
      sampler.generated++;
    }
    const random = makeRandom(seed);
    const processed = sampler.process(Float32Array.from(logits));
    const counts = logits.map(() => 0);
    for (let n = 0; n < draws; n++) counts[draw(processed, one, random)]++;
    return counts;
  });
}
"""


def test_samples_have_pythons_distribution(page: Any) -> None:
    """Chi-square of 20,000 draws; a token that Python excludes is never drawn. The end token comes too early here."""
    logits = [2.0, 1.5, 1.5, 9.0, 0.2, 3.0, -0.5, 0.9, -2.0, 1.1, 0.3]
    given = {"logits": logits, "options": OPTIONS, "prompt": PROMPT, "generated": GENERATED, "ends": [END]}
    for options, found in zip(OPTIONS, page.evaluate(SAMPLE, {**given, "draws": DRAWS}), strict=True):
        bias = {int(token): value for token, value in options.get("bias", {}).items()}
        python = SamplingOptions(**{"top_p": None, **options, "bias": bias})
        counts = torch.bincount(torch.tensor(GENERATED), minlength=len(logits)).float()
        seen = torch.bincount(torch.tensor(PROMPT + GENERATED), minlength=len(logits)) > 0
        processed = process_logits(torch.tensor(logits), python, seen=seen, counts=counts, also_forbidden=[END])
        expected = (processed.double().softmax(-1) * DRAWS).tolist()
        assert all(one > 0 or count == 0 for one, count in zip(expected, found, strict=True)), options
        kept = [(one, count) for one, count in zip(expected, found, strict=True) if one > 5]
        chi_square = sum((count - one) ** 2 / one for one, count in kept)
        freedom = len(kept) - 1
        assert chi_square <= freedom + 4 * math.sqrt(2 * freedom), (options, chi_square)


LARGE = """
() => {
  const random = makeRandom(7);
  const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(6.28 * random());
  const logits = Float32Array.from({ length: 5003 }, () => 3 * normal());
  const text = (seed) => {
    const sampler = new Sampler({ temperature: 1.5, top_p: 0.95, seed });
    return Array.from({ length: 13 }, () => sampler.sample(logits)).join();
  };
  const broken = (value) => draw(Float32Array.from([1, value, 0]), { temperature: 1 }, random);
  return {
    same: text(5) === text(5) && text(2 ** 40) === text(2 ** 40),
    texts: new Set([0, 1, -1, 2 ** 32, 2 ** 33, randomSeed(), randomSeed()].map(text)).size,
    broken: [broken(NaN), broken(Infinity), draw(new Float32Array(2).fill(-Infinity), { temperature: 0 }, random)],
    logits: [...logits],
    likelihood: likelihood(logits, 17, 5),
    none: likelihood(logits, 17, 0).top,
  };
}
"""


def test_seeds_logprobs_and_broken_logits(page: Any) -> None:
    found = page.evaluate(LARGE)
    assert found["same"]
    assert found["texts"] == 7, "each seed has its own text"
    assert found["broken"] == [-1, -1, -1]
    logprobs = torch.tensor(found["logits"]).log_softmax(-1)
    assert found["likelihood"]["logprob"] == pytest.approx(float(logprobs[17]), abs=1e-5)
    best = logprobs.topk(5)
    assert [token for token, _ in found["likelihood"]["top"]] == best.indices.tolist()
    assert [value for _, value in found["likelihood"]["top"]] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert found["none"] == []


GENERATE = """
async ({ table, requests }) => {
  const log = [];
  const engine = tableEngine(table, log);
  const texts = [];
  for (const request of requests) {
    const events = [];
    let checks = 0;
    const check = async () => {
      if (++checks > request.checks) throw new Error("aborted");
    };
    try {
      for await (const event of generate(engine, request, { context: 1009, check })) events.push(event);
    } catch (error) {
      events.push(error.message);
    }
    texts.push(events);
  }
  return { texts, closed: log.map((one) => one.closed) };
}
"""


def test_generation_continues_the_session_of_the_last_text(page: Any) -> None:
    table = {**make_table(5), "first": 1}
    request = {"sampling": {"temperature": 0}, "ends": [], "minNewTokens": 0, "logprobs": 2, "maxNewTokens": 5}
    prompts = [[1, 4], [1, 4, 2, 9, 5], [7]]
    assert greedy(table, prompts[0], 1) != [2], "the first text does not go on as the second prompt"
    requests = [*({**request, "prompt": one} for one in prompts), {**request, "prompt": [2] * 1009}]
    expected = [greedy(table, prompt, 5) for prompt in prompts]
    requests += [{**request, "prompt": [1, 4, 2, 7, 7], "checks": 3}, {**request, "prompt": prompts[1]}]
    requests += [{**request, "prompt": [1, 4], "ends": [expected[0][2]], "maxNewTokens": 601, "logprobs": None}]
    found = page.evaluate(GENERATE, {"table": table, "requests": requests})
    first, second, third, full, aborted, again, ended = found["texts"]
    for events, tokens in zip((first, second, third), expected, strict=True):
        assert [one["token"] for one in events] == tokens
        assert [one["finished"] for one in events] == [None] * 4 + ["length"]
        assert [one["likelihood"]["top"][0][0] for one in events] == tokens
    assert [one[0]["cached"] for one in (first, second, third)] == [0, 2, 0]
    assert [(one["token"], one["finished"]) for one in full] == [(None, "length")], "no room after the prompt"
    assert aborted == ["aborted"], "while it read its prompt"
    assert [one["token"] for one in again] == expected[1]
    assert [one["token"] for one in ended] == [*expected[0][:2], None]
    assert ended[-1]["finished"] == "end"
    assert found["closed"] == [True, False], "a larger one was opened for the last text"


def greedy(table: dict[str, Any], prompt: list[int], count: int) -> list[int]:
    engine, text = TableEngine(table), []
    engine.add_rows(1, None)
    logits = engine.prefill([prompt])
    for _ in range(count):
        text.append(int(logits[0].argmax()))
        logits = engine.step(torch.tensor(text[-1:]))
    return text


STOP = """
(cases) => cases.map(({ stops, pieces }) => {
  const stopping = new StopStrings(stops);
  return [...pieces.map((piece) => stopping.push(piece)), stopping.finish(), stopping.stopped];
})
"""


def test_stop_strings_equal_pythons(page: Any) -> None:
    chance, cases = random.Random(3), []
    for _ in range(200):
        stops = ["".join(chance.choices("ab", k=chance.randint(1, 5))) for _ in range(chance.randrange(3))]
        pieces = ["".join(chance.choices("abc", k=chance.randrange(5))) for _ in range(5)]
        cases.append({"stops": stops, "pieces": pieces})
    for case, found in zip(cases, page.evaluate(STOP, cases), strict=True):
        stopping = StopStrings(case["stops"])
        assert found == [*map(stopping.push, case["pieces"]), stopping.finish(), stopping.stopped], case
