"""Classes of texts and tags of words: files, batches, the head, training, prediction, scores and commands."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Ask
from rich.console import Console

import chumoku
from chumoku import text
from chumoku.data.labeled import Example, read_examples, sort_labels
from chumoku.data.labeled_batches import LabeledBatches, open_examples, prepare_examples
from chumoku.decoding.generate import generate
from chumoku.errors import ConfigError, CorpusError, LengthError, UsageError
from chumoku.evaluation.classification import entity_score, find_entities, score_labels
from chumoku.models.heads import pool
from chumoku.pipeline import Pipeline
from chumoku.probe.lens import logit_lens
from chumoku.training.log import read_metrics
from chumoku.training.objectives.classification import label_loss
from chumoku.training.recipe import read_recipe

pytestmark = pytest.mark.usefixtures("quick_runs")

NOUNS = ("film", "book", "song", "play", "dish")
WORDS = {"bad": ("dull", "awful", "poor"), "good": ("great", "fine", "lovely"), "none": ("blue", "square", "old")}
NAMES, PLACES = ("Akira", "Mary", "Sandy"), ("Osaka", "Paris", "Rome")


def write_files(folder: Path) -> None:
    """Texts with a class, and sentences with tags, that a small model learns in a few steps."""
    rows = [
        (f"that {noun} number {17 * number} is {word} , {adverb}", label)
        for label, words in WORDS.items()
        for number, word in enumerate(words)
        for noun in NOUNS
        for adverb in ("really", "i think", "they say")
    ]
    (folder / "reviews.tsv").write_text("".join(f"{line}\t{label}\n" for line, label in rows), "utf-8")
    sentences = [
        {"tokens": [name, verb, "in", place, "."], "tags": ["B-PER", "O", "O", "B-LOC", "O"]}
        for name in NAMES
        for place in PLACES
        for verb in ("lives", "works", "sleeps", "sings", "cooks")
    ]
    (folder / "names.jsonl").write_text("".join(json.dumps(one) + "\n" for one in sentences), "utf-8")


def recipe(model_kind: str, data_kind: str, folder: Path, out: str, **model: Any) -> dict[str, Any]:
    file = {"labels": "reviews.tsv", "tags": "names.jsonl"}[data_kind]
    tables: dict[str, Any] = {
        "data": {"kind": data_kind, "files": str(folder / file), "validation_files": str(folder / file)},
        "train": {"out": str(folder / out), "steps": 47, "batch_size": 23, "samples": 1, "device": "cpu"},
        "optimizer": {"learning_rate": 0.02},
    }
    if "init" in model:
        return {**tables, "model": model}
    sizes = {"kind": model_kind, "width": 20, "layers": 1, "heads": 2, "context": 31, **model}
    return {**tables, "model": sizes, "tokenizer": {"kind": "word", "vocabulary": 97}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files and three trained models: classes (an encoder and a decoder) and tags."""
    folder = tmp_path_factory.mktemp("classification")
    write_files(folder)
    for kind, data, name, more in (
        *(("encoder", "labels", "classes", {}), ("decoder", "labels", "decoder", {"pooling": "last"})),
        ("encoder", "tags", "tags", {}),
    ):
        with (folder / f"{name}.log").open("w", encoding="utf-8") as file:
            chumoku.train(recipe(kind, data, folder, name, **more), console=Console(file=file, width=1000))
    return folder


def examples_of(path: Path, content: str, **options: Any) -> list[Example]:
    path.write_text(content, encoding="utf-8")
    return read_examples([path], **options)[0]


EXPECTED = [Example(("a cat, sat",), ("x",)), Example(("two\nlines",), ("y",)), Example(('a "b"',), ("x",))]


def test_tables_are_read_with_and_without_a_header(tmp_path: Path) -> None:
    rows = '"a cat, sat",x\n"two\nlines",y\n"a ""b""",x\n'
    assert examples_of(tmp_path / "a.csv", rows) == EXPECTED
    assert examples_of(tmp_path / "b.csv", f"text,label\n{rows}") == EXPECTED
    assert examples_of(tmp_path / "c.csv", "id,label,text\n5,x,one two\n\n") == [Example(("one two",), ("x",))]
    assert examples_of(tmp_path / "d.tsv", "0\tx\tone, two\n", columns=(2, 1)) == [Example(("one, two",), ("x",))]
    named = examples_of(tmp_path / "e.tsv", "kind\tbody\nx\tone\n", columns=("body", "kind"))
    assert named == [Example(("one",), ("x",))]
    lines = '{"text": "one", "label": 1}\n{"text": "two", "label": "b"}\n'
    assert [example.labels for example in examples_of(tmp_path / "f.jsonl", lines)] == [("1",), ("b",)]


def test_tagged_sentences_are_read_from_columns_and_json(tmp_path: Path) -> None:
    expected = [Example(("Mary", "sings"), ("B-PER", "O")), Example(("Rome",), ("B-LOC",))]
    assert examples_of(tmp_path / "number.conll", "# O\nC# O\n", tagged=True)[0].words == ("#", "C#"), "not a comment"
    columns = "-DOCSTART- -X- O\n\n# text = Mary sings\nMary NNP B-PER\nsings VBZ O\n\n\nRome\tNNP\tB-LOC\n"
    assert examples_of(tmp_path / "a.conll", columns, tagged=True) == expected
    assert examples_of(tmp_path / "b.txt", columns, tagged=True, columns=(0, 1))[0].labels == ("NNP", "VBZ")
    lines = "".join(json.dumps({"tokens": one.words, "tags": one.labels}) + "\n" for one in expected)
    assert examples_of(tmp_path / "c.jsonl", lines, tagged=True) == expected


def test_dropped_examples_are_counted_with_their_reasons(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"one\tx\n\n \tx\none\tx\ntwo\n\xff\tx\nthree\ty\n")
    examples, report = read_examples([path])
    assert [example.text for example in examples] == ["one", "three"]
    assert report.dropped == {"empty": 1, "duplicate": 1, "missing column": 1, "invalid UTF-8": 1}
    unequal = '{"tokens": ["a", "b"], "tags": ["O"]}\n{"tokens": ["a"], "tags": ["O"]}\n'
    (tmp_path / "b.jsonl").write_text(unequal)
    assert read_examples([tmp_path / "b.jsonl"], tagged=True)[1].dropped == {"different lengths": 1}


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("a.tsv", "one\n", {}, r"a\.tsv:1 has 1 column, but column 1 is needed"),
        ("a.tsv", "one\tx\n", {"columns": ("body", "label")}, "has no column 'body' in its first line: one, x"),
        ("a.csv", 'one,"x\n', {}, r"a\.csv:\d is not valid CSV"),
        ("a.jsonl", '{"text": "a"}\n', {}, "has no field 'label' with a text; its fields are text"),
        ("a.jsonl", '{"tokens": "a b", "tags": ["O"]}\n', {"tagged": True}, "'tokens' with a list of texts"),
        ("a.conll", "Mary\n", {"tagged": True}, "a word and its tag are needed"),
        ("a.conll", "a b\n", {"tagged": True, "columns": ("word", "tag")}, "'word' is a name"),
        ("a.tsv", "\tx\n", {}, "No usable examples"),
        ("a.tsv", '{"text": "a", "label": "b"}\n', {}, r"It looks like JSONL: name the file \.jsonl"),
        ("a.conll", "{}\n", {"tagged": True}, "It looks like JSONL"),
    ],
)
def test_wrong_files_are_refused(name: str, content: str, options: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises((CorpusError, UsageError), match=said):
        examples_of(tmp_path / name, content, **options)


def test_labels_are_sorted_as_numbers_or_names() -> None:
    assert sort_labels([Example(("a",), (label,)) for label in ("10", "9", "b", "a", "9")]) == ["9", "10", "a", "b"]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "byte", "word"])
def test_each_word_has_its_tag_at_its_first_token(kind: str, tmp_path: Path) -> None:
    write_files(tmp_path)
    examples, _ = read_examples([tmp_path / "names.jsonl"], tagged=True)
    tokenizer = text.train([one.text for one in examples] * 3, kind=kind, vocabulary=520)  # type: ignore[arg-type]
    folder = prepare_examples([tmp_path / "names.jsonl"], tokenizer, tmp_path / "out", tagged=True, limit=61)
    texts = open_examples(folder)
    names = ["B-LOC", "B-PER", "O"]
    for index in (0, 7, 41):
        ids, labels = texts.tokens[index].tolist(), texts.labels[index].tolist()
        assert ids[-1] == tokenizer.roles.end
        assert labels[-1] == 0
        starts = [place for place, label in enumerate(labels) if label]
        pieces = [ids[start:stop] for start, stop in zip(starts, [*starts[1:], len(ids) - 1], strict=True)]
        words = [tokenizer.decode(piece).strip() for piece in pieces]
        assert words == list(examples[index].words)
        assert tuple(names[labels[start] - 1] for start in starts) == examples[index].labels


def test_long_texts_are_truncated_and_unknown_labels_refused(tmp_path: Path) -> None:
    write_files(tmp_path)
    file, tokenizer = tmp_path / "reviews.tsv", text.train(["that film"], kind="byte")
    folder = prepare_examples([file], tokenizer, tmp_path / "out", tagged=False, limit=13)
    texts = open_examples(folder)
    assert texts.tokens.lengths.max() == 13
    assert all(texts.tokens[index][-1] == tokenizer.roles.end for index in range(len(texts)))
    with pytest.raises(CorpusError, match=r"The label 'good' .* is not one of the model's 2 labels: bad, none"):
        prepare_examples([file], tokenizer, tmp_path / "two", tagged=False, limit=13, labels=["bad", "none"])
    (tmp_path / "one.tsv").write_text("a\tx\nb\tx\n")
    with pytest.raises(CorpusError, match=r"All labels in .* are 'x'; two or more are needed"):
        prepare_examples([tmp_path / "one.tsv"], tokenizer, tmp_path / "three", tagged=False, limit=13)


def test_every_text_is_in_one_batch_of_an_epoch(tmp_path: Path) -> None:
    write_files(tmp_path)
    tokenizer = text.train(["that film"], kind="byte")
    folder = prepare_examples([tmp_path / "reviews.tsv"], tokenizer, tmp_path / "out", tagged=False, limit=61)
    options: dict[str, Any] = {"tagged": False, "pad": tokenizer.roles.pad, "rows": 11}
    training, validation = (LabeledBatches(open_examples(folder), drop_last=drop, **options) for drop in (True, False))
    assert (len(training), len(validation), len(training.texts)) == (12, 13, 135)
    seen = [sample for index in range(13) for sample in validation.samples(3, index).tolist()]
    assert sorted(seen) == list(range(135))
    assert len(training.batch(0, 11)["labels"]) == 11
    batch = validation.batch(0, 2)
    for row, sample in enumerate(validation.samples(0, 2).tolist()):
        real = batch["tokens"][row][batch["mask"][row]]
        assert real.tolist() == training.texts.tokens[sample].tolist()
        assert batch["labels"][row] == training.texts.labels[sample][0] - 1


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_label_loss_is_its_formula(smoothing: float) -> None:
    random = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(3, 5, 7, generator=random), torch.randint(7, (3, 5), generator=random)
    labels[1, 2:] = -100
    expected = 0.0
    for row, label in zip(logits.flatten(0, 1), labels.flatten(), strict=True):
        log_p = row - row.exp().sum().log()
        if label >= 0:
            expected -= float((1 - smoothing) * log_p[label] + smoothing * log_p.mean())
    assert float(label_loss(logits, labels, smoothing)) == pytest.approx(expected, rel=1e-5)
    assert float(label_loss(logits[:, 0], labels[:, 0], 0.0)) == pytest.approx(
        float(label_loss(logits[:, :1], labels[:, :1], 0.0))
    )


def head_model(kind: str, head: str, **settings: Any) -> chumoku.models.model.Model:
    sizes: dict[str, Any] = {"width": 12, "layers": 1, "heads": 3, "context": 17, "vocabulary": 23}
    config = chumoku.ModelConfig(kind=kind, head=head, labels=["a", "b", "c", "d", "e"], **sizes, **settings)
    return chumoku.build(config, seed=3, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
@pytest.mark.parametrize(
    ("head", "settings"),
    [
        ("classes", {"pooling": "mean"}),
        ("classes", {"pooling": "first", "classifier_activation": "tanh"}),
        ("classes", {"pooling": "last", "classifier_activation": "relu"}),
        ("classes", {"pooling": "last", "label_bias": False}),
        ("tags", {}),
        ("tags", {"classifier_activation": "gelu", "classifier_norm": True, "classifier_bias": False}),
    ],
)
def test_the_head_is_its_formula_and_ignores_padding(kind: str, head: str, settings: dict[str, Any]) -> None:
    model = head_model(kind, head, **settings)
    assert chumoku.count(model.config).parameters == sum(p.numel() for p in model.parameters())
    tokens = torch.tensor([[5, 3, 8, 1, 2, 9, 4], [7, 7, 1, 0, 0, 0, 0]])
    real = torch.tensor([[True] * 7, [True] * 3 + [False] * 4])
    with chumoku.record(model, "logits") as tape:
        output = model(tokens, mask=real)
    assert torch.equal(tape["logits"], output.logits)
    assert torch.equal(model(tokens, mask=real).logits, output.logits)
    for row, length in ((0, 7), (1, 3)):
        hidden = model(tokens[[row], :length]).hidden[0]
        vectors = hidden
        if head == "classes":
            vectors = {"mean": hidden.mean(0), "first": hidden[0], "last": hidden[-1]}[settings["pooling"]]
        if model.head.transform is not None:
            vectors = model.head.transform(vectors)
            functions = {"tanh": torch.tanh, "relu": torch.relu, "gelu": torch.nn.functional.gelu}
            vectors = functions[settings["classifier_activation"]](vectors)
        if settings.get("classifier_norm"):
            vectors = torch.nn.functional.layer_norm(vectors, (12,), eps=model.config.norm_epsilon)
        expected = vectors @ model.head.output.weight.T
        expected = expected if model.head.output.bias is None else expected + model.head.output.bias
        assert (model.head.output.bias is None) == (not model.config.label_bias)
        found = output.logits[row] if head == "classes" else output.logits[row, :length]
        torch.testing.assert_close(found, expected)


def test_pooling_of_the_last_token_finds_it() -> None:
    hidden = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[True] * 5, [True, False, False, False, False], [True] * 3 + [False] * 2])
    found = pool(hidden, mask, kind="last", normalize=False)
    assert torch.equal(found, torch.stack([hidden[0, 4], hidden[1, 0], hidden[2, 2]]))
    assert torch.equal(pool(hidden, None, kind="last", normalize=False), hidden[:, -1])


def test_a_model_with_labels_generates_nothing(runs: Path) -> None:
    pipeline = chumoku.load(runs / "decoder")
    with pytest.raises(UsageError, match=r"has the head 'classes' and cannot generate: it gives labels to texts"):
        pipeline.generate("that film")
    with pytest.raises(UsageError, match="cannot generate tokens"):
        generate(pipeline.model, [[5, 3]], max_new_tokens=3)
    with pytest.raises(UsageError, match="no head over the vocabulary"):
        logit_lens(pipeline.model, [5, 3])
    with pytest.raises(chumoku.errors.ShapeError, match="without a cache"):
        pipeline.model(torch.tensor([[5]]), cache=pipeline.model.new_cache(1, 3))
    with pytest.raises(UsageError, match="has no labels and cannot classify: it continues texts"):
        Pipeline(chumoku.build(chumoku.preset("tiny-decoder"))).classify("x")


@pytest.mark.parametrize("run", ["classes", "decoder"])
def test_classes_are_learned_and_survive_saving(run: str, runs: Path, tmp_path: Path) -> None:
    pipeline = chumoku.load(runs / run)
    assert pipeline.config.labels == ("bad", "good", "none")
    texts = ["that book is lovely , i think", "that song is awful", "that play number 17 is square , they say"]
    found = pipeline.classify(texts)
    assert [next(iter(labels)) for labels in found] == ["good", "bad", "none"]
    for labels in found:
        assert sum(labels.values()) == pytest.approx(1, abs=1e-5)
        assert list(labels.values()) == sorted(labels.values(), reverse=True)
    assert pipeline.classify(texts[1]) == pytest.approx(found[1], abs=1e-5), "alone as in a batch"
    pipeline.save(tmp_path / "copy")
    assert chumoku.load(tmp_path / "copy").classify(texts) == found
    notes: list[str] = []
    pipeline.classify("film " * 50, note=notes.append)
    assert notes == ["1 of 1 texts were cut: this model reads the first 31 tokens of a text."]


@pytest.mark.parametrize("run", ["classes", "tags"])
def test_accuracy_is_logged_with_the_validation_loss(run: str, runs: Path, ask: Ask) -> None:
    logged = [line for line in read_metrics(runs / run / "metrics.jsonl") if "validation_loss" in line][-1]
    file = runs / ("reviews.tsv" if run == "classes" else "names.jsonl")
    values = json.loads(ask("evaluate", str(runs / run), str(file), "--json").out)
    assert (logged["accuracy"], logged["macro_f1"]) == (values["accuracy"], values["macro_f1"])
    assert "accuracy 0." in (runs / f"{run}.log").read_text("utf-8") or logged["accuracy"] == 1
    assert f"Use it: chumoku classify {runs / run / 'last'} " in (runs / f"{run}.log").read_text("utf-8")


def test_tags_are_learned(runs: Path) -> None:
    pipeline = chumoku.load(runs / "tags")
    found = pipeline.classify("Sandy cooks in Paris .")
    assert [(word, tag) for word, tag, _ in found] == [
        ("Sandy", "B-PER"), ("cooks", "O"), ("in", "O"), ("Paris", "B-LOC"), (".", "O"),
    ]  # fmt: skip
    assert all(0.5 < one.probability <= 1 for one in found)
    with pytest.raises(LengthError, match=r"Text 1 has 51 tokens, but this model reads up to 31"):
        pipeline.classify("film " * 50)
    with pytest.raises(UsageError, match="Text 2 is empty"):
        pipeline.classify(["a", " "])


def test_a_classifier_starts_from_another_model(runs: Path) -> None:
    """The body is that of the masked encoder, and the head is new; from a classifier, the head is kept too."""
    quiet = Console(file=io.StringIO())
    masked = {
        "model": {"kind": "encoder", "width": 20, "layers": 1, "heads": 2, "context": 31},
        "tokenizer": {"kind": "word", "vocabulary": 97},
        "data": {"files": str(runs / "reviews.tsv"), "validation_share": 0.2},
        "train": {"out": str(runs / "masked"), "steps": 2, "batch_size": 3, "samples": 0, "device": "cpu"},
    }
    chumoku.train(masked, console=quiet)
    steps = {"steps": 1, "batch_size": 23, "samples": 0, "device": "cpu"}
    for init, out in (("masked", "from-masked"), ("classes", "from-classes")):
        tables = recipe("", "labels", runs, out, init=str(runs / init / "last"))
        tables["train"] |= steps
        tables["optimizer"] = {"learning_rate": 1e-9, "weight_decay": 0.0}
        chumoku.train(tables, console=quiet)
        before, after = chumoku.load(runs / init).model, chumoku.load(runs / out).model
        same = {name for name, tensor in before.named_parameters() if name in dict(after.named_parameters())}
        assert any(name.startswith("encoder.") for name in same)
        assert ("head.output.weight" in same) == (init == "classes")
        for name in same:
            torch.testing.assert_close(after.get_parameter(name), before.get_parameter(name), atol=1e-6, rtol=1e-4)
    for name in ("classes", "masked"):
        decoder = read_recipe(recipe("", "labels", runs, "x", init=str(runs / name / "last")))
        assert decoder.config(labels=["p", "q", "r"]).labels == ("p", "q", "r")
    decoder = read_recipe(recipe("", "tags", runs, "x", init=str(runs / "decoder" / "last")))
    assert (decoder.config().head, decoder.config().kind) == ("tags", "decoder")


@pytest.mark.parametrize(
    ("model", "data", "said"),
    [
        ({"kind": "encoder-decoder"}, {}, "data.kind: 'labels' does not fit a model of kind 'encoder-decoder'"),
        ({"kind": "encoder", "head": "masked"}, {}, "model.head: data.kind = 'labels' trains the head 'classes'"),
        ({"kind": "encoder", "labels": ["a", "a"]}, {}, "labels: the label 'a' is given twice"),
        ({"kind": "encoder", "labels": ["a", "b"]}, {"kind": "text"}, "labels: this key is only for head = 'classes'"),
        ({"init": "decoder", "width": 7}, {}, "only dropout, context, labels, pooling, classifier_activation, .* may"),
        ({"init": "decoder"}, {"kind": "text"}, "data.kind: this model has the head 'classes'"),
        ({"kind": "encoder", "classifier_activation": "tanh"}, {"kind": "text"}, "only for head = 'classes' or 'tags'"),
        ({"kind": "encoder", "classifier_norm": True}, {}, "classifier_norm: the layer before the labels exists only"),
        ({"kind": "encoder", "label_bias": False}, {"kind": "text"}, "label_bias: this key is only for head"),
    ],
)
def test_wrong_recipes_are_refused(model: dict[str, Any], data: dict[str, Any], said: str, runs: Path) -> None:
    if "init" in model:
        model = {**model, "init": str(runs / model["init"] / "last")}
    tables = recipe("", "labels", runs, "x", **model)
    tables["data"] |= data
    with pytest.raises(ConfigError, match=said):
        read_recipe(tables)


def test_scores_are_their_formulas() -> None:
    right = [["a"], ["a"], ["a"], ["b"], ["b"], ["c"]]
    predicted = [["a"], ["b"], ["a"], ["b"], ["c"], ["a"]]
    score = score_labels(predicted, right, ["a", "b", "c", "d"], tagged=False)
    assert (score.accuracy, score.count) == (0.5, 6)
    assert score.confusion.tolist() == [[2, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    found = {name: (one.precision, one.recall, one.f1) for name, one in score.classes.items()}
    assert found == {"a": (2 / 3, 2 / 3, 2 / 3), "b": (0.5, 0.5, 0.5), "c": (0.0, 0.0, 0.0)}
    assert score.macro_f1 == pytest.approx((2 / 3 + 1 / 2) / 3)
    assert score.accuracy_interval == pytest.approx((0.1876, 0.8124), abs=1e-4)  # Wilson, 3 of 6
    assert score.entity_f1 is None


def test_entities_are_complete_or_wrong() -> None:
    tags = ["B-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-PER"]
    assert find_entities(tags) == [(0, 2, "PER"), (3, 4, "LOC"), (4, 5, "LOC"), (5, 6, "PER")]
    right = [["B-PER", "I-PER", "O", "B-LOC"]]
    assert entity_score(right, right) == 1
    assert entity_score([["B-PER", "O", "O", "B-LOC"]], right) == 0.5
    assert score_labels(right, right, ["O"], tagged=True).entity_f1 == 1


def test_the_commands_classify_and_evaluate(ask: Ask, runs: Path, tmp_path: Path) -> None:
    found = ask("classify", str(runs / "classes"), "that film is great", "that song is dull", "--top", "2")
    lines = found.out.splitlines()
    assert found.code == 0
    assert lines[0].startswith("good 0.")
    assert lines[0].endswith("\tthat film is great")
    assert lines[1].startswith("bad 0.")
    (tmp_path / "texts.txt").write_text("that film is great\n\nthat dish is poor\n", "utf-8")
    found = ask("classify", str(runs / "decoder"), "--file", str(tmp_path / "texts.txt"), "--json")
    assert [next(iter(json.loads(line)["labels"])) for line in found.out.splitlines()] == ["good", "bad"]
    assert ask("classify", str(runs / "tags"), "Mary sings in Rome").out.splitlines()[3].startswith("Rome\tB-LOC\t0.")
    picture = tmp_path / "confusion.png"
    found = ask("evaluate", str(runs / "classes"), str(runs / "reviews.tsv"), "--plot", str(picture))
    assert found.code == 0, found.err
    assert "macro f1" in found.out
    assert [line.split()[0] for line in found.out.splitlines()[-3:]] == ["bad", "good", "none"]
    assert picture.stat().st_size > 5000
    values = json.loads(ask("evaluate", str(runs / "tags"), str(runs / "names.jsonl"), "--json").out)
    assert values["entity_f1"] > 0.9
    assert values["classes"]["O"]["count"] == 3 * values["classes"]["B-LOC"]["count"]


def test_wrong_commands_are_refused(ask: Ask, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.tsv").write_text("")
    for words, said in (
        (["classify", str(runs / "classes")], "Give a text"),
        (["classify", str(runs / "classes"), ""], "Text 1 is empty"),
        (["classify", "ja-en", "x"], "has no labels and cannot classify: it translates"),
        (["evaluate", str(runs / "classes"), str(tmp_path / "empty.tsv")], "No usable examples"),
        (["generate", str(runs / "decoder"), "x"], "has the head 'classes': it gives labels to texts"),
        (
            ["train", "shakespeare-cpu", "data.kind=labels", "data.files=absent.tsv", f"train.out={tmp_path}"],
            "absent.tsv",
        ),
    ):
        found = ask(*words)
        assert found.code == 2, words
        assert said in found.err
        assert "Traceback" not in found.err
