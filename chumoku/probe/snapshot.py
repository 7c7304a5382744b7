"""All that is drawn of one look, as numbers on the CPU: `see` gathers it in a single forward pass.

    maps        every head's weights [L, H, T, S]     "encoder", "decoder" (masked), "cross"; and rollouts [1, 1, T, S]
    entropy     of every head [L, H], in bits
    streams     ‖x‖ by layer and place
    lens        what each layer would say
    words       for each word written: the five best candidates, and where it looked
    positions   what tells the places apart

Row i of a map of a decoder is the look with which the token after i was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.models.model import EncoderModel, Model
from chumoku.models.stack import Stack
from chumoku.nn.tap import Tape
from chumoku.probe import attention, lens
from chumoku.probe.cancellation import Going, on
from chumoku.probe.forward_pass import answer, plain, watch

BEST, LOOKED = 5, 3
SHOWN = 64  # numbers of a position's vector
Name = Callable[[int], str]


@dataclass(frozen=True)
class Asked:
    """What is looked at. Behind `first` tokens those begin that the model wrote; `then` is what came last, unread."""

    tokens: Sequence[int]
    name: Name
    first: int
    then: int | None = None
    source: Sequence[int] | None = None
    source_name: Name | None = None
    guessed: Sequence[int] = ()  # an encoder's places whose guesses are wanted


class Map(NamedTuple):
    key: str  # encoder, decoder, cross, rollout, rollout-encoder, rollout-cross
    weights: Tensor  # [L, H, T, S]
    rows: list[str]
    columns: list[str]


class Candidate(NamedTuple):
    name: str
    probability: float


class Word(NamedTuple):
    """One place at which something was said."""

    place: int  # the row of the maps
    name: str | None  # what was written, or None where nothing was yet
    probability: float | None
    rank: int | None  # 1: the likeliest
    candidates: list[Candidate]
    looked: list[tuple[int, float]]  # columns and weights, in the mean over all layers and heads


class Guesses(NamedTuple):
    """The lens in names: [L + 1][T][k]."""

    rows: list[str]
    candidates: list[list[list[Candidate]]]


class Positions(NamedTuple):
    kind: str
    table: Tensor | None  # [T, ≤ 64], or a row for each distance
    rows: list[str]


@dataclass(frozen=True)
class Seen:
    kind: str
    tokens: list[tuple[int, str]]
    source: list[tuple[int, str]]
    first: int
    maps: list[Map]
    entropy: dict[str, Tensor]
    streams: dict[str, lens.Stream]
    lens: Guesses | None
    words: list[Word]
    positions: Positions

    def map(self, key: str) -> Map:
        return next(one for one in self.maps if one.key == key)


def see(
    model: Model,
    asked: Asked,
    *,
    layer: int | None = None,
    guesses: bool = True,
    debug: bool | None = None,
    going: Going = on,
) -> Seen:
    """One pass, and everything that can be seen in it; of one layer, or without the lens, where all is too much."""
    model = plain(model)
    looks = attention.WEIGHTS if layer is None else attention.WEIGHTS.replace("blocks.*", f"blocks.{layer}")
    output, tape = watch(model, asked.tokens, looks, *lens.added_patterns(), source=asked.source, debug=debug)
    weights = attention.maps_of(model, tape)
    maps = [_map(key, one[:, 0].float().cpu(), asked) for key, one in weights.items()]
    speaks = output.logits is not None
    logits = answer(output)[0] if speaks else None
    stack = model.get_submodule("encoder" if isinstance(model, EncoderModel) else "decoder")
    source_name = asked.source_name or asked.name
    return Seen(
        kind=model.config.kind,
        tokens=[(token, asked.name(token)) for token in asked.tokens],
        source=[(token, source_name(token)) for token in asked.source or ()],
        first=asked.first,
        maps=[*maps, *(_rollouts(attention.rolled(weights), asked) if layer is None else [])],
        entropy={one.key: attention.entropy(one.weights).mean(-1) for one in maps},
        streams={name: _first_row(stream) for name, stream in lens.streams(model, tape).items()},
        lens=_guesses(model, tape, asked, going) if speaks and guesses else None,
        words=[] if logits is None else words(logits, maps, asked, masked=isinstance(model, EncoderModel), going=going),
        positions=positions(stack, len(asked.tokens)),  # type: ignore[arg-type]
    )


def words(logits: Tensor, maps: list[Map], asked: Asked, *, masked: bool, going: Going = on) -> list[Word]:
    """What was said at each place where something was written, and what it looked at there."""
    last = next((one for one in maps if one.key == "cross"), maps[-1])
    looks = last.weights.mean((0, 1))
    if masked:
        spoken: list[tuple[int, int | None]] = [(place, None) for place in asked.guessed]
    else:
        following = [*asked.tokens[1:], asked.then]
        spoken = [(place, following[place]) for place in range(max(0, asked.first - 1), len(asked.tokens))]
    found = []
    for place, token in spoken:
        going()
        chances = logits[place].float().softmax(-1).cpu()
        best = chances.topk(min(BEST, len(chances)))
        most = looks[place].topk(min(LOOKED, looks.shape[-1]))
        found.append(
            Word(
                place,
                None if token is None else asked.name(token),
                None if token is None else float(chances[token]),
                None if token is None else 1 + int((chances > chances[token]).sum()),
                [Candidate(asked.name(int(one)), float(p)) for p, one in zip(*best, strict=True)],
                [(int(column), float(weight)) for weight, column in zip(*most, strict=True)],
            )
        )
    return found


def positions(stack: Stack, length: int) -> Positions:
    """What is added to each place, or how far it is turned, or what each distance is."""
    places = torch.arange(length, device=next(stack.parameters()).device)
    rows = [str(place) for place in range(length)]
    if stack.position is not None:
        kind = type(stack.position).__name__.lower()
        return Positions(kind, stack.position(places, length).detach().float().cpu()[:, :SHOWN], rows)
    if stack.rotary is not None:
        return Positions("rotary", stack.rotary(places, torch.float32).cos.cpu()[:, :SHOWN], rows)
    if stack.relative:
        table = stack.get_submodule("blocks.0.attention.relative").table.detach().float().cpu()  # type: ignore[operator]
        clip = len(table) // 2
        return Positions("relative", table[:, :SHOWN], [f"{distance:+d}" for distance in range(-clip, clip + 1)])
    return Positions("none", None, [])


def _map(key: str, weights: Tensor, asked: Asked) -> Map:
    """A map with its names. What looks at a source is a word about to be written; else it is the token itself."""
    own = [asked.name(token) for token in asked.tokens]
    name = asked.source_name or asked.name
    source = [name(token) for token in asked.source or ()]
    match key:
        case "encoder" | "rollout-encoder" if source:
            return Map(key, weights, source, source)
        case "cross" | "rollout-cross":
            then = "…" if asked.then is None else asked.name(asked.then)
            return Map(key, weights, [*own[1:], then], source)
        case _:
            return Map(key, weights, own, own)


def _rollouts(rollout: attention.Rollout, asked: Asked) -> list[Map]:
    found = {"rollout-encoder": rollout.encoder, "rollout": rollout.decoder, "rollout-cross": rollout.cross}
    return [_map(key, one[None].cpu(), asked) for key, one in found.items() if one is not None]


def _first_row(stream: lens.Stream) -> lens.Stream:
    return lens.Stream(*(None if part is None else part[:, 0].cpu() for part in stream))  # type: ignore[arg-type]


def _guesses(model: Model, tape: Tape, asked: Asked, going: Going) -> Guesses:
    seen = lens.through(model, tape, best=min(BEST, model.config.vocabulary), going=going)
    layers = [
        [
            [Candidate(asked.name(token), chance) for token, chance in zip(tokens, chances, strict=True)]
            for tokens, chances in zip(layer, likely, strict=True)
        ]
        for layer, likely in zip(seen.tokens[:, 0].tolist(), seen.probabilities[:, 0].tolist(), strict=True)
    ]
    return Guesses([asked.name(token) for token in asked.tokens], layers)
