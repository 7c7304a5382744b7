"""The command line in Japanese: help, wrong use, errors, progress and tables; JSON and exit codes stay the same."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import Ask
from rich.console import Console

from chumoku import messages
from chumoku.cli import app
from chumoku.text.progress import ShowProgress
from chumoku.training.log import Log
from chumoku.training.settings import TrainSettings
from chumoku.training.state import State

JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
ENGLISH = re.compile(r"[A-Za-z]{2,} [a-z]{2,} [a-z]{2,}")  # three words in a row
ERRORS = {  # command line → exit code
    ("generat",): 2,
    ("generate", "--foo"): 2,
    ("generate",): 2,
    ("generate", "x", "--seed", "a"): 2,
    ("generate", "nothing-here", "text"): 2,
    ("lab", "run", "skp"): 2,
    ("train", "tiny-decodr"): 2,
    ("train", "demo", "model.widht=7"): 2,
    ("evaluate", "ja-en", "nothing.tsv"): 2,
    ("count", "gpt2", "model.width=7"): 2,
    ("serve", "--host", "0.0.0.0"): 2,
}


@pytest.fixture
def japanese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHUMOKU_LANG", "ja")
    monkeypatch.setenv("COLUMNS", "160")


def english_words(text: str) -> list[str]:
    """Three English words in a row, outside of the code in help texts and of commands to run."""
    text = re.sub(r"chumoku( [a-z-]+)+", "", text)
    for japanese in messages.read_table("commands").values():
        for code in re.findall("`([^`]*)`", japanese):
            text = text.replace(code, "")
    return ENGLISH.findall(text)


def help_texts(group: Any, command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Everything that the help of a command and of those below it shows, without drawing it."""
    context = command.context_class(command, info_name=" ".join(("chumoku", *path)))
    yield group.usage(command, command.get_usage, context)
    yield command.help
    for parameter in command.get_params(context):
        default = parameter.show_default if isinstance(parameter.show_default, str) else ""
        yield f"{parameter.help or ''}\n{default}"
    for name, one in getattr(command, "commands", {}).items():
        yield from help_texts(group, one, (*path, name))


@pytest.mark.usefixtures("japanese")
def test_help_is_japanese(ask: Ask) -> None:
    for words in ((), ("serve",), ("lab", "run")):
        found = ask(*words, "--help")
        assert found.code == 0, words
        assert "使い方:" in found.out, words
        assert "オプション ─" in found.out, words
        assert not english_words(found.out), words
    messages.use_language("ja")
    group: Any = typer.main.get_command(app)
    with ExitStack() as group.restore:
        texts = list(help_texts(group, group))
    assert len(texts) > 250
    assert not [text for text in texts if english_words(text)]


@pytest.mark.usefixtures("japanese")
def test_a_narrow_terminal_shows_all_of_a_help_text(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    shown = re.sub(r"[\s│]", "", ask("generate", "--help").out)
    assert "0なら常に最も確率の高いトークン、1ならモデルの確率のまま、1より大きいとよりランダム。" in shown
    assert "[既定値:(0.7またはモデルの設定)]" in shown


def test_errors_are_japanese_with_the_same_exit_code(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for words, code in ERRORS.items():
        monkeypatch.setenv("CHUMOKU_LANG", "en")
        english = ask(*words)
        monkeypatch.setenv("CHUMOKU_LANG", "ja")
        japanese = ask(*words)
        assert (english.code, japanese.code, english.out, japanese.out) == (code, code, "", ""), words
        assert not JAPANESE.search(english.err), words
        assert JAPANESE.search(japanese.err), words
        assert not ENGLISH.search(japanese.err), japanese.err


def test_ctrl_c_is_reported(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("chumoku.models.count.count", interrupt)
    for language, text in {"en": "Stopped.\n", "ja": "中断しました。\n"}.items():
        monkeypatch.setenv("CHUMOKU_LANG", language)
        found = ask("count", "gpt2")
        assert (found.code, found.err) == (130, text)


def test_json_is_the_same_in_both_languages(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (("count", "gpt2"), ("keys", "dropout")):
        found = []
        for language in ("en", "ja"):
            monkeypatch.setenv("CHUMOKU_LANG", language)
            found.append(ask(*words, "--json"))
        assert found[0] == found[1]
        assert found[0].out.startswith("{"), words


@pytest.mark.usefixtures("japanese")
def test_tables_are_japanese(ask: Ask) -> None:
    for words in (("count", "gpt2"), ("keys", "dropout"), ("families",), ("lab",)):
        found = ask(*words).out
        assert JAPANESE.search(found), words
        assert not english_words(found), words


def test_other_locales_read_english(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    english = [ask(*words) for words in (("count", "gpt2"), ("count", "--help"), ("generat",))]
    monkeypatch.delenv("CHUMOKU_LANG")
    monkeypatch.setenv("LC_ALL", "C")
    assert [ask(*words) for words in (("count", "gpt2"), ("count", "--help"), ("generat",))] == english
    assert not any(JAPANESE.search(found.out + found.err) for found in english)


def test_progress_is_japanese(tmp_path: Path) -> None:
    """Lines of a training run and of long steps, as the demo prints them."""
    messages.use_language("ja")
    file = io.StringIO()
    console = Console(file=file, force_terminal=False, width=160)
    ShowProgress(console, every=0.0)("reading", 30_720, unit="pairs")
    log = Log(tmp_path, TrainSettings(steps=1000), console)
    log.peak_speed = 14406.0
    state = State(step=10, tokens=70, seconds=5.0)
    log.step(state, loss=3.5, norm=1.0, rate=1e-3, speed=7203.0)
    log.validation(10, 3.25, bytes_a_token=None, best=True)
    log.show("loss 3.5")  # the output of a model
    lines = file.getvalue().splitlines()
    assert lines == [
        "読み込み中：30,720 組、0 秒",
        "ステップ 10/1,000 · 損失 3.5000 · 7,203 トークン/秒 · ピーク性能の 50% · 学習率 1.0e-03 · 残り 495 秒",
        "ステップ 10：検証損失 3.2500、パープレキシティ 25.79（これまでで最良）",
        "loss 3.5",
    ]
