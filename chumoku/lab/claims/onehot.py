"""Eᵀ · one-hot(w) = E[w], and one-hot(v)·one-hot(w) = 0 for v ≠ w"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from chumoku.lab.experiment import FAILS, HOLDS, Budget, Outcome, Words
from chumoku.lab.figures import BLUE, RED, make_panels
from chumoku.nn.embeddings import Embedding

WIDTH, WORDS = 64, 32


def run(budget: Budget) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    rows = []
    for size in (101, 307, 1009, 3001, 10007):
        table = Embedding(size, WIDTH)
        torch.nn.init.normal_(table.table, generator=generator)
        words = torch.randint(size, (WORDS,), generator=generator)
        with torch.no_grad():
            same, apart = compare_lookups(table, words)
            product = _microseconds(
                lambda words=words, size=size, table=table: F.one_hot(words, size).float() @ table.table
            )
            lookup = _microseconds(lambda words=words, table=table: table(words))
        rows.append({"vocabulary": size, "same": same, "apart": apart, "product_us": product, "lookup_us": lookup})
    numbers: dict[str, Any] = {
        "rows": rows,
        "multiplications": rows[-1]["vocabulary"] * WIDTH,
        "copied": WIDTH,
        "seeds": [0],
    }
    last = rows[-1]
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"Bit-identical for every vocabulary. With 10,007 words the product needs {numbers['multiplications']:,} "
            f"multiplications per word and took {last['product_us']:,.0f} µs for {WORDS} words; the lookup needs "
            f"{WIDTH} copies and took {last['lookup_us']:,.0f} µs.",
            f"どの語彙でもビット単位で一致しました。10,007 語では積は一語あたり {numbers['multiplications']:,} 回の掛け"
            f"算が必要で、{WORDS} 語に {last['product_us']:,.0f} µs かかります。表引きは {WIDTH} 個の写しで済み、"
            f"{last['lookup_us']:,.0f} µs です。",
        ),
    )


def compare_lookups(table: Embedding, words: torch.Tensor) -> tuple[bool, float]:
    """Whether product and lookup are bit-identical for every word, and the largest inner product of different words."""
    size = len(table.table)
    hot = F.one_hot(words, size).float()
    same, apart = True, 0.0
    for start in range(0, size, 500):  # all at once would be a matrix of 10,007²
        part = torch.arange(start, min(start + 500, size))
        others = torch.zeros(len(part), size).scatter_(1, part[:, None], 1.0)
        same = same and torch.equal(others @ table.table, table(part))
        apart = max(apart, float((hot @ others.T)[words[:, None] != part].abs().max()))
    return same, apart


def judge(numbers: dict[str, Any]) -> str:
    return HOLDS if all(row["same"] and row["apart"] == 0.0 for row in numbers["rows"]) else FAILS


def draw(outcome: Outcome, figure: Figure) -> None:
    axis = make_panels(figure, 1, width=6.0, height=3.2)[0]
    rows = outcome.numbers["rows"]
    sizes = [row["vocabulary"] for row in rows]
    axis.plot(
        sizes, [row["product_us"] for row in rows], color=RED, marker="o", label="OneHot × 埋め込み行列 (product)"
    )
    axis.plot(sizes, [row["lookup_us"] for row in rows], color=BLUE, marker="o", label="nn.Embedding 表引き (lookup)")
    axis.set(xscale="log", yscale="log", xlabel="語彙 vocabulary", ylabel=f"µs for {WORDS} words")
    axis.legend(frameon=False, fontsize=8)


def _microseconds(work: Any) -> float:
    """Microseconds of the fastest of several runs, because other programs only add time."""
    turns = []
    for _ in range(12):
        started = time.perf_counter()
        work()
        turns.append(time.perf_counter() - started)
    return min(turns) * 1e6
