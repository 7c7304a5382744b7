"""Both READMEs: their size, language, code, links and pictures; and files and counts that the pages name."""

from __future__ import annotations

import re
from pathlib import Path

import cells
import mutants
import pytest
from doc_blocks import DOCS, ROOT, chumoku_commands, commands_in_prose, parse_command, read_blocks
from doc_language import wrong_bold, wrong_brackets, wrong_language

from chumoku.lab.claims import CLAIMS

READMES = {"en": "README.md", "ja": "README.ja.md"}
MOST_LINES, MOST_BYTES = 120, 150_000  # of a README, of a picture
FILE = re.compile(r"`(?!out/|runs/)((?:[\w-]+/)+[\w-]+\.(?:py|toml|md|html))`")


def read(language: str) -> str:
    return (ROOT / READMES[language]).read_text(encoding="utf-8")


def missing_files(text: str) -> list[str]:
    """Relative links and pictures of a README that lead to no file or folder."""
    targets = re.findall(r"\]\(([^)]+)\)|src=\"([^\"]+)\"", text)
    return [name for pair in targets for name in pair if name and "://" not in name and not (ROOT / name).exists()]


@pytest.mark.parametrize("language", READMES)
def test_a_readme_is_short_and_in_its_language(language: str) -> None:
    text = read(language)
    assert text.count("\n") <= MOST_LINES
    assert not wrong_language(text, language)
    assert not wrong_brackets(text, language)
    assert not wrong_bold(text)


@pytest.mark.parametrize("language", READMES)
def test_links_and_pictures_of_a_readme(language: str) -> None:
    text = read(language)
    assert not missing_files(text)
    assert missing_files("[a](docs/nowhere.md)") == ["docs/nowhere.md"]
    pictures = re.findall(r"docs/assets/[\w.]+", text)
    assert {Path(name).name for name in pictures} == {f"page.{language}.png", f"attention.{language}.png"}
    assert all((ROOT / name).stat().st_size < MOST_BYTES for name in pictures)


def test_python_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in read_blocks(read("en")) if block.kind == "python"]
    assert blocks
    for block in blocks:
        exec(compile(block.code, "README.md", "exec"), {})  # noqa: S102 - our own README, in a test


def test_commands_of_the_readme() -> None:
    """Options are parsed, and the targets of make exist."""
    blocks = [block for block in read_blocks(read("en")) if block.kind == "bash"]
    for words in (words for block in blocks for words in chumoku_commands(block)):
        parse_command(words)
    for words in commands_in_prose(read("en")) + commands_in_prose(read("ja")):
        parse_command(words, complete=False)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"\bmake ([a-z-]+)", read("en") + read("ja")))
    assert targets >= {"demo", "check", "test", "test-slow", "test-all"}
    assert targets <= set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))


def test_both_readmes_have_the_same_code() -> None:
    english, japanese = (
        [(block.kind, re.sub(r" *#.*", "", block.code)) for block in read_blocks(read(language))]
        for language in READMES
    )
    assert english == japanese


def test_files_that_pages_name_exist() -> None:
    named = {
        (name, file.name)
        for file in (*DOCS.glob("??/*.md"), *DOCS.glob("??/guides/*.md"), *DOCS.glob("??/reference/*.md"))
        for name in FILE.findall(file.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert not {one for one in named if not any((place / one[0]).exists() for place in (ROOT, ROOT / "chumoku"))}


def test_counts_in_the_pages() -> None:
    """Numbers of combinations, formats, kills and claims are those of the tests, the Makefile and the lab."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    kills, commands = re.findall(r"--kills (\d+)", makefile)
    (each,) = re.findall(r"--each (\d+)", makefile)
    counts = len(cells.CELLS), len(cells.COVERING), len(mutants.FORMATS), int(each)
    sentences = {
        "en": ("{:,} combinations", "on {} of them", "of each of {} formats", "opens {:,} damaged files"),
        "ja": ("組み合わせは {:,} 通り", "そのうちの {} 通り", "{} 形式それぞれ", "それぞれ {:,} 個の壊れたファイル"),
    }
    claims = {"en": f"| {len(CLAIMS)} claims |", "ja": f"| {len(CLAIMS)} の主張 |"}
    kill_counts = {"en": (f"kills\n{kills} runs", f"({commands} times"), "ja": (f"{kills} 回", f"合計 {commands} 回")}
    for language in READMES:
        proven = (DOCS / language / "proven.md").read_text(encoding="utf-8")
        for sentence, count in zip(sentences[language], counts, strict=True):
            assert sentence.format(count) in proven
        assert all(sentence in proven for sentence in kill_counts[language])
        assert claims[language] in (DOCS / language / "guides" / "lab.md").read_text(encoding="utf-8")
