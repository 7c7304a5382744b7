"""diff: a model equals itself, transplants give the other model, and a planted change is found where it is."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from bundles import byte_tokenizer, make_bundle
from commands import Ask

import chumoku
from chumoku.decoding.engines.native.build import library
from chumoku.decoding.engines.native.engine import NativeEngine
from chumoku.decoding.engines.open_engine import open_engine
from chumoku.errors import UsageError
from chumoku.evaluation.perplexity import score_text
from chumoku.model_diff.answer import answer
from chumoku.model_diff.transplant import REST, assemble, block_paths
from chumoku.models.config import ModelConfig
from chumoku.models.precision import to_precision
from chumoku.pipeline import Pipeline
from chumoku.text import train

LINE = "the best of times was an age of wisdom in a spring of hope, going direct to heaven"
TEXTS = [LINE[start : start + 13] for start in range(0, 47, 7)]
PAIRS = [(text, text[::-1]) for text in TEXTS]
DATA: dict[str, Sequence[Any]] = {"decoder": TEXTS, "encoder": TEXTS, "encoder-decoder": PAIRS, "vector": PAIRS}


def make(kind: str, *, seed: int = 7, factor: float = 3, **changes: Any) -> Pipeline:
    """A small model, with weights `factor` times as large as a new model's, so that its output depends on its input."""
    tokenizer = byte_tokenizer()
    head = {"kind": "encoder", "head": "vector"} if kind == "vector" else {"kind": kind}
    sizes = {"width": 64, "heads": 4, "kv_heads": 2, "layers": 2, "context": 61, "vocabulary": tokenizer.size}
    model = chumoku.build(ModelConfig(**{**sizes, **head, **changes}), seed=seed).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(factor if weight.ndim > 1 else 1)
    return Pipeline(model, tokenizer, tokenizer)


def changed_copy(pipeline: Pipeline, precision: str | None = None) -> Pipeline:
    model = copy.deepcopy(pipeline.model) if precision is None else to_precision(pipeline.model, precision)
    return Pipeline(model, pipeline.tokenizer, pipeline.tokenizer)


@pytest.mark.parametrize("kind", DATA)
def test_a_model_equals_itself(kind: str) -> None:
    pipeline = make(kind)
    found = chumoku.diff(pipeline, changed_copy(pipeline), DATA[kind], beam=1)
    assert found.better is None
    for measure in found.measures:
        assert (measure.interval.low, measure.interval.difference, measure.interval.high) == (0, 0, 0)
        assert set(measure.by_text) == {0.0}
    assert (found.changed, found.changed_count) == ([], 0)
    assert found.bleu is None or (found.bleu.a == found.bleu.b and found.bleu.p_value == 1)
    assert (found.bleu is None) == (kind != "encoder-decoder")
    assert found.inside is not None
    assert {block.weights for block in found.inside.blocks} == {0.0}
    assert {block.stream for block in found.inside.blocks} == {0.0, None}
    assert {number for one in found.inside.heads for number in (*one.patterns, *one.weights)} == {0.0}
    assert {bound for one in found.transplants for bound in (one.interval.low, one.interval.high)} == {0.0}
    assert found.decisive is None
    assert len(found.transplants) == 2 * (len(block_paths(pipeline.model)) + 1)
    sentences = [words.en for words in answer(found)]
    assert sentences[0].startswith("A and B cannot be told apart: B − A is 0.000")
    assert {"No output differs.", "No weight differs."} < set(sentences)


@pytest.mark.parametrize(("kind", "precision"), [*((kind, None) for kind in DATA), ("decoder", "int8")])
def test_all_parts_of_a_model_are_that_model(kind: str, precision: str | None) -> None:
    a, b = make(kind).model, make(kind, seed=8).model
    a = a if precision is None else to_precision(a, precision)
    ids = torch.arange(5, 5 + 2 * 11).view(2, 11)
    inputs = (ids, ids[:, :7]) if kind == "encoder-decoder" else (ids,)
    parts = [*block_paths(a), REST]
    models = (a, b, assemble(b, a, parts), assemble(b, a, parts[:1]), assemble(b, a, parts[-1:]))
    with torch.no_grad():
        results = [model(*inputs) for model in models]
    first, second, whole, *mixed = (one.vector if one.logits is None else one.logits for one in results)
    assert torch.equal(whole, first)
    for one in mixed:
        assert not torch.equal(one, first)
        assert not torch.equal(one, second)


def test_a_planted_change_is_found() -> None:
    """One head of a block of B has another pattern and writes more. The texts are A's own, so that B is worse."""
    letters = train([LINE], kind="character")
    a = Pipeline(make("decoder", layers=3, vocabulary=letters.size).model, letters)
    texts = a.generate(list("bestoftimwa"), max_new_tokens=23, temperature=1, top_p=1, min_p=None, min_new_tokens=23)
    b = changed_copy(a)
    attention = b.model.get_submodule("decoder.blocks.1.attention")
    head = slice(2 * attention.head_width, 3 * attention.head_width)
    with torch.no_grad():
        attention.query.weight[head] *= -19
        attention.output.weight[:, head] *= -31
    found = chumoku.diff(a, b, texts)
    assert found.better == "A"
    assert found.inside is not None
    changes = {block.address: block.weights for block in found.inside.blocks}
    assert [address for address, change in changes.items() if change] == ["decoder.blocks.1"]
    heads = {(one.address, head): one.patterns[head] for one in found.inside.heads for head in range(4)}
    assert max(heads, key=heads.__getitem__) == ("decoder.blocks.1.attention", 2)
    assert {change for (address, _), change in heads.items() if ".0." in address} == {0.0}
    assert [bool(change) for change in found.inside.heads[1].weights] == [False, False, True, False]
    assert [block.stream == 0 for block in found.inside.blocks[:3]] == [True, False, False]
    effects = {(one.part, one.into): one for one in found.transplants}
    assert {key for key, one in effects.items() if one.interval.difference or one.decisive} == {
        ("decoder.blocks.1", "A"),
        ("decoder.blocks.1", "B"),
    }
    assert effects["decoder.blocks.1", "A"].interval == found.measures[0].interval
    assert found.decisive is not None
    assert found.decisive.part == "decoder.blocks.1"
    assert any("decoder.blocks.1" in words.ja and "移植" in words.ja for words in answer(found))


def test_quantized_models_are_measured_as_they_run() -> None:
    a = make("decoder")
    b = changed_copy(a, "int4")
    found = chumoku.diff(a, b, TEXTS, transplant_tokens=0)
    for pipeline, value in zip((a, b), found.measures[0].values, strict=True):
        assert value == pytest.approx(score_text(pipeline.model, TEXTS, tokenizer=a.tokenizer).loss, rel=1e-12)
    assert found.inside is not None
    assert all(0 < block.weights < 0.2 for block in found.inside.blocks)
    assert found.changed_count == found.tokens == sum(len(text) + 1 for text in TEXTS)
    assert not found.transplants
    if library() is not None:
        assembled = assemble(b.model, a.model, ["decoder.blocks.1"])
        assert isinstance(open_engine(assembled, rows=1, capacity=5), NativeEngine)  # type: ignore[arg-type]


def test_models_that_cannot_be_compared() -> None:
    decoder, encoder = make("decoder"), make("encoder")
    with pytest.raises(UsageError, match=r"A has the kind 'decoder' and B the kind 'encoder'"):
        chumoku.diff(decoder, encoder, TEXTS)
    with pytest.raises(UsageError, match=r"A has the head 'masked' and B the head 'vector'"):
        chumoku.diff(encoder, make("vector"), TEXTS)
    with pytest.raises(UsageError, match=r"A reads up to 61 tokens and B up to 31"):
        chumoku.diff(encoder, make("encoder", context=31), TEXTS)
    other = train([LINE], kind="character")
    with pytest.raises(UsageError, match="different tokenizers: text 1 has other tokens"):
        chumoku.diff(decoder, Pipeline(decoder.model, other), TEXTS)
    with pytest.raises(UsageError, match="1 text of 1 can be scored, and an interval needs two or more"):
        chumoku.diff(decoder, decoder, TEXTS[:1])
    with pytest.raises(UsageError, match=r"compared on texts; item 1 is a pair"):
        chumoku.diff(decoder, decoder, PAIRS)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diff")
    make_bundle(folder / "a", "decoder")
    make_bundle(folder / "b", "decoder", layers=3)
    # Untrusted text, which must stay text on the page.
    (folder / "text.txt").write_text("\n\n".join([*TEXTS, "<script>alert(1)</script><b>x"]), encoding="utf-8")
    return folder


def test_other_shapes_have_no_transplants_and_wrong_use_exits_with_2(bundles: Path, ask: Ask) -> None:
    a, b, text = (str(bundles / name) for name in ("a", "b", "text.txt"))
    done = ask("diff", a, b, "--data", text, "--out", str(bundles / "shapes"))
    assert done.code == 0
    assert "The models differ in shape (layers: 2, 3)" in done.out
    page = (bundles / "shapes" / "diff.html").read_text(encoding="utf-8")
    assert "モデルの形が異なる" in page
    assert "<script" not in page
    done = ask("diff", a, b)
    assert (done.code, done.out) == (2, "")
    assert "--data FILE" in done.err
    done = ask("diff", a, a, "--data", text, "--precision-b", "int3")
    assert done.code == 2
    assert "There is no precision 'int3'" in done.err


def test_the_command_writes_a_page(bundles: Path, ask: Ask) -> None:
    a, text, out = str(bundles / "a"), str(bundles / "text.txt"), bundles / "out"
    done = ask("diff", a, a, "--data", text, "--precision-b", "int8", "--out", str(out), "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["texts"] == len(TEXTS) + 1
    assert found["measures"][0]["metric"] == {"name": "loss", "unit": "nats per token", "lower_is_better": True}
    assert len(found["transplants"]) == 6
    assert (out / "diff.png").stat().st_size > 10_000
    assert json.loads((out / "diff.json").read_text(encoding="utf-8"))["measures"] == found["measures"]
