"""The documentation: both languages, its code blocks, and the built site, opened from disk."""

from __future__ import annotations

import configparser
import contextlib
import functools
import os
import re
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from browser import open_browser
from doc_blocks import (
    DATA,
    DOCS,
    MARKERS,
    OWN,
    RUN,
    Block,
    chumoku_commands,
    commands_in_prose,
    parse_command,
    read_blocks,
)
from doc_language import wrong_bold, wrong_brackets, wrong_language
from doc_run import Page, run_page
from live_frames import check_attention, check_figures, check_small_frame, check_translator

from chumoku.errors import UsageError
from chumoku.server.security.limits import Limits

sys.path.insert(0, str(DOCS / "tools"))
from assemble import COURSE, LANGUAGES, assemble, fill, join_japanese_lines
from live_figures import LIVE, list_figures
from quote import DocsError, quote
from translations import FOLDER, escape, read_translations, translate

ROOT = DOCS.parent
PAGES = sorted(path.relative_to(DOCS / "en").as_posix() for path in (DOCS / "en").rglob("*.md"))


def kinds_that_run(page: str) -> set[str]:
    return {block.kind for block in read_blocks((DOCS / "en" / page).read_text(encoding="utf-8"))} & set(RUN)


# The Python blocks of the course run as notebooks (test_course.py).
WITH_CODE = [page for page in PAGES if kinds_that_run(page) - ({"python"} if page.startswith(COURSE) else set())]


def test_every_page_is_in_both_languages_and_only_in_its_own() -> None:
    """The generated parts, too: a sentence of the code without a translation fails here."""
    pages = {language: assemble(language, run=False) for language in LANGUAGES}  # the site's test runs them
    assert sorted(pages["en"]) == sorted(pages["ja"]) == PAGES
    for language, texts in pages.items():
        for name, text in texts.items():
            assert not wrong_language(text, language), f"{language}/{name}"
            assert not wrong_brackets(text, language), f"{language}/{name}"
            assert not wrong_bold(text), f"{language}/{name}"


def test_the_other_language_is_noticed() -> None:
    assert wrong_language("モデルです。This is a sentence.", "ja") == ["This is a sentence"]
    assert not wrong_language("モデルは「This is a sentence.」と書きました。", "ja")
    assert not wrong_language("Hugging Face Hub の `chumoku serve a model with it` です。", "ja")
    assert not wrong_language("```bash\nthis is a long command\n```\n", "ja")
    assert wrong_language("The model 翻訳器を学習させるには位置を選びます is here.", "en")
    assert not wrong_language("こたつ and みかん are words, and 注目 is a name.", "en")
    assert wrong_brackets("翻訳器(モデル)です。", "ja")
    assert not wrong_brackets("翻訳器（`f(x)`）です。", "ja")
    assert wrong_brackets("A model（small）.", "en")
    assert wrong_bold("これは**注意（attention）**は")
    assert wrong_bold("これは**「注意」**は")
    assert not wrong_bold("これは**注意**（attention）は")
    assert not wrong_bold("**「注意」と何でしょうか。** 答え、**窓**は")


def test_a_translation_belongs_to_a_sentence_of_the_code() -> None:
    """A translation that nothing uses is left from a sentence that has changed."""
    used: dict[str, set[str]] = {}

    def note(text: str, part: str, language: str) -> str:
        used.setdefault(part, set()).add(" ".join(text.split()))
        return translate(text, part, language)

    import api_reference
    import reference

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "translate", note)
        patch.setattr(api_reference, "translate", note)
        for name in ("keys", "commands", "errors", "api"):
            reference.GENERATORS[name]("ja")
    assert set(used) - {"keys", "commands"} == {file.stem for file in FOLDER.glob("*.toml")} - {"theme"}
    for part in used:
        assert not set(read_translations(part)) - used[part], part


def test_every_chapter_has_a_live_figure() -> None:
    chapters = [page for page in PAGES if re.match(rf"{COURSE}\d", page)]
    kinds = {page: [block.kind for block in read_blocks((DOCS / "en" / page).read_text("utf-8"))] for page in chapters}
    assert len(kinds) == 12
    assert not [page for page, found in kinds.items() if "live" not in found or "lab" not in found]
    shown = {block.code.strip() for page in chapters for block in read_blocks((DOCS / "en" / page).read_text("utf-8"))}
    assert set(list_figures()) <= shown, "a figure is in no chapter"


def test_both_languages_have_the_same_code() -> None:
    def code(language: str, page: str) -> list[Block]:
        blocks = read_blocks((DOCS / language / page).read_text(encoding="utf-8"))
        return [block._replace(code=re.sub(r" *#.*", "", block.code)) for block in blocks if block.kind != "{toctree}"]

    for page in PAGES:
        assert code("en", page) == code("ja", page), page


def check_block(block: Block) -> None:
    """Fail if a block is of a kind that nothing checks, or if its data or its commands are wrong."""
    assert block.kind in (*RUN, *DATA, *OWN), block.kind
    assert set(block.markers) <= set(MARKERS), block.markers
    assert "parsed" not in block.markers or block.markers["parsed"], "say why the block is not run"
    if block.kind == "toml":
        tomllib.loads(block.code)
    if block.kind == "ini":
        configparser.ConfigParser(strict=False).read_string(block.code)
    if block.kind == "nginx":
        assert all(line.rstrip().endswith((";", "{", "}")) for line in block.code.splitlines() if line.strip())
        assert block.code.count("{") == block.code.count("}")
    for words in chumoku_commands(block):
        parse_command(words)


def test_every_block_is_checked() -> None:
    for page in PAGES:
        for block in read_blocks((DOCS / "en" / page).read_text(encoding="utf-8")):
            check_block(block)
    for file in DOCS.glob("*/**/*.md"):
        for words in commands_in_prose(file.read_text(encoding="utf-8")):
            parse_command(words, complete=False)


@pytest.mark.parametrize(
    "block",
    [
        Block("bash", "chumoku train demo --resumee\n", {"parsed": "it takes long"}),
        Block("bash", "torchrun --nproc-per-node 2 -m chumoku train demo --resumee\n", {"parsed": "it needs two GPUs"}),
        Block("bash", "chumoku train demo\n", {"parsed": ""}),
        Block("bash", "chumoku train demo\n", {"background": ""}),
        Block("console", "chumoku train demo\n", {}),
        Block("toml", "[model\n", {}),
        Block("ini", "[Service]\nExecStart=/opt/bin/chumoku serve --prot 1\n", {}),
        Block("nginx", "server {\n  listen 80\n}\n", {}),
    ],
)
def test_a_wrong_block_is_noticed(block: Block) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - the parser of each kind has its own errors
        check_block(block)


def test_the_files_for_deployment_fit_the_program() -> None:
    """The image gets what `pip install` reads and nothing else; nothing kills the server while it finishes requests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {"chumoku", "constraints.txt", "pyproject.toml", project["project"]["readme"]}
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert {line[1:] for line in ignored if line[0] == "!"} == needed | set(project["project"]["license-files"])
    guide = (DOCS / "en" / "guides" / "serve.md").read_text(encoding="utf-8")
    timeouts = re.findall(r"--stop-timeout (\d+)", guide)
    assert len(timeouts) == len(re.findall("^docker run", guide, re.MULTILINE))
    assert min(map(int, timeouts)) >= Limits().drain_seconds + 5
    assert f"RestartPreventExitStatus={UsageError.exit_code}\n" in guide


@pytest.mark.sample(5)
@pytest.mark.usefixtures("quick_runs")
@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(page, tmp_path)


FAILING: list[tuple[str, dict[str, str]]] = [
    ("chumoku keys train.stepz", {}),
    ("false | cat", {}),
    ("python examples/nothing.py", {}),
    ("curl -s http://127.0.0.1:8731/v1/nothing", {}),
    ("chumoku serve runs/nothing", {}),
    ("chumoku keys train.steps", {"in tests": "train.step= → train.steps="}),
    ("chumoku keys train.steps", {"given": "runs/demo=nothing"}),
]


def test_a_command_that_fails_is_noticed(writer: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        page = Page(tmp_path, stack, patch)
        page.run(Block("bash", f"chumoku serve {writer}\ncurl -s http://127.0.0.1:8731/v1/models\n", {}), "a page")
        for code, markers in FAILING:
            with pytest.raises(Exception, match=r"\S"):  # each kind of command has its own errors
                page.run(Block("bash", f"{code}\n", markers), "a page")


def test_a_quote_is_the_source() -> None:
    found = quote("chumoku.nn.attention.attend")
    assert found.code.startswith("def attend(")
    assert "softmax" in quote("chumoku.nn.attention").code
    for wrong in ("chumoku.nn.attention.attendd", "chumoku.nowhere.f", "os.path.join"):
        with pytest.raises(DocsError, match="is quoted, but"):
            quote(wrong)
    assert "def attend(" in fill("```source\nchumoku.nn.attention.attend\n```", "en")
    for wrong in ("nothing", "gpt2 look"):
        with pytest.raises(DocsError, match="live"):
            fill(f"```live\n{wrong}\n```", "en")
    with pytest.raises(DocsError, match="no generated part"):
        fill("```generated\nkeyz\n```", "en")
    with pytest.raises(DocsError, match="has no translation"):
        translate("A sentence that the code does not have.", "keys", "ja")


def test_markdown_of_generated_text() -> None:
    assert escape("a * b, `c * d` and [e]") == r"a \* b, `c * d` and \[e\]"
    assert join_japanese_lines("一行目。\n二行目\n\n- 三\n- 四\n") == "一行目。二行目\n\n- 三\n- 四\n"


SILENT = ("script", "style", "pre", "code", "title", "math")


class Links(HTMLParser):
    """The addresses in a page, those that it loads, the ids that can be linked to, and what readers see or hear."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.ids: set[str] = set()
        self.words: list[str] = []
        self.silent: list[str] = []  # open elements whose text is code, or is not shown
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("id"):
            self.ids.add(str(values["id"]))
        self.words += [str(values[key]) for key in ("title", "aria-label", "alt", "placeholder") if values.get(key)]
        self.silent += [tag] if tag in SILENT else []
        for key in ("href", "src"):
            if values.get(key):
                (self.links if tag == "a" else self.loaded).add(str(values[key]))

    def handle_endtag(self, tag: str) -> None:
        if self.silent and self.silent[-1] == tag:
            self.silent.pop()

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.words.append(data)


read_links = functools.cache(Links)


def broken_links(site: Path) -> list[str]:
    """Links and assets that lead nowhere, and assets of other hosts. The pages of live figures have no links."""
    files = {str(file) for file in site.resolve().rglob("*") if file.is_file()}
    pages = {
        file: read_links(Path(file)) for file in files if file.endswith(".html") and Path(file).parent.name != LIVE
    }
    broken = []
    for file, page in pages.items():
        for address in sorted(page.links | page.loaded):
            parts = urlsplit(address)
            target = os.path.normpath(os.path.join(os.path.dirname(file), unquote(parts.path))) if parts.path else file
            if parts.scheme:
                wrong = address in page.loaded and parts.scheme != "data"
            else:
                wrong = target not in files or bool(
                    parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids
                )
            broken += [f"{os.path.basename(file)}: {address}"] if wrong else []
    return broken


def search(page: Any, site: Path, language: str, query: str, found: str) -> None:
    """Search in the built site until a link to the page `found` is among the results, which appear one by one."""
    page.goto(f"{(site / language / 'search.html').resolve().as_uri()}?q={query}")
    page.wait_for_selector(f"#search-results li a[href*='{found}']")


def test_the_built_site_works_from_disk(tmp_path: Path) -> None:
    """Links and assets, no request to another host, search in both languages, and the live figures."""
    pytest.importorskip("sphinx", reason="the site is built with: pip install 'chumoku[docs]'")
    from build_site import build

    site = tmp_path / "site"
    build(site)
    assert not broken_links(site)
    for language in LANGUAGES:
        for file in (site.resolve() / language).rglob("*.html"):
            assert not wrong_language("\n".join(read_links(file).words), language), file
    with open_browser(tmp_path) as browser:
        page, wrong = browser.new_page(), []
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("requestfailed", lambda request: wrong.append(request.url))
        page.on("request", lambda request: request.url[:5] in ("file:", "data:", "blob:") or wrong.append(request.url))
        page.goto((site / "index.html").resolve().as_uri())
        page.wait_for_url("**/en/index.html")
        search(page, site, "en", "dropout", "reference/keys")
        search(page, site, "ja", "アテンションの窓", "reference/keys")
        page.goto((site / "ja" / "reference" / "keys.html").resolve().as_uri())
        page.click(".other-language a")
        page.wait_for_url("**/en/reference/keys.html")
        check_figures(page, site, list_figures())
        check_attention(page, site)
        check_small_frame(page, site / "en" / "course" / "02-dot-product.html")
        check_translator(page, site / "ja" / "course" / "05-heads.html", "猫が庭で静かに寝ている。")
        assert not wrong


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a id="x" href="b.html">b</a><a href="#y">y</a><img src="https://a.example/i.png">'
    )
    assert broken_links(tmp_path) == ["a.html: #y", "a.html: b.html", "a.html: https://a.example/i.png"]
