"""Two position encodings that the note rejects, and the sinusoidal encoding.

i       p = i · u                 grows without bound
i / N   p = (i / N) · u           the code of a position depends on the length of the text
sin     PE(i)                     neither

u is the same random direction for both.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from chumoku.lab.experiment import FAILS, HOLDS, PARTLY, Budget, Outcome, Words
from chumoku.lab.figures import BLUE, OCHRE, RED, make_panels, plot_curves
from chumoku.lab.toy_models import format_seeds
from chumoku.lab.training import build_toy, downsample, fit
from chumoku.models.model import Model
from chumoku.nn.positions import SinusoidalPositions

WIDTH, WORDS = 32, 8
WAYS = ("i", "i/N", "sinusoidal")
LENGTHS = (8, 16, 32, 64)


class LinearPosition(nn.Module):
    """i · u, or (i / N) · u, in place of the sinusoidal encoding."""

    def __init__(self, *, share: bool, seed: int) -> None:
        super().__init__()
        self.share = share
        self.direction = torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))

    def forward(self, positions: Tensor, end: int, dtype: torch.dtype = torch.float32) -> Tensor:
        place = positions.to(dtype)[..., None]
        return (place / end if self.share else place) * self.direction


def run(budget: Budget) -> Outcome:
    steps = budget.steps(200, minimum=110)
    numbers: dict[str, Any] = {"steps": steps, "lengths": list(LENGTHS), "size": {}, "moved": {}}
    numbers |= {"accuracy": {}, "losses": {}}
    for way in WAYS:
        code = build_position(way, 0)
        numbers["size"][way] = [float(code(torch.tensor([at]), 1024).norm()) for at in (16, 1024)]
        short, long = (code(torch.tensor([5]), end) for end in (8, 64))
        numbers["moved"][way] = float((long - short).norm() / short.norm())
        runs = [train_model(way, seed, steps) for seed in range(budget.seeds)]
        numbers["losses"][way] = [losses for losses, _ in runs]
        numbers["accuracy"][way] = [accuracy for _, accuracy in runs]
    at = {way: format_accuracies(numbers, way) for way in WAYS}
    good = [length for place, length in enumerate(LENGTHS) if sinusoidal_is_best(numbers, place)]
    return Outcome(
        judge(numbers),
        numbers,
        Words(
            f"From position 16 to 1,024 i grows {numbers['size']['i'][1] / numbers['size']['i'][0]:.0f}-fold, the "
            "sinusoidal encoding not at all; between texts of 8 and 64 words, i/N of position 5 changes by "
            f"{numbers['moved']['i/N']:.0%}. Accuracy after {steps} steps, at {' / '.join(map(str, LENGTHS))} words: "
            f"{at['i']} (i), {at['i/N']} (i/N), {at['sinusoidal']} (sinusoidal); texts of {LENGTHS[-1]} words were not "
            "in the training data.",
            f"位置 16 から 1,024 までに i は {numbers['size']['i'][1] / numbers['size']['i'][0]:.0f} 倍になり、正弦波は"
            f"変わりません。位置 5 の i/N は、文が 8 語から 64 語になると {numbers['moved']['i/N']:.0%} 動きます。"
            f"{steps} ステップ後の正解率は ({'・'.join(map(str, LENGTHS))} 語の順に)、i が {at['i']}、i/N が "
            f"{at['i/N']}、正弦波が {at['sinusoidal']} です。{LENGTHS[-1]} 語の文は学習で見ていません。",
        ),
        when=Words(
            "It holds for the codes themselves, and for learning with texts of "
            f"{', '.join(map(str, good)) or 'no tested length of'} words; at the other lengths i or i/N was better in "
            "some seed.",
            f"符号そのものの性質としては成り立ち、学習については長さが {'、'.join(map(str, good)) or '(なし)'} 語のとき"
            "です。ほかの長さでは i か i/N の方がよいシードがありました。",
        ),
    )


def build_position(way: str, seed: int) -> nn.Module:
    return SinusoidalPositions(WIDTH) if way == "sinusoidal" else LinearPosition(share=way == "i/N", seed=seed)


def train_model(way: str, seed: int, steps: int) -> tuple[list[float], list[float]]:
    model = build_toy(seed, vocabulary=WORDS, width=WIDTH, position="none")
    model.decoder.position = build_position(way, seed)  # type: ignore[union-attr]

    def loss(generator: torch.Generator) -> Tensor:
        length = int(torch.randint(8, 33, (1,), generator=generator))
        return copy_loss_and_accuracy(model, torch.randint(WORDS, (16, length), generator=generator))[0]

    losses = fit(model, loss, steps=steps, seed=seed, rate=6e-3)
    test = torch.Generator().manual_seed(1000 + seed)
    with torch.no_grad():
        return downsample(losses), [
            copy_loss_and_accuracy(model, torch.randint(WORDS, (128, n), generator=test))[1] for n in LENGTHS
        ]


def copy_loss_and_accuracy(model: Model, words: Tensor) -> tuple[Tensor, float]:
    """Loss and accuracy of predicting, at each word, the one before it."""
    logits = model(words).logits[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), words[:, :-1].flatten()), float(
        (logits.argmax(-1) == words[:, :-1]).float().mean()
    )


def judge(numbers: dict[str, Any]) -> str:
    grown = {way: end / start for way, (start, end) in numbers["size"].items()}
    moved = numbers["moved"]
    bounded = grown["i"] > 10 and grown["sinusoidal"] < 1.01
    steady = moved["i/N"] > 0.1 and max(moved["i"], moved["sinusoidal"]) < 1e-6
    if not (bounded and steady):
        return FAILS
    return HOLDS if all(sinusoidal_is_best(numbers, place) for place in range(len(numbers["lengths"]))) else PARTLY


def sinusoidal_is_best(numbers: dict[str, Any], place: int) -> bool:
    """Whether in every seed the sinusoidal encoding is best at this length, within one point."""
    runs = zip(*(numbers["accuracy"][way] for way in WAYS), strict=True)
    return all(sine[place] >= max(plain[place], share[place]) - 0.01 for plain, share, sine in runs)


def format_accuracies(numbers: dict[str, Any], way: str) -> str:
    """Accuracies by length: mean and range over the seeds."""
    return " / ".join(
        format_seeds([one[at] for one in numbers["accuracy"][way]], "{:.0%}") for at in range(len(LENGTHS))
    )


def draw(outcome: Outcome, figure: Figure) -> None:
    curve, lengths = make_panels(figure, 2)
    numbers = outcome.numbers
    points = len(numbers["losses"]["i"][0])
    at = [round((place + 0.5) * numbers["steps"] / points) for place in range(points)]
    plot_curves(curve, at, numbers["losses"], colors=(RED, OCHRE, BLUE))
    curve.set(xlabel="step", ylabel="loss (nats)", ylim=(0, None))
    plot_curves(lengths, numbers["lengths"], numbers["accuracy"], colors=(RED, OCHRE, BLUE), marker="o", legend=False)
    lengths.axvline(32, color="#1c2733", linewidth=0.8, linestyle=":")
    lengths.set(xlabel="words in the text (文の長さ)", ylabel="accuracy (正解率)", ylim=(0, 1.02), xscale="log")
    lengths.set_xticks(numbers["lengths"], [str(length) for length in numbers["lengths"]])
    lengths.minorticks_off()
