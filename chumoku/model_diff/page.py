"""The page of two models' differences: one HTML file in both languages, without scripts.

Texts of models and data are untrusted and are escaped like everything else.
"""

from __future__ import annotations

import base64
import html
import os
from pathlib import Path

from chumoku.model_diff.answer import answer
from chumoku.model_diff.picture import draw_panels
from chumoku.model_diff.results import ModelDiff
from chumoku.model_diff.tables import Cell, Rows, block_rows, change_rows, head_rows, measure_rows
from chumoku.probe.bilingual import BASE_CSS, Words, bilingual, language_switch, render_bilingual_page

CSS = (
    BASE_CSS
    + """
.models { margin: 0 0 14px; } .models dd { overflow-wrap: anywhere; }
.answer { font-size: 18px; line-height: 1.6; margin: 0 0 22px; padding: 0 0 0 16px; list-style: none;
  border-left: 4px solid var(--ink); }
.answer li { overflow-wrap: anywhere; font-size: 16px; } .answer li + li { margin-top: 4px; }
.answer li:first-child { font-size: 20px; }
#l-both:checked ~ .page .answer [lang], #l-both:checked ~ .page .method [lang] { display: block; }
section { border-top: 1px solid var(--rule); padding: 18px 0 8px; }
.panels { display: flex; flex-wrap: wrap; gap: 16px; } .panels figure { flex: 1 1 400px; min-width: 0; margin: 0; }
.panels img { width: 100%; height: auto; }
.wide { overflow-x: auto; } .wide table { font-variant-numeric: tabular-nums; }
.wide th, .wide td { padding: 3px 14px 3px 0; vertical-align: top; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
.changes td { white-space: pre-wrap; overflow-wrap: anywhere; max-width: 24em; }
.changes .long { min-width: 11em; }
.method { max-width: 56em; } .method li + li { margin-top: 6px; }
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --ink: #e4eaf0; --soft: #9aa8b6; --rule: #303b46; --paper: #1a2128; --tint: #12171c; }
  #l-ja:checked ~ .page label[for="l-ja"], #l-en:checked ~ .page label[for="l-en"],
  #l-both:checked ~ .page label[for="l-both"] { color: var(--paper); }
  figure img { background: #fff; border-radius: 4px; }
}
"""
)
LONG = 12  # characters; such cells get a wide column on a phone
TITLE = Words("What is the difference?", "二つのモデルの違い")


def write_page(diff: ModelDiff, path: Path) -> Path:
    """Write the page atomically; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.writing")
    temporary.write_text(render_page(diff), encoding="utf-8")
    os.replace(temporary, path)
    return path


def render_page(diff: ModelDiff) -> str:
    models = "".join(
        f"<dt>{side}</dt><dd>{html.escape(name)}<br>{html.escape(model)}</dd>"
        for side, name, model in zip("AB", diff.names, diff.models, strict=True)
    )
    sentences = "".join(f"<li>{bilingual(words)}</li>" for words in answer(diff))
    tables = ((measure_rows(diff), ""), (change_rows(diff), " changes"), (head_rows(diff), ""), (block_rows(diff), ""))
    body = (
        f"<header>{language_switch()}<h1>{bilingual(TITLE)}</h1></header>\n"
        f'<dl class="terms models">{models}</dl><ul class="answer">{sentences}</ul>\n{_panels(diff)}'
        f"{''.join(_table(rows, kind) for rows, kind in tables if rows is not None)}{_method(diff)}"
        f"<footer>{bilingual(Words('Written by `chumoku diff`.', '`chumoku diff` が作成しました。'))}</footer>"
    )
    return render_bilingual_page(TITLE, css=CSS, body=body)


def _panels(diff: ModelDiff) -> str:
    figures = "".join(
        f'<figure><img alt="{html.escape(f"{caption.ja} {caption.en}", quote=True)}" '
        f'src="data:image/png;base64,{base64.b64encode(data).decode()}">'
        f"<figcaption>{bilingual(caption)}</figcaption></figure>"
        for data, caption in draw_panels(diff)
    )
    return f'<section class="panels">{figures}</section>\n'


def _table(rows: Rows, kind: str) -> str:
    head = "".join(f"<th>{bilingual(words)}</th>" for words in rows.heads)
    cells = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows.cells)
    table = f'<div class="wide{kind}"><table><tr>{head}</tr>{cells}</table></div>'
    return f"<section><h2>{bilingual(rows.title)}</h2>{table}</section>\n"


def _cell(cell: Cell) -> str:
    if isinstance(cell, Words):
        return f"<td>{bilingual(cell)}</td>"
    start = '<td class="long">' if len(cell) > LONG else "<td>"
    return f"{start}{html.escape(cell)}</td>"


def _method(diff: ModelDiff) -> str:
    points = [
        Words(
            "Both models read the same texts, at their own precision and with the engine that generates text. "
            "Differences are taken text by text and weighted by tokens; the interval of their mean is Student's. "
            "Assumption: the texts are independent.",
            "両方のモデルが同じテキストを、それぞれの精度で、生成と同じエンジンで読みます。差はテキストごとに取り、トークン"
            "数で重みづけします。平均の区間は t 分布によります。仮定: テキストは互いに独立。",
        ),
    ]
    if diff.inside is not None:
        texts, tokens = diff.inside.texts, diff.inside.tokens
        points.append(
            Words(
                f"Weights are compared after dequantization: ‖W_B − W_A‖ / ‖W_A‖. Patterns and streams were recorded "
                f"on {texts:,} texts with {tokens:,} tokens.",
                f"重みは逆量子化して比べます: ‖W_B − W_A‖ / ‖W_A‖。アテンションとストリームは {texts:,} 件、"
                f"{tokens:,} トークンで記録しました。",
            )
        )
    if diff.transplants:
        points.append(
            Words(
                "A transplant replaces one part of a model by that of the other, at its own precision; the same engine "
                f"runs the result on {diff.transplant_texts:,} texts. * marks effects that are sure after Holm's "
                f"correction over all {len(diff.transplants)} transplants (5 %). Effects of parts need not add up.",
                "移植では、モデルの一つの部分をもう一方のものに、その精度のまま置き換え、同じエンジンで "
                f"{diff.transplant_texts:,} 件を採点します。* は {len(diff.transplants)} 回の移植全体の Holm 補正後も確"
                "かな効果（5 %）です。効果の和が全体の差になるとは限りません。",
            )
        )
    items = "".join(f"<li>{bilingual(words)}</li>" for words in points)
    title = bilingual(Words("Method and assumptions", "方法と仮定"))
    return f'<section class="method"><h2>{title}</h2><ul>{items}</ul></section>\n'
