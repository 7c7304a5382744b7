"""How far back RNN, LSTM and attention remember a word.

a word, d − 1 words of noise, then "?": which word was it?      recurrent: h_t = f(h_{t−1}, x_t)   attention: one step
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Outcome, Words, refute
from chumoku.lab.figures import BLUE, GRAY, OCHRE, RED, make_panels, plot_curves
from chumoku.lab.toy_models import format_seeds
from chumoku.lab.training import fit, fixed_seed, mean
from chumoku.nn.attention import Attention

WORDS, NOISE, WIDTH, BATCH = 8, 8, 32, 16
HALFWAY = (1 + 1 / WORDS) / 2
DISTANCES = (2, 8, 32, 128, 512)
KINDS = ("rnn", "lstm", "lstm, open gates", "attention")
LENGTHS = (32, 64, 128, 256, 512, 1024)


class Reader(nn.Module):
    """Embedding, one layer, and a prediction at the last word."""

    def __init__(self, kind: str, distance: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS + NOISE + 1, WIDTH)
        if kind == "attention":
            self.layer: nn.Module = Attention(WIDTH, 2)
        else:
            layer_class = nn.RNN if kind == "rnn" else nn.LSTM
            self.layer = layer_class(WIDTH, WIDTH, batch_first=True)
        self.answer = nn.Linear(WIDTH, WORDS)
        if kind == "lstm, open gates":
            with torch.no_grad():  # a gate of σ(ln d) forgets about 1/d per step and admits as little
                entering, forgetting, *_ = self.layer.get_parameter("bias_ih_l0").chunk(4)
                entering.fill_(-math.log(distance))
                forgetting.fill_(math.log(distance))

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        # Attention needs only the last query; a recurrence has to process all words.
        last = self.layer(x[:, -1:], x) if isinstance(self.layer, Attention) else self.layer(x)[0]
        logits: Tensor = self.answer(last[:, -1])
        return logits


def run(budget: Budget) -> Outcome:
    distances = DISTANCES if budget.scale >= 0.5 else DISTANCES[:-1]
    steps = budget.steps(150, minimum=75)
    numbers: dict[str, Any] = {"steps": steps, "distances": list(distances), "accuracy": {}, "lengths": list(LENGTHS)}
    for kind in KINDS:
        seeds = range(budget.seeds)
        numbers["accuracy"][kind] = [[run_trial(kind, d, seed, steps) for d in distances] for seed in seeds]
    numbers["alone"] = {kind: dependence_on_previous(kind) for kind in ("rnn", "lstm", "attention")}
    numbers["seconds"] = {kind: [measure_seconds(kind, length) for length in LENGTHS] for kind in ("lstm", "attention")}
    far = {kind: format_seeds([one[-1] for one in runs], "{:.0%}") for kind, runs in numbers["accuracy"].items()}
    reach = {kind: longest_distance(numbers, kind) for kind in KINDS}
    slow, quick = (
        [f"{1e3 * numbers['seconds'][kind][LENGTHS.index(length)]:.1f}" for length in (512, 1024)]
        for kind in ("lstm", "attention")
    )
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"After {steps} steps: at distance {distances[-1]} the accuracy is {far['rnn']} (RNN), {far['lstm']} "
            f"(LSTM), {far['lstm, open gates']} (LSTM with open gates) and {far['attention']} (attention); they "
            f"remember {reach['rnn']}, {reach['lstm']}, {reach['lstm, open gates']} and {reach['attention']} "
            "positions. Attention computes each position independently; a recurrence has to wait. This does not mean "
            f"less work: on one thread 512 words take {slow[0]} ms with the LSTM and {quick[0]} ms with attention, "
            f"1,024 words {slow[1]} and {quick[1]} ms.",
            f"{steps} ステップ後、距離 {distances[-1]} での正解率は RNN が {far['rnn']}、LSTM が {far['lstm']}、ゲート"
            f"を開いた LSTM が {far['lstm, open gates']}、アテンションが {far['attention']} です。記憶できる距離は順に "
            f"{reach['rnn']}、{reach['lstm']}、{reach['lstm, open gates']}、{reach['attention']} です。アテンションは位"
            "置ごとに独立に計算できますが、再帰型は前の結果を待ちます。ただし計算量が減るわけではなく、1 スレッドでは "
            f"512 語に LSTM が {slow[0]} ms、アテンションが {quick[0]} ms、1,024 語では {slow[1]} ms と {quick[1]} ms "
            "かかります。",
        ),
        when=Words(
            "Recurrent networks have their usual initialization; with open forget gates the LSTM also remembers "
            f"{distances[-1]} positions.",
            f"再帰型を通常の初期値から始めた場合です。忘却ゲートを開いておいた LSTM は距離 {distances[-1]} でも記憶でき"
            "ます。",
        ),
    )


def run_trial(kind: str, distance: int, seed: int, steps: int) -> float:
    with fixed_seed(seed):
        model = Reader(kind, distance)

    def loss(generator: torch.Generator) -> Tensor:
        words, answer = sample_batch(BATCH, distance, generator)
        return F.cross_entropy(model(words), answer)

    fit(model, loss, steps=steps, seed=seed, rate=1e-2)
    words, answer = sample_batch(256, distance, torch.Generator().manual_seed(1000 + seed))
    with torch.no_grad():
        return float((model(words).argmax(-1) == answer).float().mean())


def sample_batch(batch: int, distance: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    words = torch.randint(WORDS, WORDS + NOISE, (batch, distance + 1), generator=generator)
    answer = torch.randint(WORDS, (batch,), generator=generator)
    words[:, 0], words[:, -1] = answer, WORDS + NOISE
    return words, answer


@torch.no_grad()
def dependence_on_previous(kind: str) -> float:
    """Relative change of the last position when it is computed without the results of earlier positions."""
    with fixed_seed(0) as generator:
        layer = Reader(kind, 32).layer
    x = torch.randn(1, 32, WIDTH, generator=generator)
    if isinstance(layer, Attention):
        whole, alone = layer(x), layer(x[:, -1:], x)
    else:
        whole, alone = layer(x)[0], layer(x[:, -1:])[0]
    return float((whole[:, -1:] - alone).norm() / whole[:, -1:].norm())


def measure_seconds(kind: str, length: int) -> float:
    """Seconds of the fastest of nine passes over one sequence."""
    with fixed_seed(0) as generator, torch.no_grad():
        layer = Reader(kind, length).layer
        x = torch.randn(1, length, WIDTH, generator=generator)
        taken = []
        for _ in range(9):
            start = time.perf_counter()
            layer(x)
            taken.append(time.perf_counter() - start)
    return min(taken)


def longest_distance(numbers: dict[str, Any], kind: str) -> int:
    """The longest distance up to which this kind remembers."""
    found = 0
    for place, distance in enumerate(numbers["distances"]):
        if mean([one[place] for one in numbers["accuracy"][kind]]) < HALFWAY:
            break
        found = distance
    return found


def judge(numbers: dict[str, Any]) -> str:
    longest = numbers["distances"][-1]
    if (
        longest_distance(numbers, "attention") < longest
        or remembers_last(numbers, "rnn")
        or remembers_last(numbers, "lstm")
    ):
        above = {
            kind: [[value - HALFWAY for value in one] for one in runs] for kind, runs in numbers["accuracy"].items()
        }
        forgotten = ([-one[-1] for one in above[kind]] for kind in ("rnn", "lstm"))
        return refute(*zip(*above["attention"], strict=True), *forgotten)
    alone = numbers["alone"]
    if alone["attention"] > 1e-3 or min(alone["rnn"], alone["lstm"]) <= 1e-3:
        return FAILS
    return PARTLY if remembers_last(numbers, "lstm, open gates") else HOLDS


def remembers_last(numbers: dict[str, Any], kind: str) -> bool:
    return mean([one[-1] for one in numbers["accuracy"][kind]]) >= HALFWAY


def draw(outcome: Outcome, figure: Figure) -> None:
    memory, speed = make_panels(figure, 2)
    numbers = outcome.numbers
    plot_curves(
        memory, numbers["distances"], numbers["accuracy"], colors=(GRAY, RED, OCHRE, BLUE), marker="o", legend=False
    )
    memory.legend(frameon=False, fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    memory.axhline(1 / WORDS, color="#1c2733", linewidth=0.8, linestyle=":")
    memory.set(xscale="log", xlabel="distance (距離)", ylabel="accuracy (正解率)", ylim=(0, 1.03))
    memory.set_xticks(numbers["distances"], [str(distance) for distance in numbers["distances"]])
    for kind, color in (("lstm", RED), ("attention", BLUE)):
        taken = [1e3 * value for value in numbers["seconds"][kind]]
        speed.plot(numbers["lengths"], taken, "o-", color=color, label=kind, markersize=3.5)
    speed.set(xscale="log", yscale="log", xlabel="words (系列長)", ylabel="milliseconds (時間)")
    speed.set_xticks(numbers["lengths"], [str(length) for length in numbers["lengths"]])
    speed.set_yticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
    speed.legend(frameon=False, fontsize=8)
    for axis in (memory, speed):
        axis.minorticks_off()
