"""The tokenizer of a model that has none, such as a folder of transformers without tokenizer files."""

from __future__ import annotations

from typing import Any

from chumoku.errors import UsageError
from chumoku.text.tokenizer import Tokenizer


class MissingTokenizer(Tokenizer):
    """Takes the place of a tokenizer; whatever is done with it raises a UsageError with `message`."""

    message: str

    def __init__(self, message: str) -> None:
        self.message = message

    def __getattribute__(self, name: str) -> Any:
        if name == "message" or name.startswith("__"):
            return object.__getattribute__(self, name)
        raise UsageError(self.message)
