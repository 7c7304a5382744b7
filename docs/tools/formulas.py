"""Formulas as MathML: LaTeX is translated when the site is built, so a page needs no script and no font."""

from __future__ import annotations

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def to_mathml(formula: str, *, as_block: bool = False) -> str:
    """LaTeX as MathML; the bars of ‖x‖ do not grow to the height of a sum beside them."""
    return tex2mathml(formula, as_block=as_block).replace(">‖</mo>", ' stretchy="false">‖</mo>')


def write_inline(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(to_mathml(node.astext()))
    raise nodes.SkipNode


def write_block(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="formula">{to_mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup_formulas(app: Sphinx) -> None:
    """Make `html_math_renderer = "mathml"` known."""
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))  # type: ignore[arg-type]
