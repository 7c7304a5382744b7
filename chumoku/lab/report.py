"""The report: every result on one page that a teacher can hand out.

    out/*/result.json, figure.png  →  out/report.html

The page stands alone: no script, no outside asset, figures inside it, a policy that forbids everything else. Both
languages are in it; three radio buttons and CSS choose which is shown.
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

from chumoku.errors import UsageError, counted
from chumoku.lab.claims import ARITHMETIC, CLAIMS, TRIED
from chumoku.lab.experiment import FAILS, HOLDS, NOT_JUDGED, PARTLY, Words
from chumoku.lab.report_style import CSS
from chumoku.lab.runner import FAILED, read
from chumoku.probe.page import csp_hash

Found = tuple[dict[str, Any], bytes | None]  # a result, and its figure

VERDICTS = {
    HOLDS: ("○", Words("holds", "成り立つ")),
    PARTLY: ("△", Words("holds only when …", "条件つきで成り立つ")),
    FAILS: ("×", Words("does not hold", "成り立たない")),
    NOT_JUDGED: ("?", Words("not judged", "未判定")),
    FAILED: ("–", Words("failed to run", "実行できず")),
}
_CLASS = {HOLDS: "holds", PARTLY: "partly", FAILS: "fails", NOT_JUDGED: "unjudged", FAILED: "failed"}
_SHOWN = 0.85  # of a figure's own pixels, so that its letters are as large as the page's
_LONG = 8  # numbers of a list that are still shown in a line


def write(out: Path) -> Path:
    """Make out/report.html of all results in `out`, whole or not at all."""
    results = gathered(out)
    if not results:
        raise UsageError(f"{out} holds no results yet. Run `chumoku lab run all --out {out}` first.")
    path, working = out / "report.html", out / "report.html.writing"
    working.write_text(page(results), encoding="utf-8")
    os.replace(working, path)
    return path


def gathered(out: Path) -> list[Found]:
    """The last result of every claim that has run, in reading order."""
    return [found for found in (read(out, id) for id in CLAIMS) if found is not None]


def page(results: list[Found]) -> str:
    policy = f"default-src 'none'; img-src data:; style-src '{csp_hash(CSS)}'; base-uri 'none'; form-action 'none'"
    switch = "".join(
        f'<input class="pick" type="radio" name="lang" id="l-{id}" aria-label="{name}"{" checked" * (id == "ja")}>'
        for id, name in (("ja", "日本語"), ("en", "English"), ("both", "日本語 + English"))
    )
    return (
        '<!doctype html>\n<html lang="ja">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>ノートを実行する — The notes, executed</title>\n<style>{CSS}</style>\n</head>\n<body>\n{switch}\n"
        f'<div class="page">\n{_top(results)}\n{"".join(_article(*found) for found in results)}{_foot(results)}</div>\n'
        "</body>\n</html>\n"
    )


def _both(words: Any) -> str:
    """Words in both languages; which are seen is the switch's choice."""
    en, ja = (words["en"], words["ja"]) if isinstance(words, dict) else words
    return f'<span lang="ja">{html.escape(ja)}</span><span lang="en">{html.escape(en)}</span>'


def _top(results: list[Found]) -> str:
    counts = Counter(result["verdict"] for result, _ in results)
    tiles = "".join(
        f'<li class="{_CLASS[verdict]}"><b>{counts[verdict]}</b> {mark} {_both(words)}</li>'
        for verdict, (mark, words) in VERDICTS.items()
        if counts[verdict] or verdict not in (NOT_JUDGED, FAILED)
    )
    intro = Words(
        f"Five Japanese notes explain the Transformer. Of what they state, {len(CLAIMS)} claims can be computed, drawn "
        f"or tried, and {len(results)} of them were run here. Each verdict follows from its numbers by the rule that "
        "stands beside it. A verdict against a note is as good as one for it.",
        f"五つの日本語ノートが Transformer を説明しています。そのうち計算・作図・実験できる {len(CLAIMS)} 個の主張か"
        f"ら、{len(results)} 個を実際に試しました。判定は、添えられた規則によって数値から自動的に決まります。ノートを支"
        "持する判定も、反する判定も、同じ価値があります。",
    )
    labels = "".join(
        f'<label for="l-{id}">{name}</label>'
        for id, name in (("ja", "日本語"), ("en", "English"), ("both", "両方 both"))
    )
    return (
        f'<header><p class="switch">{labels}</p><h1>{_both(Words("The notes, executed", "ノートを実行する"))}</h1>'
        f'<p class="intro">{_both(intro)}</p>{_hurried(results)}'
        f'{_stripe(counts)}<ul class="tiles">{tiles}</ul></header>'
        + _table(results, ARITHMETIC, Words("Arithmetic of the notes", "ノートの計算"))
        + _table(results, TRIED, Words("Things tried", "試したこと"))
    )


def _hurried(results: list[Found]) -> str:
    """Why some claims are not judged, where a run was a short one."""
    short = sum(result["verdict"] == NOT_JUDGED for result, _ in results)
    if not short:
        return ""
    words = Words(
        f"{short} {'claim is' if short == 1 else 'claims are'} not judged: the models were trained for less than the "
        "full time. Numbers and figures show how far they came; `chumoku lab run all` gives the verdicts.",
        f"{short} 個の主張は未判定です。モデルの学習が規定より短いためで、数値と図はそこまでの様子を示します。"
        "`chumoku lab run all` で判定が得られます。",
    )
    return f'<p class="intro">{_both(words)}</p>'


def _stripe(counts: Counter[str]) -> str:
    """All verdicts as one bar."""
    total, left, parts = max(1, sum(counts.values())), 0.0, []
    for verdict, name in _CLASS.items():
        width = 1000 * counts[verdict] / total
        parts.append(f'<rect class="{name}" x="{left:.1f}" y="0" width="{width:.1f}" height="14"/>')
        left += width
    drawn = "".join(parts)
    return f'<svg class="stripe" viewBox="0 0 1000 14" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'


def _table(results: list[Found], ids: tuple[str, ...], title: Words) -> str:
    rows = []
    for result, _ in results:
        if result["id"] in ids:
            mark, words = VERDICTS[result["verdict"]]
            claim = result["claim"]
            name = _both(claim["title"]) if "title" in claim else html.escape(result["id"])
            notes = html.escape(", ".join(claim.get("notes", [])))
            rows.append(
                f'<tr><td><a href="#{result["id"]}">{name}</a></td><td class="id">{result["id"]}</td><td>{notes}</td>'
                f'<td class="verdict {_CLASS[result["verdict"]]}">{mark} {_both(words)}</td></tr>'
            )
    if not rows:
        return ""
    heads = (Words("claim", "主張"), Words("id", "id"), Words("note", "ノート"), Words("verdict", "判定"))
    head = "".join(f"<th>{_both(words)}</th>" for words in heads)
    return f'<section class="overview"><h2>{_both(title)}</h2><table><tr>{head}</tr>{"".join(rows)}</table></section>'


def _article(result: dict[str, Any], figure: bytes | None) -> str:
    id, claim = result["id"], result["claim"]
    mark, words = VERDICTS[result["verdict"]]
    title = _both(claim["title"]) if "title" in claim else id
    notes = html.escape(", ".join(claim.get("notes", [])))
    parts = [
        f'<article id="{id}"><p class="over">{_both(Words("note", "ノート"))} {notes} · {id}</p><h2>{title}</h2>',
        _terms(claim),
        f'<p class="judged {_CLASS[result["verdict"]]}"><b>{mark} {_both(words)}</b>{_when(result)}</p>',
    ]
    if result.get("failed"):
        parts.append(f'<p class="summary">{html.escape(result["failed"])}</p>')
    if result.get("summary"):
        parts.append(f'<p class="summary">{_both(result["summary"])}</p>')
    parts += [
        _correction(result.get("correction")),
        _figure(figure, result),
        _numbers(result["numbers"]),
        _stamp(result),
    ]
    return "".join(parts) + "</article>\n"


def _terms(claim: dict[str, Any]) -> str:
    names = {
        "stated": Words("Stated", "主張"),
        "tried": Words("Tried", "試し方"),
        "refutes": Words("Would refute it", "反証となるもの"),
        "rule": Words("Rule", "判定の規則"),
    }
    rows = (f"<dt>{_both(name)}</dt><dd>{_both(claim[key])}</dd>" for key, name in names.items() if key in claim)
    return f'<dl class="terms">{"".join(rows)}</dl>'


def _when(result: dict[str, Any]) -> str:
    if result["verdict"] != PARTLY or not result.get("when"):
        return ""
    return f' <span class="when">{_both(result["when"])}</span>'


def _correction(correction: dict[str, Any] | None) -> str:
    if not correction:
        return ""
    heads = (Words("the note says", "ノートの値"), Words("true", "正しい値"), Words("computation", "計算"))
    said, true = html.escape(correction["said"]), html.escape(correction["true"])
    cells = (f"<s>{said}</s>", f"<b>{true}</b>", _both(correction["computed"]))
    boxes = (f"<div><h3>{_both(head)}</h3><p>{cell}</p></div>" for head, cell in zip(heads, cells, strict=True))
    return f'<div class="correction">{"".join(boxes)}</div>'


def _figure(figure: bytes | None, result: dict[str, Any]) -> str:
    if figure is None:
        return ""
    reading = result.get("reading")
    alt = html.escape(f"{reading['ja']} {reading['en']}" if reading else result["id"], quote=True)
    caption = f"<figcaption>{_both(reading)}</figcaption>" if reading else ""
    data = base64.b64encode(figure).decode()
    width, height = (round(size * _SHOWN) for size in struct.unpack(">II", figure[16:24]))  # a PNG's own first lines
    size = f'width="{width}" height="{height}"'
    return f'<figure><img alt="{alt}" {size} src="data:image/png;base64,{data}">{caption}</figure>'


def _numbers(numbers: dict[str, Any]) -> str:
    """Short ones in a table; all of them, long lists shortened, folded away."""
    short = {key: value for key, value in numbers.items() if key != "seeds" and _is_short(value)}
    rows = "".join(
        f"<tr><th>{html.escape(key)}</th><td>{html.escape(_line(value))}</td></tr>" for key, value in short.items()
    )
    table = f'<table class="numbers">{rows}</table>' if rows else ""
    if len(short) == len(numbers):
        return table
    whole = html.escape(json.dumps(_shortened(numbers), ensure_ascii=False, indent=1))
    summary = _both(Words("All numbers", "すべての数値"))
    return f"{table}<details><summary>{summary}</summary><pre>{whole}</pre></details>"


def _is_short(value: Any) -> bool:
    if isinstance(value, dict):
        return len(value) <= _LONG and all(not isinstance(part, dict | list) for part in value.values())
    return not isinstance(value, list) or (len(value) <= _LONG and all(not isinstance(p, dict | list) for p in value))


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
    """Floats to six digits, lists to their ends: result.json has them whole."""
    if isinstance(value, dict):
        return {key: _shortened(part) for key, part in value.items()}
    if isinstance(value, list):
        kept = value if len(value) <= 2 * _LONG else [*value[:_LONG], f"… {len(value) - _LONG - 1:,} more …", value[-1]]
        return [_shortened(part) for part in kept]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _stamp(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    seeds = ", ".join(str(seed) for seed in result["seeds"])
    spent = f"seeds {seeds} · budget {result['budget']['scale']:g} · {result['seconds']:.1f} s"
    text = f"{spent} · {versions} · {result['platform']}"
    return f'<p class="stamp">{html.escape(text)}</p>'


def _foot(results: list[Found]) -> str:
    seconds = sum(result["seconds"] for result, _ in results)
    words = Words(
        f"Made by `chumoku lab` from {counted(len(results), 'result')} that took {counted(round(seconds), 'second')} "
        "in all. Every number is in result.json beside its figure.",
        f"`chumoku lab` が {len(results)} 件の結果(計算時間は合計 {seconds:,.0f} 秒)から作成しました。"
        "すべての数値は図と同じ場所の result.json にあります。",
    )
    return f"<footer>{_both(words)}</footer>"
