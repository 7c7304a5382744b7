"""The picture of a comparison: validation curves with bands, and differences with their intervals.

    curves         mean over the seeds, band from the lowest to the highest; a diverged run ends with a cross;
                   a point if there was one validation
    differences    how much worse each arm is than the first of the ranking, with its interval; small dots are seeds

The horizontal axis of the curves is the training's FLOPs, so that arms with other sizes and steps can be compared.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from chumoku.compare.answer import short_names
from chumoku.compare.results import Comparison
from chumoku.compare.verdicts import Decision
from chumoku.probe.plot_style import INK, axis_label, label, saved_figure, style_axis

# Okabe and Ito's colors, which people with any color vision can tell apart; more arms repeat them dashed.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6670", "#9a8f00")
STYLES = ("-", "--", ":", "-.")
LONGEST = 34  # characters of an arm's name


def draw_comparison(comparison: Comparison, decision: Decision, path: Path) -> Path:
    """Draw both panels side by side as a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with saved_figure(path, (11.5, _height(comparison)), columns=2) as (_, (left, right)):
        plot_curves(left, comparison, decision)
        plot_differences(right, comparison, decision)
    return path


def draw_panels(comparison: Comparison, decision: Decision) -> tuple[bytes, bytes]:
    """Curves and differences as two PNG files, for a page that puts them below each other on a phone."""
    panels = []
    for plot in (plot_curves, plot_differences):
        stream = io.BytesIO()
        with saved_figure(stream, (4.7, _height(comparison))) as (_, axis):
            plot(axis, comparison, decision)
        panels.append(stream.getvalue())
    return panels[0], panels[1]


def _height(comparison: Comparison) -> float:
    return max(3.6, 1.2 + 0.32 * len(comparison.arms))


def plot_curves(axis: Any, comparison: Comparison, decision: Decision) -> None:
    names, highest, ends = short_names(comparison), [], []
    for number, name in enumerate(decision.ranking):
        color, style = COLORS[number % len(COLORS)], STYLES[number // len(COLORS) % len(STYLES)]
        runs = [run for run in comparison.runs.get(name, ()) if run.curve]
        flops = _flops_per_step(comparison, name)
        finished = [run for run in runs if not run.diverged]
        arm = axis_label(names[name] if finished else label("{0} (diverged)", names[name]), LONGEST)
        steps = sorted(set.intersection(*({step for step, _ in run.curve} for run in finished))) if finished else []
        if steps:
            table = np.array([[dict(run.curve)[step] for step in steps] for run in finished])
            x = np.array(steps) * flops
            one = len(steps) == 1  # a line of one point would be empty
            axis.plot(x, table.mean(0), "o" if one else style, label=arm, linewidth=1.5, color=color)
            if one:
                axis.vlines(x, table.min(0), table.max(0), color=color, alpha=0.4)
            else:
                axis.fill_between(x, table.min(0), table.max(0), color=color, alpha=0.16, linewidth=0)
                highest.append(float(np.interp(0.15 * x[-1], x, table.max(0))))
        for place, run in enumerate(run for run in runs if run.diverged):
            x, y = (np.array(column) for column in zip(*run.curve, strict=True))
            named = {} if finished or place else {"label": arm}
            axis.plot(x * flops, y, linewidth=0.8, color=color, linestyle=":", **named)
            ends.append((x[-1] * flops, y[-1], color))
    if highest:
        axis.set_ylim(top=max(highest))
    for x, y, color in ends:
        axis.plot([x], [min(y, axis.get_ylim()[1])], "x", color=color, clip_on=False)
    style_axis(axis, label("FLOPs of training"), label("validation loss (nats)"))
    if not axis.lines:
        axis.set(xticks=[], yticks=[])
        axis.text(0.5, 0.5, label("no run has a curve"), ha="center", va="center", transform=axis.transAxes)
    if axis.get_legend_handles_labels()[0]:
        # Above the panel, where it hides no curve.
        axis.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, columnspacing=1.2)


def _flops_per_step(comparison: Comparison, name: str) -> float:
    """By the last step of a complete run; of an arm without one, by the longest curve of all arms."""
    runs = comparison.runs.get(name, ())
    last = max((run.curve[-1][0] for run in runs if run.curve and not run.diverged), default=0)
    longest = max((run.curve[-1][0] for others in comparison.runs.values() for run in others if run.curve), default=0)
    return next(arm.flops for arm in comparison.arms if arm.name == name) / max(1, last or longest)


def plot_differences(axis: Any, comparison: Comparison, decision: Decision) -> None:
    names, best, unit = short_names(comparison), decision.ranking[0], comparison.metric.unit
    axis.axvline(0, color=INK, linewidth=0.8)
    pairs = {frozenset((pair.first, pair.second)): pair for pair in decision.pairs}
    for number, name in enumerate(decision.ranking):
        color = COLORS[number % len(COLORS)]
        pair = pairs.get(frozenset((best, name)))
        if name == best and comparison.runs.get(name):
            axis.plot([0], [number], "D", color=color)
        elif pair is not None and pair.interval is not None:
            sign = 1 if pair.first == best else -1
            seeds = sign * np.array(pair.differences)
            ends = sorted((sign * pair.interval.low, sign * pair.interval.high))
            axis.plot(seeds, np.full(len(seeds), number + 0.22), ".", color=color, alpha=0.45, markersize=4)
            axis.plot(ends, [number, number], color=color, linewidth=2)
            axis.plot([sign * pair.interval.difference], [number], "o", color=color)
        else:
            diverged, count = decision.diverging.get(name, (0, len(comparison.runs.get(name, ()))))
            text = label("diverged in {0} of {1} seeds", diverged, count) if diverged else label("not judged")
            axis.text(0, number, f" {text}", va="center", fontsize=8, color=color)
    axis.set_yticks(range(len(decision.ranking)), [axis_label(names[name], LONGEST) for name in decision.ranking])
    axis.set_ylim(len(decision.ranking) - 0.4, -0.6)
    style_axis(axis, label("worse than {0} by ({1})", axis_label(names[best], LONGEST), label(unit)), "")
