"""What may be seen is seen:

both ways   an encoder's first vector changes with its last token
order       where there are positions, the last token's heads in the first block change with the order of the others

Deeper in a decoder the causal mask alone tells order; in its first block only positions do.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from chumoku.doctor.finding import Check, Finding, Skip
from chumoku.doctor.subject import Patient
from chumoku.doctor.tools import borrowed, distance
from chumoku.models.model import EncoderDecoderModel, Model
from chumoku.nn.tap import record

LENGTH = 8
STILL = {torch.float64: 1e-10, torch.float32: 1e-6}  # sums in another order, and no more


def run(patient: Patient) -> Iterator[Finding]:
    model = patient.the_model()
    config = model.config
    length = min(LENGTH, config.context, config.vocabulary, config.source_tokens)
    if length < 4:
        raise Skip("there are too few tokens, or too few places, for any order")
    stacks = [name for name in ("encoder", "decoder") if hasattr(model, name)]
    with borrowed(model), torch.no_grad():
        # By rows: some tokens; all but the last turned around; another one at the end.
        tokens = torch.arange(length, device=model.device).repeat(3, 1)
        tokens[1, :-1] = tokens[1, :-1].flip(0)
        tokens[2, -1] = 0
        with record(model, *(f"{name}.blocks.0.attention.heads" for name in stacks)) as tape:
            encoded = asked(model, tokens)
        heads = {name: tape[f"{name}.blocks.0.attention.heads"] for name in stacks}
        still = STILL.get(model.dtype, 1e-3)
        if "encoder" in stacks and distance(encoded[0, 0], encoded[2, 0]) <= still:
            yield Finding(
                "reach",
                "The encoder's first token learns nothing of the last one: it sees backwards alone.",
                "the encoder",
                0.97,
                "An encoder has no causal mask: every token sees every token.",
            )
        if config.position == "none" or (config.position == "relative" and config.relative_clip < 2):
            return
        for name, found in heads.items():
            if distance(found[0, :, -1], found[1, :, -1]) <= still:
                yield Finding(
                    "reach",
                    f"In whatever order tokens come, the {name} finds the same, although position is "
                    f"'{config.position}'.",
                    f"the {name}'s first block",
                    0.97,
                    "Look at where positions come from: they are all 0, or lost before they reach a token.",
                )


def asked(model: Model, tokens: Tensor) -> Tensor:
    """One pass, and what the encoder, where there is one, makes of it."""
    if not isinstance(model, EncoderDecoderModel):
        hidden: Tensor = model(tokens).hidden
        return hidden
    memory = model.encode(tokens)
    model.decode(tokens, memory)
    return memory.states  # type: ignore[return-value]


CHECK = Check("reach", "order matters, and an encoder sees both ways", cheap=True, run=run)
