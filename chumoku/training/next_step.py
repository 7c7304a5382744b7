"""The command to try after a training run, by the kind of data and model."""

from __future__ import annotations

from pathlib import Path

COMMANDS = {  # data.kind → command
    **dict.fromkeys(("pairs", "embedded"), 'translate {} "A sentence."'),
    **dict.fromkeys(("chat", "preferences"), "chat {}"),
    **dict.fromkeys(("labels", "tags"), 'classify {} "A sentence."'),
    "prompts": 'generate {} "A prompt"',
    "sentences": 'embed {} "A sentence." "Another one."',
}
TEXT_COMMANDS = {"decoder": 'generate {} "Once upon a time"', "encoder": 'embed {} "A sentence." "Another one."'}


def suggest_next(data_kind: str, model_kind: str, folder: Path) -> str:
    """A sentence with the command that uses the result; empty for batches of the caller's own.

    An encoder-decoder that was trained by span corruption fills gaps: it is a start for training, not a translator.
    """
    if data_kind == "own":
        return ""
    if data_kind == "text" and model_kind == "encoder-decoder":
        return f" It has learned to fill gaps; train it for a task: chumoku train RECIPE model.init={folder}"
    command = TEXT_COMMANDS[model_kind] if data_kind == "text" else COMMANDS[data_kind]
    return f" Use it: chumoku {command.format(folder)}"
