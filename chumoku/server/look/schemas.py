"""What may be asked of a model's inside: every field typed and bounded, every other one refused.

Question   model, text, target, new      what all of them carry
Look       maps, layer, lens             Tensor   address, row, head
Block      part, layer, head, place      Next     count
Ablate     off                           RunLook  checkpoint, map, layer, head
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_NEW = 64
LONGEST_TEXT = 100_000  # characters: what is looked at is cut to tokens afterwards

Name = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]
Id = Annotated[int, Field(ge=0, le=1 << 24)]
Tokens = Annotated[list[Id], Field(max_length=1024)]
Target = Annotated[Text | Tokens, Field()] | None
Layer = Annotated[int, Field(ge=0, le=1024)]
Head = Annotated[int, Field(ge=0, le=1024)]
Place = Annotated[int, Field(ge=0, le=1024)]
Stack = Literal["encoder", "decoder"]
MapName = Literal["encoder", "decoder", "cross", "rollout", "rollout-encoder", "rollout-cross"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Question(Strict):
    """A model, a text, and what it is said to have written: a text, its tokens, or what it writes greedily itself."""

    model: Name
    text: Text
    target: Target = None
    new: Annotated[int, Field(ge=0, le=MOST_NEW)] | None = None


class Look(Question):
    maps: Annotated[list[MapName], Field(max_length=6)] | None = None  # all
    layer: Layer | None = None  # all; with one, longer texts are shown
    lens: bool = True  # what each layer would say: of a large vocabulary, most of the work


class Tensor(Question):
    address: Name
    row: Place | None = None
    head: Head = 0


class Block(Question):
    part: Stack
    layer: Layer
    head: Head
    place: Place


class Next(Question):
    count: Annotated[int, Field(ge=1, le=200)] = 100


class Part(Strict):
    """What is switched off: a head, or with `feedforward` the whole feed-forward of a layer."""

    part: Stack
    layer: Layer
    head: Head | None = None
    cross: bool = False
    feedforward: bool = False


class Ablate(Question):
    off: Annotated[list[Part], Field(min_length=1, max_length=64)]


class RunLook(Strict):
    """One head's map at one checkpoint of a run."""

    checkpoint: Annotated[int, Field(ge=0, le=10**12)]
    text: Text
    target: Target = None
    map: Literal["encoder", "decoder", "cross"]
    layer: Layer
    head: Head
