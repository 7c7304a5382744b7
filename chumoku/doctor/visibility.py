"""Attention reaches all visible tokens, and positions have an effect:

both directions   an encoder's first output changes with its last token
order             if the model has positions, the last token's heads in block 0 change with the order of the others

Only block 0 is tested for order: in deeper decoder blocks the causal mask alone gives order information.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Subject
from chumoku.doctor.tools import distance, restore_after
from chumoku.models.model import EncoderDecoderModel, Model
from chumoku.nn.tap import record

LENGTH = 8
UNCHANGED = {torch.float64: 1e-10, torch.float32: 1e-6}  # differences from summing in another order


def run(subject: Subject) -> Iterator[Finding]:
    model = subject.require_model()
    config = model.config
    window = config.attention_window or LENGTH  # a longer text would have hidden tokens
    length = min(LENGTH, config.context, config.vocabulary, config.source_tokens, window)
    if length < 4:
        raise Skip("the context, vocabulary or attention window is too small for this check")
    stacks = [name for name in ("encoder", "decoder") if hasattr(model, name)]
    with restore_after(model), torch.no_grad():
        # Row 0: some tokens. Row 1: all but the last reversed. Row 2: a different last token.
        tokens = torch.arange(length, device=model.device).repeat(3, 1)
        tokens[1, :-1] = tokens[1, :-1].flip(0)
        tokens[2, -1] = 0
        with record(model, *(f"{name}.blocks.0.attention.heads" for name in stacks)) as tape:
            encoded = first_stack_output(model, tokens)
        heads = {name: tape[f"{name}.blocks.0.attention.heads"] for name in stacks}
        unchanged = UNCHANGED.get(model.dtype, 1e-3)
        if "encoder" in stacks and distance(encoded[0, 0], encoded[2, 0]) <= unchanged:
            yield Finding(
                "reach",
                "The encoder's first token does not see the last token: attention only looks backwards.",
                "the encoder",
                0.97,
                "Remove the causal mask: in an encoder every token sees every token.",
            )
        if config.position == "none" or (config.position == "relative" and config.relative_clip < 2):
            return
        for name, found in heads.items():
            if distance(found[0, :, -1], found[1, :, -1]) <= unchanged:
                yield Finding(
                    "reach",
                    f"The order of the tokens does not change the {name}'s output, although position is "
                    f"'{config.position}'.",
                    f"the {name}'s first block",
                    0.97,
                    "Check the positions: they are all 0, or are lost before they reach a token.",
                )


def first_stack_output(model: Model, tokens: Tensor) -> Tensor:
    """Run the whole model; returns the encoder's output, or the decoder's if there is no encoder."""
    if not isinstance(model, EncoderDecoderModel):
        hidden: Tensor = model(tokens).hidden
        return hidden
    memory = model.encode(tokens)
    model.decode(tokens, memory)
    return memory.states  # type: ignore[return-value]


CHECK = Check("reach", "order has an effect, and an encoder sees all tokens", cheap=True, run=run)
