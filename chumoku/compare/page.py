"""The page of a comparison: one HTML file in both languages, without scripts.

It shows the answer, the picture, the tables of arms and pairs, what was adjusted for equal cost, and the method with
its assumptions. Colors follow the light or dark theme of the system; on a phone, wide tables scroll.
"""

from __future__ import annotations

import base64
import html
import os
from pathlib import Path

from chumoku.compare.answer import answer, short_names
from chumoku.compare.picture import draw_panels
from chumoku.compare.results import Comparison
from chumoku.compare.tables import Rows, arm_rows, metric_words, pair_rows
from chumoku.compare.verdicts import Decision
from chumoku.errors import pluralize
from chumoku.evaluation.sequential import FIRST_LOOK, LAST_SHARE
from chumoku.probe.bilingual import BASE_CSS, Words, bilingual, language_switch, render_bilingual_page

EQUAL = {
    "flops": Words("FLOPs of training", "学習の計算量（FLOPs）"),
    "parameters": Words("parameters", "パラメータ数"),
    "tokens": Words("training tokens", "学習トークン数"),
    "seconds": Words("seconds of training", "学習の秒数"),
    "steps": Words("training steps", "学習ステップ数"),
}
STOPPED = {
    "decided": Words("everything was decided", "すべて決着したため"),
    "budget": Words("the budget was spent", "予算を使い切ったため"),
    "seeds": Words("all planned seeds were trained", "予定のシードをすべて学習したため"),
}
CSS = (
    BASE_CSS
    + """
.answer { font-size: 19px; line-height: 1.6; margin: 0 0 22px; padding: 0 0 0 16px; border-left: 4px solid var(--ink);
  list-style: none; }
.answer li { overflow-wrap: anywhere; } .answer li + li { margin-top: 4px; }
#l-both:checked ~ .page .answer [lang], #l-both:checked ~ .page .method [lang] { display: block; }
section { border-top: 1px solid var(--rule); padding: 18px 0 8px; }
.panels { display: flex; flex-wrap: wrap; gap: 12px; } .panels figure { flex: 1 1 400px; min-width: 0; margin: 0; }
.panels img { width: 100%; height: auto; }
.wide { overflow-x: auto; } .wide table { font-variant-numeric: tabular-nums; }
.wide th, .wide td { padding: 3px 14px 3px 0; text-align: right; white-space: nowrap; vertical-align: top;
  border-bottom: 1px solid var(--rule); }
.wide th:first-child, .wide td:first-child { text-align: left; }
.page { max-width: 1200px; }
.wide.arms th { text-align: left; }
.wide.arms td { white-space: normal; overflow-wrap: anywhere; text-align: left; min-width: 9em; }
.method { max-width: 56em; } .method li + li { margin-top: 6px; } code { overflow-wrap: anywhere; }
@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --ink: #e4eaf0; --soft: #9aa8b6; --rule: #303b46; --paper: #1a2128; --tint: #12171c; }
  #l-ja:checked ~ .page label[for="l-ja"], #l-en:checked ~ .page label[for="l-en"],
  #l-both:checked ~ .page label[for="l-both"] { color: var(--paper); }
  figure img { background: #fff; border-radius: 4px; }
}
"""
)


def write_page(comparison: Comparison, decision: Decision, path: Path) -> Path:
    """Write the page atomically; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.writing")
    temporary.write_text(render_page(comparison, decision), encoding="utf-8")
    os.replace(temporary, path)
    return path


def render_page(comparison: Comparison, decision: Decision) -> str:
    title = Words("Which is better?", "どれが優れているか")
    equal = EQUAL.get(comparison.equal, Words(comparison.equal, comparison.equal))
    arms, recipe, metric = len(comparison.arms), comparison.recipe, metric_words(comparison.metric)
    intro = Words(
        f"{arms} arms of {recipe} at equal {equal.en}, judged by {metric.en}.",
        f"{recipe} の {arms} 個の選択肢を、{equal.ja}をそろえて比較しました。指標: {metric.ja}。",
    )
    sentences = "".join(f"<li>{bilingual(words)}</li>" for words in answer(comparison, decision))
    body = (
        f'<header>{language_switch()}<h1>{bilingual(title)}</h1><p class="intro">{bilingual(intro)}</p></header>\n'
        f'<ul class="answer">{sentences}</ul>\n{_panels(comparison, decision)}'
        f"{_table(pair_rows(comparison, decision))}{_table(arm_rows(comparison, decision))}"
        f"{_adjustments(comparison)}{_method(decision)}{_footer(comparison)}"
    )
    return render_bilingual_page(title, css=CSS, body=body)


def _panels(comparison: Comparison, decision: Decision) -> str:
    captions = (
        Words(
            "Validation loss: mean over the seeds, and a band from the lowest to the highest. A run diverged at ×.",
            "検証損失: シードの平均と、最小から最大までの帯。× は発散した位置。",
        ),
        Words(
            "Difference to the arm with the best mean, with its interval; small dots are single seeds.",
            "平均が最良の選択肢との差とその区間。小さな点は一つ一つのシード。",
        ),
    )
    figures = "".join(
        f'<figure><img alt="{html.escape(f"{caption.ja} {caption.en}", quote=True)}" '
        f'src="data:image/png;base64,{base64.b64encode(data).decode()}">'
        f"<figcaption>{bilingual(caption)}</figcaption></figure>"
        for data, caption in zip(draw_panels(comparison, decision), captions, strict=True)
    )
    return f'<section class="panels">{figures}</section>\n'


def _table(rows: Rows, kind: str = "wide") -> str:
    head = "".join(f"<th>{bilingual(words)}</th>" for words in rows.heads)
    cells = "".join("<tr>" + "".join(f"<td>{bilingual(cell)}</td>" for cell in row) + "</tr>" for row in rows.cells)
    return (
        f'<section><h2>{bilingual(rows.title)}</h2><div class="{kind}"><table><tr>{head}</tr>{cells}</table></div>'
        "</section>\n"
    )


def _adjustments(comparison: Comparison) -> str:
    """What was changed for equal cost, all overrides of each arm, and notes about the runs."""
    names, nothing = short_names(comparison), Words("nothing", "なし")
    heads = (Words("arm", "選択肢"), Words("adjusted", "調整した値"), Words("all overrides", "すべての上書き"))
    rows = []
    for arm in comparison.arms:
        adjusted = "; ".join(arm.adjusted)
        texts = (names[arm.name], adjusted, " ".join(arm.overrides))
        rows.append(tuple(Words(text, text) if text else nothing for text in texts))
    title = Words("What was adjusted for equal cost", "コストをそろえるために調整したもの")
    notes = "".join(f"<li>{bilingual(note)}</li>" for note in comparison.notes)
    return _table(Rows(title, heads, tuple(rows)), "arms wide") + (f"<ul>{notes}</ul>\n" if notes else "")


def _method(decision: Decision) -> str:
    items = "".join(f"<li>{bilingual(words)}</li>" for words in (*_judging(decision), *_reading()))
    title = bilingual(Words("Method and assumptions", "方法と仮定"))
    return f'<section class="method"><h2>{title}</h2><ul>{items}</ul></section>\n'


def _judging(decision: Decision) -> tuple[Words, ...]:
    """How pairs are judged."""
    shares = (decision.confidence, 1 - decision.confidence)
    percent, error = (f"{share:.0%}".replace("%", " %") for share in shares)
    first = min(FIRST_LOOK, decision.planned_seeds)
    return (
        Words(
            "Arms share their seeds, and with them the order of the data. Differences are taken seed by seed.",
            "すべての選択肢は同じシードを使い、データの順序も同じです。差はシードごとに取ります。",
        ),
        Words(
            f"A pair is judged by a paired t-test. It may be looked at after each seed, from {first} to "
            f"{decision.planned_seeds}: the look after the last seed spends {LAST_SHARE:.0%} of the allowed error, the "
            "others share the rest. Assumption: the differences of the seeds are independent and about Gaussian.",
            f"各組は対応のある t 検定で判定します。{first} シード目から {decision.planned_seeds} シード目まで、"
            f"毎回見ても誤りの確率が保たれます（許す誤りの {LAST_SHARE:.0%} を最後に、残りをそれ以前に等分）。"
            "仮定: シードごとの差は独立で、ほぼ正規分布に従う。",
        ),
        Words(
            f"Holm's correction over all {pluralize(len(decision.pairs), 'pair')}: the probability of any wrong "
            f"“better” is {error} at most. An interval excludes 0 exactly if “better” is said; alone it covers the "
            f"true difference with {percent} or more.",
            f"全 {len(decision.pairs)} 組に Holm の補正を行い、誤って「優れる」と言う確率は全体で {error} 以下です。"
            f"区間が 0 を含まないことと「優れる」は同じです。区間一つ一つは真の差を {percent} 以上の確率で含みます。",
        ),
    )


def _reading() -> tuple[Words, ...]:
    """What counts, and what the columns mean."""
    return (
        Words(
            "A diverged run counts as worse than any value; such a pair is judged by the sign test over its seeds. An "
            f"arm that diverged in all of {FIRST_LOOK} seeds or more, or that is surely worse than another, gets no "
            "more seeds.",
            "発散した学習はどの値よりも悪いものとし、その組はシードごとの符号検定で判定します。"
            f"{FIRST_LOOK} シード以上すべてで発散した選択肢と、確かに劣る選択肢には、それ以上シードを使いません。",
        ),
        Words(
            "Found with 80 %: the difference that the planned seeds find with this probability, given the spread seen. "
            "After ± is the standard deviation over the seeds.",
            "「80 % で検出」は、見られたばらつきのもとで予定のシードがその確率で見つける差です。"
            "± の後はシード間の標準偏差です。",
        ),
        Words(
            "Learning rates were chosen for each arm by the same search, on seeds that are not used here; without a "
            "search they are the recipe's.",
            "学習率は、ここでは使わないシードで、どの選択肢も同じ手順で選びました。探索しない場合はレシピの値です。",
        ),
    )


def _footer(comparison: Comparison) -> str:
    stopped = STOPPED.get(comparison.stopped, Words(comparison.stopped, comparison.stopped))
    seconds = f"{comparison.seconds:,.0f}"
    words = Words(
        f"Written by `chumoku compare` after {seconds} seconds of computation, learning-rate search included. It ended "
        f"because {stopped.en}.",
        f"`chumoku compare` が、学習率の探索を含めて {seconds} 秒の計算から作成しました。終了の理由: {stopped.ja}。",
    )
    return f"<footer>{bilingual(words)}</footer>"
