"""The answer of a comparison: sentences, tables, JSON, picture and page."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import monitored_page
from comparisons import table
from matplotlib.figure import Figure
from rich.console import Console

from chumoku.compare.answer import answer, as_dict, format_interval, short_names
from chumoku.compare.page import write_page
from chumoku.compare.picture import draw_comparison, plot_curves, plot_differences
from chumoku.compare.results import Comparison
from chumoku.compare.tables import TerminalTable, arm_rows, pair_rows
from chumoku.compare.verdicts import Decision, decide
from chumoku.evaluation.paired import PairedInterval
from chumoku.probe.bilingual import Words

BASE = [3.01, 2.97, 3.05, 2.99, 3.02]
NOISE = [0.3, -1.1, 0.7, 1.3, -0.9]
HOSTILE = 'model.position=<img/src="x">$\\frac$'


def shifted(by: float) -> list[float]:
    return [value + by + 0.001 * part for value, part in zip(BASE, NOISE, strict=True)]


def sentences(comparison: Comparison, planned: int = 5) -> list[tuple[str, str]]:
    return [tuple(words) for words in answer(comparison, decide(comparison, planned_seeds=planned))]


def four_arms() -> tuple[Comparison, Decision]:
    keys = {"rotary": BASE, "learned": shifted(0.05), "none": shifted(0.0501), "alibi": [None, None, None]}
    keys["none"][0] += 0.002
    comparison = table({f"model.position={name}": values for name, values in keys.items()})
    comparison = dataclasses.replace(comparison, dropped={"model.position=alibi": 3})
    return comparison, decide(comparison, planned_seeds=5)


def test_two_arms_are_one_sentence() -> None:
    [(english, japanese)] = sentences(table({"model.position=learned": shifted(0.05), "model.position=rotary": BASE}))
    assert english == "rotary is better than learned by 0.0501 nats [0.0486, 0.0515], 5 seeds."
    assert japanese == "rotary は learned より 0.0501 nats 優れています [0.0486, 0.0515]、5 シード。"
    [(english, japanese)] = sentences(table({"a=x": BASE, "a=y": shifted(0.0)}))
    assert english == "x and y cannot be told apart: 0.0001 nats [−0.0014, 0.0015], 5 seeds."
    assert japanese == "x と y は区別できません: 0.0001 nats [−0.0014, 0.0015]、5 シード。"
    assert sentences(table({"a=x": BASE[:1], "a=y": BASE[:1]}))[0][0] == "x and y are not judged: 1 seed."


def test_the_best_come_first_and_diverged_arms_last() -> None:
    found = [words.en for words in answer(*four_arms())]
    assert found[0] == "rotary is the best of 4."
    assert found[1].startswith("rotary is better than learned by 0.0501 nats [")
    assert next(line for line in found if "cannot be told apart" in line).startswith("learned and none cannot")
    assert found[-1] == "alibi diverged in 3 of 3 seeds."
    assert not any("alibi" in line for line in found[:-1])
    best = sentences(table({"a=x": BASE, "a=y": shifted(0.0), "a=z": shifted(0.9)}))[0]
    assert best[0] == "x and y are the best of 3, and cannot be told apart."
    assert best[1] == "3 個のうち x、y が最良で、互いに区別できません。"


def test_a_pair_with_a_diverged_run_is_told_by_its_seeds() -> None:
    values = [*shifted(0.05)[:4], None]
    found = sentences(table({"a=x": BASE, "a=y": values}))
    assert found[0][0] == "x and y cannot be told apart: x wins in 5 and loses in 0 of 5 seeds."
    assert found[1] == ("y diverged in 1 of 5 seeds.", "y は 5 シード中 1 シードで発散しました。")


def test_many_arms_leave_most_pairs_to_the_table() -> None:
    comparison = table({f"a=x{number}": shifted(number / 10) for number in range(5)})
    assert len(sentences(comparison)) == 1 + 4
    assert len(decide(comparison, planned_seeds=5).pairs) == 10


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["model.position=rotary model.norm=pre", "model.position=none model.norm=pre"], ["rotary pre", "none pre"]),
        (["model.layers=2", "model.layers=3"], ["layers=2", "layers=3"]),
        (["model.bias=true", "model.bias=false"], ["bias=true", "bias=false"]),
        (["model.layers=2", "model.heads=2"], ["model.layers=2", "model.heads=2"]),
        (["", "model.heads=2"], ["recipe", "model.heads=2"]),
    ],
)
def test_names_are_short_but_different(names: list[str], short: list[str]) -> None:
    assert list(short_names(table(dict.fromkeys(names, BASE))).values()) == short


def test_digits_follow_the_width_of_the_interval() -> None:
    assert format_interval(PairedInterval(0.0312, 0.0221, 0.0403, 12)) == ("0.031", "[0.022, 0.040]")
    assert format_interval(PairedInterval(-0.0001, -2.5, 2.5, 12)) == ("0.0", "[−2.5, 2.5]")
    assert format_interval(PairedInterval(0.0, 0.0, 0.0, 12)) == ("0.000", "[0.000, 0.000]")
    assert format_interval(PairedInterval(0.4, 0.031, 0.77, 3)) == ("0.40", "[0.03, 0.77]")  # not [0.0, 0.8]
    assert format_interval(PairedInterval(0.5, 0.5 - 1e-9, 0.5 + 1e-9, 3)) == ("0.500000", "[0.500000, 0.500000]")
    assert format_interval(PairedInterval(0.02, -0.00005, 0.04, 3)) == ("0.020", "[0.000, 0.040]")


def test_json_has_everything_and_no_infinities() -> None:
    found = json.loads(json.dumps(as_dict(*four_arms()), allow_nan=False))
    assert found["best"] == ["model.position=rotary"]
    assert found["diverged"] == {"model.position=alibi": {"runs": 3, "seeds": 3}}
    assert len(found["pairs"]) == 6
    pair = next(one for one in found["pairs"] if one["verdict"] == "cannot be told apart")
    assert pair["bootstrap"]["low"] <= pair["interval"]["difference"] <= pair["bootstrap"]["high"]
    assert 0 < pair["detectable"] < 0.05
    assert found["runs"]["model.position=alibi"][0]["value"] is None
    assert found["answer"]["en"].startswith("rotary is the best of 4. rotary is better")


def test_tables_show_every_arm_and_pair() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    for rows in (arm_rows, pair_rows):
        console.print(TerminalTable(rows(*four_arms())))
    text = console.export_text()
    assert re.search(r"alibi \(stopped early\) +– +3 +3 ", text)
    assert re.search(r"rotary > learned +better +0\.0501 +\[0\.0476, 0\.0525\]", text)
    assert re.search(r"rotary ~ alibi +not judged", text)


def test_tables_fit_a_narrow_terminal() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    for rows in (arm_rows, pair_rows):
        console.print(TerminalTable(rows(*four_arms())))
    lines = console.export_text().splitlines()
    assert len(lines) == 2 * 2 + 4 + 6, "no cell is wrapped"
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[:3] == ["arm", "validation", "loss"]
    assert lines[7].split() == ["pair", "verdict", "difference", "interval", "seeds"]


def test_a_single_validation_is_a_point() -> None:
    comparison, _ = four_arms()
    runs = {
        name: tuple(dataclasses.replace(run, curve=run.curve[-1:]) for run in row)
        for name, row in comparison.runs.items()
    }
    figure = Figure()
    axis = figure.subplots()
    comparison = dataclasses.replace(comparison, runs=runs)
    plot_curves(axis, comparison, decide(comparison, planned_seeds=5))
    points = [line for line in axis.lines if line.get_marker() == "o"]
    assert [line.get_label() for line in points] == ["rotary", "learned", "none"]
    low, high = axis.get_ylim()
    assert all(low < float(np.asarray(line.get_ydata())[0]) < high for line in points)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    path = draw_comparison(*four_arms(), tmp_path / "new" / "comparison.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_no_runs_says_so() -> None:
    comparison = table({"a=x": [], "a=y": []})
    decision = decide(comparison, planned_seeds=5)
    for plot, expected in ((plot_curves, ["no run has a curve"]), (plot_differences, [" not judged"] * 2)):
        axis = Figure().subplots()
        plot(axis, comparison, decision)
        assert [text.get_text() for text in axis.texts] == expected


def test_the_page_opens_from_disk_and_hostile_names_stay_text(tmp_path: Path, browser: Any) -> None:
    comparison = table({HOSTILE: BASE, "model.position=b": shifted(0.05)})
    comparison = dataclasses.replace(comparison, notes=(Words("<b>One rate</b> was `high`.", "<b>率</b>は `high`。"),))
    url = write_page(comparison, decide(comparison, planned_seeds=5), tmp_path / "page.html").as_uri()
    with monitored_page(browser, viewport={"width": 1280, "height": 997}) as (page, log):
        page.goto(url)
        for language, width in (("ja", 390), ("en", 1280)):
            page.set_viewport_size({"width": width, "height": 997})
            page.locator(f"label[for=l-{language}]").click()
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
            shown = page.locator("body").inner_text()
            assert ("is better than b by 0.050" in shown) == (language == "en")
            assert ("優れています" in shown) == (language == "ja")
            assert "train.steps 500 → 431" in shown
            assert '<img/src="x">' in shown
            assert ("<b>One rate</b> was high." in shown) == (language == "en")
            assert page.locator("li code").first.inner_text() == "high", "backticks of prose become code"
        assert page.locator("img").count() == 2
        assert log.messages == []
        assert log.requests == [url]
