"""The command line: output, exit codes and lazy imports."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Ask, show_help

from chumoku.cli import demo
from chumoku.data import split
from chumoku.data.near_duplicates import group_pairs
from chumoku.training.recipe import load_recipe


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of the commands of a test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_needs_no_torch() -> None:
    output = show_help("", "compare")
    for word in ("demo", "count", "--equal"):
        assert word in output


def test_help_answers_at_once() -> None:
    """The promise is 0.3 s on an idle machine; beside other tests, less than twice its library."""
    ours, bare = (min(seconds(words) for _ in range(3)) for words in (["-m", "chumoku", "--help"], ["-c", BARE]))
    assert ours < 2 * bare
    assert seconds(["-c", "import torch"]) > 2 * bare, "what would be noticed"


WRONG = """
import sys, chumoku.cli
for words in sys.argv[1:]:
    sys.argv = ["chumoku", *words.split()]
    try: chumoku.cli.main()
    except SystemExit as end: code = end.code
    if code != 2 or "torch" in sys.modules: sys.exit(f"{words}: code {code}, {'torch' in sys.modules}")
"""


def test_wrong_paths_and_keys_are_reported_before_torch_is_imported(folder: Path) -> None:
    (folder / "text.txt").write_text("a text\n", encoding="utf-8")
    commands = [
        *(f"{name} nowhere word" for name in ("translate", "embed", "classify", "look", "generate")),
        *("evaluate nowhere text.txt", "evaluate ja-en nowhere.tsv", "chat nowhere", "chat ja-en --adapter nowhere"),
        *("translate ja-en --file nowhere --out new", "embed ja-en --file nowhere", "mine nowhere no.tsv --out new"),
        *("train nowhere", "train demo train.stepz=3", "train gpt2 data.files=nowhere", "train nowhere.toml --dry-run"),
        *("train lora data.files=text.txt model.init=nowhere", "train gpt2 data.prepared=nowhere"),
    ]
    done = subprocess.run([sys.executable, "-c", WRONG, *commands], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for sentence in ("nowhere does not exist", "No file matches nowhere.tsv", "Did you mean train.steps?", "prepare"):
        assert sentence in done.stderr


BARE = "import typer, typer.rich_utils, rich.markdown"


def seconds(words: list[str]) -> float:
    """The processor's time for a Python that is asked this."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert subprocess.run([sys.executable, *words], capture_output=True, check=False).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_count_prints_the_arithmetic(ask: Ask) -> None:
    finished = ask("count", "gpt2")
    assert finished.code == 0
    for text in ("124,439,808", "38,597,376", "786,432", "28,348,416", "56,669,184", "38,400", "50,257 × 768"):
        assert text in finished.out


def test_count_as_json(ask: Ask) -> None:
    finished = ask("count", "gpt2", "model.layers=3", "--length", "17", "--batch", "5", "--precision", "bf16", "--json")
    counted = json.loads(finished.out)
    assert counted["parts"]["attention"] == 28_348_416 // 4
    assert counted["cache_bytes"] == 2 * 3 * 5 * 17 * 768 * 2
    assert sum(counted["parts"].values()) == counted["parameters"]


def test_count_reads_a_recipe(folder: Path, ask: Ask) -> None:
    (folder / "small.toml").write_text('[model]\npreset = "gpt2"\nlayers = 2\n', encoding="utf-8")
    finished = ask("count", "small.toml", "model.layers=12", "--json")
    assert json.loads(finished.out)["parameters"] == 124_439_808


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpt3"], "there is no preset 'gpt3'. Did you mean gpt2?"),
        (["gpt2", "model.widht=3"], "model.widht: there is no such key. Did you mean model.width?"),
        (["gpt2", "model.heads=0"], "model.heads: 0 is too small; at least 1 is needed."),
        (["gpt2", "width=3"], "use keys such as model."),
        (["gpt2", "nonsense"], "not of the form key=value"),
        (["gpt2", "model.preset=bert-base"], "already named"),
        (["gpt2", "model=3"], "use keys such as model."),
        (["gpt2", "model.width=" + "9" * 5000], "is not a whole number"),
        (["gpt2", "model.width=" + "[" * 5000], "is not a whole number"),
        (["absent.toml"], "absent.toml could not be read: No such file"),
        (["gpt2", "--precision", "int3"], "precision int3 is unknown; choose float32, bf16"),
        (["gpt2", "--length", "0"], "--length"),
        ([], "Missing argument"),
    ],
)
def test_wrong_use_exits_with_two_and_a_message(words: list[str], message: str, ask: Ask) -> None:
    finished = ask("count", *words)
    assert finished.code == 2
    assert message in " ".join(finished.err.replace("│", " ").split())
    assert "Traceback" not in finished.err


def test_a_recipe_without_a_model_is_refused(folder: Path, ask: Ask) -> None:
    (folder / "empty.toml").write_text("", encoding="utf-8")
    finished = ask("count", "empty.toml")
    assert finished.code == 2
    assert "has no [model] table" in finished.err


def test_uncreatable_folder_gives_a_message(ask: Ask) -> None:
    finished = ask("demo", "--out", "/dev/null/pictures")
    assert finished.code == 1
    assert "cannot be written to: Not a directory" in finished.err
    assert "Traceback" not in finished.err


def test_ascii_terminal_still_gets_output() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "chumoku", "count", "gpt2"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert finished.returncode == 0
    assert b"124,439,808" in finished.stdout


@pytest.mark.slow
def test_the_demo_trains_scores_and_draws(folder: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small part of its pairs."""
    monkeypatch.setattr(
        "chumoku.training.recipe.load_recipe", lambda name, changes: load_recipe(name, [*changes, "data.count=3001"])
    )
    out = folder / "new" / "folder"
    finished = ask("demo", "--out", str(out), "--steps", "25")
    assert finished.code == 0, finished.err
    assert "Glyph" not in finished.err, "every label has its letters in the font"
    for name in ("attention.png", "loss.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    output = " ".join(finished.out.split())
    assert str(out / "attention.png") in output
    assert "tok:13a" in output
    assert "こたつでみかんを食べる →" in output
    assert re.search(r"attended to (こたつ|で|みかん|を|食べる|\(end\)) \(\d+%\) and", output), "by words"


RECIPE = """
[model]
kind = "{kind}"
width = 12
heads = 3
layers = 1
context = 32
[tokenizer]
kind = "byte"
[data]
kind = "{data}"
files = "{file}"
validation_share = 0.2
[train]
steps = 4
batch_size = 5
batch_tokens = 400
device = "cpu"
out = "run"
[optimizer]
learning_rate = 0.01
"""


@pytest.mark.slow
def test_train_and_evaluate_a_language_model(folder: Path, ask: Ask) -> None:
    (folder / "text.txt").write_text("one two three four five\n\n" * 60, encoding="utf-8")
    recipe = RECIPE.format(kind="decoder", data="text", file="text.txt")
    (folder / "recipe.toml").write_text(recipe, encoding="utf-8")
    planned = ask("train", "recipe.toml", "--dry-run")
    assert planned.code == 0, planned.err
    assert "Nothing was trained." in planned.out
    assert not (folder / "run").exists()
    trained = ask("train", "recipe.toml", "train.steps=6", "--json")
    assert trained.code == 0, trained.err
    assert json.loads(trained.out.splitlines()[-1])["step"] == 6
    again = ask("train", "recipe.toml")
    assert again.code == 2
    assert "--resume" in again.err
    scored = ask("evaluate", "run/last", "text.txt", "--json")
    assert scored.code == 0, scored.err
    found = json.loads(scored.out)
    assert found["bits_per_byte"] > 1
    assert found["bytes"] == len((folder / "text.txt").read_text("utf-8").rstrip())


def test_train_and_evaluate_a_translator(folder: Path, ask: Ask) -> None:
    from chumoku.data.grammar import generate

    pairs = generate(150)
    (folder / "pairs.tsv").write_text("".join(f"{p.target}\t{p.source}\n" for p in pairs), encoding="utf-8")
    recipe = RECIPE.format(kind="encoder-decoder", data="pairs", file="pairs.tsv")
    (folder / "recipe.toml").write_text(recipe, encoding="utf-8")
    assert ask("train", "recipe.toml", "model.context=131").code == 0
    scored = ask("evaluate", "run/last", "pairs.tsv", "--json", "--save", "said.txt", "--beam", "2")
    assert scored.code == 0, scored.err
    found = json.loads(scored.out)
    assert "ja-mecab" in found["bleu_signature"], "Japanese references are cut by a Japanese tokenizer"
    assert found["sentences"] == len((folder / "said.txt").read_text(encoding="utf-8").splitlines()) == 150
    (folder / "references.txt").write_text("".join(f"{p.source}\n" for p in pairs), encoding="utf-8")
    alone = ask("evaluate", "references.txt", "references.txt", "--json")
    assert json.loads(alone.out)["bleu"] == pytest.approx(100.0)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "nowhere.toml"], "could not be read"),
        (["train", "demo", "train.stepz=5"], "Did you mean train.steps?"),
        (["train", "demo", "train.device=tpu9"], "there is no device"),
        (["train", "demo", "optimizer.kind=adam"], "Did you mean adamw?"),
        (["evaluate", "nowhere", "text.txt"], "nowhere does not exist"),
    ],
)
def test_wrong_recipe_exits_with_two_and_a_message(words: list[str], message: str, folder: Path, ask: Ask) -> None:
    finished = ask(*words)
    assert finished.code == 2, finished.err
    assert message in " ".join(finished.err.split())
    assert "Traceback" not in finished.err
    assert not (folder / "runs").exists()


def test_tokenize_shows_tokenizers_side_by_side(folder: Path, ask: Ask) -> None:
    (folder / "text.txt").write_text("サンディーが元気に走る\n" * 40, encoding="utf-8")
    for kind in ("character", "bpe"):
        trained = ask(
            *("tokenize", "--train", kind, "--from", "text.txt", "--vocabulary", "300", "--save", f"{kind}.json"),
        )
        assert trained.code == 0, trained.err
        assert f"A {kind} tokenizer with" in trained.out
    both = ("--with", "character.json", "--with", "bpe.json")
    shown = json.loads(ask("tokenize", "サンディーが走る", *both, "--json").out)
    assert [row["kind"] for row in shown] == ["character", "bpe"]
    assert shown[0]["pieces"] == list("サンディーが走る")
    assert all(row["text"] == "サンディーが走る" and row["count"] == len(row["ids"]) for row in shown)
    table = ask("tokenize", "サンディーが走る", *both).out
    assert "サ | ン" in table
    assert "▁" not in table
    words = ask("tokenize", "It rains.", "--with", "ja-en").out
    assert words.count("▁ stands for a space before the token: there a new word begins.") == 1


def test_tokenize_compares_all_kinds(folder: Path, ask: Ask) -> None:
    rows = "".join(f"吾輩は猫である。名前は{number}。The cat has no name, {number}.\n" for number in range(300))
    (folder / "text.txt").write_text(rows, encoding="utf-8")
    found = json.loads(ask("tokenize", "--compare", "text.txt", "--vocabulary", "700", "--json").out)
    assert [row["kind"] for row in found] == ["character", "byte", "word", "bpe", "unigram", "wordpiece"]
    by_kind = {row["kind"]: row for row in found}
    assert by_kind["byte"]["tokens_per_character"] > by_kind["character"]["tokens_per_character"] > 0.9
    assert by_kind["bpe"]["unknown"] == by_kind["byte"]["unknown"] == by_kind["unigram"]["unknown"] == 0
    assert "tokens/character" in ask("tokenize", "--compare", "text.txt", "--vocabulary", "700").out


def test_prepare_text_and_pairs(folder: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "text.txt").write_text("猫が好きだ\n\n犬が走る\n\n" * 30, encoding="utf-8")
    words = ("prepare", "text.txt", "--out", "prepared", "--vocabulary", "300", "--report", "report.json")
    first = ask(*words)
    assert first.code == 0, first.err
    assert "60 documents" in first.out
    written_at = (folder / "prepared/shards/manifest.json").stat().st_mtime_ns
    assert ask(*words).code == 0
    assert (folder / "prepared/shards/manifest.json").stat().st_mtime_ns == written_at
    assert json.loads((folder / "report.json").read_text())["documents"] == 60
    assert json.loads(ask(*words, "--json").out)["tokens"] > 60

    (folder / "both.jsonl").write_text('{"ja": "猫が走る", "en": "The cat runs"}\n' * 9, encoding="utf-8")
    learned = []
    for field in ("ja", "en"):
        words = ("prepare", "both.jsonl", "--field", field, "--out", "f", "--vocabulary", "300")
        assert ask(*words).code == 0
        learned.append((folder / "f/tokenizer/tokenizer.json").read_bytes())
    assert learned[0] != learned[1], "another field is another text to learn from"

    pairs = "".join(f"猫が{n}匹いる\tThere are {n} cats.\n" for n in range(200)) + "\tempty\n"
    (folder / "pairs.tsv").write_text(pairs, encoding="utf-8")
    searches: list[int] = []
    monkeypatch.setattr(split, "group_pairs", lambda pairs, _: searches.append(len(pairs)) or group_pairs(pairs))
    second = ask(
        *("prepare", "pairs.tsv", "--pairs", "--out", "both", "--vocabulary", "300", "--languages", "ja,en"),
        *("--report", "pairs.json"),
    )
    assert second.code == 0, second.err
    assert searches == [200], "similar pairs are searched once for the tokenizer and for the tokens"
    assert "1 dropped: empty" in second.out
    assert "pairs.tsv:201" in second.out
    assert "padding" in second.out
    kept = (folder / "both/tokenizer/tokenizer.json").read_bytes()
    failing = ask(*("prepare", "pairs.tsv", "--pairs", "--out", "both", "--vocabulary", "280", "--validation", "2"))
    assert failing.code == 2
    assert (folder / "both/tokenizer/tokenizer.json").read_bytes() == kept, "a failing run destroys nothing"
    report = json.loads((folder / "pairs.json").read_text())
    assert (report["kept"], report["train"] + report["validation"]) == (200, 200)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tokenize"], "Give a text with --with, or --compare FILE, or --train KIND"),
        (["tokenize", "x"], "Name a tokenizer with --with"),
        (["tokenize", "x", "--with", "absent.json"], "absent.json could not be read"),
        (["tokenize", "--train", "bpe"], "Name the files to train on with --from"),
        (["tokenize", "--train", "poem", "--from", "pyproject.toml"], "There is no tokenizer kind 'poem'"),
        (["prepare", "absent.txt", "--out", "x"], "No file matches absent.txt"),
        (
            ["prepare", "pyproject.toml", "--pairs", "--columns", "1", "--out", "x"],
            "--columns takes two comma-separated values",
        ),
    ],
)
def test_wrong_use_of_text_commands_gives_a_message(words: list[str], message: str, ask: Ask) -> None:
    finished = ask(*words)
    assert finished.code == 2
    assert message in " ".join(finished.err.split())
    assert "Traceback" not in finished.err


def test_the_demo_without_a_dictionary_reads_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo._tokenizer_changes() == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert demo._tokenizer_changes() == ["tokenizer.kind=character", "tokenizer.whole_words=false"]
    assert "chumoku[ja]" in capsys.readouterr().out
