"""The pages of one language, ready for Sphinx: the Markdown in docs/en or docs/ja with four kinds of blocks filled in.

    ```source                            ```generated        ```lab        ```live
    chumoku.nn.attention.attend          keys                dot           softmax
    ```                                  ```                 ```           ```

A `source` block becomes the code of that name (quote.py), a `generated` block a part of the reference (reference.py),
a `lab` block what the laboratory says about these claims (lab_block.py), a `live` block a figure that the reader can
move (live_figures.py). The Python blocks of the course are run, and their output is below them (run_blocks.py).
"""

from __future__ import annotations

import re
from pathlib import Path

from lab_block import describe_claims
from live_figures import embed_live
from quote import ROOT, DocsError, quote
from reference import GENERATORS
from run_blocks import show_outputs

DOCS = ROOT / "docs"
LANGUAGES = ("en", "ja")
COURSE = "course/"  # the folder of the pages whose Python blocks are run
JAPANESE = "\u3000-\u30ff\u3400-\u9fff\uff00-\uffef"  # kana, kanji and full-width punctuation
_FILLED = re.compile(r"^```(source|generated|lab|live)\n(.*?)\n```$", flags=re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"^<!--.*?-->\n", flags=re.MULTILINE)  # what tests do with the next block


def assemble(language: str, folder: Path = DOCS, *, run: bool = True) -> dict[str, str]:
    """The Markdown of every page of a language, by its path in the folder of the language.

    run    also run the code of the course and the claims of the laboratory; otherwise their blocks stay as they are
    """
    place = folder / language
    pages = {}
    for file in sorted(place.rglob("*.md")):
        name = file.relative_to(place).as_posix()
        try:
            text = join_japanese_lines(file.read_text(encoding="utf-8"))
            if run and name.startswith(COURSE):
                text = show_outputs(text, (folder / "en" / name).read_text(encoding="utf-8"), language)
            pages[name] = fill(text, language, run=run)
        except DocsError as error:
            raise DocsError(f"{file.relative_to(folder)}: {error}") from error
    return pages


def fill(text: str, language: str, *, run: bool = True) -> str:
    """A page's Markdown with its source, generated, live and (if `run`) lab blocks filled in."""
    return _FILLED.sub(
        lambda found: found[0] if found[1] == "lab" and not run else _fill_block(found[1], found[2], language),
        _COMMENT.sub("", text),
    )


def join_japanese_lines(text: str) -> str:
    """The text without line ends inside Japanese paragraphs, which a browser would show as spaces."""
    return "".join(
        part if part.startswith("```") else re.sub(rf"([{JAPANESE}])\n(?=[^\s#>|:*<-])", r"\1", part)
        for part in re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    )


def _fill_block(kind: str, content: str, language: str) -> str:
    if kind == "source":
        return "\n\n".join(_quoted_block(name.strip()) for name in content.splitlines())
    if kind == "lab":
        return describe_claims(content, language)
    if kind == "live":
        return embed_live(content, language)
    if content not in GENERATORS:
        raise DocsError(f"there is no generated part {content}; there are {', '.join(GENERATORS)}.")
    return GENERATORS[content](language)


def _quoted_block(name: str) -> str:
    found = quote(name)
    language = "text" if "/".join(name.split(".")) in found.file else "python"
    return f"````{{code-block}} {language}\n:caption: {found.file}, {found.first}–{found.last}\n\n{found.code}\n````"
