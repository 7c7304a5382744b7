"""chumoku demo: a first look inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SOURCE = "こたつでみかんを食べる"
TARGET = ["I", "eat", "a", "mandarin", "at", "the", "kotatsu."]


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("runs/demo"),
) -> None:
    """Build a small encoder-decoder, run こたつでみかんを食べる through it, and draw where each word looks."""
    import torch

    import chumoku
    from chumoku.probe.pictures import attention_maps

    words = [*SOURCE, *TARGET]
    numbers = {word: index for index, word in enumerate(dict.fromkeys(words))}
    config = chumoku.preset("tiny-encoder-decoder", vocabulary=len(numbers), initialisation="xavier")
    model = chumoku.build(config)
    parameters = chumoku.count(config).parameters
    print(f"An {config.kind} of {config.layers} + {config.layers} layers, {parameters:,} parameters, untrained.")

    source = torch.tensor([[numbers[word] for word in SOURCE]])
    target = torch.tensor([[numbers[word] for word in TARGET]])
    address = f"decoder.blocks.{config.layers - 1}.cross_attention.weights"
    with torch.inference_mode(), chumoku.record(model, address) as tape:
        logits = model(source, target).logits
    weights = tape[address][0]
    print(f"{SOURCE} ({len(SOURCE)} characters) and {len(TARGET)} words gave logits {list(logits.shape)}.")
    print(f"{address} is {list(weights.shape)}: heads × words × characters, every row sums to 1.")
    for word, row in zip(TARGET, weights.mean(0), strict=True):
        print(f"  {word:<10} looks most at {SOURCE[int(row.argmax())]}  ({row.max():.2f}; even is {1 / len(row):.2f})")
    title = f"Where each word looks, before any training ({address})"
    path = attention_maps(weights, queries=TARGET, keys=list(SOURCE), title=title, path=out / "attention.png")
    print(f"The picture is in {path}.")
