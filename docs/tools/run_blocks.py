"""The Python blocks of a page of the course, run in order when the site is built, and what each of them shows.

A block shows what it prints, and its last expression as in a notebook: `_repr_html_()` if it has that, else its repr.
The blocks of a page share their variables. Both languages have the same code, so it runs once.

    <!-- answer -->      the output of the next block is folded: it answers a question
"""

from __future__ import annotations

import ast
import contextlib
import functools
import html
import io
import re
import textwrap
from typing import Any, NamedTuple

import torch
from quote import DocsError

ANSWER = {"en": "Answer", "ja": "答え"}
BLOCK = re.compile(r"(?P<answer>^<!-- answer -->\n)?^```python\n(?P<code>.*?)^```$", flags=re.DOTALL | re.MULTILINE)


class Shown(NamedTuple):
    """What a block shows below itself."""

    text: str
    html: str


def show_outputs(text: str, english: str, language: str) -> str:
    """A page's Markdown with the output of each Python block below it.

    english    the Markdown of the English page, whose code is run
    """
    outputs = iter(run_blocks(tuple(found["code"] for found in BLOCK.finditer(english))))

    def append_output(found: re.Match[str]) -> str:
        shown = next(outputs, None)
        if shown is None:
            raise DocsError("it has more Python blocks than the English page.")
        block = f"```python\n{found['code']}```"
        return block + (_fold(shown, language) if found["answer"] else _render(shown))

    return BLOCK.sub(append_output, text)


@functools.cache
def run_blocks(codes: tuple[str, ...]) -> tuple[Shown, ...]:
    """Run these blocks in order, with the same variables."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    with torch.random.fork_rng(devices=[]):
        return tuple(run_block(code, scope) for code in codes)


def run_block(code: str, scope: dict[str, Any]) -> Shown:
    """Run a block and return what it printed and the value of its last expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, "page", "exec"), scope)  # noqa: S102 - our own documentation
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "page", "eval"), scope)
    except Exception as error:
        raise DocsError(f"this block raised {type(error).__name__}: {error}\n{code}") from error
    picture = value._repr_html_() if hasattr(type(value), "_repr_html_") else ""
    return Shown(printed.getvalue() + ("" if value is None or picture else f"{value!r}\n"), picture)


def _render(shown: Shown) -> str:
    parts = ["", ""]
    if shown.text:
        parts.append(f"````{{code-block}} text\n:class: output\n\n{shown.text}````\n")
    if shown.html:
        parts.append(raw_html(f'<div class="output">{shown.html}</div>'))
    return "\n".join(parts)


def _fold(shown: Shown, language: str) -> str:
    text = f"<pre>{html.escape(shown.text)}</pre>" if shown.text else ""
    summary = f"<summary>{ANSWER[language]}</summary>"
    return "\n\n" + raw_html(f'<details class="output">{summary}{text}{shown.html}</details>')


def raw_html(markup: str) -> str:
    """HTML as a block of MyST Markdown."""
    return f"````{{raw}} html\n{textwrap.dedent(markup).strip()}\n````\n"
