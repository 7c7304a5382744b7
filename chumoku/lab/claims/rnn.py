"""How far back can it remember?

a word, d − 1 words of noise, then "?": which word was it?      recurrent: h_t = f(h_{t−1}, x_t)   attention: one look
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Claim, Outcome, Words
from chumoku.lab.figures import BLUE, GREY, OCHRE, RED, curves, panels
from chumoku.lab.training import fit, mean, seeded
from chumoku.nn.attention import Attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIM = Claim(
    id="rnn",
    notes=("002",),
    title=Words("RNN, LSTM and attention: who remembers?", "RNN・LSTM とアテンションの記憶"),
    stated=Words(
        "In an RNN or LSTM early words fade; attention reaches any distance, and runs in parallel.",
        "RNN や LSTM では初期の情報が薄れますが、アテンションはどの距離にも届き、並列に計算できます。",
    ),
    tried=Words(
        "One layer each of RNN, LSTM and attention, all 32 wide, learns to name a word that stood d places back among "
        "noise, d from 2 to 512 (a quick run: 128); all with the same steps and the same rate (Adam, 0.01), tuned for "
        "none of them. Also an LSTM whose forget gates start open for that distance. Then one pass over 32 to 1,024 "
        "words is timed on one thread.",
        "幅 32 の RNN、LSTM、アテンションを一層ずつ使い、雑音の中で d 個前にあった単語を答えさせます (d は 2〜512、簡"
        "易実行では 128 まで)。ステップ数と学習率 (Adam、0.01) はすべて同じで、どれかに合わせた調整はしていません。忘"
        "却ゲートをその距離に合わせて開いておいた LSTM も試します。さらに 32〜1,024 語を一度処理する時間を 1 スレッド"
        "で測ります。",
    ),
    refutes=Words(
        "A recurrent network that still answers at the longest distance, or attention that does not; or attention that "
        "takes no less time.",
        "最も長い距離でも再帰型が答えられるか、アテンションが答えられないか、アテンションの時間が短くなければ、反証さ"
        "れます。",
    ),
    rule=Words(
        "Remembers means a mean accuracy of at least 56 %, half-way from chance to perfect. Fails when attention "
        "does not remember the longest distance, or the usual LSTM does. Holds when the LSTM with open gates does not "
        "either and attention takes at most half of the LSTM's time at 512 words; otherwise it holds in part.",
        "平均正解率 56 % 以上 (偶然と満点の中間) を記憶できているとします。最長の距離でアテンションが記憶できないか、通"
        "常の LSTM が記憶できれば不成立とします。ゲートを開いた LSTM も記憶できず、512 語でアテンションの時間が LSTM の"
        "半分以下なら成立、そうでなければ部分的に成立とします。",
    ),
)
WORDS, NOISE, WIDTH, BATCH = 8, 8, 32, 16
HALFWAY = (1 + 1 / WORDS) / 2
DISTANCES = (2, 8, 32, 128, 512)
KINDS = ("rnn", "lstm", "lstm, open gates", "attention")
LENGTHS = (32, 64, 128, 256, 512, 1024)


class Reader(nn.Module):
    """Embedding, one layer, and the answer at the last word."""

    def __init__(self, kind: str, distance: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS + NOISE + 1, WIDTH)
        if kind == "attention":
            self.layer: nn.Module = Attention(WIDTH, 2)
        else:
            made = nn.RNN if kind == "rnn" else nn.LSTM
            self.layer = made(WIDTH, WIDTH, batch_first=True)
        self.answer = nn.Linear(WIDTH, WORDS)
        if kind == "lstm, open gates":
            with torch.no_grad():  # a gate of σ(ln d) forgets about 1/d a step, and as little comes in
                entering, forgetting, *_ = self.layer.get_parameter("bias_ih_l0").chunk(4)
                entering.fill_(-math.log(distance))
                forgetting.fill_(math.log(distance))

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        # Attention needs the last query alone; a recurrence has to walk there.
        last = self.layer(x[:, -1:], x) if isinstance(self.layer, Attention) else self.layer(x)[0]
        logits: Tensor = self.answer(last[:, -1])
        return logits


def run(budget: Budget) -> Outcome:
    distances = DISTANCES if budget.scale >= 0.5 else DISTANCES[:-1]
    steps = budget.steps(150, least=75)
    numbers: dict[str, Any] = {"steps": steps, "distances": list(distances), "accuracy": {}, "lengths": list(LENGTHS)}
    for kind in KINDS:
        seeds = range(budget.seeds)
        numbers["accuracy"][kind] = [[tried(kind, d, seed, steps) for d in distances] for seed in seeds]
    numbers["seconds"] = {kind: [seconds(kind, length) for length in LENGTHS] for kind in ("lstm", "attention")}
    verdict = judge(numbers)
    far = {kind: mean([one[-1] for one in runs]) for kind, runs in numbers["accuracy"].items()}
    reach = {kind: reached(numbers, kind) for kind in KINDS}
    slow, quick = (numbers["seconds"][kind][LENGTHS.index(512)] * 1e3 for kind in ("lstm", "attention"))
    return Outcome(
        verdict,
        numbers,
        Words(
            f"After {steps} steps: at distance {distances[-1]} the LSTM answers {far['lstm']:.0%} rightly, attention "
            f"{far['attention']:.0%}. The RNN remembers {reach['rnn']} places, the LSTM {reach['lstm']}, with open "
            f"gates {reach['lstm, open gates']}, attention {reach['attention']}. 512 words take {slow:.1f} ms with "
            f"the LSTM and {quick:.1f} ms with attention.",
            f"{steps} ステップ後、距離 {distances[-1]} での正解率は LSTM が {far['lstm']:.0%}、アテンションが "
            f"{far['attention']:.0%} です。記憶できる距離は、RNN が {reach['rnn']}、LSTM が {reach['lstm']}、ゲートを"
            f"開いた LSTM が {reach['lstm, open gates']}、アテンションが {reach['attention']} です。512 語の処理時間"
            f"は LSTM が {slow:.1f} ms、アテンションが {quick:.1f} ms です。",
        ),
        when=Words(
            f"As to memory, for networks that start as usual (with open gates: {reach['lstm, open gates']} places). "
            f"As to speed only where many places can be computed at once: on one thread 512 words take {quick:.1f} ms "
            f"with attention against {slow:.1f} ms, though the LSTM has 512 steps that wait for each other.",
            f"記憶については、通常の初期値の場合です (ゲートを開いておくと距離 {reach['lstm, open gates']} まで)。速さ"
            "については、多くの位置を同時に計算できる場合に限ります。1 スレッドでは 512 語にアテンションが "
            f"{quick:.1f} ms、LSTM が {slow:.1f} ms かかります。ただし LSTM は 512 回順番に待つ必要があります。",
        )
        if verdict == PARTLY
        else None,
        reading=Words(
            "Left: who still knows the word after so many places (dotted: chance). Right: one pass, both axes "
            "logarithmic.",
            "左は、その距離だけ離れた単語を答えられる割合です (点線は偶然)。右は一度の処理時間で、両軸とも対数です。",
        ),
    )


def tried(kind: str, distance: int, seed: int, steps: int) -> float:
    with seeded(seed):
        model = Reader(kind, distance)

    def loss(generator: torch.Generator) -> Tensor:
        words, answer = recall(BATCH, distance, generator)
        return F.cross_entropy(model(words), answer)

    fit(model, loss, steps=steps, seed=seed, rate=1e-2)
    words, answer = recall(256, distance, torch.Generator().manual_seed(1000 + seed))
    with torch.no_grad():
        return float((model(words).argmax(-1) == answer).float().mean())


def recall(batch: int, distance: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    words = torch.randint(WORDS, WORDS + NOISE, (batch, distance + 1), generator=generator)
    answer = torch.randint(WORDS, (batch,), generator=generator)
    words[:, 0], words[:, -1] = answer, WORDS + NOISE
    return words, answer


def seconds(kind: str, length: int) -> float:
    """The best of nine passes over one sequence, every place computed."""
    with seeded(0) as generator, torch.no_grad():
        layer = Reader(kind, length).layer
        x = torch.randn(1, length, WIDTH, generator=generator)
        taken = []
        for _ in range(9):
            start = time.perf_counter()
            layer(x)
            taken.append(time.perf_counter() - start)
    return min(taken)


def reached(numbers: dict[str, Any], kind: str) -> int:
    """The longest distance up to which a kind remembers."""
    found = 0
    for place, distance in enumerate(numbers["distances"]):
        if mean([one[place] for one in numbers["accuracy"][kind]]) < HALFWAY:
            break
        found = distance
    return found


def judge(numbers: dict[str, Any]) -> str:
    longest = numbers["distances"][-1]
    if reached(numbers, "attention") < longest or reached(numbers, "lstm") >= longest:
        return FAILS
    at = numbers["lengths"].index(512)
    faster = numbers["seconds"]["attention"][at] <= numbers["seconds"]["lstm"][at] / 2
    return HOLDS if reached(numbers, "lstm, open gates") < longest and faster else PARTLY


def draw(outcome: Outcome, figure: Figure) -> None:
    memory, speed = panels(figure, 2)
    numbers = outcome.numbers
    curves(
        memory, numbers["distances"], numbers["accuracy"], colours=(GREY, RED, OCHRE, BLUE), marker="o", legend=False
    )
    memory.legend(frameon=False, fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    memory.axhline(1 / WORDS, color="#1c2733", linewidth=0.8, linestyle=":")
    memory.set(xscale="log", xlabel="distance (距離)", ylabel="accuracy (正解率)", ylim=(0, 1.03))
    memory.set_xticks(numbers["distances"], [str(distance) for distance in numbers["distances"]])
    for kind, colour in (("lstm", RED), ("attention", BLUE)):
        taken = [1e3 * value for value in numbers["seconds"][kind]]
        speed.plot(numbers["lengths"], taken, "o-", color=colour, label=kind, markersize=3.5)
    speed.set(xscale="log", yscale="log", xlabel="words (系列長)", ylabel="milliseconds (時間)")
    speed.set_xticks(numbers["lengths"], [str(length) for length in numbers["lengths"]])
    speed.set_yticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
    speed.legend(frameon=False, fontsize=8)
    for axis in (memory, speed):
        axis.minorticks_off()
