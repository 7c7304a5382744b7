"""Models that ship with chumoku: their names, their default target language, and what happens without them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from browser import OpenPage, until
from bundles import make_bundle
from commands import Ask, show_help
from serving import Serving, serve_command, serving

import chumoku
from chumoku import pretrained, text
from chumoku.cli import demo
from chumoku.data.grammar import split
from chumoku.data.prepared import open_pairs, prepare_pairs
from chumoku.decoding.translate import encode
from chumoku.errors import UsageError
from chumoku.inspect_prompt import question
from chumoku.probe.snapshot import take_snapshot
from chumoku.probe.token_labels import label_row
from chumoku.probe.word_attention import Word, find_words, merge_tokens
from chumoku.server.models import name_models, open_models
from chumoku.server.security.limits import Limits
from chumoku.text import japanese
from chumoku.text.kept_words import STAND_INS
from chumoku.text.languages import with_target_language
from chumoku.text.tokenizer import Tokenizer
from chumoku.training.example_sentences import DEMO, examples_for
from chumoku.weights.convert import convert

ROOT = Path(__file__).parent.parent
TEXT = "猫が鬱だ。"  # 鬱 is not in the vocabulary, so it is three bytes


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = [side for pair in split(97).train for side in pair]
    return text.train([*texts, " ".join(STAND_INS)], kind="unigram", vocabulary=601, languages=("ja", "en"))


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    return make_bundle(tmp_path_factory.mktemp("models") / "both", "encoder-decoder", tokenizer, encoder_layers=3)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory, multilingual: Path) -> Path:
    """A folder like chumoku/pretrained: one model, once for each direction."""
    folder = tmp_path_factory.mktemp("pretrained")
    for name in pretrained.NAMES:
        convert(multilingual, folder / name, to="chumoku", kind="int8", into=name[-2:])
    return folder


@pytest.fixture
def shipped(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pretrained, "FOLDER", bundles)
    return bundles


@pytest.fixture
def absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path / "nothing")


# ---- names ----


@pytest.mark.slow
def test_every_command_takes_the_name_of_a_shipped_model(shipped: Path, tmp_path: Path, ask: Ask) -> None:
    (tmp_path / "pairs.tsv").write_text("猫\tcat\n犬\tdog\n", "utf-8")
    for words in (
        ["translate", "ja-en", TEXT],
        ["evaluate", "ja-en", str(tmp_path / "pairs.tsv")],
        ["look", "en-ja", TEXT, "--out", str(tmp_path / "look"), "--max-new-tokens", "3"],
        ["count", "ja-en"],
        ["tokenize", TEXT, "--with", "ja-en"],
        ["convert", "ja-en", str(tmp_path / "new"), "--to", "chumoku"],
        ["doctor", "ja-en", "--quick"],
    ):
        ended = ask(*words)
        assert (ended.code, bool(ended.out)) == (0, True), (words, ended)
    assert ask("translate", "ja-en", TEXT).out == ask("translate", str(shipped / "ja-en"), TEXT).out


def test_a_folder_wins_over_a_shipped_name(shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert chumoku.load("ja-en").config.encoder_layers == 3
    make_bundle(tmp_path / "ja-en", "encoder-decoder", encoder_layers=5)
    assert chumoku.load("ja-en").config.encoder_layers == 5


def test_an_unknown_name_lists_the_shipped_ones(shipped: Path, ask: Ask) -> None:
    ended = ask("translate", "ja-fr", TEXT)
    assert ended.code == 2
    assert "ja-fr does not exist" in ended.err
    assert ended.err.rstrip().endswith("ships with chumoku: ja-en, en-ja.")


@pytest.mark.usefixtures("absent")
def test_an_installation_without_models_says_so(ask: Ask) -> None:
    for words in (
        ["translate", "ja-en", TEXT],
        ["embed", "en-ja", TEXT],
        ["tokenize", "a", "--with", "ja-en"],
    ):
        ended = ask(*words)
        assert (ended.code, "This installation has no model" in ended.err) == (2, True), (words, ended)
    ended = ask("serve")
    assert (ended.code, ended.out) == (2, "")
    assert "This installation has no shipped models (ja-en, en-ja)" in ended.err
    assert "chumoku serve runs/demo" in ended.err


@pytest.mark.slow
def test_help_names_the_shipped_models() -> None:
    for command in ("translate", "look", "evaluate", "doctor", "count", "convert", "serve", "tokenize"):
        assert "ja-en" in show_help(command), command


def test_serve_without_arguments_serves_all_shipped_models(shipped: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert name_models(pretrained.installed_models()) == {name: name for name in pretrained.NAMES}
    with serve_command() as server:
        assert capfd.readouterr().err.startswith("ja-en, en-ja at http://127.0.0.1:")
        assert {model["id"] for model in server.client.get("/v1/models").json()["data"]} == set(pretrained.NAMES)


# ---- the default target language ----


def test_each_direction_starts_its_sources_with_its_language(shipped: Path, multilingual: Path) -> None:
    plain = chumoku.load(multilingual)
    for name in pretrained.NAMES:
        pipeline = chumoku.load(name)
        tokenizer = pipeline.source_tokenizer
        assert tokenizer is pipeline.tokenizer
        assert tokenizer.target_language == name[-2:]
        (source,) = encode(pipeline.model, [TEXT], tokenizer)  # type: ignore[arg-type]
        assert tokenizer.token(source[0]) == f"<2{name[-2:]}>"
        assert source[1:-1] == plain.tokenizer.encode(TEXT)
        assert question(pipeline, TEXT, None, 3)[0].source == source, "look shows what translate does"
        other = name[:2]
        assert encode(pipeline.model, [TEXT], tokenizer, into=other) == encode(
            plain.model, [TEXT], plain.tokenizer, into=other
        )  # type: ignore[arg-type]


def test_a_long_text_is_cut_with_room_for_its_language(shipped: Path) -> None:
    inputs, notices = question(chumoku.load("ja-en"), TEXT * 7, None, 3, most=13)
    assert inputs.source is not None
    assert (len(inputs.source), len(notices)) == (13, 1)


def test_a_model_without_a_direction_is_as_before(multilingual: Path) -> None:
    pipeline = chumoku.load(multilingual)
    assert pipeline.source_tokenizer.target_language is None
    (source,) = encode(pipeline.model, [TEXT], pipeline.source_tokenizer)  # type: ignore[arg-type]
    assert source[:-1] == pipeline.source_tokenizer.encode(TEXT)


def test_an_unknown_language_is_refused(multilingual: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no language 'fr'"):
        convert(multilingual, tmp_path / "fr", to="chumoku", into="fr")
    assert not (tmp_path / "fr").exists()


def test_pairs_for_fine_tuning_start_with_the_language_too(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("猫\tcat\n犬\tdog\n", "utf-8")
    marked = with_target_language(tokenizer, "en")
    pairs = open_pairs(prepare_pairs([tmp_path / "pairs.tsv"], marked, tmp_path / "data", validation=0.0))
    assert {marked.token(int(ids[0])) for ids in (pairs.source[0], pairs.source[1])} == {"<2en>"}
    assert pairs.target[0].tolist() == tokenizer.encode("cat")


def test_only_a_model_without_a_direction_offers_languages(shipped: Path, multilingual: Path) -> None:
    with serving({"both": multilingual, "ja-en": "ja-en"}) as server:
        cards = {card["id"]: card["into"] for card in server.client.get("/v1/models").json()["data"]}
        assert cards == {"both": ["en", "ja"], "ja-en": None}
        answer = server.post("/v1/translate", model="ja-en", text=TEXT).json()["translations"][0]
        assert answer["source"][0]["text"] == "<2en>"
        assert answer["hypotheses"][0]["text"] == chumoku.load("ja-en").translate(TEXT)


# ---- the page ----

KEPT = {"B2": "https://a.b/c / https://d.e", "K2": "x@y.z"}
SPANS = (
    "async ([one, kept]) => (await import('/viewer/views/translate/layout.js')).wordSpans(one, kept)"
    ".filter((span) => span.dataset).map((span) => [span.textContent, span.dataset.place])"
)
MERGE = "async (answer) => (await import('/viewer/views/translate/characters.js')).mergeBytes(answer)"


def test_examples_fit_the_model(shipped: Path, multilingual: Path, tmp_path: Path) -> None:
    assert "明日は雨が降るでしょう。" in examples_for("ja-en")
    assert examples_for(str(shipped / "ja-en")) == examples_for("ja-en")
    assert all(line.isascii() for line in examples_for("en-ja"))
    assert examples_for(str(multilingual)) == ()
    for kind, expected in (("embedded", DEMO), ("pairs", ())):
        (tmp_path / "recipe.json").write_text(json.dumps({"data": {"kind": kind}}), "utf-8")
        assert examples_for(str(tmp_path / "last")) == expected
    models = open_models(["en-ja", str(multilingual)], Limits())
    assert [one.card["examples"] for one in models.values()] == [list(examples_for("en-ja")), []]


@pytest.fixture
def server(shipped: Path) -> Iterator[Serving]:
    with serving({name: name for name in pretrained.NAMES}) as running:
        for name, served in running.state.models.items():
            served.examples = examples_for(name)
        yield running


def test_an_example_is_translated_at_a_click(server: Serving, open_page: OpenPage) -> None:
    page = open_page(server.url).page
    page.click(".examples button")
    page.wait_for_selector(".answer .line")
    assert page.input_value("#tr-source") == "明日は雨が降るでしょう。"
    assert page.locator(".controls label:visible").count() == 2, "without the choice of a target language"
    page.select_option("#model", "en-ja")
    until(page, "document.querySelector('#tr-source').value.startsWith('It will')")
    page.click(".examples button >> nth=2")
    until(page, "document.querySelector('#tr-source').value.startsWith('Could you')")


def test_the_page_says_what_a_stand_in_stands_for(server: Serving, open_page: OpenPage) -> None:
    page = open_page(server.url).page
    line = page.locator(".align > .hint >> nth=1")
    page.fill("#tr-source", "猫が好きです。")
    page.wait_for_selector(".answer .line")
    assert not line.is_visible()
    page.fill("#tr-source", "https://a.b/c と x@y.z が好きです。https://d.e も好きです。")
    line.wait_for()
    english = [f"{name} stands for {words}, which" for name, words in KEPT.items()]
    assert all(sentence in line.inner_text() for sentence in english), line.inner_text()
    assert all(word in page.inner_text(".answer") for word in ("https://a.b/c", "x@y.z", "https://d.e"))
    page.click("#language")
    japanese = [f"{name} は {words} の代わりに" for name, words in KEPT.items()]
    assert all(sentence in line.inner_text() for sentence in japanese), line.inner_text()


def test_words_of_the_page_keep_their_tokens(server: Serving, open_page: OpenPage) -> None:
    """Also after the end of a sentence, and if a word of several tokens is kept."""
    texts = ["▁See", "▁B", "2", ".", "</s>", "▁I", "▁do", ".", "</s>"]
    one = {"text": "See https://a.b/c. I do.😀", "tokens": [{"text": text} for text in texts]}
    page = open_page(server.url).page
    found = page.evaluate(SPANS, [one, [{"name": "B2", "word": "https://a.b/c"}]])
    assert found == [["See", "0"], ["https://a.b/c", "1"], [".", "3"], ["I", "5"], ["do", "6"], [".", "7"]]
    assert page.evaluate(SPANS, [one, []]) == [], "the tokens do not add up to the text"


def test_bytes_of_one_character_are_one_word_of_the_page(server: Serving, open_page: OpenPage) -> None:
    answer = server.post("/v1/translate", model="ja-en", text=TEXT, alignment=True).json()["translations"][0]
    source = answer["source"]
    place = next(place for place, token in enumerate(source) if token.get("character") == "鬱")
    assert [token["text"] for token in source[place : place + 3]] == ["鬱 1/3", "鬱 2/3", "鬱 3/3"]

    page = open_page(server.url).page
    page.fill("#tr-source", TEXT)
    page.wait_for_selector(".align .chip:has-text('鬱')")  # the page starts with an example
    chips = page.locator(".align .row").first.locator(".chip").all_text_contents()
    words = [token.get("character", token["text"]) for token in source if token.get("part", 1) == 1]
    assert chips == [word.lstrip("▁") for word in words]
    merged = page.evaluate(MERGE, answer)
    rows, original = (one["hypotheses"][0]["alignment"] for one in (merged, answer))
    assert rows[0][words.index("鬱")] == pytest.approx(sum(original[0][place : place + 3]))
    assert [sum(row) for row in rows] == pytest.approx([1.0] * len(rows))


def test_bytes_of_a_translation_are_merged_too(server: Serving, open_page: OpenPage) -> None:
    tokens: list[dict[str, object]] = [{"id": number, "text": "a"} for number in range(5)]
    for part in (1, 2, 3):
        tokens[part] |= {"text": f"鬱 {part}/3", "character": "鬱", "part": part}
    alignment = [[0.5, 0.5], [0.2, 0.8], [0.3, 0.7], [0.7, 0.3], [1.0, 0.0]]
    one = {"text": "a鬱a", "tokens": tokens, "alignment": alignment, "candidates": [[number] for number in range(5)]}
    page = open_page(server.url).page
    answer = {"source": [{"id": 7, "text": "b"}], "hypotheses": [one]}
    merged = page.evaluate(MERGE, answer)["hypotheses"][0]
    assert [token["text"] for token in merged["tokens"]] == ["a", "鬱", "a"]
    assert merged["alignment"] == [[0.5, 0.5], pytest.approx([0.4, 0.6]), [1.0, 0.0]]
    assert merged["candidates"] == [[0], [1], [4]]


def test_look_names_bytes_by_their_character(shipped: Path) -> None:
    pipeline = chumoku.load("ja-en")
    inputs, _ = question(pipeline, TEXT, "鬱", None)
    snapshot = take_snapshot(pipeline.model, inputs)
    expected = ["鬱 1/3", "鬱 2/3", "鬱 3/3"]
    assert [name for _, name in snapshot.source if "鬱" in name] == expected
    assert [name for _, name in snapshot.tokens[1:]] == expected
    assert [word.name for word in snapshot.words] == [*expected, "</s>"]


def test_incomplete_bytes_stay_bytes() -> None:
    labels = ["a", "‹e9›", "‹ac›", "‹b1›", "‹e9›", "b", "‹81›", "‹07›", "‹20›‹e3›", "‹81›‹82›"]
    expected = ["a", "鬱 1/3", "鬱 2/3", "鬱 3/3", "‹e9›", "b", "‹81›", "‹07›", "␣あ 1/2", "␣あ 2/2"]
    assert [label.text for label in label_row(labels)] == expected


# ---- the demo ----


def test_the_demo_translates_ordinary_sentences(
    shipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.show_shipped(tmp_path)
    out = capsys.readouterr().out
    pipeline = chumoku.load("ja-en")
    for sentence in demo.ORDINARY:
        assert f"  {sentence} → {pipeline.translate(sentence)}\n" in out
    assert "The translator ja-en, which ships with chumoku" in out
    assert {file.name for file in tmp_path.iterdir()} == {"ja-en-short.png", "ja-en-long.png"}


@pytest.mark.usefixtures("absent")
def test_the_demo_without_a_shipped_translator_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.show_shipped(tmp_path)
    assert "This installation has no translator ja-en" in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]


def test_words_have_the_attention_of_their_tokens(shipped: Path) -> None:
    pipeline = chumoku.load("ja-en")
    sentence = "こたつでみかんを食べる。"
    translation, names, keys, weights = demo.attention_between_words(pipeline, sentence)
    assert (translation, names[-1]) == (pipeline.translate(sentence), "(end)")
    assert (keys[0], keys[-1], "".join(keys[1:-1])) == ("<2en>", "(end)", sentence)
    assert weights.shape == (len(names), len(keys))
    assert torch.allclose(weights.sum(-1), torch.ones(len(names)), atol=1e-5)

    tokens = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]])
    merged = merge_tokens(tokens, [Word("one", [0, 1])], [Word("two", [0, 1]), Word("three", [2])])
    assert torch.allclose(merged, torch.tensor([[0.45, 0.55]]))


def test_words_of_tokens(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def words(text: str, *more: int) -> list[str]:
        tokens = [*tokenizer.encode(text), *more]
        found = find_words(tokenizer, tokens)
        assert [place for word in found for place in word.places] == [*range(len(tokens))]
        return [word.text for word in found]

    assert words("She doesn't eat 鬱, Ito.", 2) == ["She", "doesn't", "eat", "鬱", ",", "Ito", ".", "(end)"]
    assert words("毎日ピアノを練習する。") == ["毎日", "ピアノ", "を", "練習", "する", "。"]
    monkeypatch.setitem(sys.modules, "sudachipy", None)
    japanese._dictionary.cache_clear()
    monkeypatch.delattr(japanese._thread, "sudachi")
    assert len(words("毎日ピアノを練習する。鬱だ。")) > 6, "without a dictionary, every token is a word"
    assert "鬱" in words("毎日ピアノを練習する。鬱だ。")


# ---- the wheel ----


@pytest.mark.slow
def test_the_wheel_contains_the_shipped_models(bundles: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("chumoku", "recipes"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", *pretrained.NAMES))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in pretrained.NAMES:
        shutil.copytree(bundles / name, tree / "chumoku" / "pretrained" / name)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", *options, str(tree)], check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    for name in pretrained.NAMES:
        files = {file.name: file.read_bytes() for file in (bundles / name).iterdir()}
        packed = tmp_path / "installed" / "chumoku" / "pretrained" / name
        assert {file.name: file.read_bytes() for file in packed.iterdir()} == files
    command = [sys.executable, "-m", "chumoku", "translate", "ja-en", TEXT]
    translated = subprocess.run(command, cwd=tmp_path / "installed", check=True, capture_output=True, text=True)
    assert translated.stdout.rstrip("\n") == chumoku.load(bundles / "ja-en").translate(TEXT)


def test_translating_loads_neither_compiler_nor_plots():
    """They take seconds to import, and every command would wait for them."""
    code = """import sys, chumoku
chumoku.load("ja-en").translate("猫が好きです。")
print({"torch._dynamo", "sympy", "matplotlib", "sacrebleu", "transformers"} & {*sys.modules})"""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout) == (0, "set()\n"), finished.stderr
