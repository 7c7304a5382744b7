"""The report: all results on one HTML page.

    out/*/result.json, figure.png  →  out/report.html

The page is self-contained: no scripts, embedded figures, and a content security policy that forbids everything else.
It contains both languages; radio buttons and CSS choose which one is shown.
"""

from __future__ import annotations

import base64
import html
import json
import os
import struct
from collections import Counter
from pathlib import Path
from typing import Any

from chumoku.errors import UsageError, pluralize
from chumoku.lab.claims import ARITHMETIC, CLAIMS, EXPERIMENTS
from chumoku.lab.experiment import FAILS, HOLDS, NOT_JUDGED, PARTLY
from chumoku.lab.report_style import CSS
from chumoku.lab.runner import FAILED, read_result
from chumoku.probe.bilingual import Words, bilingual, language_switch, render_bilingual_page, with_code

ResultAndFigure = tuple[dict[str, Any], bytes | None]

VERDICTS = {
    HOLDS: ("○", Words("holds", "成り立つ")),
    PARTLY: ("△", Words("holds only when …", "条件つきで成り立つ")),
    FAILS: ("×", Words("does not hold", "成り立たない")),
    NOT_JUDGED: ("?", Words("not judged", "未判定")),
    FAILED: ("–", Words("failed to run", "実行できず")),
}
_CLASS = {HOLDS: "holds", PARTLY: "partly", FAILS: "fails", NOT_JUDGED: "unjudged", FAILED: "failed"}
_FIGURE_SCALE = 0.85  # so that text in figures is as large as on the page
_MAX_ITEMS = 8  # of a list that is shown in one line


def write(out: Path) -> Path:
    """Write out/report.html with all results in `out`, atomically; returns its path."""
    results = read_results(out)
    if not results:
        raise UsageError(f"There are no results in {out} yet. Run `chumoku lab run all --out {out}` first.")
    path, temporary = out / "report.html", out / "report.html.writing"
    temporary.write_text(render_page(results), encoding="utf-8")
    os.replace(temporary, path)
    return path


def read_results(out: Path) -> list[ResultAndFigure]:
    """The last result of every claim, in reading order; claims without a result are left out."""
    return [found for found in (read_result(out, id) for id in CLAIMS) if found is not None]


def render_page(results: list[ResultAndFigure]) -> str:
    articles = "".join(_article(*found) for found in results)
    title = Words("The notes, executed", "ノートを実行する")
    return render_bilingual_page(title, css=CSS, body=f"{_header(results)}\n{articles}{_footer(results)}")


def _bilingual(words: Any) -> str:
    """A text of a result, or one of the report, in both languages."""
    return bilingual(Words(**words) if isinstance(words, dict) else words)


def _header(results: list[ResultAndFigure]) -> str:
    counts = Counter(result["verdict"] for result, _ in results)
    tiles = "".join(
        f'<li class="{_CLASS[verdict]}"><b>{counts[verdict]}</b> {mark} {_bilingual(words)}</li>'
        for verdict, (mark, words) in VERDICTS.items()
        if counts[verdict] or verdict not in (NOT_JUDGED, FAILED)
    )
    intro = Words(
        f"Five Japanese notes explain the Transformer. {len(CLAIMS)} of their claims can be tested by calculation or "
        f"experiment; {len(results)} of them were run here. Each verdict follows from the numbers by the rule given "
        "with it. A verdict against a note is as valuable as one for it.",
        f"五つの日本語ノートが Transformer を説明しています。そのうち計算・作図・実験できる {len(CLAIMS)} 個の主張か"
        f"ら、{len(results)} 個を実際に試しました。判定は、添えられた規則によって数値から自動的に決まります。ノートを支"
        "持する判定も、反する判定も、同じ価値があります。",
    )
    return (
        f"<header>{language_switch()}<h1>{_bilingual(Words('The notes, executed', 'ノートを実行する'))}</h1>"
        f'<p class="intro">{_bilingual(intro)}</p>{_not_judged_notices(results)}'
        f'{_verdict_bar(counts)}<ul class="tiles">{tiles}</ul></header>'
        + _table(results, ARITHMETIC, Words("Calculations", "計算"))
        + _table(results, EXPERIMENTS, Words("Experiments", "実験"))
    )


def _not_judged_notices(results: list[ResultAndFigure]) -> str:
    """Explains why claims are not judged: short training, or seeds that do not refute a claim."""
    open_budgets = [result["budget"]["scale"] for result, _ in results if result["verdict"] == NOT_JUDGED]
    short = sum(scale < 1 for scale in open_budgets)
    unclear = len(open_budgets) - short
    notices = []
    if short:
        notices.append(
            Words(
                f"{short} {'claim is' if short == 1 else 'claims are'} not judged: the models were trained for less "
                "than the full time. Numbers and figures show the state so far; `chumoku lab run all` gives the "
                "verdicts.",
                f"{short} 個の主張は未判定です。モデルの学習が規定より短いためで、数値と図はそこまでの様子を示します。"
                "`chumoku lab run all` で判定が得られます。",
            )
        )
    if unclear:
        notices.append(
            Words(
                f"{unclear} {'claim is' if unclear == 1 else 'claims are'} not judged: they were not seen to hold, but "
                "no 95 % interval over the seeds refutes them.",
                f"{unclear} 個の主張は未判定です。成り立つとは確かめられず、シード間の 95 % 区間も反証していません。",
            )
        )
    return "".join(f'<p class="intro">{bilingual(words)}</p>' for words in notices)


def _verdict_bar(counts: Counter[str]) -> str:
    """All verdicts as one bar."""
    total, left, parts = max(1, sum(counts.values())), 0.0, []
    for verdict, name in _CLASS.items():
        width = 1000 * counts[verdict] / total
        parts.append(f'<rect class="{name}" x="{left:.1f}" y="0" width="{width:.1f}" height="14"/>')
        left += width
    bars = "".join(parts)
    return f'<svg class="stripe" viewBox="0 0 1000 14" preserveAspectRatio="none" aria-hidden="true">{bars}</svg>'


def _table(results: list[ResultAndFigure], ids: tuple[str, ...], title: Words) -> str:
    rows = []
    for result, _ in results:
        if result["id"] in ids:
            mark, words = VERDICTS[result["verdict"]]
            claim = result["claim"]
            name = _bilingual(claim["title"]) if "title" in claim else html.escape(result["id"])
            notes = html.escape(", ".join(claim.get("notes", [])))
            rows.append(
                f'<tr><td><a href="#{result["id"]}">{name}</a></td><td class="id">{result["id"]}</td><td>{notes}</td>'
                f'<td class="verdict {_CLASS[result["verdict"]]}">{mark} {_bilingual(words)}</td></tr>'
            )
    if not rows:
        return ""
    heads = (Words("claim", "主張"), Words("id", "id"), Words("note", "ノート"), Words("verdict", "判定"))
    head = "".join(f"<th>{_bilingual(words)}</th>" for words in heads)
    return (
        f'<section class="overview"><h2>{_bilingual(title)}</h2><table><tr>{head}</tr>{"".join(rows)}</table></section>'
    )


def _article(result: dict[str, Any], figure: bytes | None) -> str:
    id, claim = result["id"], result["claim"]
    mark, words = VERDICTS[result["verdict"]]
    title = _bilingual(claim["title"]) if "title" in claim else id
    notes = html.escape(", ".join(claim.get("notes", [])))
    parts = [
        f'<article id="{id}"><p class="over">{_bilingual(Words("note", "ノート"))} {notes} · {id}</p><h2>{title}</h2>',
        _definition(claim),
        f'<p class="judged {_CLASS[result["verdict"]]}"><b>{mark} {_bilingual(words)}</b>{_condition(result)}</p>',
    ]
    if result.get("failed"):
        parts.append(f'<p class="summary">{with_code(result["failed"])}</p>')
    if result.get("summary"):
        parts.append(f'<p class="summary">{_bilingual(result["summary"])}</p>')
    parts += [
        _correction(result.get("correction")),
        _figure(figure, result),
        _numbers(result["numbers"]),
        _stamp(result),
    ]
    return "".join(parts) + "</article>\n"


def _definition(claim: dict[str, Any]) -> str:
    names = {
        "stated": Words("Claim", "主張"),
        "tried": Words("Experiment", "実験方法"),
        "refutes": Words("Refuted by", "反証の条件"),
        "rule": Words("Rule", "判定の規則"),
    }
    rows = (
        f"<dt>{_bilingual(name)}</dt><dd>{_bilingual(claim[key])}</dd>" for key, name in names.items() if key in claim
    )
    return f'<dl class="terms">{"".join(rows)}</dl>'


def _condition(result: dict[str, Any]) -> str:
    if result["verdict"] != PARTLY or not result.get("when"):
        return ""
    return f' <span class="when">{_bilingual(result["when"])}</span>'


def _correction(correction: dict[str, Any] | None) -> str:
    if not correction:
        return ""
    heads = (Words("the note says", "ノートの値"), Words("correct", "正しい値"), Words("calculation", "計算"))
    # Results of earlier versions have "said".
    note, true = html.escape(correction.get("note") or correction["said"]), html.escape(correction["true"])
    cells = (f"<s>{note}</s>", f"<b>{true}</b>", _bilingual(correction["computed"]))
    boxes = (f"<div><h3>{_bilingual(head)}</h3><p>{cell}</p></div>" for head, cell in zip(heads, cells, strict=True))
    return f'<div class="correction">{"".join(boxes)}</div>'


def _figure(figure: bytes | None, result: dict[str, Any]) -> str:
    if figure is None:
        return ""
    reading = result.get("reading")
    alt = html.escape(f"{reading['ja']} {reading['en']}" if reading else result["id"], quote=True)
    caption = f"<figcaption>{_bilingual(reading)}</figcaption>" if reading else ""
    data = base64.b64encode(figure).decode()
    width, height = (round(size * _FIGURE_SCALE) for size in struct.unpack(">II", figure[16:24]))  # from the PNG header
    size = f'width="{width}" height="{height}"'
    return f'<figure><img alt="{alt}" {size} src="data:image/png;base64,{data}">{caption}</figure>'


def _numbers(numbers: dict[str, Any]) -> str:
    """Short values in a table; all values, with long lists shortened, in a closed <details>."""
    short = {key: value for key, value in numbers.items() if key != "seeds" and _is_short(value)}
    rows = "".join(
        f"<tr><th>{html.escape(key)}</th><td>{html.escape(_line(value))}</td></tr>" for key, value in short.items()
    )
    table = f'<table class="numbers">{rows}</table>' if rows else ""
    if len(short) == len(numbers):
        return table
    full = html.escape(json.dumps(_shortened(numbers), ensure_ascii=False, indent=1))
    summary = _bilingual(Words("All numbers", "すべての数値"))
    return f"{table}<details><summary>{summary}</summary><pre>{full}</pre></details>"


def _is_short(value: Any) -> bool:
    if isinstance(value, dict):
        return len(value) <= _MAX_ITEMS and all(not isinstance(part, dict | list) for part in value.values())
    return not isinstance(value, list) or (
        len(value) <= _MAX_ITEMS and all(not isinstance(p, dict | list) for p in value)
    )


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_line(part)}" for key, part in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(_line(part) for part in value) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _shortened(value: Any) -> Any:
    """Floats with six digits and long lists without their middle; result.json has all numbers."""
    if isinstance(value, dict):
        return {key: _shortened(part) for key, part in value.items()}
    if isinstance(value, list):
        items = (
            value
            if len(value) <= 2 * _MAX_ITEMS
            else [*value[:_MAX_ITEMS], f"… {len(value) - _MAX_ITEMS - 1:,} more …", value[-1]]
        )
        return [_shortened(part) for part in items]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _stamp(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    seeds = ", ".join(str(seed) for seed in result["seeds"])
    spent = f"seeds {seeds} · budget {result['budget']['scale']:g} · {result['seconds']:.1f} s"
    text = f"{spent} · {versions} · {result['platform']}"
    return f'<p class="stamp">{html.escape(text)}</p>'


def _footer(results: list[ResultAndFigure]) -> str:
    seconds = sum(result["seconds"] for result, _ in results)
    words = Words(
        f"Written by `chumoku lab` from {pluralize(len(results), 'result')} with a total computing time of "
        f"{pluralize(round(seconds), 'second')}. All numbers are in result.json next to each figure.",
        f"`chumoku lab` が {len(results)} 件の結果（計算時間は合計 {seconds:,.0f} 秒）から作成しました。すべての数値は"
        "図と同じ場所の result.json にあります。",
    )
    return f"<footer>{_bilingual(words)}</footer>"
