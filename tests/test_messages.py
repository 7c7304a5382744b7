"""Messages in Japanese: complete, with the same values as in English, and found again from the finished text."""

from __future__ import annotations

import re
import tomllib

import pytest
from source_messages import ROOT, collect_labels, collect_messages, string_constants

from chumoku import messages
from chumoku.compare.metrics import METRICS
from chumoku.model_diff.answer import UNITS
from chumoku.probe.figures import STREAM_LINES
from chumoku.probe.plot_style import label

VALUE = re.compile(r"\{(\d+)\}")
NARROW = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff][()]|[()][\u3001\u3002\u3040-\u30ff\u4e00-\u9fff]")  # beside Japanese
TWO_MEANINGS = {"head", "the loss"}  # of attention, or on top of a model; a number, or the choice of one
TABLES = sorted((messages.FOLDER / "ja").glob("*.toml"))
EXACT, TEMPLATES = messages.read_templates()
TRANSLATED = EXACT | {
    "".join(f"{part}{{{i}}}" for i, part in enumerate(t.fixed[:-1])) + t.fixed[-1]: t.japanese for t in TEMPLATES
}


def test_every_message_has_a_translation() -> None:
    missing = [f"{file}: {text!r}" for text, file in collect_messages().items() if text not in TRANSLATED]
    assert not missing, "chumoku/messages/ja has no translation of\n" + "\n".join(missing)


def test_every_label_of_a_figure_has_a_translation() -> None:
    labels, untranslated = collect_labels()
    table = messages.read_table(messages.FIGURES)
    assert len(labels) > 50
    labels |= {name for _, name, _ in STREAM_LINES} | {metric.unit for metric in METRICS.values()} | set(UNITS)
    labels -= {"BLEU", "chrF", "%"}  # the same in Japanese
    assert not labels - set(table)
    assert not untranslated
    for english, japanese in table.items():
        assert set(VALUE.findall(japanese)) == set(VALUE.findall(english)), english


def test_translations_are_japanese_and_keep_every_value() -> None:
    for english, japanese in TRANSLATED.items():
        assert set(VALUE.findall(japanese)) <= set(VALUE.findall(english)), english
        assert re.search(r"[\u3040-\u30ff\u4e00-\u9fff]", japanese), english


def test_one_text_has_one_translation() -> None:
    """In all tables, those of the documentation too."""
    found: dict[str, set[str]] = {}
    for path in (*TABLES, *sorted((ROOT / "docs/ja/translations").glob("*.toml"))):
        for english, japanese in tomllib.loads(path.read_text(encoding="utf-8")).items():
            found.setdefault(" ".join(english.split()), set()).add(" ".join(japanese.split()))
    assert len(found) > 1000
    assert {english for english, several in found.items() if len(several) > 1} == TWO_MEANINGS


def test_japanese_has_wide_brackets() -> None:
    """Also in texts that are written in both languages; those of lab/claims have Japanese words after English ones."""
    texts = {f"{table.stem}: {ja}" for table in TABLES for ja in messages.read_table(table.stem).values()}
    for path in (ROOT / "chumoku").rglob("*.py"):
        if "claims" not in path.parts:
            texts |= {f"{path}: {text}" for text in string_constants(path) if "\n" not in text}
    found = [text for text in texts if NARROW.search(text.replace("()", "")) and "\\p{Han}" not in text]
    assert not found, "not calls, nor a regular expression"


def test_a_filled_message_finds_its_own_template() -> None:
    """Values with spaces, dots and quotes do not lead to another template with more fixed characters than its own."""
    for english, japanese in TRANSLATED.items():
        values = [f"a.b/{chr(112 + i % 10)}{i}" for i in range(len(VALUE.findall(english)))]
        filled = VALUE.sub(lambda match, values=values: values[int(match[1])], english)
        expected = VALUE.sub(lambda match, values=values: values[int(match[1])], japanese)
        assert messages.to_japanese(filled) == expected, english


def test_labels_of_figures_stay_english_without_a_japanese_font(monkeypatch: pytest.MonkeyPatch) -> None:
    assert label("head {0}", 3) == "head 3", "Python callers read English"
    messages.use_language("ja")
    for fonts, expected in ((("IPAexGothic",), "ヘッド 3"), ((), "head 3")):
        monkeypatch.setattr("chumoku.probe.plot_style.japanese_fonts", lambda fonts=fonts: fonts)
        assert label("head {0}", 3) == expected


@pytest.mark.parametrize(
    ("english", "japanese"),
    [
        (  # a key before its sentences
            "data.x: The text has no token that this model knows. Give another one.",
            "data.x: 入力文に、このモデルの知っているトークンがありません。別の文を指定してください。",
        ),
        (
            "a: 5 is too small; it must be above 7.\nb: 3 is too small; it must be above 5.",
            "a: 5 は小さすぎます。7 より大きくしてください。\nb: 3 は小さすぎます。5 より大きくしてください。",
        ),
        ("3 is not a choice; choose 'a', 'b' or 'c'.", "3 は選べません。選べるのは 'a', 'b' または 'c' です。"),
        (
            "There is no device 'a folder'. Choose cpu or cuda.",
            "デバイス 'a folder' はありません。cpu か cuda を選んでください。",
        ),
        ("x is a pipe, but a regular file is needed.", "x is a pipe, but a regular file is needed."),  # no template
        (
            "x: f is a socket, but a regular file is needed. Write its content to a file first.",
            "x: f はソケットです。通常のファイルが必要なので、内容を先にファイルへ書き出してください。",
        ),  # no space beside Japanese
        ("step 3/5 · loss 7.1 · 9 s left", "ステップ 3/5 · 損失 7.1 · 残り 9 秒"),
        ("step 3: validation loss 7.1, perplexity 11", "ステップ 3：検証損失 7.1、パープレキシティ 11"),
        ("Notes about the two files", "Notes about the two files"),  # not a number of files
        (  # a sentence is not part of the next one's first value
            "There are no translations to score. 3 of 5 weights are not finite.",
            "採点する訳文がありません。5 個の重みのうち 3 個が有限ではありません。",
        ),
        (  # nor of the last value of the one before
            "The report is in a.json. There are no translations to score.",
            "報告は a.json にあります。採点する訳文がありません。",
        ),
        ("3 of 5 lines are duplicates: 'One. Two'.", "5 行のうち 3 行が重複です：'One. Two'。"),
    ],
)
def test_keys_lists_and_names_in_messages(english: str, japanese: str) -> None:
    assert messages.to_japanese(english) == japanese


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "en"),
        ({"LANG": "ja_JP.UTF-8"}, "ja"),
        ({"LANG": "ja_JP.UTF-8", "CHUMOKU_LANG": "en"}, "en"),
        ({"LANG": "de_DE.UTF-8", "LC_MESSAGES": "ja_JP"}, "ja"),
        ({"LC_ALL": "C", "LANG": "ja_JP.UTF-8"}, "en"),
        ({"CHUMOKU_LANG": "ja"}, "ja"),
    ],
)
def test_the_environment_decides_the_language(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("CHUMOKU_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert messages.language() == expected
