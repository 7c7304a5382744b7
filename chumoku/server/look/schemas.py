"""Request bodies of the look routes: every field has a type and bounds, and unknown fields are refused.

PromptRequest  model, text, target, new      the base of all but RunLook
Look           maps, layer, lens             Tensor   address, row, head
Block          part, layer, head, place      Next     count
Ablate         off                           Patch    other, replace
Effects        part, layer
RunLook        checkpoint, map, layer, head
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_NEW_TOKENS = 64
MAX_TEXT = 100_000  # characters; the text is cut to a number of tokens later

Name = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
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


class PromptRequest(Strict):
    """A model, a text, and its continuation: a text, token ids, or (None) what the model generates greedily."""

    model: Name
    text: Text
    target: Target = None
    new: Annotated[int, Field(ge=0, le=MAX_NEW_TOKENS)] | None = None


class Look(PromptRequest):
    maps: Annotated[list[MapName], Field(max_length=6)] | None = None  # None: all
    layer: Layer | None = None  # None: all; a single layer allows longer texts
    lens: bool = True  # logits of each layer; slow for a large vocabulary


class Tensor(PromptRequest):
    address: Name
    row: Place | None = None
    head: Head = 0


class Block(PromptRequest):
    part: Stack
    layer: Layer
    head: Head
    place: Place


class Next(PromptRequest):
    count: Annotated[int, Field(ge=1, le=200)] = 100


class Part(Strict):
    """A part to switch off: a head, or with `feedforward` the feed-forward of the layer."""

    part: Stack
    layer: Layer
    head: Head | None = None
    cross: bool = False
    feedforward: bool = False


class Ablate(PromptRequest):
    off: Annotated[list[Part], Field(min_length=1, max_length=64)]


class Replacement(Strict):
    """A position whose tensor is replaced by that of the other text, there at `other_place` (by default the same)."""

    address: Name
    place: Place
    other_place: Place | None = None
    head: Head | None = None  # None: all heads


class Patch(PromptRequest):
    other: Text
    replace: Annotated[list[Replacement], Field(min_length=1, max_length=64)]


class Effects(PromptRequest):
    part: Stack
    layer: Layer


class RunLook(Strict):
    """One head's attention map at one checkpoint of a run."""

    checkpoint: Annotated[int, Field(ge=0, le=10**12)]
    text: Text
    target: Target = None
    map: Literal["encoder", "decoder", "cross"]
    layer: Layer
    head: Head
