"""The tables of an answer: arms and pairs, as rows of texts for the terminal and for the page."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from chumoku.compare.answer import detectable_difference, format_interval, format_signed, short_names
from chumoku.compare.results import Arm, Comparison, Metric
from chumoku.compare.verdicts import Decision, PairVerdict
from chumoku.messages import choose
from chumoku.probe.bilingual import Words

VERDICTS = {
    "better": Words("better", "優れる"),
    "cannot be told apart": Words("cannot be told apart", "区別できない"),
    "not judged": Words("not judged", "未判定"),
}


@dataclass(frozen=True)
class Rows:
    """A table: the heads of its columns, and a text for each cell. The first column has names."""

    title: Words
    heads: tuple[Words, ...]
    cells: tuple[tuple[Words, ...], ...]
    optional: tuple[int, ...] = ()  # columns that a narrow terminal does without, the first ones first


def same(text: str) -> Words:
    return Words(text, text)


def metric_words(metric: Metric) -> Words:
    return Words(metric.name, {"validation loss": "検証損失"}.get(metric.name, metric.name))


def arm_rows(comparison: Comparison, decision: Decision) -> Rows:
    """One row per arm, the best mean first: value, runs, cost and speed."""
    names, arms = short_names(comparison), {arm.name: arm for arm in comparison.arms}
    metric, unit = metric_words(comparison.metric), comparison.metric.unit
    heads = (
        Words("arm", "選択肢"),
        Words(f"{metric.en} ({unit})", f"{metric.ja}({unit})"),
        Words("seeds", "シード"),
        Words("diverged", "発散"),
        Words("learning rate", "学習率"),
        Words("parameters", "パラメータ"),
        Words("FLOPs", "FLOPs"),
        Words("tokens", "トークン"),
        Words("tokens/s", "トークン/秒"),
        Words("memory", "メモリ"),
        Words("seconds", "秒"),
    )
    cells = tuple(_arm_cells(arms[name], names[name], comparison) for name in decision.ranking)
    return Rows(Words("Arms", "選択肢"), heads, cells, optional=(9, 10, 7, 6, 5, 8, 4))


def _arm_cells(arm: Arm, name: str, comparison: Comparison) -> tuple[Words, ...]:
    runs = comparison.runs.get(arm.name, ())
    values = [run.value for run in runs if run.value is not None]
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    speed = statistics.median(run.tokens_per_second for run in runs) if runs else 0.0
    dropped = arm.name in comparison.dropped
    texts = (
        f"{statistics.fmean(values):.4f}{spread}" if values else "–",
        f"{len(runs)}",
        f"{sum(run.diverged for run in runs)}" if any(run.diverged for run in runs) else "–",
        f"{arm.learning_rate:.3g}",
        f"{arm.parameters:,}",
        f"{arm.flops:.3g}",
        f"{arm.tokens:,}",
        f"{speed:,.0f}",
        f"{max((run.peak_memory for run in runs), default=0) / 2**20:,.0f} MiB",
        f"{sum(run.seconds for run in runs):,.0f}",
    )
    stopped = Words(f"{name} (stopped early)", f"{name}（早期に打ち切り）") if dropped else same(name)
    return (stopped, *map(same, texts))


def pair_rows(comparison: Comparison, decision: Decision) -> Rows:
    """One row per pair: difference, intervals, p-value, and what would have been found."""
    unit = comparison.metric.unit
    heads = (
        Words("pair", "組"),
        Words("verdict", "判定"),
        Words("difference", "差"),
        Words("interval", "区間"),
        Words("bootstrap 95 %", "ブートストラップ 95 %"),
        Words("p (Holm)", "p(Holm)"),
        Words("won : lost", "勝 : 敗"),
        Words("seeds", "シード"),
        Words("found with 80 %", "80 % で検出"),
    )
    names, title = short_names(comparison), Words(f"Pairs (differences in {unit})", f"組（差の単位は {unit}）")
    cells = tuple(_pair_cells(pair, names, decision) for pair in decision.pairs)
    return Rows(title, heads, cells, optional=(8, 6, 4, 5))


def _pair_cells(pair: PairVerdict, names: dict[str, str], decision: Decision) -> tuple[Words, ...]:
    difference, interval, drawn = "–", "–", "–"
    if pair.interval is not None and pair.bootstrap is not None:
        difference, interval = format_interval(pair.interval)
        drawn = format_interval(pair.bootstrap)[1]
    size = detectable_difference(pair, decision)
    texts = (
        difference,
        interval,
        drawn,
        f"{pair.p_value:.4f}" if pair.p_value >= 1e-4 else "< 0.0001",
        f"{pair.wins} : {pair.losses}",
        f"{pair.seeds}",
        "–" if size is None else format_signed(size, 4),
    )
    first, second = names[pair.first], names[pair.second]
    sign = ">" if pair.verdict == "better" else "~"
    return (same(f"{first} {sign} {second}"), VERDICTS[pair.verdict], *map(same, texts))


@dataclass(frozen=True)
class TerminalTable:
    """The table for a terminal, in its language, without empty columns and with those that fit its width."""

    rows: Rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heads, cells = self.rows.heads, self.rows.cells
        widths = {
            column: max(cell_len(choose(*words)) for words in (heads[column], *(row[column] for row in cells)))
            for column in range(len(heads))
            if any(row[column].en != "–" for row in cells)
        }
        for column in self.rows.optional:
            if sum(widths.values()) + 2 * len(widths) > options.max_width:
                widths.pop(column, None)
        table = Table(
            title=choose(*self.rows.title), title_justify="left", box=None, header_style="dim", pad_edge=False
        )
        for column in widths:
            table.add_column(
                choose(*heads[column]), justify="right" if column else "left", no_wrap=column > 0, overflow="fold"
            )
        for row in cells:
            table.add_row(*(Text(choose(*row[column])) for column in widths))
        yield table
