"""Everything that is shown about one forward pass, as numbers on the CPU: `take_snapshot` runs the model once.

    maps        attention weights [L, H, T, S] of "encoder", "decoder" (masked) and "cross"; rollouts [1, 1, T, S]
    entropy     of every head [L, H], in bits
    streams     ‖x‖ by layer and position
    lens        the prediction of each layer
    words       for each generated token: the five best candidates, and the positions with the most attention
    positions   the position vectors

Row i of a decoder's map is the attention with which the token after i was predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from chumoku.models.model import EncoderModel, Model
from chumoku.models.stack import Stack
from chumoku.nn.html_view import show_matrix
from chumoku.nn.modules import unwrap_compiled
from chumoku.nn.positions import LearnedPositions
from chumoku.nn.tap import Tape
from chumoku.probe import attention, lens
from chumoku.probe.cancellation import CheckInterrupt, never_interrupt
from chumoku.probe.forward_pass import final_output, run_and_record
from chumoku.probe.token_labels import label_row

TOP_CANDIDATES, TOP_ATTENDED = 5, 3
MAX_COLUMNS = 64  # of a position vector
TokenName = Callable[[int], str]


@dataclass(frozen=True)
class LookInput:
    """The tokens of one forward pass: a prompt of `prompt_length` tokens, then the tokens that the model generated."""

    tokens: Sequence[int]
    name: TokenName
    prompt_length: int
    next_token: int | None = None  # the last generated token; it is not part of `tokens`
    source: Sequence[int] | None = None
    source_name: TokenName | None = None
    masked_positions: Sequence[int] = ()  # encoder: the positions whose predictions are shown

    @property
    def names(self) -> list[str]:
        return label_names(self.tokens, self.name)

    @property
    def source_names(self) -> list[str]:
        return label_names(self.source or (), self.source_name or self.name)


def label_names(tokens: Sequence[int], name: TokenName) -> list[str]:
    return [label.text for label in label_row([name(token) for token in tokens])]


class AttentionMap(NamedTuple):
    key: str  # encoder, decoder, cross, rollout, rollout-encoder, rollout-cross
    weights: Tensor  # [L, H, T, S]
    rows: list[str]
    columns: list[str]

    def _repr_html_(self) -> str:
        """The mean over all layers and heads as a heat map, for notebooks."""
        return show_matrix(self.weights.mean((0, 1)), rows=self.rows, columns=self.columns)._repr_html_()


class Candidate(NamedTuple):
    name: str
    probability: float


class PredictedToken(NamedTuple):
    """The prediction at one position."""

    place: int  # the row of the maps
    name: str | None  # the generated token, or None before it is generated
    probability: float | None
    rank: int | None  # 1 is the most likely token
    candidates: list[Candidate]
    looked: list[tuple[int, float]]  # the columns with the most attention, mean over all layers and heads


class LensTable(NamedTuple):
    """The logit lens with token names: [L + 1][T][k]."""

    rows: list[str]
    candidates: list[list[list[Candidate]]]


class PositionTable(NamedTuple):
    kind: str
    table: Tensor | None  # [T, ≤ 64]; for relative positions and ALiBi one row per distance
    rows: list[str]


@dataclass(frozen=True)
class Snapshot:
    kind: str
    tokens: list[tuple[int, str]]
    source: list[tuple[int, str]]
    prompt_length: int
    next_token: tuple[int, str] | None
    first_layer: int  # the layer of the first map; others follow
    maps: list[AttentionMap]
    entropy: dict[str, Tensor]
    streams: dict[str, lens.StreamNorms]
    lens: LensTable | None
    words: list[PredictedToken]
    positions: PositionTable

    def map(self, key: str) -> AttentionMap:
        return next(one for one in self.maps if one.key == key)

    @property
    def attended_names(self) -> list[str]:
        """The names of the tokens that generated tokens attend to."""
        return next((one for one in self.maps if one.key == "cross"), self.maps[0]).columns


def take_snapshot(
    model: Model,
    inputs: LookInput,
    *,
    layer: int | None = None,
    with_lens: bool = True,
    debug: bool | None = None,
    check_interrupt: CheckInterrupt = never_interrupt,
) -> Snapshot:
    """Run the model once and collect everything that is shown.

    layer: collect the attention of this layer only (without rollouts).
    with_lens: whether to compute the logit lens, which is slow for a large vocabulary.
    """
    model = unwrap_compiled(model)
    pattern = attention.WEIGHTS if layer is None else attention.WEIGHTS.replace("blocks.*", f"blocks.{layer}")
    output, tape = run_and_record(
        model, inputs.tokens, pattern, *lens.stream_patterns(), source=inputs.source, debug=debug
    )
    weights = attention.stack_attention(model, tape)
    maps = [_name_map(key, one[:, 0].float().cpu(), inputs) for key, one in weights.items()]
    logits = final_output(output)[0] if model.config.predicts_tokens else None
    is_encoder = isinstance(model, EncoderModel)
    stack = model.get_submodule("encoder" if is_encoder else "decoder")
    following = inputs.next_token
    return Snapshot(
        kind=model.config.kind,
        tokens=list(zip(inputs.tokens, inputs.names, strict=True)),
        source=list(zip(inputs.source or (), inputs.source_names, strict=True)),
        prompt_length=inputs.prompt_length,
        next_token=None if following is None else (following, inputs.name(following)),
        first_layer=layer or 0,
        maps=[*maps, *(_rollout_maps(attention.compute_rollout(weights), inputs) if layer is None else [])],
        entropy={one.key: attention.entropy(one.weights).mean(-1) for one in maps},
        streams={name: _first_in_batch(norms) for name, norms in lens.compute_norms(model, tape).items()},
        lens=_lens_table(model, tape, inputs, check_interrupt) if logits is not None and with_lens else None,
        words=[]
        if logits is None
        else predict(logits, maps, inputs, predicted_positions(model, inputs), check_interrupt),
        positions=position_table(stack, len(inputs.tokens)),  # type: ignore[arg-type]
    )


def predict(
    logits: Tensor,
    maps: list[AttentionMap],
    inputs: LookInput,
    positions: Sequence[int],
    check_interrupt: CheckInterrupt = never_interrupt,
) -> list[PredictedToken]:
    """The prediction at each of the positions, with the positions that it attended to most."""
    last = next((one for one in maps if one.key == "cross"), maps[-1])
    attended = last.weights.mean((0, 1))
    following = [None] * len(inputs.tokens) if inputs.masked_positions else [*inputs.tokens[1:], inputs.next_token]
    names = [*inputs.names[1:], None if inputs.next_token is None else inputs.name(inputs.next_token)]
    found = []
    for place in positions:
        check_interrupt()
        token = following[place]
        probabilities = logits[place].float().softmax(-1).cpu()
        most = attended[place].topk(min(TOP_ATTENDED, attended.shape[-1]))
        found.append(
            PredictedToken(
                place,
                None if token is None else names[place],
                None if token is None else float(probabilities[token]),
                None if token is None else 1 + int((probabilities > probabilities[token]).sum()),
                [Candidate(inputs.name(one), p) for one, p in most_likely(probabilities)],
                [(int(column), float(weight)) for weight, column in zip(*most, strict=True)],
            )
        )
    return found


def predicted_positions(model: Model, inputs: LookInput) -> Sequence[int]:
    """The positions whose predictions are shown: an encoder's masks, or all from the end of the prompt."""
    if isinstance(model, EncoderModel):
        return inputs.masked_positions
    return range(max(0, inputs.prompt_length - 1), len(inputs.tokens))


def most_likely(probabilities: Tensor, count: int = TOP_CANDIDATES) -> list[tuple[int, float]]:
    """The most likely tokens with their probabilities, from the probabilities [V] of all tokens."""
    best = probabilities.topk(min(count, len(probabilities)))
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def position_table(stack: Stack, length: int) -> PositionTable:
    """The vector added at each position, the cosines of rotary angles, or the vector or biases of each distance."""
    positions = torch.arange(length, device=next(stack.parameters()).device)
    rows = [str(position) for position in range(length)]
    if stack.position is not None:
        kind = "learned" if isinstance(stack.position, LearnedPositions) else "sinusoidal"
        return PositionTable(kind, stack.position(positions, length).detach().float().cpu()[:, :MAX_COLUMNS], rows)
    if stack.rotary is not None:
        return PositionTable("rotary", stack.rotary(positions, torch.float32).cos.cpu()[:, :MAX_COLUMNS], rows)
    if (module := stack.alibi or stack.relative_bias) is not None:
        bias = module(positions[:, None], torch.float32)[0, :, :, 0].T.detach().cpu()
        return PositionTable("alibi" if stack.alibi else "relative_bias", bias[:, :MAX_COLUMNS], rows)
    if stack.relative:
        table = stack.get_submodule("blocks.0.attention.relative").table.detach().float().cpu()  # type: ignore[operator]
        clip = len(table) // 2
        rows = [f"{distance:+d}" for distance in range(-clip, clip + 1)]
        return PositionTable("relative", table[:, :MAX_COLUMNS], rows)
    return PositionTable("none", None, [])


def _name_map(key: str, weights: Tensor, inputs: LookInput) -> AttentionMap:
    """A map with token names. Rows of cross-attention are named by the token that is predicted there."""
    own, source = inputs.names, inputs.source_names
    match key:
        case "encoder" | "rollout-encoder" if source:
            return AttentionMap(key, weights, source, source)
        case "cross" | "rollout-cross":
            last = "…" if inputs.next_token is None else inputs.name(inputs.next_token)
            return AttentionMap(key, weights, [*own[1:], last], source)
        case _:
            return AttentionMap(key, weights, own, own)


def _rollout_maps(rollout: attention.Rollout, inputs: LookInput) -> list[AttentionMap]:
    found = {"rollout-encoder": rollout.encoder, "rollout": rollout.decoder, "rollout-cross": rollout.cross}
    return [_name_map(key, one[None].cpu(), inputs) for key, one in found.items() if one is not None]


def _first_in_batch(norms: lens.StreamNorms) -> lens.StreamNorms:
    return lens.StreamNorms(*(None if part is None else part[:, 0].cpu() for part in norms))  # type: ignore[arg-type]


def _lens_table(model: Model, tape: Tape, inputs: LookInput, check_interrupt: CheckInterrupt) -> LensTable:
    best = min(TOP_CANDIDATES, model.config.vocabulary)
    found = lens.apply_lens(model, tape, best=best, check_interrupt=check_interrupt)
    layers = [
        [
            [Candidate(inputs.name(token), probability) for token, probability in zip(*pair, strict=True)]
            for pair in zip(layer, probabilities, strict=True)
        ]
        for layer, probabilities in zip(found.tokens[:, 0].tolist(), found.probabilities[:, 0].tolist(), strict=True)
    ]
    return LensTable(inputs.names, layers)
